"""Asterisk's channel driver `chan_websocket` (20.16, 21.11, 22.6, 23.0 and newer).

Written from https://docs.asterisk.org/Configuration/Channel-Drivers/WebSocket/ and, where that
documents nothing, from Asterisk's `chan_websocket.c`. Traps:
- events come as lines of words or, with `f(json)` in the dial string, as JSON, and commands go back
  in the same form; a command of more than 128 bytes is dropped silently;
- audio is binary; if a message is no multiple of `optimal_frame_size`, the remainder is dropped.
  START_MEDIA_BUFFERING avoids that, but every FLUSH_MEDIA ends it, and with it the end of a reply
  waits for the next reply. So whole frames are sent here, without START_MEDIA_BUFFERING;
- a message of more than 65 500 bytes ends the call;
- a flush drops marks without reporting them;
- a phone that suppresses silence (DTX) causes silence on this stream too;
- `connection_id` names the client in `websocket_client.conf`, not the call;
- channel variables come with JSON only, and functions such as CALLERID(num) are no variables, so
  the dialplan passes the numbers and the agent in variables of its own (`caller`, `called`,
  `agent`).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from .carrier import Carrier
from .json_media_stream import MAX_FRAME, MAX_TEXT, fields_of, number_at, pressed, text_at, texts_of
from .media_stream import (
    CallerAudio,
    FlowChanged,
    Frame,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
)

SUBPROTOCOL: Final = "media"
"""Subprotocol in Asterisk's examples of `websocket_client.conf`. Asterisk accepts a handshake
without a subprotocol, but none with another."""

FORMATS: Final[Mapping[str, MediaFormat]] = {
    "ulaw": MediaFormat("pcmu", 8_000),
    "alaw": MediaFormat("pcma", 8_000),
    "slin": MediaFormat("pcm16", 8_000),
    "slin16": MediaFormat("pcm16", 16_000),
    "slin24": MediaFormat("pcm16", 24_000),
}
MAX_MESSAGE: Final = 65_000
"""Bytes of audio in one message."""

MAX_ERROR_CHARS: Final = 200
"""Characters of Asterisk's error text that are repeated."""


class Asterisk:
    """One channel."""

    name = "Asterisk"
    says_stop = False
    sends_silence = False

    def __init__(self) -> None:
        self._media: MediaFormat | None = None
        self._is_json = False
        self.frame_bytes = 1
        """Bytes of one frame: the channel's `optimal_frame_size`."""

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            if self._media is None:
                raise StreamError("audio came before MEDIA_START")
            return [CallerAudio(frame)]
        is_json = frame.lstrip().startswith("{")
        fields = fields_of(frame) if is_json else words_of(frame)
        event = fields.get("event")
        if event == "MEDIA_START":
            self._is_json = is_json
            return [self._start(fields)]
        if self._media is None:
            raise StreamError("the first message of a channel is MEDIA_START")
        match event:
            case "DTMF_END":
                return pressed(text_at(fields, "digit"))
            case "MEDIA_MARK_PROCESSED":
                return [MarkReached(text_at(fields, "correlation_id"))]
            case "ERROR":  # our commands are valid, so the dial string has an invalid option
                text = fields.get("error_text") if is_json else frame.partition("error_text:")[2]
                raise StreamError(f"Asterisk reports an error: {str(text)[:MAX_ERROR_CHARS]}")
            case "MEDIA_XOFF" | "MEDIA_XON":
                return [FlowChanged(takes_audio=event == "MEDIA_XON")]
            case _:
                return []

    def _start(self, fields: Mapping[str, Any]) -> StreamStarted:
        if self._media is not None:
            raise StreamError("MEDIA_START came twice")
        named = text_at(fields, "format")
        if named not in FORMATS:
            raise StreamError(f"audio as {named}; what is taken is {', '.join(FORMATS)}")
        frame_bytes = number_at(fields, "optimal_frame_size")
        if frame_bytes > MAX_MESSAGE:
            raise StreamError(f"optimal_frame_size is {frame_bytes}, more than a message holds")
        if frame_bytes == 0:
            raise StreamError(
                f"optimal_frame_size is {frame_bytes}: in passthrough mode nothing can be queued, "
                "marked or flushed; leave p out of the dial string"
            )
        if FORMATS[named].encoding == "pcm16" and frame_bytes % 2:
            raise StreamError(f"optimal_frame_size is {frame_bytes}, which cuts a sample in half")
        self._media = FORMATS[named]
        self.frame_bytes = frame_bytes
        variables = texts_of(fields.get("channel_variables"), "channel_variables")
        return StreamStarted(
            text_at(fields, "connection_id"),
            text_at(fields, "channel_id", optional=True) or text_at(fields, "channel"),
            self._media,
            variables.get("caller", ""),
            variables.get("called", ""),
            variables,
        )

    def audio(self, data: bytes) -> list[Frame]:
        size = MAX_MESSAGE // self.frame_bytes * self.frame_bytes
        return [data[first : first + size] for first in range(0, len(data), size)]

    def mark(self, name: str) -> list[Frame]:
        return [self._command("MARK_MEDIA", name)]

    def clear(self) -> list[Frame]:
        return [self._command("FLUSH_MEDIA")]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return [self._command("HANGUP")]

    def _command(self, command: str, correlation_id: str = "") -> str:
        if not self._is_json:
            return f"{command} {correlation_id}".rstrip()
        fields = {"command": command}
        if correlation_id:
            fields["correlation_id"] = correlation_id
        return json.dumps(fields, separators=(",", ":"))


def words_of(line: str) -> dict[str, str]:
    """Parse a line `EVENT name:value name:value`; a word without a name is the event's id. Raises
    StreamError."""
    if len(line) > MAX_FRAME:
        raise StreamError(f"a line of {len(line)} characters; at most {MAX_FRAME} are taken")
    event, *words = line.split() or [""]
    fields = {"event": event}
    for word in words:
        name, found, value = word.partition(":")
        fields[name if found else "correlation_id"] = (value if found else word)[:MAX_TEXT]
    return fields


CARRIER: Final = Carrier(
    key="asterisk", name=Asterisk.name, media_stream=Asterisk, subprotocols=(SUBPROTOCOL,)
)
