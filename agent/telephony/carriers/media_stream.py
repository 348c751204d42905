"""Media stream protocol: the carrier-neutral interface of all telephone lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.session.api.settings import AudioEncoding

Frame = str | bytes
"""Message of the WebSocket: text or binary."""


class StreamError(Exception):
    """The carrier's stream can't be served, or can't be served further. The message says why."""


@dataclass(frozen=True, slots=True)
class MediaFormat:
    """Encoding and sample rate of a stream's audio, in both directions."""

    encoding: AudioEncoding
    rate_hz: int


MULAW: Final = MediaFormat("pcmu", 8_000)


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The stream has started: audio follows."""

    stream_id: str
    call_id: str
    media: MediaFormat
    caller: str = ""
    """The caller's number; empty where the carrier does not send it."""
    called: str = ""
    """The called number; empty where the carrier does not send it."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the stream, by name: those of our webhook's answer, or of the dialplan."""


@dataclass(frozen=True, slots=True)
class CallerAudio:
    """Audio of the caller."""

    data: bytes
    """Audio in the stream's format."""
    sequence: int | None = None
    """Sequence number, one more for every frame; None where the carrier sends frames in order."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """All audio before this mark has been played, or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """DTMF key of the caller."""

    digit: str
    """One of 0-9, *, #, A-D."""


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The carrier ended the stream."""

    reason: str


@dataclass(frozen=True, slots=True)
class FlowChanged:
    """Flow control: the carrier's queue is full, or takes audio again."""

    takes_audio: bool


PhoneEvent = StreamStarted | CallerAudio | MarkReached | KeyPressed | StreamStopped | FlowChanged


class MediaStreamProtocol(Protocol):
    """Protocol of one stream. Nothing can be sent before `receive` has returned `StreamStarted`."""

    name: str
    """The carrier's name."""
    says_stop: bool
    """The carrier announces the end of the call: a socket that closes without that was lost."""
    sends_silence: bool
    """The carrier sends audio of a silent caller too: a stream without messages was lost."""

    @property
    def frame_bytes(self) -> int:
        """Audio is sent in multiples of this many bytes. Valid once the stream has started."""
        ...

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Decode a frame of the carrier. Raises StreamError."""
        ...

    def audio(self, data: bytes) -> list[Frame]:
        """Queue audio for playback: whole frames, in the stream's format."""
        ...

    def mark(self, name: str) -> list[Frame]:
        """Request a `MarkReached` once everything sent so far has been played."""
        ...

    def clear(self) -> list[Frame]:
        """Clear the carrier's playback queue. No frames: the carrier can't."""
        ...

    def keys(self, digits: str) -> list[Frame]:
        """Send DTMF keys. No frames: only tones in the audio can send them."""
        ...

    def hang_up(self) -> list[Frame]:
        """Hang up. No frames: closing the socket does that."""
        ...
