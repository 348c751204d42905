"""Vonage's WebSocket endpoint.

Written from https://developer.vonage.com/en/voice/voice-api/concepts/websockets. Traps: audio is
binary, 16-bit samples, little-endian, and goes back in packets of 20 ms exactly; the headers of our
own NCCO stand among the fields of the first message; there is no `stop`, the socket closes.
"""

import json
import re
from typing import Final

from .json_media_stream import fields_of, pressed, text_at, texts_of
from .media_stream import (
    CallerAudio,
    Frame,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
)

CONTENT_TYPE: Final = re.compile(r"audio/l16;\s*rate=(8000|16000|24000)")
PACKET_MS: Final = 20


class Vonage:
    """One stream."""

    name = "Vonage"
    says_stop = False
    sends_silence = True

    def __init__(self) -> None:
        self._media: MediaFormat | None = None

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            if self._media is None:
                raise StreamError("audio came before websocket:connected")
            return [CallerAudio(frame)]
        fields = fields_of(frame)
        match fields.get("event"):
            case "websocket:connected":
                return [self._start(text_at(fields, "content-type"), texts_of(fields, "headers"))]
            case "websocket:notify":
                return [MarkReached(text_at(fields, "payload.name"))]
            case "websocket:dtmf":
                return pressed(text_at(fields, "digit"))
            case _:
                return []

    def _start(self, content_type: str, headers: dict[str, str]) -> StreamStarted:
        if self._media is not None:
            raise StreamError("websocket:connected came twice")
        found = CONTENT_TYPE.fullmatch(content_type.lower())
        if found is None:
            raise StreamError(f"audio as {content_type}; what is taken is audio/l16;rate=16000")
        self._media = MediaFormat("pcm16", int(found[1]))
        call_id = headers.get("call_uuid", "")
        parameters = {
            name: value for name, value in headers.items() if name not in ("event", "content-type")
        }
        return StreamStarted(
            call_id,
            call_id,
            self._media,
            headers.get("from", ""),
            headers.get("to", ""),
            parameters,
        )

    @property
    def frame_bytes(self) -> int:
        assert self._media is not None
        return self._media.rate_hz * PACKET_MS // 1000 * 2

    def audio(self, data: bytes) -> list[Frame]:
        size = self.frame_bytes
        return [data[first : first + size] for first in range(0, len(data), size)]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"action": "notify", "payload": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"action": "clear"})]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return []
