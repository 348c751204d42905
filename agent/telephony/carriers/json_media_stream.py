"""Base of JSON media streams: one object a frame, with an `event`.

Names and positions of fields differ by carrier: see `FieldNames`. Numbers come as numbers or as
strings. Unknown events are ignored, for carriers add new ones.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.codec.json_frame import read_frame
from agent.errors import ClientError
from agent.session.api.settings import AudioEncoding

from .media_stream import (
    CallerAudio,
    Frame,
    KeyPressed,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
    StreamStopped,
)

MAX_FRAME: Final = 64 * 1024
"""Characters. Carriers send 20 to 100 ms of audio, 1 to 5 kB, and metadata."""

MAX_FRAME_MARKS: Final = 1024
"""Brackets and commas in a frame, those in its texts included. A start with forty parameters has a
hundred and the commas of their texts, audio twenty. A frame of 64 KiB could hold 43,000, and takes
the event loop 13 ms then, also a stranger's."""

MAX_TEXT: Final = 512
"""Characters of an id, a telephone number or a parameter. TwiML allows 500 for a parameter."""

MAX_NAME_SHOWN: Final = 40
"""Characters of a field's name in messages, which go into the log."""

KEYS: Final = re.compile(r"[0-9A-D*#]")

ENCODINGS: Final[Mapping[str, AudioEncoding]] = {
    "audio/x-mulaw": "pcmu",
    "mulaw": "pcmu",
    "pcmu": "pcmu",
    "audio/x-alaw": "pcma",
    "pcma": "pcma",
    "audio/x-l16": "pcm16",
    "audio/x-raw": "pcm16",
    "l16": "pcm16",
}
"""Encodings by the carriers' names for them, in lower case."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Paths of a carrier's fields: names from the frame's root, separated by dots."""

    stream_id: str
    call_id: str
    encoding: str
    rate: str
    parameters: str
    caller: str = ""
    called: str = ""
    frame_stream_id: str = ""
    """Stream id in the frames after the first; empty: they have none."""
    sequence: str = ""
    """Sequence number of audio frames that may arrive out of order; empty: they arrive in order."""
    mark: str = "mark.name"
    digit: str = "dtmf.digit"


class JsonStream:
    """Base of a stream's protocol: it reads frames; subclasses give the names of fields and write.

    Defaults: the stream ends with a `stop`, audio is sent in any length, DTMF keys can't be sent as
    messages, and closing the socket hangs up.
    """

    name: str
    names: FieldNames
    says_stop = True
    sends_silence = True
    frame_bytes = 1

    def __init__(self) -> None:
        self.stream_id = ""
        self._media: MediaFormat | None = None
        self._readers: dict[str, Callable[[Json], list[PhoneEvent]]] = {
            "start": self._start,
            "media": self._audio,
            "mark": self._mark,
            "dtmf": self._key,
            "stop": self._stop,
        }

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            raise StreamError(f"{self.name} sends text frames; this one is binary")
        fields = fields_of(frame)
        event = fields.get("event")
        if not isinstance(event, str):
            names = [name[:MAX_NAME_SHOWN] for name in sorted(fields)[:5]]
            raise StreamError(f'a frame has an "event"; this one has {names}')
        reader = self._readers.get(event)
        if reader is None:
            return []
        if event != "start":
            self._check_stream(event, fields)
        return reader(fields)

    def _check_stream(self, event: str, fields: Json) -> None:
        if self._media is None:
            raise StreamError(f"{event} came before start")
        if not self.names.frame_stream_id:
            return
        named = fields.get(self.names.frame_stream_id)
        if named is not None and named != self.stream_id:
            raise StreamError(f"{event} is of another stream than the one that was started")

    def _start(self, fields: Json) -> list[PhoneEvent]:
        if self._media is not None:
            raise StreamError("start came twice")
        names = self.names
        self.stream_id = text_at(fields, names.stream_id)
        self._media = self._format(fields)
        parameters = self._parameters(at(fields, names.parameters)) if names.parameters else None
        return [
            StreamStarted(
                self.stream_id,
                text_at(fields, names.call_id),
                self._media,
                text_at(fields, names.caller, optional=True),
                text_at(fields, names.called, optional=True),
                texts_of(parameters, names.parameters),
            )
        ]

    def _parameters(self, found: Any) -> Any:
        """Convert the field `parameters` to an object, for carriers that send another type."""
        return found

    def _format(self, fields: Json) -> MediaFormat:
        named = text_at(fields, self.names.encoding)
        encoding = ENCODINGS.get(named.lower())
        rate_hz = number_at(fields, self.names.rate)
        if encoding is None or rate_hz not in (8_000, 16_000, 24_000):
            raise StreamError(
                f"audio in {named} at {rate_hz} Hz; what is taken is mu-law, A-law or 16 bits at "
                "8000, 16000 or 24000 Hz"
            )
        return MediaFormat(encoding, rate_hz)

    def _audio(self, fields: Json) -> list[PhoneEvent]:
        media = fields.get("media")
        if not isinstance(media, dict):
            raise StreamError("media has no media")
        if media.get("track", "inbound") not in ("inbound", "inbound_track"):
            return []  # our own audio, echoed
        sequence = number_at(fields, self.names.sequence) if self.names.sequence else None
        return [CallerAudio(payload_of(media.get("payload")), sequence)]

    def _mark(self, fields: Json) -> list[PhoneEvent]:
        return [MarkReached(text_at(fields, self.names.mark))]

    def _key(self, fields: Json) -> list[PhoneEvent]:
        return pressed(text_at(fields, self.names.digit))

    def _stop(self, fields: Json) -> list[PhoneEvent]:
        return [StreamStopped("the carrier ended the stream")]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return []


def fields_of(frame: str) -> Json:
    """Parse a frame. Raises StreamError."""
    if len(frame) > MAX_FRAME:
        raise StreamError(f"a frame of {len(frame)} characters; at most {MAX_FRAME} are taken")
    try:
        return read_frame(frame, MAX_FRAME_MARKS)
    except ClientError as error:
        raise StreamError(error.message) from None


def at(fields: Json, path: str) -> Any:
    """Value at a path; None without one."""
    found: Any = fields
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def text_at(fields: Json, path: str, *, optional: bool = False) -> str:
    """String at a path; empty where an optional one is missing. Raises StreamError."""
    found = at(fields, path) if path else None
    if found is None and optional:
        return ""
    if not isinstance(found, str) or len(found) > MAX_TEXT or (not found and not optional):
        raise StreamError(f"{path} is a text of 1 to {MAX_TEXT} characters")
    return found


def number_at(fields: Json, path: str) -> int:
    """Non-negative integer at a path, or its decimal string. Raises StreamError."""
    found = at(fields, path)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 16:
        return int(found)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 10**15:
        return found
    raise StreamError(f"{path} is a whole number")


def pressed(digit: str) -> list[PhoneEvent]:
    """`KeyPressed` for a DTMF key; no event for anything else, such as a hook flash."""
    return [KeyPressed(digit.upper())] if KEYS.fullmatch(digit.upper()) else []


def texts_of(found: Any, path: str) -> dict[str, str]:
    """String values of an object, by name; other values are ignored. Raises StreamError."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise StreamError(f"{path} is an object")
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and len(name) <= MAX_TEXT and len(value) <= MAX_TEXT
    }


def payload_of(payload: Any) -> bytes:
    """Decode base64 audio. Raises StreamError."""
    if not isinstance(payload, str):
        raise StreamError("media.payload is audio in base64")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise StreamError("media.payload is not base64") from None
