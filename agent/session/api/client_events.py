"""Client requests to a session, independent of any wire protocol.

The protocol in `agent/realtime/protocol/` turns frames into these; `Session.handle` takes them.
`event_id` is the client's own name for the frame, echoed in an error about it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .conversation import Item, ItemId
from .settings import IgnoredField, ResponseOptions, SessionSettings


@dataclass(frozen=True, slots=True)
class UpdateSession:
    settings: SessionSettings
    """Effective settings after the change: the protocol merged and checked them."""
    event_id: str | None = None
    base: SessionSettings | None = None
    """Settings that were changed; None: those of the session."""
    is_found: bool = False
    """The change is to the language that the caller was found to speak: void once the session has
    a language."""


@dataclass(frozen=True, slots=True)
class AppendAudio:
    pcm: npt.NDArray[np.int16]
    """[n], mono."""
    rate_hz: int


@dataclass(frozen=True, slots=True)
class CommitAudio:
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearAudio:
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearOutputAudio:
    """Drop the agent's audio that has not left. For the transport that holds it, not for a
    session."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateItem:
    item: Item
    previous_item_id: ItemId | None = None
    event_id: str | None = None
    ignored: tuple[IgnoredField, ...] = ()
    """Fields without effect that the client set."""


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    item_id: ItemId
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    item_id: ItemId
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class TruncateItem:
    item_id: ItemId
    audio_end_ms: int
    """Played audio as the client reports it, in ms from the start of the item. Never negative."""
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateResponse:
    options: ResponseOptions
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    response_id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlaybackReport:
    """Extension: how much of the current reply the client's speaker has played."""

    item_id: ItemId
    played_ms: int


Request = (
    UpdateSession
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | ClearOutputAudio
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | PlaybackReport
)
