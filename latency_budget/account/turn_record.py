"""What became of one turn: the finished account that reports, stores and pages read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .actions import ActionTaken
from .marks import MarkName
from .turn import Span, Stage, TurnId

NS_PER_MS = 1_000_000


class Origin(StrEnum):
    """Where a turn's time starts."""

    CALLER_LAST_VOICED = "caller_last_voiced"
    REPLY_REQUESTED = "reply_requested"
    """A typed turn: the message's arrival."""
    GREETING = "greeting"
    """Nobody waited for it: such a turn has no end-to-end time either."""
    UNKNOWN = "unknown"
    """The mark is missing: such a turn has no end-to-end time."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of one turn. Integer nanoseconds, so that sums are exact."""

    spent_ns: int = 0
    """Time in which the stage was at work, whether or not anyone waited for it. Discarded work is
    not in it (see `TurnRecord.wasted_ns`)."""
    exposed_ns: int = 0
    """Its part of the critical path, time spent queueing for it included."""

    @property
    def spent_ms(self) -> float:
        return self.spent_ns / NS_PER_MS

    @property
    def exposed_ms(self) -> float:
        return self.exposed_ns / NS_PER_MS


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The account of one turn.

    The exposed times add up to `e2e_ear_ns` where that is known, else to `e2e_server_ns`; all are 0
    where neither is.
    """

    turn: TurnId
    origin: Origin
    stages: Mapping[Stage, StageTime]
    """All stages, in their order."""
    e2e_server_ns: int | None
    """Origin to first audible sample released. None: never released, origin unknown, or released
    before the caller's last voiced frame."""
    e2e_ear_ns: int | None
    """Origin to the client's playback of that sample. None also where clients don't report it."""
    answered: bool
    """An audible sample was released."""
    cut_in: bool
    """Audible before the caller's last voiced frame. Such a turn has no end-to-end time: a
    negative one would flatter the percentiles."""
    interrupted: bool
    reopened: bool
    """It goes on with the turn before, whose reply was taken back unheard."""
    incomplete: tuple[str, ...]
    """What is missing or out of order, in words; empty for a whole record."""
    wasted_ns: int
    """Stage time of speculative work that was thrown away."""
    spans: tuple[Span, ...]
    """The work that counted, from the origin's clock; may begin before the origin."""
    path: tuple[Span, ...]
    """The critical path: contiguous, from the origin to the end."""
    paced_ns: int = 0
    """Of the end-to-end time: the reply was ready and held back on purpose. Exposed as pacing."""
    opener: bool = False
    """The reply was late, and words kept at hand were said in front of it."""
    wasted_prompt_tokens: int = 0
    """Prefilled by the language model for guesses that were thrown away."""
    wasted_output_tokens: int = 0
    """Generated for them."""
    speech_ns: int | None = None
    """How long the caller spoke, pauses included, in the utterance that was answered. None: not
    known."""
    asked: bool = False
    """The client said when the turn ends, or when it is answered."""
    actions: tuple[ActionTaken, ...] = ()
    """What was done lest it be late, in the order of the ladder."""
    left_out: tuple[ActionTaken, ...] = ()
    """What was called for as well, and not done to see what it saves. Not kept in the store."""
    marks: tuple[tuple[MarkName, int], ...] = ()
    """The marks that counted, in order of time, in ns from `started_ns`. Of a turn that was stored
    by a version before this field: none."""
    started_ns: int | None = field(default=None, compare=False)
    """Its origin on the clock of its marks; where it has none, its first mark. None of a turn that
    was read from a store."""

    @property
    def e2e_server_ms(self) -> float | None:
        return None if self.e2e_server_ns is None else self.e2e_server_ns / NS_PER_MS

    @property
    def e2e_ear_ms(self) -> float | None:
        return None if self.e2e_ear_ns is None else self.e2e_ear_ns / NS_PER_MS

    @property
    def e2e_ns(self) -> int | None:
        """The longer view that is known: at the ear, else at the server."""
        return self.e2e_server_ns if self.e2e_ear_ns is None else self.e2e_ear_ns

    @property
    def e2e_raw_ns(self) -> int | None:
        """As `e2e_ns`, had nothing been held back on purpose."""
        return None if self.e2e_ns is None else self.e2e_ns - self.paced_ns

    @property
    def e2e_raw_ms(self) -> float | None:
        return None if self.e2e_raw_ns is None else self.e2e_raw_ns / NS_PER_MS

    @property
    def paced_ms(self) -> float:
        return self.paced_ns / NS_PER_MS

    @property
    def wasted_ms(self) -> float:
        return self.wasted_ns / NS_PER_MS
