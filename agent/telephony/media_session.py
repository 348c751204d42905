"""Media session: couples a carrier's stream to a session, frames to requests and events to frames.

Pure: no I/O and no clock. The shell around it (`transport.py`) sends, receives and waits.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from agent.codec.pcm import decode_audio
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.telephony.carriers.media_stream import (
    CallerAudio,
    FlowChanged,
    Frame,
    KeyPressed,
    MarkReached,
    MediaFormat,
    MediaStreamProtocol,
    PhoneEvent,
    StreamError,
    StreamStarted,
    StreamStopped,
)
from agent.telephony.media.dtmf import DtmfDetector, sound_of
from agent.telephony.media.reorder_buffer import ReorderBuffer

from .media_output import PhoneOutput

FRAMES_PER_S: Final = 50
"""Frames in which tones of keys are silenced. Longer ones take the speech beside a tone with it."""

Int16 = npt.NDArray[np.int16]


class HungUp(Exception):
    """The caller or the carrier ended the call. The message says which."""


class PhoneLine:
    """Line of one call. `open` takes its first frames, until `started` is set; then `receive` and
    `send`, and `frames` for the output."""

    def __init__(self, protocol: MediaStreamProtocol, *, detects_keys: bool = False) -> None:
        """`detects_keys`: detect keys in the audio, for a carrier that does not report them."""
        self._protocol = protocol
        self._hears_keys = detects_keys
        self._dtmf_detector: DtmfDetector | None = None
        self.carrier: Final = protocol.name
        self.says_stop: Final = protocol.says_stop
        self.sends_silence: Final = protocol.sends_silence
        self.media = MediaFormat("pcmu", 8_000)
        """Format of the audio, once the line is open."""
        self.started: StreamStarted | None = None
        self.order: Final[ReorderBuffer[bytes]] = ReorderBuffer()
        """Reorder buffer of the incoming audio."""
        self._output: PhoneOutput | None = None
        """Set once the line is open."""
        self._items: dict[str, ItemId] = {}
        """Items of the responses in progress, by response id."""
        self._due: list[ask.Request] = []
        """Requests to the session, which takes none while it sends a notice."""
        self._is_interruptible = True
        """Speech of the caller interrupts playback."""
        self._keys: list[str] = []
        """Keys not taken yet."""

    def open(self, frame: Frame) -> bool:
        """Take a frame before the session begins. True once it can begin. Raises StreamError,
        HungUp."""
        for event in self._protocol.receive(frame):
            if isinstance(event, StreamStarted):
                self.started = event
                self.media = event.media
                self._output = PhoneOutput(self._protocol, event.media)
                self._dtmf_detector = (
                    DtmfDetector(event.media.rate_hz) if self._hears_keys else None
                )
            elif isinstance(event, StreamStopped):
                raise HungUp(event.reason)
        return self.started is not None

    def receive(self, frame: Frame) -> list[ask.Request]:
        """Process a frame; return requests to the session, one for all audio without another event
        in between: a frame may hold a thousand messages of one sample. Raises StreamError,
        HungUp."""
        requests, self._due = self._due, []
        pieces: list[bytes] = []
        for event in self._protocol.receive(frame):
            if isinstance(event, CallerAudio):
                pieces += self.order.push(event.sequence, event.data)
                continue
            requests += self._append_audio(pieces)
            pieces = []
            requests += self._requests(event)
        return requests + self._append_audio(pieces)

    def _requests(self, event: PhoneEvent) -> list[ask.Request]:
        match event:
            case MarkReached(name):
                return self._to_carrier.reached(name)
            case KeyPressed(digit):
                self._keys.append(digit)
                return []
            case StreamStopped(reason):
                raise HungUp(reason)
            case FlowChanged(takes_audio):
                self._to_carrier.takes_audio = takes_audio
                return []
            case StreamStarted() | CallerAudio():
                return []

    def _append_audio(self, pieces: list[bytes]) -> list[ask.Request]:
        if not (data := b"".join(pieces)):
            return []
        try:
            pcm = decode_audio(data, self.media.encoding)
        except ValueError as error:
            raise StreamError(f"a piece of audio {error}") from None
        if self._dtmf_detector is not None:
            pcm = self._without_tones(self._dtmf_detector, pcm)
        return [ask.AppendAudio(pcm, self.media.rate_hz)]

    def _without_tones(self, detector: DtmfDetector, pcm: Int16) -> Int16:
        """Take the keys, and silence the frames with their tones, which are no speech."""
        heard = pcm.copy()
        size = self.media.rate_hz // FRAMES_PER_S
        for first in range(0, len(heard), size):
            frame = heard[first : first + size]
            self._keys += detector.push(frame)
            if detector.is_tone:
                frame[:] = 0
        return heard

    def take_keys(self) -> list[str]:
        """Keys since the last call of this method."""
        keys, self._keys = self._keys, []
        return keys

    @property
    def _to_carrier(self) -> PhoneOutput:
        assert self._output is not None, "it is not open"
        return self._output

    @property
    def is_played(self) -> bool:
        """The carrier has reported playback of all output."""
        return self._to_carrier.is_played

    def send_keys(self, keys: str) -> float:
        """Queue keys after the output so far. Returns the length of their tones, in s."""
        if messages := self._protocol.keys(keys):
            self._to_carrier.send(messages)
            return 0.0
        return self.play(sound_of(keys, rate_hz=self.media.rate_hz))

    def play(self, pcm: npt.NDArray[np.int16]) -> float:
        """Queue a sound, int16 [n] at the line's rate. Returns its length, in s."""
        self._to_carrier.play(pcm)
        return len(pcm) / self.media.rate_hz

    def hang_up(self) -> list[Frame]:
        """Frames that end the call, to be sent before the stream is closed."""
        return [] if self.started is None else self._protocol.hang_up()

    def frames(self) -> list[Frame]:
        """Take the output that is to be sent now, in order; none while the carrier's queue is
        full."""
        return self._to_carrier.take_frames()

    def take_cleared(self) -> bool:
        """True once after an interruption: frames taken before it and not sent yet are obsolete."""
        return self._to_carrier.take_cleared()

    def send(self, notice: say.Notice) -> None:
        """Convert a notice of the session to output. Most notices have none."""
        match notice:
            case say.ReplyStarted():
                self._items[notice.response_id] = notice.item_id
                self._to_carrier.begin(notice.item_id)
            case say.ReplyAudio():
                self._due += self._to_carrier.append(self._items[notice.response_id], notice.pcm)
            case say.SpeechStarted() if self._is_interruptible:
                self._to_carrier.clear()
            case say.SessionCreated(settings=settings) | say.SessionUpdated(settings=settings):
                detection = settings.turn_detection
                self._is_interruptible = detection is None or detection.interrupt_response
            case say.ReplyEnded():
                item_id = self._items.pop(notice.response_id, None)
                if item_id is not None:
                    self._to_carrier.end(item_id)
                if notice.status == "cancelled":
                    self._to_carrier.clear()
