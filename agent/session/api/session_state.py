"""State of a session, as another server needs it to go on with the call.

It holds what can't be computed anew: settings, items, how far ids have counted, and what the caller
has heard of the newest reply, and of those in front of it that are still played. Token ids, caches
and audio are not in it: the model reads the conversation once more. What the caller says at the
very moment is lost.
"""

from dataclasses import dataclass

from .conversation import Item, ItemId, ModelCall, ToolRound
from .settings import SessionSettings


@dataclass(frozen=True, slots=True)
class SpokenChunk:
    """Speech of a part of a reply, without its samples."""

    first_sample: int
    end_sample: int
    """Samples of the reply's playback, the second one not included."""
    span: tuple[int, int]
    """Characters of the reply."""
    words: tuple[tuple[int, int], ...]
    """Of each word the end, in characters of the reply, and the first sample after it, counted from
    the chunk's."""


@dataclass(frozen=True, slots=True)
class ReplyState:
    """The newest reply, which may be in progress, or one in front of it that is still played."""

    item_id: ItemId
    in_progress: bool
    """It is generated, spoken or played; nothing has decided yet how much of it is heard."""
    speaks: bool
    text: str
    """Generated so far."""
    first_char: int
    """Character of the text with which the item begins."""
    shown_chars: int
    """Characters sent, of a reply that is not spoken."""
    is_complete: bool
    """The text does not grow any more."""
    stands_at: int | None
    """Characters heard, where that was decided or reported; None: as many as were played."""
    rate_hz: int
    played_samples: int
    """Samples heard when this was recorded."""
    chunks: tuple[SpokenChunk, ...]
    rounds: tuple[ToolRound, ...]
    """Rounds of server tools; none where the client has deleted the item."""


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """A tool in the background that has ended."""

    call: ModelCall
    text: str
    """Its result, as the model reads it."""


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """Tools in the background of a call."""

    running: tuple[ModelCall, ...] = ()
    ended: tuple[BackgroundResult, ...] = ()
    """Results that are not in the conversation yet."""
    is_due: bool = False
    """Results in the conversation are to be announced."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything of a session that another server needs."""

    settings: SessionSettings
    items: tuple[Item, ...]
    """In order."""
    num_items: int
    num_replies: int
    num_calls: int
    """Ids given out so far, of each kind."""
    audio_ms: int
    """The caller's audio received so far: the axis of `audio_start_ms`."""
    summary: tuple[str, ...]
    """Sentences that stand for the oldest messages in the model's history."""
    num_covered: int
    """Number of messages that they stand for."""
    answer_due: bool
    """The caller waits for an answer, whatever was heard."""
    answers_caller: bool
    """The reply in progress answers the caller: where no word of it was heard, another is due. Not
    so of one that has called a function of the client, which asks for the next."""
    reply: ReplyState | None
    """None before the first."""
    background: BackgroundState = BackgroundState()
    earlier: tuple[ReplyState, ...] = ()
    """Replies in front of the newest one that the client still plays, the oldest first."""
    apart: tuple[str, ...] = ()
    """Ids of calls that the summary covers without their results."""
    response_waits: bool = False
    """A response of the model waits behind another one, such as an announcement, and not for a
    transcript: it is due whatever the conversation ends with."""
    has_dropped: bool = False
    """The model has dropped messages since the last summary, and would drop them again."""

    @property
    def is_playing(self) -> bool:
        """True while a reply is generated, spoken or played: how much was heard of it changes."""
        return bool(self.earlier) or (self.reply is not None and self.reply.in_progress)
