"""Asterisk's AudioSocket: messages in a TCP stream, and audio that is played as it comes.

Written from https://docs.asterisk.org/Configuration/Channel-Drivers/AudioSocket/ and from what
Asterisk's `res_audiosocket.c` sends. A message is a kind (one byte), a length (two bytes, the high
one first) and so many bytes. Traps: the rate of the audio is told by the kind of its messages, so a
call begins with the first of them, and answers travel in the same kind; Asterisk queues
nothing, so whoever sends faster than real time is cut off or heard late; there are no marks, no
flush and no proof of who calls; of a phone that sends nothing while nobody speaks (DTX) nothing
comes here either; a channel that ends closes the connection, mostly without a message before.

What the carriers behind WebSockets do for us a queue of our own does here
(`agent/telephony/media/paced_sender.py`), and
the text frames of this dialect travel between the two: orders to it, marks from it. Binary frames
are pieces of the TCP stream, cut anywhere.
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
"""Asterisk sends 20 ms a message, at 192 kHz 7680 bytes. More is no AudioSocket."""

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
        """`agent`: who answers; empty: whoever does by default."""
        self._parameters = {"agent": agent} if agent else {}
        self._reader = MessageReader()
        self._call_id = ""
        self._kind: int | None = None
        """Of the call's audio."""
        self._ahead: list[PhoneEvent] = []
        """What came with the audio that began the call: that is a frame of its own."""

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, str):
            return [MarkReached(frame.removeprefix(MARK))]
        events, self._ahead = self._ahead, []
        for kind, payload in self._reader.feed(frame):
            events += self._events(kind, payload)
        if any(isinstance(event, StreamStopped) for event in events):
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
            self._named(payload)
            return []
        if not self._call_id:
            raise StreamError("the first message of a connection is the UUID of its call")
        if kind == KEY:
            return pressed(payload.decode("latin-1"))
        return self._heard(kind, payload)

    def _named(self, payload: bytes) -> None:
        if self._call_id:
            raise StreamError("the UUID came twice")
        if len(payload) != 16:
            raise StreamError(f"a UUID of {len(payload)} bytes; it has 16")
        self._call_id = str(uuid.UUID(bytes=payload))

    def _heard(self, kind: int, payload: bytes) -> list[PhoneEvent]:
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


class MessageReader:
    """Cuts a stream into messages, however it was cut before. Keeps less than one of them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kinds and payloads, in order. Raises StreamError as soon as a header can't be one."""
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
    """As it travels."""
    return bytes([kind]) + len(payload).to_bytes(2, "big") + payload


def _check(kind: int, length: int) -> None:
    """Raises StreamError."""
    if kind not in RATES and kind not in (HANG_UP, UUID, KEY, ERROR):
        raise StreamError(f"a message of kind 0x{kind:02x}, which AudioSocket does not have")
    if length > MAX_PAYLOAD:
        raise StreamError(f"a message of {length} bytes; at most {MAX_PAYLOAD} are taken")


CARRIER: Final = Carrier(key="audiosocket", name=AudioSocket.name, media_stream=AudioSocket)
"""Not in `table.CARRIERS`: `audiosocket_listener.py` serves it, on a port of its own."""
