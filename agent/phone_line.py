"""A carrier's stream coupled to a session: its frames become requests, notices become its frames.

Playback. A carrier queues what it gets and plays it in its own time, so every piece of a reply is
followed by a mark, and a mark that comes back is a report of playback: what was heard when a caller
interrupts is known to the piece. On an interruption the queue is cleared, and marks that were still
out are forgotten: carriers send them back at once, as if their audio had been played.

Pure: no I/O and no clock. The shell around it (`phone_socket.py`) reads, writes and waits.
"""

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from . import notices as say
from . import requests as ask
from .conversation import ItemId
from .frame_order import FrameOrder
from .key_tones import KeyEar, sound_of
from .wire.encodings import decode_audio, encode_audio
from .wire.telephony.line import (
    CallerAudio,
    Dialect,
    FlowChanged,
    Frame,
    KeyPressed,
    LineError,
    MarkReached,
    PhoneEvent,
    StreamStarted,
    StreamStopped,
)

MAX_MARKS: Final = 256
"""That are out. At ten a second more than can be ahead of what is played: older ones won't come."""


class HungUp(Exception):
    """The caller or the carrier ended the call. The message says which."""


class PhoneLine:
    """One call. `started` comes from its first frames; after that, `receive` and `send`,
    with `frames` for what is to go out."""

    def __init__(self, dialect: Dialect, *, hears_keys: bool = False) -> None:
        """`hears_keys`: the carrier does not tell of keys; they are listened for."""
        self._dialect = dialect
        self._hears_keys = hears_keys
        self._ear: KeyEar | None = None
        self.carrier: Final = dialect.name
        self.has_marks: Final = dialect.has_marks
        """The carrier says what it has played."""
        self.rate_hz = 8_000
        """Once it is open, of its audio."""
        self.started: StreamStarted | None = None
        self._items: dict[str, ItemId] = {}
        """Of the response in progress."""
        self._played_ms: dict[ItemId, float] = {}
        """How long each reply is so far that was sent."""
        self._marks: deque[tuple[str, ItemId, int]] = deque()
        """That are out: name, reply, and its length there in ms."""
        self._num_marks = 0
        self._order: FrameOrder[bytes] = FrameOrder()
        self._out: list[Frame] = []
        """To be sent."""
        self._takes_audio = True
        self._is_interruptible = True
        """Speech of the caller stops what is being played."""
        self._keys: list[str] = []
        """That were pressed and not taken yet."""

    def open(self, frame: Frame) -> bool:
        """A frame before the session begins. True when it can. Raises LineError, HungUp."""
        for event in self._dialect.receive(frame):
            if isinstance(event, StreamStarted):
                self.started = event
                self.rate_hz = event.media.rate_hz
                self._ear = KeyEar(event.media.rate_hz) if self._hears_keys else None
            elif isinstance(event, StreamStopped):
                raise HungUp(event.reason)
        return self.started is not None

    def receive(self, frame: Frame) -> list[ask.Request]:
        """Raises LineError, HungUp."""
        requests: list[ask.Request] = []
        for event in self._dialect.receive(frame):
            requests += self._requests(event)
        return requests

    def _requests(self, event: PhoneEvent) -> list[ask.Request]:
        match event:
            case CallerAudio(data, place):
                return [self._heard(each) for each in self._order.push(place, data) if each]
            case MarkReached(name):
                return self._reached(name)
            case KeyPressed(digit):
                self._keys.append(digit)
                return []
            case StreamStopped(reason):
                raise HungUp(reason)
            case FlowChanged(takes_audio):
                self._takes_audio = takes_audio
                return []
            case StreamStarted():
                return []

    def _heard(self, data: bytes) -> ask.AppendAudio:
        assert self.started is not None
        media = self.started.media
        try:
            pcm = decode_audio(data, media.encoding)
        except ValueError as error:
            raise LineError(f"a piece of audio {error}") from None
        if self._ear is not None:
            self._keys += self._ear.push(pcm)
            if self._ear.is_tone:
                pcm = np.zeros_like(pcm)  # which nobody is to take for words
        return ask.AppendAudio(pcm, media.rate_hz)

    def _reached(self, name: str) -> list[ask.Request]:
        """Marks come back in order: those before it were reached as well."""
        if all(name != out for out, _, _ in self._marks):
            return []  # cleared, or never sent
        while True:
            out, item_id, played_ms = self._marks.popleft()
            if out == name:
                return [ask.PlaybackReport(item_id, played_ms)]

    def take_keys(self) -> list[str]:
        """Those that were pressed since this was asked last."""
        keys, self._keys = self._keys, []
        return keys

    @property
    def is_played(self) -> bool:
        """By the carrier's word, all that it was to be sent."""
        return not (self._marks or self._out)

    def send_keys(self, keys: str) -> float:
        """Press these keys, behind all that was sent before: `frames` has it. Returns for how long
        that sounds, in s."""
        if in_words := self._dialect.keys(keys):
            self._out += in_words
            return 0.0
        return self.play(sound_of(keys, rate_hz=self.rate_hz))

    def play(self, pcm: npt.NDArray[np.int16]) -> float:
        """The same with a sound, at the line's rate."""
        assert self.started is not None
        media = self.started.media
        self._out += self._dialect.audio(encode_audio(pcm, media.encoding))
        return len(pcm) / media.rate_hz

    def hang_up(self) -> list[Frame]:
        """What tells the carrier that the call is over, before its stream is closed."""
        return [] if self.started is None else self._dialect.hang_up()

    def frames(self) -> list[Frame]:
        """What is to be sent now, in order; it is not told again. Nothing while the carrier's queue
        is full."""
        if not self._takes_audio:
            return []
        frames, self._out = self._out, []
        return frames

    def send(self, notice: say.Notice) -> None:
        """Tell the carrier: `frames` has it. Of most notices there is nothing to tell."""
        match notice:
            case say.ReplyStarted():
                self._items[notice.response_id] = notice.item_id
                self._played_ms[notice.item_id] = 0.0
            case say.ReplyAudio():
                self._audio(notice)
            case say.SpeechStarted() if self._is_interruptible:
                self._clear()
            case say.SessionCreated(settings=settings) | say.SessionUpdated(settings=settings):
                detection = settings.turn_detection
                self._is_interruptible = detection is None or detection.interrupt_response
            case say.ReplyEnded():
                item_id = self._items.pop(notice.response_id, None)
                if item_id is not None:
                    self._played_ms.pop(item_id, None)
                if notice.status == "cancelled":
                    self._clear()

    def _audio(self, notice: say.ReplyAudio) -> None:
        assert self.started is not None
        item_id = self._items[notice.response_id]
        played_ms = self._played_ms[item_id] + 1000 * len(notice.pcm) / notice.rate_hz
        self._played_ms[item_id] = played_ms
        self._out += self._dialect.audio(encode_audio(notice.pcm, self.started.media.encoding))
        if self._dialect.has_marks:
            self._num_marks += 1
            name = str(self._num_marks)
            self._marks.append((name, item_id, round(played_ms)))
            if len(self._marks) > MAX_MARKS:
                self._marks.popleft()
            self._out += self._dialect.mark(name)

    def _clear(self) -> None:
        """Nothing more of what is queued, here or there, is to be heard."""
        self._out.clear()
        self._takes_audio = True  # the queue is empty then
        if self._marks or not self._dialect.has_marks:
            self._out += self._dialect.clear()
        self._marks.clear()
