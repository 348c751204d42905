"""What one action has brought so far, and whether that is what was promised.

Theory of operation. Load comes and goes, so that turns are compared only with turns of about the
same time. Two kinds of samples say what an action saves. When it is switched on, the middle of the
MIN_TURNS turns before is set against that of the first MIN_TURNS with it. And while it is in use,
every TRY_EVERY-th turn that calls for it goes without, and is set against the middle of the latest
turns with it; the other actions are the same in both. Where the middle of the samples is below a
quarter of what was promised, or not worth a switch, the action does not pay. Pure.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from latency_budget.account.actions import ActionTaken

MIN_TURNS: Final = 5
"""For a middle that one outlier moves by little."""

TRY_EVERY: Final = 16
"""Rarer, a change of load goes unnoticed for minutes; more often, callers pay for the knowledge."""

COMPARED: Final = 8
"""Turns with it that one without is set against, at most; and samples that are remembered."""

MIN_SAMPLES: Final = 3
"""Of one turn each, before anything is concluded. One of a switch, which is of ten turns, weighs as
much."""

PAYS: Final = 0.25
"""Of what was promised."""

MIN_SAVING_MS: Final = 8.0
"""Less is not worth a switch: half a token, or what one core's frequency moves."""


def _window() -> deque[float]:
    return deque(maxlen=COMPARED)


@dataclass(slots=True)
class ActionEffect:
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
    _called_for: int = 0
    """Since it was switched on."""
    _before: tuple[float, ...] = ()
    """The last turns before that."""
    _with: deque[float] = field(default_factory=_window)
    _samples: deque[float] = field(default_factory=_window)
    _promised: deque[float] = field(default_factory=_window)

    @property
    def measured_ms(self) -> float | None:
        """What it saves. None before there are samples enough."""
        return statistics.median(self._samples) if len(self._samples) >= MIN_SAMPLES else None

    @property
    def pays(self) -> bool:
        """As far as is known."""
        if self.measured_ms is None or not self._promised:
            return True
        return self.measured_ms >= max(MIN_SAVING_MS, PAYS * statistics.median(self._promised))

    def called_for(self) -> bool:
        """A turn calls for it: whether it is to be taken, or left out to see what it saves."""
        self._called_for += 1
        return self._called_for % TRY_EVERY != 0

    def switch_on(self, before: Sequence[float]) -> None:
        """`before`: what it works on, in the latest turns without it."""
        self._forget()
        self.is_on = True
        self._before = tuple(before)

    def switch_off(self) -> None:
        self._forget()
        self.is_on = False

    def set_aside(self, until_turn: int) -> None:
        """Let it rest."""
        self.switch_off()
        self.aside_until = until_turn
        self.times_set_aside += 1

    def compared(self, taken: ActionTaken, time_ms: float | None) -> ActionTaken:
        """A turn that called for it, and how long what it works on took. Given back with what the
        action saves, where that is known."""
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

    def told(self, taken: ActionTaken) -> ActionTaken:
        """A turn with it, in which what it saved was seen."""
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
