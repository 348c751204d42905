"""Media stream protocol: the carrier-neutral interface of all telephone lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.session.api.settings import AudioEncoding

Frame = str | bytes
"""As it travels: text or binary."""


class StreamError(Exception):
    """The carrier's stream can't be served, or not any longer. The message says why."""


@dataclass(frozen=True, slots=True)
class MediaFormat:
    """How audio travels, in both directions."""

    encoding: AudioEncoding
    rate_hz: int


MULAW: Final = MediaFormat("pcmu", 8_000)


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The call can be heard from here on."""

    stream_id: str
    call_id: str
    media: MediaFormat
    caller: str = ""
    """Number of who calls, where the carrier tells it."""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What our own webhook gave the carrier to hand on."""


@dataclass(frozen=True, slots=True)
class CallerAudio:
    data: bytes
    """In the stream's format."""
    place: int | None = None
    """Grows by one with every frame, where the carrier may send them out of order; else None."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """All audio before this mark was played, or was cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyPressed:
    digit: str
    """One of 0-9, *, #, A-D."""


@dataclass(frozen=True, slots=True)
class StreamStopped:
    reason: str


@dataclass(frozen=True, slots=True)
class FlowChanged:
    """The carrier's queue is full, or takes audio again."""

    takes_audio: bool


PhoneEvent = StreamStarted | CallerAudio | MarkReached | KeyPressed | StreamStopped | FlowChanged


class MediaStreamProtocol(Protocol):
    """One stream of one carrier. Frames of the carrier first: before `StreamStarted` nothing can be
    sent."""

    name: str
    says_stop: bool
    """Its last message tells that the call is over: a socket that closes without it was lost."""
    sends_silence: bool
    """Also of a caller who says nothing, so that no message at all means that it has gone."""

    @property
    def frame_bytes(self) -> int:
        """Audio is sent to it in multiples of so many bytes. Once the stream has started."""
        ...

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        ...

    def audio(self, data: bytes) -> list[Frame]:
        """Audio to play behind all that was sent before, in the stream's format: whole frames."""
        ...

    def mark(self, name: str) -> list[Frame]:
        """To be told of when all that was sent before has been played."""
        ...

    def clear(self) -> list[Frame]:
        """Play nothing of what is queued. Nothing where that can't be done."""
        ...

    def keys(self, digits: str) -> list[Frame]:
        """Send keys down the line. Nothing where only tones in the audio can do that."""
        ...

    def hang_up(self) -> list[Frame]:
        """Nothing where closing the socket does it."""
        ...
