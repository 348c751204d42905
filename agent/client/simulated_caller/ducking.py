"""Ducking: plays a reply quieter while the server decides whether the caller interrupts it.

A step in level is heard as a click, so every change is a ramp. The same rule as the page's
(`web_demo/audio/gain.js`): a duck belongs to one item and ends with it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

DUCKED: Final = 0.2
"""Level of a ducked reply, -14 dB: audible enough to go on from, quiet enough to be talked over."""
FALL_NS: Final = 20_000_000
"""Ramp from full level down. Short: the caller has already been speaking for a while when the
server knows."""
RISE_NS: Final = 100_000_000
"""Ramp back to full level. Slower: a voice that comes back at once startles."""

Int16 = npt.NDArray[np.int16]


class Ducking:
    """The level of one item over time. Calls come in order of time."""

    def __init__(self) -> None:
        self._at_ns: list[int] = []
        self._levels: list[float] = []
        """Levels at `_at_ns`; linear in between, constant outside."""

    def duck(self, at_ns: int) -> None:
        """Ramp down from the current level."""
        self._turn(at_ns, DUCKED, FALL_NS)

    def unduck(self, at_ns: int) -> None:
        """Ramp up to full level from the current one."""
        self._turn(at_ns, 1.0, RISE_NS)

    def level(self, at_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Level 0..1 at each of these times in ns."""
        if not self._at_ns:
            return np.ones(len(at_ns))
        return np.interp(at_ns, self._at_ns, self._levels)

    def applied(self, pcm: Int16, rate_hz: int, start_ns: int) -> Int16:
        """`pcm` with the level applied; its first sample is played at `start_ns`."""
        if not self._at_ns:
            return pcm
        at_ns = start_ns + np.arange(len(pcm), dtype=np.int64) * 1_000_000_000 // rate_hz
        return np.asarray(np.rint(pcm * self.level(at_ns)), dtype=np.int16)

    def _turn(self, at_ns: int, target: float, whole_ns: int) -> None:
        """Ramp from the current level to `target`; a part of the way takes a part of the time."""
        now = float(self.level(np.array([at_ns]))[0])
        kept = [at < at_ns for at in self._at_ns].count(True)
        share = abs(target - now) / (1 - DUCKED)
        self._at_ns[kept:] = [at_ns, at_ns + max(1, round(share * whole_ns))]
        self._levels[kept:] = [now, target]
