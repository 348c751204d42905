"""Asterisk's AudioSocket: messages in a TCP stream, and audio that is played on arrival.

Written from https://docs.asterisk.org/Configuration/Channel-Drivers/AudioSocket/ and from what
Asterisk's `res_audiosocket.c` sends. A message is a kind (one byte), a length (two bytes, the high
one first) and a payload of that length. Traps: the kind of a message gives the rate of its audio,
so a call begins with its first audio message, and our audio goes back in the same kind; Asterisk
queues nothing, so audio sent faster than real time is lost or played late; there are no marks, no
flush and no authentication; a phone that suppresses silence (DTX) causes silence on this stream
too; a channel that ends closes the connection, mostly without a message before.

The playback queue, which carriers behind WebSockets have, is our own here
(`agent/telephony/media/paced_sender.py`). This protocol's text frames travel between the two:
commands to the queue, marks from it. Binary frames are pieces of the TCP stream, cut anywhere.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from .carrier import Carrier
from .json_media_stream import pressed
from .media_stream import (
    CallerAudio,
    Frame,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
    StreamStopped,
)

HANG_UP: Final = 0x00
UUID: Final = 0x01
KEY: Final = 0x03
ERROR: Final = 0xFF
RATES: Final[Mapping[int, int]] = {
    0x10: 8_000,
    0x11: 12_000,
    0x12: 16_000,
    0x13: 24_000,
    0x14: 32_000,
    0x15: 44_100,
    0x16: 48_000,
    0x17: 96_000,
    0x18: 192_000,
}
"""Hz, by the kind of message: 16-bit samples, little-endian, one channel."""

HEADER_BYTES: Final = 3
MAX_PAYLOAD: Final = 16_384
"""Bytes. Asterisk sends 20 ms a message, 7680 bytes at 192 kHz; a longer message is an error."""

CLEAR: Final = "clear"
END: Final = "hang up"
MARK: Final = "mark "


class AudioSocket:
    """One connection."""

    name = "AudioSocket"
    says_stop = False
    sends_silence = False
    frame_bytes = 2

    def __init__(self, agent: str = "") -> None:
        """`agent`: the agent that answers; empty: the default agent."""
        self._parameters = {"agent": agent} if agent else {}
        self._reader = MessageReader()
        self._call_id = ""
        self._kind: int | None = None
        """Message kind of the call's audio; None before the first audio."""
        self._ahead: list[PhoneEvent] = []
        """Events after `StreamStarted` in one frame: `receive` returns them with the next frame."""

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, str):
            return [MarkReached(frame.removeprefix(MARK))]
        events, self._ahead = self._ahead, []
        try:
            for kind, payload in self._reader.feed(frame):
                events += self._events(kind, payload)
        except StreamError:
            if not _is_over(events):  # what stands behind the end counts for nothing
                raise
        if _is_over(events):
            return events
        for number, event in enumerate(events, 1):
            if isinstance(event, StreamStarted):
                self._ahead = events[number:]
                return events[:number]
        return events

    def _events(self, kind: int, payload: bytes) -> list[PhoneEvent]:
        if kind == HANG_UP:
            return [StreamStopped("the caller hung up")]
        if kind == ERROR:
            return [StreamStopped(f"Asterisk reports an error ({payload.hex() or 'no code'})")]
        if kind == UUID:
            self._set_call_id(payload)
            return []
        if not self._call_id:
            raise StreamError("the first message of a connection is the UUID of its call")
        if kind == KEY:
            return pressed(payload.decode("latin-1"))
        return self._audio_events(kind, payload)

    def _set_call_id(self, payload: bytes) -> None:
        if self._call_id:
            raise StreamError("the UUID came twice")
        if len(payload) != 16:
            raise StreamError(f"a UUID of {len(payload)} bytes; it has 16")
        self._call_id = str(uuid.UUID(bytes=payload))

    def _audio_events(self, kind: int, payload: bytes) -> list[PhoneEvent]:
        if len(payload) % 2:
            raise StreamError(f"{len(payload)} bytes of audio; a sample has two")
        events: list[PhoneEvent] = [CallerAudio(payload)] if payload else []
        if self._kind is None:
            self._kind = kind
            media = MediaFormat("pcm16", RATES[kind])
            started = StreamStarted(
                self._call_id, self._call_id, media, parameters=self._parameters
            )
            return [started, *events]
        if kind != self._kind:
            raise StreamError(
                f"audio at {RATES[kind]} Hz in a call at {RATES[self._kind]} Hz; the rate of a "
                "call does not change"
            )
        return events

    def audio(self, data: bytes) -> list[Frame]:
        assert self._kind is not None
        return [bytes([self._kind]) + data]

    def mark(self, name: str) -> list[Frame]:
        return [MARK + name]

    def clear(self) -> list[Frame]:
        return [CLEAR]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return [END]


def _is_over(events: list[PhoneEvent]) -> bool:
    return any(isinstance(event, StreamStopped) for event in events)


class MessageReader:
    """Cuts a byte stream, in pieces of any size, into messages. Buffers less than one message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kinds and payloads, in order. Raises StreamError for an invalid header."""
        self._data += data
        first = 0
        try:
            while len(self._data) - first >= HEADER_BYTES:
                kind = self._data[first]
                length = int.from_bytes(self._data[first + 1 : first + HEADER_BYTES], "big")
                _check(kind, length)
                end = first + HEADER_BYTES + length
                if len(self._data) < end:
                    break
                yield kind, bytes(self._data[first + HEADER_BYTES : end])
                first = end
        finally:
            del self._data[:first]


def message(kind: int, payload: bytes = b"") -> bytes:
    """Encode a message."""
    return bytes([kind]) + len(payload).to_bytes(2, "big") + payload


def _check(kind: int, length: int) -> None:
    """Raises StreamError."""
    if kind not in RATES and kind not in (HANG_UP, UUID, KEY, ERROR):
        raise StreamError(f"a message of kind 0x{kind:02x}, which AudioSocket does not have")
    if length > MAX_PAYLOAD:
        raise StreamError(f"a message of {length} bytes; at most {MAX_PAYLOAD} are taken")


CARRIER: Final = Carrier(key="audiosocket", name=AudioSocket.name, media_stream=AudioSocket)
"""Not in `table.CARRIERS`: `audiosocket_listener.py` serves it, on a port of its own."""
