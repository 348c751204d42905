"""OpenAI Realtime protocol (general release) of the voice socket, sans I/O.

Frames go in as text and come out as neutral requests; neutral notices go in and come out as text.
No I/O, no clock, no task: the server moves the bytes, the session decides. Field by field after
`openai/openai-python src/openai/types/realtime/`, and checked against the strictest stock client.

Bad input never raises: `receive` answers it with a `Problem`, which the caller gives to `send`.

A `session.update` counts for the frames behind it at once (audio in a new format may follow in the
next frame), yet the session may still refuse it, for an unknown voice say. So updates wait in order
until they are answered: by `SessionUpdated` (but for that of a handoff, or of a language that was
found), or by a `Problem` with the request's `event_id`. These requests carry an id made here, and
`send` puts the client's own back into the error.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.codec.json_frame import read_frame
from agent.codec.pcm import decode_base64
from agent.errors import ClientError, InternalError
from agent.session.api.client_events import AppendAudio, Request, UpdateSession
from agent.session.api.server_events import (
    AudioCleared,
    AudioCommitted,
    Extension,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    MessageBegun,
    Notice,
    OutputAudioCleared,
    OutputAudioStarted,
    OutputAudioStopped,
    Problem,
    ReplyAudio,
    ReplyCalled,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    Resumed,
    SessionCreated,
    SessionUpdated,
    SilenceTimedOut,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptionFailed,
)
from agent.session.api.settings import WIRE_RATE_HZ, SessionSettings

from .fields import Fields
from .fixed_fields import without_fixed
from .ids import CountingIds
from .items import NewId, item_json
from .parse import Context, event_id_of, read_event
from .response_events import Event, ResponseEvents
from .resumed import resumed_event
from .session_json import session_json

MAX_PENDING_UPDATES: Final = 64
"""Updates that the session has not answered. More means that it is stuck or being flooded."""


_PLAIN_APPEND: Final = {"type", "audio"}
"""Fields of an append as nearly all clients send it."""


@dataclass(frozen=True, slots=True)
class _PendingUpdate:
    token: str
    event_id: str | None
    settings: SessionSettings


class RealtimeProtocol:
    """One connection. Not thread-safe; the event loop owns it.

    `settings` are those the session starts with, `model` the name to echo. `extensions`: the client
    offered `halfsec.v1`. `new_id` makes ids from a prefix, unique within the session. `fixed`:
    fields that the client can't change, see `fixed_fields.py`. `holds_audio`: the agent's audio
    travels elsewhere, in real time, so there are no events with it, and its buffer can be cleared.
    """

    def __init__(
        self,
        settings: SessionSettings,
        *,
        model: str,
        extensions: bool = False,
        new_id: NewId | None = None,
        fixed: frozenset[str] = frozenset(),
        holds_audio: bool = False,
    ) -> None:
        self._settings = settings
        self._holds_audio = holds_audio
        self._fixed = fixed
        self._pending: list[_PendingUpdate] = []
        self._model = model
        self._new_id = CountingIds("") if new_id is None else new_id
        self._extensions = extensions
        self._session_id = ""
        self._expires_at_unix_s: int | None = None
        self._responses: dict[str, ResponseEvents] = {}

    def resume(self, session_id: str, expires_at_unix_s: int | None) -> None:
        """Go on with a session that another server created."""
        self._session_id, self._expires_at_unix_s = session_id, expires_at_unix_s

    def receive(self, frame: str | bytes) -> tuple[Request | Problem, ...]:
        """Parse one client frame to its requests; empty for audio without samples. Never raises for
        what the client sent."""
        event_id: str | None = None
        try:
            event = read_frame(frame)
            if event.keys() == _PLAIN_APPEND and event["type"] == "input_audio_buffer.append":
                appended = self._appended(event["audio"])
                if appended is not None:
                    return (appended,)
            if self._fixed:
                kind = "transcription" if self._settings.transcribes_only else "realtime"
                event = without_fixed(event, self._fixed, kind)
            event_id = event_id_of(event)
            request = read_event(Fields(event), self._context())
            if isinstance(request, UpdateSession):
                request = self._remember(request, event_id)
        except ClientError as error:
            return (Problem(error.message, error.code, error.error_type, error.param, event_id),)
        return () if request is None else (request,)

    def send(self, notice: Notice) -> tuple[str, ...]:
        """The frames that say this, in order; none for an extension that was not offered.

        Raises InternalError for a notice that breaks the session's guarantees.
        """
        return tuple(self._frame(event) for event in self._events(notice))

    def _appended(self, audio: object) -> AppendAudio | None:
        """Request of the one event that comes all the time, without the general reader. None: that
        one has to say what is wrong with it."""
        if not isinstance(audio, str):
            return None
        encoding = self._asked.input_encoding
        try:
            pcm = decode_base64(audio, encoding)
        except ValueError:
            return None
        return AppendAudio(pcm, WIRE_RATE_HZ[encoding]) if len(pcm) else None

    @property
    def _asked(self) -> SessionSettings:
        """The settings as the client asked for them last, answered or not."""
        return self._pending[-1].settings if self._pending else self._settings

    def _context(self) -> Context:
        return Context(self._asked, self._new_id, self._extensions, self._model, self._holds_audio)

    def _conversation_id(self) -> str:
        """A session has one conversation, so they share a stem."""
        return f"conv_{self._session_id.removeprefix('sess_')}"

    def _remember(self, request: UpdateSession, event_id: str | None) -> UpdateSession:
        if len(self._pending) >= MAX_PENDING_UPDATES:
            raise ClientError(
                f"{MAX_PENDING_UPDATES} session.update events wait for their answers; "
                "wait for session.updated before sending more.",
                code="rate_limit_exceeded",
            )
        base = self._asked
        pending = _PendingUpdate(self._new_id("update"), event_id, request.settings)
        self._pending.append(pending)
        return replace(request, event_id=pending.token, base=base)

    def _frame(self, event: Event) -> str:
        whole = {**event, "event_id": self._new_id("event")}
        return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)

    def _events(self, notice: Notice) -> Iterator[Event]:
        match notice:
            case (
                ReplyStarted()
                | MessageBegun()
                | ReplyCalled()
                | ReplyText()
                | ReplyAudio()
                | ReplyEnded()
            ):
                yield from self._reply_events(notice)
            case SessionCreated() | SessionUpdated():
                yield self._session_event(notice)
            case Problem():
                yield self._problem_event(notice)
            case Resumed():
                if self._extensions:
                    yield self._session_json("session.updated", notice.settings)
                    yield resumed_event(notice, self._session_id)
            case ItemAdded():
                place = {"previous_item_id": notice.previous_item_id}
                item = item_json(notice.item)
                yield {"type": "conversation.item.added", **place, "item": item}
                yield {"type": "conversation.item.done", **place, "item": item}
            case Extension():
                if self._extensions:
                    yield notice.fields | {"type": notice.type}
            case _:
                yield _plain_event(notice)

    def _session_event(self, notice: SessionCreated | SessionUpdated) -> Event:
        kind = "session.updated"
        if isinstance(notice, SessionCreated):
            kind = "session.created"
            self._session_id = notice.session_id
            self._expires_at_unix_s = notice.expires_at_unix_s
        elif notice.is_handoff:
            self._model = notice.settings.agent
        elif self._pending and not notice.is_found:
            del self._pending[0]
        self._settings = notice.settings
        return self._session_json(kind, notice.settings)

    def _session_json(self, kind: str, settings: SessionSettings) -> Event:
        session = session_json(
            settings,
            session_id=self._session_id,
            model=self._model,
            expires_at_unix_s=self._expires_at_unix_s,
            extensions=self._extensions,
        )
        return {"type": kind, "session": session}

    def _problem_event(self, notice: Problem) -> Event:
        event_id = notice.event_id
        for pending in self._pending:
            if pending.token == event_id:
                event_id = pending.event_id
                self._pending.remove(pending)
                break
        error = {
            "type": notice.type,
            "code": notice.code,
            "message": notice.message,
            "param": notice.param,
            "event_id": event_id,
        }
        return {"type": "error", "error": error}

    def _reply_events(
        self,
        notice: ReplyStarted | MessageBegun | ReplyCalled | ReplyText | ReplyAudio | ReplyEnded,
    ) -> Iterator[Event]:
        if isinstance(notice, ReplyStarted):
            if notice.response_id in self._responses:
                raise InternalError(f"Response {notice.response_id!r} has started already.")
            response = ResponseEvents(notice, self._conversation_id())
            self._responses[notice.response_id] = response
            return response.begin()
        running = self._responses.get(notice.response_id)
        if running is None:
            raise InternalError(f"There is no open response {notice.response_id!r}.")
        if isinstance(notice, MessageBegun):
            return running.message(notice)
        if isinstance(notice, ReplyCalled):
            return running.call(notice)
        if isinstance(notice, ReplyText):
            return running.text(notice)
        if isinstance(notice, ReplyAudio):
            return iter(()) if self._holds_audio else running.audio(notice)
        del self._responses[notice.response_id]
        return running.end(notice)


_Plain = (
    OutputAudioStarted
    | OutputAudioStopped
    | OutputAudioCleared
    | SpeechStarted
    | SpeechStopped
    | SilenceTimedOut
    | AudioCommitted
    | AudioCleared
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptDelta
    | TranscriptCompleted
    | TranscriptionFailed
)


def _plain_event(notice: _Plain) -> Event:
    """Notices that are one event and change nothing here."""
    kind: str
    fields: dict[str, Any]
    match notice:
        case SpeechStarted(item_id, start_ms):
            kind = "input_audio_buffer.speech_started"
            fields = {"item_id": item_id, "audio_start_ms": start_ms}
        case SpeechStopped(item_id, end_ms):
            kind = "input_audio_buffer.speech_stopped"
            fields = {"item_id": item_id, "audio_end_ms": end_ms}
        case SilenceTimedOut(item_id, start_ms, end_ms):
            kind = "input_audio_buffer.timeout_triggered"
            fields = {"item_id": item_id, "audio_start_ms": start_ms, "audio_end_ms": end_ms}
        case AudioCommitted(item_id, previous_item_id):
            kind = "input_audio_buffer.committed"
            fields = {"item_id": item_id, "previous_item_id": previous_item_id}
        case AudioCleared():
            kind, fields = "input_audio_buffer.cleared", {}
        case OutputAudioStarted(response_id):
            kind, fields = "output_audio_buffer.started", {"response_id": response_id}
        case OutputAudioStopped(response_id):
            kind, fields = "output_audio_buffer.stopped", {"response_id": response_id}
        case OutputAudioCleared(response_id):
            kind, fields = "output_audio_buffer.cleared", {"response_id": response_id}
        case ItemRetrieved(item):
            kind, fields = "conversation.item.retrieved", {"item": item_json(item)}
        case ItemDeleted(item_id):
            kind, fields = "conversation.item.deleted", {"item_id": item_id}
        case ItemTruncated(item_id, end_ms):
            kind = "conversation.item.truncated"
            fields = {"item_id": item_id, "content_index": 0, "audio_end_ms": end_ms}
        case _:
            return _transcription_event(notice)
    return {"type": kind, **fields}


def _transcription_event(
    notice: TranscriptDelta | TranscriptCompleted | TranscriptionFailed,
) -> Event:
    place = {"item_id": notice.item_id, "content_index": 0}
    prefix = "conversation.item.input_audio_transcription"
    match notice:
        case TranscriptDelta():
            return {"type": f"{prefix}.delta", **place, "delta": notice.delta}
        case TranscriptCompleted():
            usage = {"type": "duration", "seconds": notice.audio_s}
            transcript = notice.transcript
            return {
                "type": f"{prefix}.completed",
                **place,
                "transcript": transcript,
                "usage": usage,
            }
        case TranscriptionFailed():
            error = {
                "type": "transcription_error",
                "code": "transcription_failed",
                "message": notice.message,
                "param": None,
            }
            return {"type": f"{prefix}.failed", **place, "error": error}
