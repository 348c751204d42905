"""Media output: audio frames to the carrier, and how much of each response was played.

A carrier queues what it gets and plays it in its own time, so every piece of a reply is followed by
a mark, and a mark that comes back is a report of playback: what was heard when a caller interrupts
is known to the piece. On an interruption the queue is cleared, and marks that were still out are
forgotten: carriers send them back at once, as if their audio had been played.

Some carriers take whole frames only. What a piece has beyond them waits for the next one, and at
the end of a reply silence fills it up: a gap within a word would be heard, and what is left lying
would be the beginning of the next reply.

A carrier whose queue is full is told nothing until there is room. Where none comes for
`MAX_HELD_MS` of audio, nothing is being played: what waits is dropped with all that is queued
there, and the history is cut to what was heard.

Pure: no I/O and no clock.
"""

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.codec.pcm import encode_audio
from agent.session.api import client_events as ask
from agent.session.api.conversation import ItemId
from agent.telephony.carriers.media_stream import Frame, MediaFormat, MediaStreamProtocol

MAX_MARKS: Final = 256
"""That are out. At ten a second more than can be ahead of what is played: older ones won't come."""

MAX_HELD_MS: Final = 10_000
"""Of audio behind a full queue. Asterisk's is full at 18 s: nobody wants to hear that so late."""

Int16 = npt.NDArray[np.int16]


class PhoneOutput:
    """Of one call."""

    def __init__(self, dialect: MediaStreamProtocol, media: MediaFormat) -> None:
        """`dialect`: of a stream that has started."""
        self._dialect = dialect
        self._media = media
        self._sent_ms: dict[ItemId, float] = {}
        """How long each reply in progress is so far."""
        self._marks: deque[tuple[str, ItemId, int]] = deque()
        """That are out: name, reply, and its length there in ms."""
        self._num_marks = 0
        self._reached: tuple[ItemId, int] | None = None
        """By the last mark that came back."""
        self._frames: list[Frame] = []
        """To be sent."""
        self._rest = b""
        """Less than a frame of the carrier's, of the reply in progress."""
        self.takes_audio = True
        """The carrier's queue has room, by what it said last."""
        self._held_ms = 0.0
        """Of audio in `_frames`, while the carrier takes none."""
        self._given_up: ItemId | None = None
        """A reply of which nothing more is sent."""
        self._has_cleared = False

    @property
    def is_played(self) -> bool:
        """By the carrier's word, all that it was to be sent."""
        return not (self._marks or self._frames)

    def begin(self, item_id: ItemId) -> None:
        """A reply."""
        self._sent_ms[item_id] = 0.0

    def say(self, item_id: ItemId, pcm: Int16) -> list[ask.Request]:
        """A piece of a reply. Returns what has to be asked of the session where nothing is played
        any more."""
        piece_ms = 1000 * len(pcm) / self._media.rate_hz
        self._sent_ms[item_id] += piece_ms
        if item_id == self._given_up:
            return []
        if self._put(pcm):
            self._mark(item_id)
        if self.takes_audio:
            return []
        self._held_ms += piece_ms
        return self._give_up() if self._held_ms > MAX_HELD_MS else []

    def end(self, item_id: ItemId) -> None:
        """The reply has no more pieces."""
        if self._fill_up():
            self._mark(item_id)
        del self._sent_ms[item_id]

    def play(self, pcm: Int16) -> None:
        """A sound that is no reply."""
        self._put(pcm)
        self._fill_up()

    def order(self, frames: list[Frame]) -> None:
        """Behind all that was put."""
        self._frames += frames

    def reached(self, name: str) -> list[ask.Request]:
        """A mark has come back. They do so in order: those before it were reached as well."""
        if all(name != out for out, _, _ in self._marks):
            return []  # cleared, or never sent
        while True:
            out, item_id, played_ms = self._marks.popleft()
            if out == name:
                self._reached = item_id, played_ms
                return [ask.PlaybackReport(item_id, played_ms)]

    def clear(self) -> None:
        """Nothing more of what is queued, here or there, is to be heard."""
        is_queued = bool(self._marks or self._frames or self._rest)
        self._frames.clear()
        self._marks.clear()
        self._rest = b""
        self._held_ms = 0.0
        if is_queued:
            self.takes_audio = True  # the queue will be empty
            self._frames += self._dialect.clear()
            self._has_cleared = True

    def take_frames(self) -> list[Frame]:
        """What is to be sent now, in order. Nothing while the carrier's queue is full."""
        if not self.takes_audio:
            return []
        frames, self._frames, self._held_ms = self._frames, [], 0.0
        return frames

    def take_cleared(self) -> bool:
        """Whether what was taken before, and was not sent yet, need not be any more."""
        has_cleared, self._has_cleared = self._has_cleared, False
        return has_cleared

    def _put(self, pcm: Int16) -> bool:
        """Have as much of it sent as makes whole frames. False: none."""
        data = self._rest + encode_audio(pcm, self._media.encoding)
        size = self._dialect.frame_bytes
        whole = len(data) // size * size
        self._rest = data[whole:]
        if whole:
            self._frames += self._dialect.audio(data[:whole])
        return whole > 0

    def _fill_up(self) -> bool:
        """Have the rest sent, with silence behind it. False: there is none."""
        if not self._rest:
            return False
        lacking = self._dialect.frame_bytes - len(self._rest)
        silence = encode_audio(np.zeros(lacking, np.int16), self._media.encoding)
        self._frames += self._dialect.audio(self._rest + silence[:lacking])
        self._rest = b""
        return True

    def _mark(self, item_id: ItemId) -> None:
        """Have it told when all that was put of a reply has been played."""
        sample_bytes = 2 if self._media.encoding == "pcm16" else 1
        rest_ms = 1000 * len(self._rest) / sample_bytes / self._media.rate_hz
        self._num_marks += 1
        name = str(self._num_marks)
        self._marks.append((name, item_id, round(self._sent_ms[item_id] - rest_ms)))
        if len(self._marks) > MAX_MARKS:
            self._marks.popleft()
        self._frames += self._dialect.mark(name)

    def _give_up(self) -> list[ask.Request]:
        """Nothing of what waits, here or there, was heard, nor will be."""
        heard = dict([self._reached] if self._reached else [])
        requests: list[ask.Request] = []
        for item_id in dict.fromkeys(item_id for _, item_id, _ in self._marks):
            heard_ms = heard.get(item_id, 0)
            if item_id in self._sent_ms:
                self._given_up = item_id
                requests += [ask.PlaybackReport(item_id, heard_ms), ask.CancelResponse()]
            else:
                requests.append(ask.TruncateItem(item_id, heard_ms))
        self.clear()
        return requests
