"""Live marks: sends each mark of a turn to its client as `halfsec.mark` while the turn runs.

For a page that shows where the time goes as it goes. The interesting half of a turn lies before
anyone knows that it is one, so marks are told as soon as they are known, without a number at first:

- `turn` null: of the turn to come. The first mark with a number gives it to all of those.
- `name` "void": what was told of the turn to come is worth nothing, because the caller goes on, or
  it was no speech. Any other name is one of `latency_budget/account/marks.py`.
- `at_ms`: when it happened, after the session's start, as in its trace. `now_ms`: when it is told,
  on the same axis. The least difference between that and the client's own clock at the arrival
  places all of them, but for the way there.
- `guess`: work for a reply that is prepared in case the caller has finished.

Marks without a place in time, and those that only the policy reads, are left out.
"""

from collections.abc import Callable
from typing import Any, Final

from agent.session.api.server_events import Extension, Notice
from latency_budget.account.clock import Clock
from latency_budget.account.marks import Mark, MarkName

MAX_TOLD: Final = 64
"""Marks of one turn since they were void last. A turn with tools in two rounds has 35; one who
reports playback a thousand times, or calls tools for ever, is told no more."""

VOID: Final = "void"

_LEFT_OUT: Final = frozenset({MarkName.LLM_WASTED, MarkName.ACTED})

_OF_REPLY: Final = frozenset(
    {
        MarkName.REPLY_REQUESTED,
        MarkName.LLM_FIRST_TOKEN,
        MarkName.FIRST_PIECE,
        MarkName.TTS_START,
        MarkName.TTS_FIRST_CHUNK,
        MarkName.FIRST_AUDIBLE_READY,
        MarkName.TOOL_START,
        MarkName.TOOL_DONE,
        MarkName.DISCARDED,
    }
)


class LiveMarks:
    """Belongs to one session whose client has extensions."""

    def __init__(self, notify: Callable[[Notice], None], clock: Clock, origin_ns: int) -> None:
        """`origin_ns`: the session's start."""
        self._notify = notify
        self._clock = clock
        self._origin_ns = origin_ns
        self._turn = 0
        self._num_told = 0

    def marked(self, mark: Mark) -> None:
        """Of a turn, or with number 0 of the one to come. Each comes once."""
        if mark.name in _LEFT_OUT:
            return
        if mark.turn > self._turn:
            self._turn = mark.turn
            self._num_told = 0
        if self._num_told < MAX_TOLD:
            self._num_told += 1
            is_guess = mark.turn == 0 and mark.name in _OF_REPLY
            self._tell(mark.turn or None, mark.name.value, mark.at_ns, is_guess=is_guess)

    def void(self) -> None:
        """The turn to come begins afresh."""
        self._num_told = 0
        self._tell(None, VOID, self._clock.now_ns(), is_guess=False)

    def _tell(self, turn: int | None, name: str, at_ns: int, *, is_guess: bool) -> None:
        fields: dict[str, Any] = {
            "turn": turn,
            "name": name,
            "at_ms": self._ms(at_ns),
            "now_ms": self._ms(self._clock.now_ns()),
            "guess": is_guess,
        }
        self._notify(Extension("halfsec.mark", fields))

    def _ms(self, at_ns: int) -> float:
        return round((at_ns - self._origin_ns) / 1e6, 1)
