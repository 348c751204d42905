"""Media session: couples a carrier's stream to a session, frames to requests and events to frames.

Pure: no I/O and no clock. The shell around it (`transport.py`) sends, takes and waits.
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


class HungUp(Exception):
    """The caller or the carrier ended the call. The message says which."""


class PhoneLine:
    """One call. `started` comes from its first frames; after that, `receive` and `send`,
    with `frames` for what is to go out."""

    def __init__(self, dialect: MediaStreamProtocol, *, hears_keys: bool = False) -> None:
        """`hears_keys`: the carrier does not tell of keys; they are listened for."""
        self._dialect = dialect
        self._hears_keys = hears_keys
        self._ear: DtmfDetector | None = None
        self.carrier: Final = dialect.name
        self.says_stop: Final = dialect.says_stop
        self.sends_silence: Final = dialect.sends_silence
        self.media = MediaFormat("pcmu", 8_000)
        """Once it is open, how its audio travels."""
        self.started: StreamStarted | None = None
        self.order: Final[ReorderBuffer[bytes]] = ReorderBuffer()
        """Of what comes."""
        self._output: PhoneOutput | None = None
        """Once it is open."""
        self._items: dict[str, ItemId] = {}
        """Of the response in progress."""
        self._due: list[ask.Request] = []
        """For the session, which can't be asked anything while it tells."""
        self._is_interruptible = True
        """Speech of the caller stops what is being played."""
        self._keys: list[str] = []
        """That were pressed and not taken yet."""

    def open(self, frame: Frame) -> bool:
        """A frame before the session begins. True when it can. Raises StreamError, HungUp."""
        for event in self._dialect.receive(frame):
            if isinstance(event, StreamStarted):
                self.started = event
                self.media = event.media
                self._output = PhoneOutput(self._dialect, event.media)
                self._ear = DtmfDetector(event.media.rate_hz) if self._hears_keys else None
            elif isinstance(event, StreamStopped):
                raise HungUp(event.reason)
        return self.started is not None

    def receive(self, frame: Frame) -> list[ask.Request]:
        """Raises StreamError, HungUp."""
        requests, self._due = self._due, []
        for event in self._dialect.receive(frame):
            requests += self._requests(event)
        return requests

    def _requests(self, event: PhoneEvent) -> list[ask.Request]:
        match event:
            case CallerAudio(data, place):
                return [self._heard(each) for each in self.order.push(place, data) if each]
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
            case StreamStarted():
                return []

    def _heard(self, data: bytes) -> ask.AppendAudio:
        try:
            pcm = decode_audio(data, self.media.encoding)
        except ValueError as error:
            raise StreamError(f"a piece of audio {error}") from None
        if self._ear is not None:
            self._keys += self._ear.push(pcm)
            if self._ear.is_tone:
                pcm = np.zeros_like(pcm)  # which nobody is to take for words
        return ask.AppendAudio(pcm, self.media.rate_hz)

    def take_keys(self) -> list[str]:
        """Those that were pressed since this was asked last."""
        keys, self._keys = self._keys, []
        return keys

    @property
    def _to_carrier(self) -> PhoneOutput:
        assert self._output is not None, "it is not open"
        return self._output

    @property
    def is_played(self) -> bool:
        """By the carrier's word, all that it was to be sent."""
        return self._to_carrier.is_played

    def send_keys(self, keys: str) -> float:
        """Press these keys, behind all that was sent before: `frames` has it. Returns for how long
        that sounds, in s."""
        if in_words := self._dialect.keys(keys):
            self._to_carrier.order(in_words)
            return 0.0
        return self.play(sound_of(keys, rate_hz=self.media.rate_hz))

    def play(self, pcm: npt.NDArray[np.int16]) -> float:
        """The same with a sound, at the line's rate."""
        self._to_carrier.play(pcm)
        return len(pcm) / self.media.rate_hz

    def hang_up(self) -> list[Frame]:
        """What tells the carrier that the call is over, before its stream is closed."""
        return [] if self.started is None else self._dialect.hang_up()

    def frames(self) -> list[Frame]:
        """What is to be sent now, in order; it is not told again. Nothing while the carrier's queue
        is full."""
        return self._to_carrier.take_frames()

    def take_cleared(self) -> bool:
        """Whether what `frames` has told before, and was not sent yet, need not be any more."""
        return self._to_carrier.take_cleared()

    def send(self, notice: say.Notice) -> None:
        """Tell the carrier: `frames` has it. Of most notices there is nothing to tell."""
        match notice:
            case say.ReplyStarted():
                self._items[notice.response_id] = notice.item_id
                self._to_carrier.begin(notice.item_id)
            case say.ReplyAudio():
                self._due += self._to_carrier.say(self._items[notice.response_id], notice.pcm)
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
