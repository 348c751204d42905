"""Media output: audio frames to the carrier, and how much of each response was played.

A carrier queues audio and plays it at its own pace, so every piece of a reply is followed by a
mark, and a mark that comes back is a report of playback: on an interruption the position is known
to the piece. An interruption clears the queue and forgets outstanding marks: carriers send them
back at once, as if their audio had been played.

Some carriers take whole frames only. The remainder of a piece waits for the next one, and is padded
with silence at the end of a reply: padding within a word would be heard, and a remainder that is
kept would begin the next reply.

Nothing is sent to a carrier whose queue is full. If `MAX_HELD_MS` of audio accumulate meanwhile,
nothing is being played: that audio and the carrier's queue are dropped, and the history is cut to
what was heard.

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
"""Outstanding marks. At ten a second these exceed any lead over playback: older ones won't come."""

MAX_HELD_MS: Final = 10_000
"""Audio held back by a full queue. Asterisk's queue is full at 18 s: later audio is useless."""

Int16 = npt.NDArray[np.int16]


class PhoneOutput:
    """Output of one call."""

    def __init__(self, protocol: MediaStreamProtocol, media: MediaFormat) -> None:
        """`protocol`: of a stream that has started."""
        self._protocol = protocol
        self._media = media
        self._sent_ms: dict[ItemId, float] = {}
        """Length so far of each reply in progress."""
        self._marks: deque[tuple[str, ItemId, int]] = deque()
        """Outstanding marks: name, reply, and position in the reply in ms."""
        self._num_marks = 0
        self._reached: tuple[ItemId, int] | None = None
        """Reply and position in ms of the last mark that came back."""
        self._frames: list[Frame] = []
        """Frames to be sent."""
        self._rest = b""
        """Remainder of the reply in progress: less than a frame of the carrier."""
        self.takes_audio = True
        """The carrier's queue has room, by its last report."""
        self._held_ms = 0.0
        """Audio in `_frames` while the carrier takes none."""
        self._abandoned: ItemId | None = None
        """Reply whose further audio is dropped."""
        self._has_cleared = False

    @property
    def is_played(self) -> bool:
        """The carrier has reported playback of all output."""
        return not (self._marks or self._frames)

    def begin(self, item_id: ItemId) -> None:
        """Begin a reply."""
        self._sent_ms[item_id] = 0.0

    def append(self, item_id: ItemId, pcm: Int16) -> list[ask.Request]:
        """Queue a piece of a reply. Returns requests to the session if playback has stalled."""
        piece_ms = 1000 * len(pcm) / self._media.rate_hz
        self._sent_ms[item_id] += piece_ms
        if item_id == self._abandoned:
            return []
        if self._put(pcm):
            self._mark(item_id)
        if self.takes_audio:
            return []
        self._held_ms += piece_ms
        return self._abandon() if self._held_ms > MAX_HELD_MS else []

    def end(self, item_id: ItemId) -> None:
        """End a reply: it has no more pieces."""
        if self._fill_up():
            self._mark(item_id)
        del self._sent_ms[item_id]

    def play(self, pcm: Int16) -> None:
        """Queue a sound that is no reply."""
        self._put(pcm)
        self._fill_up()

    def send(self, frames: list[Frame]) -> None:
        """Queue frames of the carrier after the output so far."""
        self._frames += frames

    def reached(self, name: str) -> list[ask.Request]:
        """Take a mark that came back. Marks come in order: those before it were reached too."""
        if all(name != out for out, _, _ in self._marks):
            return []  # cleared, or never sent
        while True:
            out, item_id, played_ms = self._marks.popleft()
            if out == name:
                self._reached = item_id, played_ms
                return [ask.PlaybackReport(item_id, played_ms)]

    def clear(self) -> None:
        """Clear the output queued here and at the carrier."""
        is_queued = bool(self._marks or self._frames or self._rest)
        self._frames.clear()
        self._marks.clear()
        self._rest = b""
        self._held_ms = 0.0
        if is_queued:
            self.takes_audio = True  # the queue will be empty
            self._frames += self._protocol.clear()
            self._has_cleared = True

    def take_frames(self) -> list[Frame]:
        """Take the frames to be sent now, in order; none while the carrier's queue is full."""
        if not self.takes_audio:
            return []
        frames, self._frames, self._held_ms = self._frames, [], 0.0
        return frames

    def take_cleared(self) -> bool:
        """True once after `clear`: frames taken before it and not sent yet are obsolete."""
        has_cleared, self._has_cleared = self._has_cleared, False
        return has_cleared

    def _put(self, pcm: Int16) -> bool:
        """Queue as many whole frames as possible. False: none."""
        data = self._rest + encode_audio(pcm, self._media.encoding)
        size = self._protocol.frame_bytes
        whole = len(data) // size * size
        self._rest = data[whole:]
        if whole:
            self._frames += self._protocol.audio(data[:whole])
        return whole > 0

    def _fill_up(self) -> bool:
        """Queue the remainder, padded with silence. False: there is none."""
        if not self._rest:
            return False
        lacking = self._protocol.frame_bytes - len(self._rest)
        silence = encode_audio(np.zeros(lacking, np.int16), self._media.encoding)
        self._frames += self._protocol.audio(self._rest + silence[:lacking])
        self._rest = b""
        return True

    def _mark(self, item_id: ItemId) -> None:
        """Queue a mark that reports playback of the reply so far."""
        sample_bytes = 2 if self._media.encoding == "pcm16" else 1
        rest_ms = 1000 * len(self._rest) / sample_bytes / self._media.rate_hz
        self._num_marks += 1
        name = str(self._num_marks)
        self._marks.append((name, item_id, round(self._sent_ms[item_id] - rest_ms)))
        if len(self._marks) > MAX_MARKS:
            self._marks.popleft()
        self._frames += self._protocol.mark(name)

    def _abandon(self) -> list[ask.Request]:
        """Drop the stalled output; return requests that cut the history to what was heard."""
        heard = dict([self._reached] if self._reached else [])
        requests: list[ask.Request] = []
        for item_id in dict.fromkeys(item_id for _, item_id, _ in self._marks):
            heard_ms = heard.get(item_id, 0)
            if item_id in self._sent_ms:
                self._abandoned = item_id
                requests += [ask.PlaybackReport(item_id, heard_ms), ask.CancelResponse()]
            else:
                requests.append(ask.TruncateItem(item_id, heard_ms))
        self.clear()
        return requests
