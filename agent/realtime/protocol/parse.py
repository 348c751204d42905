"""Parser of client events: one JSON object in, one protocol-neutral request out.

Eleven events, by the names of the general release. `session.update` needs the settings that it
changes, audio needs the encoding that it is in, so both come as arguments: nothing here remembers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.codec.pcm import decode_base64
from agent.errors import ClientError
from agent.session.api.client_events import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    ClearOutputAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    PlaybackReport,
    Request,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
)
from agent.session.api.conversation import ItemId
from agent.session.api.settings import (
    MAX_BUDGET_MS,
    MAX_PACE_MS,
    MIN_BUDGET_MS,
    WIRE_RATE_HZ,
    ResponseOptions,
    SessionSettings,
)

from .field_support import OTHER_MODEL, PART_AUDIO, with_ignored
from .fields import MAX_ID_CHARS, Fields, invalid
from .items import NewId, audio_of_parts, read_item
from .response_create import read_options
from .session_update import merge_session

MAX_EVENT_ID_CHARS: Final = 512
"""The dialect's own limit."""
MAX_MS: Final = 1 << 40
"""Any audio_end_ms is taken and later clamped to what was sent: clients overshoot, and stock ones
hang up on an error."""


@dataclass(frozen=True, slots=True)
class Context:
    """State that the parser depends on."""

    settings: SessionSettings
    """Settings as the client asked for them last, accepted or not."""
    new_id: NewId
    extensions: bool
    model: str = ""
    """Name that the session shows as its model."""
    holds_audio: bool = False
    """The server holds the agent's audio and sends it in real time (WebRTC)."""


def event_id_of(event: dict[str, object]) -> str | None:
    """The client's name for its frame, as far as it can be echoed."""
    event_id = event.get("event_id")
    if isinstance(event_id, str) and 0 < len(event_id) <= MAX_EVENT_ID_CHARS:
        return event_id
    return None


def read_event(event: Fields, context: Context) -> Request | None:
    """None where there is nothing to do. Raises ClientError naming the field at fault."""
    if "type" not in event:
        raise ClientError('This event has no "type".', code="invalid_event", param="type")
    kind = event.text("type")
    if kind.startswith("transcription_session."):
        raise ClientError(
            f"{kind!r} belongs to the beta of this API, which is not served.",
            code="beta_api_shape_disabled",
            param="type",
        )
    read = _READERS.get(kind)
    if read is None or (kind.startswith("halfsec.") and not context.extensions):
        raise ClientError(
            f"There is no client event {kind[:80]!r}.", code="invalid_event", param="type"
        )
    event.optional_text("event_id", max_chars=MAX_EVENT_ID_CHARS)
    request = read(event, context)
    event.finish()
    return request


def _update(event: Fields, context: Context) -> Request:
    session = Fields(event.required("session"), "session")
    settings = context.settings.changed(ignored=())  # of earlier changes the client has been told
    if session.raw("model") not in (None, context.model):
        ignored = with_ignored((), {session.at("model"): OTHER_MODEL})
        settings = settings.changed(ignored=ignored)
    own = session.inside("halfsec") if context.extensions else None
    if own is not None:
        if "pace_ms" in own:
            settings = settings.changed(pace_ms=own.integer("pace_ms", 0, MAX_PACE_MS))
        if "budget_ms" in own:
            budget_ms = own.integer("budget_ms", MIN_BUDGET_MS, MAX_BUDGET_MS)
            settings = settings.changed(budget_ms=budget_ms)
        own.finish()
    return UpdateSession(merge_session(settings, session))


def _append(event: Fields, context: Context) -> Request | None:
    encoding = context.settings.input_encoding
    try:
        pcm = decode_base64(event.text("audio", max_chars=MAX_FRAME_BYTES), encoding)
    except ValueError as error:
        raise invalid("audio", str(error)) from None
    return AppendAudio(pcm, WIRE_RATE_HZ[encoding]) if len(pcm) else None


def _commit(event: Fields, _: Context) -> Request:
    return CommitAudio(_event_id(event))


def _clear(event: Fields, _: Context) -> Request:
    return ClearAudio(_event_id(event))


def _clear_output(event: Fields, context: Context) -> Request:
    if context.holds_audio:
        return ClearOutputAudio(_event_id(event))
    raise ClientError(
        "'output_audio_buffer.clear' is for WebRTC. On a WebSocket the client holds the audio: "
        "stop playing, and send response.cancel and conversation.item.truncate.",
        code="invalid_event",
        param="type",
    )


def _create_item(event: Fields, context: Context) -> Request:
    after = event.optional_text("previous_item_id", max_chars=MAX_ID_CHARS)
    fields = Fields(event.required("item"), "item")
    item = read_item(fields, context.new_id)
    ignored = with_ignored((), dict.fromkeys(audio_of_parts(fields), PART_AUDIO))
    return CreateItem(item, ItemId(after) if after else None, _event_id(event), ignored)


def _retrieve_item(event: Fields, _: Context) -> Request:
    return RetrieveItem(_item_id(event), _event_id(event))


def _delete_item(event: Fields, _: Context) -> Request:
    return DeleteItem(_item_id(event), _event_id(event))


def _truncate_item(event: Fields, _: Context) -> Request:
    event.integer("content_index", 0, 0)
    end_ms = event.integer("audio_end_ms", 0, MAX_MS)
    return TruncateItem(_item_id(event), end_ms, _event_id(event))


def _create_response(event: Fields, context: Context) -> Request:
    options = ResponseOptions()
    if event.raw("response") is not None:
        response = Fields(event.raw("response"), "response")
        options = read_options(response, context.new_id)
    return CreateResponse(options, _event_id(event))


def _cancel_response(event: Fields, _: Context) -> Request:
    response_id = event.optional_text("response_id", max_chars=MAX_ID_CHARS)
    return CancelResponse(response_id, _event_id(event))


def _playback(event: Fields, _: Context) -> Request:
    return PlaybackReport(_item_id(event), event.integer("played_ms", 0, MAX_MS))


def _item_id(event: Fields) -> ItemId:
    return ItemId(event.text("item_id", max_chars=MAX_ID_CHARS))


def _event_id(event: Fields) -> str | None:
    return event.optional_text("event_id")


_READERS: Final[dict[str, Callable[[Fields, Context], Request | None]]] = {
    "session.update": _update,
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": _commit,
    "input_audio_buffer.clear": _clear,
    "conversation.item.create": _create_item,
    "conversation.item.retrieve": _retrieve_item,
    "conversation.item.truncate": _truncate_item,
    "conversation.item.delete": _delete_item,
    "response.create": _create_response,
    "response.cancel": _cancel_response,
    "output_audio_buffer.clear": _clear_output,
    "halfsec.playback": _playback,
}
