"""Pacer of a soak: pauses between visits, so that the server takes a stated share of the machine.

The share is of the processor time of all usable cores, as the server's process spends it. It is
measured with every sample, and the pause is corrected by the square root of the ratio: visits last
up to a minute, so that a full correction would swing. Pure.
"""

from typing import Final

FIRST_S: Final = 2.0
MIN_S: Final = 0.1
MAX_S: Final = 60.0
STEP: Final = 1.5
"""Greatest correction at a time, as a factor."""


class Pacer:
    """Length of the pause after each visit."""

    def __init__(self, share: float, num_cores: float) -> None:
        """`share`: of the processor time of `num_cores`, 0..1."""
        self.pause_s = FIRST_S
        self._share = share
        self._num_cores = num_cores
        self._last: tuple[float, float] | None = None

    def note(self, at_s: float, cpu_s: float) -> float | None:
        """Correct the pause by the processor time spent up to now. Returns the share of the time
        since the note before; None for the first one."""
        last, self._last = self._last, (at_s, cpu_s)
        if last is None or at_s <= last[0]:
            return None
        used = (cpu_s - last[1]) / (at_s - last[0]) / self._num_cores
        factor = max(1 / STEP, min(STEP, (max(used, 0.01) / self._share) ** 0.5))
        self.pause_s = max(MIN_S, min(MAX_S, self.pause_s * factor))
        return used
