"""What one action has brought so far, and whether that is what was promised.

The time that the action works on is kept for the latest turns with it and for the latest without.
Where the middle of the ones does not lie below the middle of the others by a quarter of what was
promised, the action does not pay. Pure.
"""

import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from .actions import ActionTaken

COMPARED: Final = 16
"""Turns on each side of the comparison, at most."""

MIN_COMPARED: Final = 5
"""On each side, before anything is concluded: one outlier moves the middle of five by little."""

PAYS: Final = 0.25
"""Of what was promised."""


def _window() -> deque[float]:
    return deque(maxlen=COMPARED)


@dataclass(slots=True)
class Rung:
    """Of the ladder. Times in ms."""

    is_on: bool = False
    """Of an action that stands from turn to turn."""
    aside_until: int = 0
    """Number of the turn until which it is set aside."""
    times: int = 0
    """Turns in which it was taken."""
    predicted_ms: float = 0.0
    """Summed over those."""
    saved_ms: float = 0.0
    """Summed over those for which it is known."""
    times_set_aside: int = 0
    _with: deque[float] = field(default_factory=_window)
    _without: deque[float] = field(default_factory=_window)
    _promised: deque[float] = field(default_factory=_window)

    @property
    def measured_ms(self) -> float | None:
        """What it saves, by comparison. None before there were turns enough of both kinds."""
        if min(len(self._with), len(self._without)) < MIN_COMPARED:
            return None
        return statistics.median(self._without) - statistics.median(self._with)

    @property
    def pays(self) -> bool:
        """As far as is known."""
        if self.measured_ms is None or not self._promised:
            return True
        return self.measured_ms >= PAYS * statistics.median(self._promised)

    def left_out(self, time_ms: float) -> None:
        """A turn without it, in which what it works on took so long."""
        self._without.append(time_ms)

    def compared(self, taken: ActionTaken, time_ms: float | None) -> ActionTaken:
        """A turn with it. Given back with what it saved, where that can be told."""
        if time_ms is not None:
            self._with.append(time_ms)
            if len(self._without) >= MIN_COMPARED:
                taken = replace(taken, saved_ms=statistics.median(self._without) - time_ms)
        return self._count(taken)

    def told(self, taken: ActionTaken) -> ActionTaken:
        """A turn with it, in which what it saved was seen."""
        if taken.saved_ms is not None:
            self._with.append(0.0)
            self._without.append(taken.saved_ms)
        return self._count(taken)

    def set_aside(self, until_turn: int) -> None:
        """Forget what it was, and let it rest."""
        self.is_on = False
        self.aside_until = until_turn
        self.times_set_aside += 1
        for values in (self._with, self._without, self._promised):
            values.clear()

    def _count(self, taken: ActionTaken) -> ActionTaken:
        self.times += 1
        self.predicted_ms += taken.predicted_ms
        self.saved_ms += taken.saved_ms or 0.0
        self._promised.append(taken.predicted_ms)
        return taken
