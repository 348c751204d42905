"""Events of a call, parsed from the server's frames.

Only what a client acts on becomes an event: the structural events of the protocol (item added, part
added) are ignored, and so is every unknown type, because servers add new ones.
Every event carries `at_ns`, the client's own clock when its frame arrived. An event that the server
has, too (`agent/session/api/server_events.py`), has the same name here: it is that one, received.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from agent.codec.pcm import decode_audio
from agent.realtime.protocol.session_json import ENCODINGS
from agent.session.api.settings import WIRE_RATE_HZ, AudioEncoding

MAX_OPEN_REPLIES: Final = 16
"""Replies whose audio format is kept; there is one at a time, or two."""


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """The session was created or changed."""

    session: dict[str, Any]
    """The full effective session."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller began to speak: playback should stop."""

    item_id: str
    audio_start_ms: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The caller stopped speaking."""

    item_id: str
    audio_end_ms: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Duck:
    """The caller may be interrupting this reply: it should go on quietly. Only with extensions."""

    item_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Unduck:
    """The caller did not interrupt this reply: it should be as loud as before."""

    item_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """The caller's words so far. Only with extensions."""

    item_id: str
    text: str
    stable_chars: int
    """Number of characters from the start that will not change any more."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """More of the caller's words, none of which will change."""

    item_id: str
    delta: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """The full transcript of one turn of the caller."""

    item_id: str
    text: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply began."""

    response_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More text of a reply; of a spoken reply just before its audio."""

    response_id: str
    item_id: str
    delta: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """More audio of a reply."""

    response_id: str
    item_id: str
    pcm: npt.NDArray[np.int16]
    """int16 [n], mono."""
    rate_hz: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """A reply ended."""

    response_id: str
    status: str
    """completed, cancelled, incomplete or failed."""
    reason: str | None
    """turn_detected, client_cancelled, max_output_tokens, ...; None where completed or failed."""
    text: str
    """Text of the reply; after an interruption, the part that was heard."""
    error_message: str | None
    usage: dict[str, Any]
    at_ns: int


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    """An item of the conversation: the answer to `conversation.item.retrieve`."""

    item_id: str
    text: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class TurnReport:
    """The server's latency report of a turn, stage by stage. Only with extensions."""

    turn: dict[str, Any]
    at_ns: int
    response_id: str = ""
    """Response of the turn; empty from servers that do not say it."""


@dataclass(frozen=True, slots=True)
class ContextCondensed:
    """The model has a summary in place of the conversation's oldest messages. The items stay. Only
    with extensions."""

    summary: str
    """All that the model knows of older messages."""
    num_messages: int
    """Messages that the summary replaced."""
    num_tokens_before: int
    """Tokens of the model's context."""
    num_tokens: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The caller waits, and nothing else was sent for a while because of that. Only with
    extensions."""

    stage: str | None
    """The stage that is waited for; None: not known."""
    waited_ms: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error of the server or of a client event. The call goes on."""

    message: str
    code: str | None
    param: str | None
    event_id: str | None
    at_ns: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool call: the client runs the tool, and sends its result as `function_call_output`."""

    response_id: str
    item_id: str
    call_id: str
    name: str
    arguments: str
    """JSON."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """Token that resumes the call. `agent.client` uses it by itself."""

    token: str
    resume_s: int
    """Seconds for which the server keeps the call."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """The connection broke. Playback should stop. `Resumed`, `Restarted` or `Closed` follows."""

    reason: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The call goes on. No reply is in progress; of one that was, `items` has the part that counts
    as heard (`truncate` corrects it). Events of the gap are not repeated: `items` has their
    result."""

    items: list[dict[str, Any]]
    """The newest items of the conversation, as in `conversation.item.*`."""
    num_items: int
    """Number of items of the whole conversation."""
    received: int
    """Number of the client's frames that the server has processed."""
    will_answer: bool
    """True where the server will reply to the caller by itself."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """Another call began, with the same settings: the agent knows nothing of the previous one, and
    frames on their way to it are lost."""

    session: dict[str, Any]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event of every call."""

    code: int | None
    """WebSocket close code; None where the connection broke."""
    reason: str
    at_ns: int


ClientEvent = (
    SessionUpdated
    | SpeechStarted
    | SpeechStopped
    | Duck
    | Unduck
    | PartialTranscript
    | TranscriptDelta
    | Transcript
    | ReplyStarted
    | ReplyText
    | ReplyAudio
    | ReplyDone
    | ItemRetrieved
    | TurnReport
    | ContextCondensed
    | FunctionCall
    | ResumeToken
    | Reconnecting
    | Resumed
    | Restarted
    | Waiting
    | ServerError
    | Closed
)

_UNREADABLE: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    RecursionError,  # a hundred thousand brackets
)

_T = TypeVar("_T")

_TRANSCRIPTION: Final = "conversation.item.input_audio_transcription."


class EventReader:
    """Parser of the server's frames. Keeps the audio format of each open reply. Not thread-safe."""

    def __init__(self) -> None:
        self._encodings: dict[str, AudioEncoding] = {}

    def read(self, frame: str | bytes, at_ns: int) -> ClientEvent | None:
        """The event of a frame; None for frames without meaning for a client. A broken frame gives
        a `ServerError`."""
        try:
            event = json.loads(frame)
            kind = event["type"]
            if kind.startswith("response."):
                return self._read_response(kind, event, at_ns)
            if kind.startswith("halfsec."):
                return _read_extension(kind, event, at_ns)
            return _read_rest(kind, event, at_ns)
        except _UNREADABLE as error:
            message = f"The server sent a frame that can't be read: {error!r}"
            return ServerError(message, "invalid_frame", None, None, at_ns)

    def _read_response(self, kind: str, event: dict[str, Any], at_ns: int) -> ClientEvent | None:
        match kind:
            case "response.created":
                self._remember(event["response"])
                return ReplyStarted(event["response"]["id"], at_ns)
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                return ReplyText(event["response_id"], event["item_id"], event["delta"], at_ns)
            case "response.output_audio.delta":
                return self._read_audio(event, at_ns)
            case "response.output_item.done":
                return _read_call(event["response_id"], event["item"], at_ns)
            case "response.done":
                self._encodings.pop(event["response"]["id"], None)
                return _read_done(event["response"], at_ns)
        return None

    def _remember(self, response: dict[str, Any]) -> None:
        output = (response.get("audio") or {}).get("output") or {}
        name = (output.get("format") or {}).get("type", "audio/pcm")
        self._encodings[response["id"]] = ENCODINGS[name]
        while len(self._encodings) > MAX_OPEN_REPLIES:
            del self._encodings[next(iter(self._encodings))]

    def _read_audio(self, event: dict[str, Any], at_ns: int) -> ReplyAudio:
        encoding = self._encodings.get(event["response_id"], "pcm16")
        data = base64.b64decode(event["delta"], validate=True)
        pcm = decode_audio(data, encoding)
        ids = event["response_id"], event["item_id"]
        return ReplyAudio(*ids, pcm, WIRE_RATE_HZ[encoding], at_ns)


def _read_done(response: dict[str, Any], at_ns: int) -> ReplyDone:
    details = response.get("status_details") or {}
    return ReplyDone(
        response["id"],
        response["status"],
        details.get("reason"),
        "\n".join(text for item in response.get("output", []) for text in _texts(item)),
        (details.get("error") or {}).get("message"),
        response.get("usage") or {},
        at_ns,
    )


def _read_call(response_id: str, item: dict[str, Any], at_ns: int) -> FunctionCall | None:
    if item.get("type") != "function_call" or item.get("status") != "completed":
        return None
    ids = response_id, item["id"], item["call_id"]
    event = FunctionCall(*ids, item["name"], item["arguments"], at_ns)
    for each in (*ids, event.name, event.arguments):
        _typed(each, str)
    return event


def _texts(item: dict[str, Any]) -> list[str]:
    parts = item.get("content", [])
    return [part.get("transcript") or part.get("text") or "" for part in parts]


def _read_rest(kind: str, event: dict[str, Any], at_ns: int) -> ClientEvent | None:
    match kind:
        case "session.created" | "session.updated":
            return SessionUpdated(_typed(event["session"], dict), at_ns)
        case "input_audio_buffer.speech_started":
            return SpeechStarted(event["item_id"], event["audio_start_ms"], at_ns)
        case "input_audio_buffer.speech_stopped":
            return SpeechStopped(event["item_id"], event["audio_end_ms"], at_ns)
        case "error":
            return _read_error(event["error"], at_ns)
        case "conversation.item.retrieved":
            item = event["item"]
            return ItemRetrieved(item["id"], "\n".join(_texts(item)), at_ns)
    match kind.removeprefix(_TRANSCRIPTION):
        case "delta":
            return TranscriptDelta(event["item_id"], event["delta"], at_ns)
        case "completed":
            return Transcript(event["item_id"], event["transcript"], at_ns)
        case "failed":
            return _read_error(event["error"], at_ns)
    return None


def _read_extension(kind: str, event: dict[str, Any], at_ns: int) -> ClientEvent | None:
    match kind:
        case "halfsec.duck":
            return Duck(event["item_id"], at_ns)
        case "halfsec.unduck":
            return Unduck(event["item_id"], at_ns)
        case "halfsec.partial":
            stable_chars = event["stable_chars"]
            return PartialTranscript(event["item_id"], event["text"], stable_chars, at_ns)
        case "halfsec.session":
            token = _typed(event["resume_token"], str)
            if not token.isascii():  # it becomes a part of an address
                raise ValueError("the token is not ASCII")
            return ResumeToken(token, _typed(event["resume_s"], int), at_ns)
        case "halfsec.resumed":
            return _read_resumed(event, at_ns)
        case "halfsec.turn":
            return TurnReport(event["turn"], at_ns, event.get("response_id", ""))
        case "halfsec.context":
            counts = event["messages"], event["tokens_before"], event["tokens"]
            return ContextCondensed(event["summary"], *counts, at_ns)
        case "halfsec.waiting":
            return Waiting(event["stage"], event["waited_ms"], at_ns)
    return None


def _read_resumed(event: dict[str, Any], at_ns: int) -> Resumed:
    items: list[dict[str, Any]] = _typed(event["items"], list)
    for item in items:
        _typed(item, dict)
        names = _READ_OF_ITEM.get(_typed(item["type"], str), ())
        for name in names:
            _typed(item[name], str)
    counts = _typed(event["num_items"], int), _typed(event["received"], int)
    return Resumed(items, *counts, _typed(event["will_answer"], bool), at_ns)


_READ_OF_ITEM: Final = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
}
"""Fields of items from which this client goes on with its tools."""


def _typed(value: object, kind: type[_T]) -> _T:
    """The value, if JSON has it as this type; true and false are no numbers. Raises TypeError."""
    if isinstance(value, kind) and type(value) is kind:
        return value
    raise TypeError(f"{type(value).__name__} where {kind.__name__} is due")


def _read_error(error: dict[str, Any], at_ns: int) -> ServerError:
    return ServerError(
        error["message"], error.get("code"), error.get("param"), error.get("event_id"), at_ns
    )
