"""Notices of a session to its client, independent of any wire protocol.

The protocol in `agent/realtime/protocol/` turns each notice into its own frames. The session
guarantees the order:
`ReplyStarted`, then `ReplyText` and `ReplyAudio` interleaved (each text just before the audio that
speaks it), then exactly one `ReplyEnded`; nothing of a reply follows its end. A reply that may call
tools has no message before `MessageBegun`, which comes before its first word, and never comes where
it only calls; `ReplyCalled` comes between, once for each call.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from .conversation import FunctionCall, Item, ItemId, Modality
from .settings import SessionSettings

ReplyStatus = Literal["completed", "cancelled", "incomplete", "failed"]
ReplyReason = Literal[
    "turn_detected", "client_cancelled", "max_output_tokens", "content_filter", "error"
]


@dataclass(frozen=True, slots=True)
class SessionCreated:
    session_id: str
    settings: SessionSettings
    expires_at_unix_s: int | None = None


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    settings: SessionSettings
    is_handoff: bool = False
    """No request of the client changed them: another agent took over."""
    is_found: bool = False
    """No request of the client changed them: the language that the caller speaks was found."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    item_id: ItemId
    """Id of the user item that the utterance will become."""
    audio_start_ms: int
    """On the axis of all audio received in this session."""


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    item_id: ItemId
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class SilenceTimedOut:
    """The caller said nothing for as long as the client wanted to wait."""

    item_id: ItemId
    """Id of the user item that stands for the silence."""
    audio_start_ms: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    item_id: ItemId
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    pass


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """A user's, client's or system's item is complete: sent as added and done."""

    item: Item
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    item: Item


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    item_id: ItemId


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    item_id: ItemId
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """Words of the caller that will not change any more."""

    item_id: ItemId
    delta: str


@dataclass(frozen=True, slots=True)
class TranscriptCompleted:
    item_id: ItemId
    transcript: str
    audio_s: float


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    """No transcript comes for an item: the recognizer's failure, as the client is told it."""

    item_id: ItemId
    message: str


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    response_id: str
    item_id: ItemId
    previous_item_id: ItemId | None
    modality: Modality
    settings: SessionSettings
    metadata: dict[str, str] | None = None
    out_of_band: bool = False
    may_call: bool = False
    """Its message begins later, if at all; `item_id` will be its id."""


@dataclass(frozen=True, slots=True)
class MessageBegun:
    """The message of a response that may call tools begins."""

    response_id: str
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class ReplyCalled:
    """The client has to run a tool. The call is complete."""

    response_id: str
    call: FunctionCall
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class ReplyText:
    response_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    response_id: str
    pcm: npt.NDArray[np.int16]
    """[n], mono, at `rate_hz`: the rate of the session's output encoding. At most 200 ms."""
    rate_hz: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: Self) -> Self:
        """Tokens of two generations."""
        return replace(
            self,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    response_id: str
    status: ReplyStatus
    reason: ReplyReason | None
    text: str
    """The whole text if completed, else what the caller heard of it."""
    usage: Usage
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class OutputAudioStarted:
    """The first audio of a response leaves. Of transports that send audio in real time, as the two
    below."""

    response_id: str


@dataclass(frozen=True, slots=True)
class OutputAudioStopped:
    """The last audio of a response has left."""

    response_id: str


@dataclass(frozen=True, slots=True)
class OutputAudioCleared:
    """The audio of a response was interrupted: what had not left was dropped."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An error about one frame of the client; the session goes on."""

    message: str
    code: str
    type: str = "invalid_request_error"
    param: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The client has a new connection to this session, and lacks the events that did not reach it
    by the one before. An extension as well."""

    settings: SessionSettings
    items: tuple[Item, ...]
    """All of the conversation, in order."""
    received: int
    """Frames of the client processed in this session. Those behind them are lost."""
    will_answer: bool
    """A response to what the caller said follows without a request."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A `halfsec.*` event, for clients that offered the subprotocol `halfsec.v1` only."""

    type: str
    """Type with the prefix: "halfsec.partial", "halfsec.turn", "halfsec.mark"."""
    fields: dict[str, Any]


Notice = (
    SessionCreated
    | SessionUpdated
    | SpeechStarted
    | SpeechStopped
    | SilenceTimedOut
    | AudioCommitted
    | AudioCleared
    | ItemAdded
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptDelta
    | TranscriptCompleted
    | TranscriptionFailed
    | ReplyStarted
    | MessageBegun
    | ReplyCalled
    | ReplyText
    | ReplyAudio
    | ReplyEnded
    | OutputAudioStarted
    | OutputAudioStopped
    | OutputAudioCleared
    | Problem
    | Resumed
    | Extension
)
