"""Measured saving of one action, found by leaving it out every 16th turn.

Theory of operation. Load comes and goes, so that turns are compared only with turns of about the
same time. Two kinds of samples measure what an action saves. When it is switched on, the median of
the MIN_TURNS turns before is compared with that of the first MIN_TURNS with it. And while it is in
use, every TRY_EVERY-th turn in which it is due goes without, and is compared with the median of the
latest turns with it; the other actions are the same in both. Where the median of the samples is
below a quarter of the prediction, or below MIN_SAVING_MS, the action does not pay. Pure.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from latency_budget.account.actions import ActionTaken

MIN_TURNS: Final = 5
"""Turns of a median: with fewer, one outlier moves it."""

TRY_EVERY: Final = 16
"""Turns between two without the action. More, and a change of load goes unnoticed for minutes;
fewer, and callers often wait longer for the sake of the measurement."""

COMPARED: Final = 8
"""Most turns with the action that one without is compared with; and the number of samples kept."""

MIN_SAMPLES: Final = 3
"""Samples of one turn each, before anything is concluded. A comparison at a switch, which is of ten
turns, counts as so many."""

PAYS: Final = 0.25
"""Smallest share of the predicted saving that pays."""

MIN_SAVING_MS: Final = 8.0
"""A smaller saving is not worth a switch: it is half a token, or the drift of a core's
frequency."""


def _window() -> deque[float]:
    return deque(maxlen=COMPARED)


@dataclass(slots=True)
class ActionEffect:
    """State and measured saving of one action. Times in ms."""

    is_on: bool = False
    """Switched on; only for an action that persists from turn to turn."""
    suspended_until: int = 0
    """Number of the turn until which it is suspended."""
    times: int = 0
    """Turns in which it was taken."""
    predicted_ms: float = 0.0
    """Predicted saving, summed over those turns."""
    saved_ms: float = 0.0
    """Measured saving, summed over those turns for which it is known."""
    times_set_aside: int = 0
    _called_for: int = 0
    """Turns in which it was due, since it was switched on."""
    _before: tuple[float, ...] = ()
    """Times of the last turns before that."""
    _with: deque[float] = field(default_factory=_window)
    _samples: deque[float] = field(default_factory=_window)
    _promised: deque[float] = field(default_factory=_window)

    @property
    def measured_ms(self) -> float | None:
        """Median saving of the samples. None with fewer than MIN_SAMPLES."""
        return statistics.median(self._samples) if len(self._samples) >= MIN_SAMPLES else None

    @property
    def pays(self) -> bool:
        """False once the samples show that the saving is too small."""
        if self.measured_ms is None or not self._promised:
            return True
        return self.measured_ms >= max(MIN_SAVING_MS, PAYS * statistics.median(self._promised))

    def called_for(self) -> bool:
        """Count a turn in which the action is due. Returns False where it is to be left out, to
        measure what it saves."""
        self._called_for += 1
        return self._called_for % TRY_EVERY != 0

    def switch_on(self, before: Sequence[float]) -> None:
        """Switch the action on. `before`: the times it works on, of the latest turns without it."""
        self._forget()
        self.is_on = True
        self._before = tuple(before)

    def switch_off(self) -> None:
        """Switch the action off, and drop its samples."""
        self._forget()
        self.is_on = False

    def set_aside(self, until_turn: int) -> None:
        """Suspend the action until the turn of this number."""
        self.switch_off()
        self.suspended_until = until_turn
        self.times_set_aside += 1

    def compared(self, taken: ActionTaken, time_ms: float | None) -> ActionTaken:
        """Count a turn in which the action was due, with the time that it works on. Returns it with
        the measured saving, where that is known."""
        if taken.left_out:
            if time_ms is not None and len(self._with) >= MIN_SAMPLES:
                self._samples.append(time_ms - statistics.median(self._with))
            return taken
        if time_ms is not None:
            self._with.append(time_ms)
            if len(self._before) >= MIN_TURNS and len(self._with) == MIN_TURNS:
                saved_ms = statistics.median(self._before) - statistics.median(self._with)
                self._samples.extend([saved_ms] * MIN_SAMPLES)
                self._before = ()
        return self._count(replace(taken, saved_ms=self.measured_ms))

    def observed(self, taken: ActionTaken) -> ActionTaken:
        """Count a turn with the action, whose saving was measured in the turn itself."""
        if taken.saved_ms is not None:
            self._samples.append(taken.saved_ms)
        return self._count(taken)

    def _forget(self) -> None:
        self._called_for, self._before = 0, ()
        for values in (self._with, self._samples, self._promised):
            values.clear()

    def _count(self, taken: ActionTaken) -> ActionTaken:
        self.times += 1
        self.predicted_ms += taken.predicted_ms
        self.saved_ms += taken.saved_ms or 0.0
        self._promised.append(taken.predicted_ms)
        return taken
