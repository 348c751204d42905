"""Growth of a target's memory, from the time on at which it has settled. Pure."""

from dataclasses import dataclass
from typing import Final

SETTLED_INPUTS: Final = 5000
"""Inputs after which caches are full and everything is imported, at most. Slow targets have fewer
in a whole run: of theirs it is a tenth."""
SETTLED_SHARE: Final = 0.1


@dataclass(slots=True)
class MemoryGrowth:
    """What a process has gained since it settled."""

    settled_inputs: float = SETTLED_INPUTS
    settled_s: float = float("inf")
    """The process has settled after so many inputs, or so many seconds."""
    _settled_bytes: int = 0
    _is_settled: bool = False

    @classmethod
    def of_run(
        cls, num_inputs: int, seconds: int, settled_inputs: int = SETTLED_INPUTS
    ) -> "MemoryGrowth":
        """For a run of so many inputs or seconds; 0 and below: no limit."""
        share = SETTLED_SHARE * num_inputs if num_inputs > 0 else float("inf")
        return cls(
            min(settled_inputs, share), SETTLED_SHARE * seconds if seconds > 0 else float("inf")
        )

    def grown_bytes(self, num_inputs: int, elapsed_s: float, resident_bytes: int) -> int:
        """Bytes gained since the process settled; 0 before."""
        if not self._is_settled:
            self._settled_bytes = resident_bytes
            self._is_settled = num_inputs >= self.settled_inputs or elapsed_s >= self.settled_s
        return resident_bytes - self._settled_bytes
