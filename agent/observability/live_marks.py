"""Live marks: sends each mark of a turn to its client as `halfsec.mark` while the turn runs.

For pages that show the latency of a turn while it runs. The interesting half of a turn lies before
it is known to be one, so marks are sent as soon as they are known, without a turn number at first:

- `turn` null: a mark of the turn to come. The number of the first numbered mark applies to all of
  them.
- `name` "void": the marks sent for the turn to come are invalid, because the caller continues, or
  it was no speech. Any other name is one of `latency_budget/account/marks.py`.
- `at_ms`: time of the mark, in ms after the session's start, as in its trace. `now_ms`: time of
  sending, on the same axis. The least difference between `now_ms` and the client's own clock at the
  arrival maps all marks to that clock, except for the network delay.
- `guess`: work of preemptive generation, in case the caller has finished.

Marks without a time, those that only the policy reads, and those that are made when the next turn
has begun (whether the reply cut in) are not sent.
"""

from collections.abc import Callable
from typing import Any, Final

from agent.session.api.server_events import Extension, Notice
from latency_budget.account.clock import Clock
from latency_budget.account.marks import Mark, MarkName

MAX_TOLD: Final = 64
"""Maximum of marks sent for one turn since its last "void". A turn with two rounds of tools has 35;
the limit stops a client that reports playback a thousand times, or a turn that calls tools
endlessly."""

VOID: Final = "void"

_LEFT_OUT: Final = frozenset(
    {
        MarkName.LLM_WASTED,
        MarkName.LLM_CONDENSED,
        MarkName.ACTED,
        MarkName.CUT_IN,
        MarkName.WITHDRAWN,
    }
)

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
    """Sender of `halfsec.mark`. Belongs to one session whose client has extensions."""

    def __init__(self, notify: Callable[[Notice], None], clock: Clock, origin_ns: int) -> None:
        """`origin_ns`: the session's start, in ns of `clock`."""
        self._notify = notify
        self._clock = clock
        self._origin_ns = origin_ns
        self._turn = 0
        self._num_told = 0

    def marked(self, mark: Mark) -> None:
        """Send a mark of a turn; turn number 0 is the turn to come. Call it once for each mark."""
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
        """Send "void": the turn to come begins again."""
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
