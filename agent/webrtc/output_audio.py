"""Output audio buffer: the agent's audio as frames of 20 ms, and how much of each reply was sent.

Audio leaves in real time, so what a client has heard is what was sent, and what is on its way will
be heard: a browser's jitter buffer can't be emptied from here. That makes an interruption exact: at
`clear` what has not been sent is dropped, and each reply is reported with the samples that were.

Pure: no I/O and no clock.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.api.client_events import PlaybackReport
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import (
    OutputAudioCleared,
    OutputAudioStarted,
    OutputAudioStopped,
)
from latency_budget.account.marks import AUDIBLE

from .opus import FRAME_MS

MAX_QUEUED_S: Final = 30.0
"""Most audio in the buffer. A session is `agent.lead_ms` ahead, at most 5 s; more means that
nothing is being sent."""

REPORT_MS: Final = 200
"""Interval of playback reports, in ms. Longer: where a reply is resumed is less exact."""

Int16 = npt.NDArray[np.int16]
OutputNotice = OutputAudioStarted | OutputAudioStopped | OutputAudioCleared


@dataclass(slots=True)
class _Reply:
    response_id: str
    item_id: ItemId
    rate_hz: int = 24_000
    parts: deque[Int16] = field(default_factory=deque)
    num_queued: int = 0
    num_sent: int = 0
    is_audible: bool = False
    """It was said that it started, and not that it is over."""
    has_ended: bool = False

    def take(self, num: int) -> Int16:
        """The next samples, padded with silence."""
        frame = np.zeros(num, np.int16)
        filled = 0
        while self.parts and filled < num:
            part = self.parts[0]
            piece = part[: num - filled]
            frame[filled : filled + len(piece)] = piece
            filled += len(piece)
            if len(piece) == len(part):
                self.parts.popleft()
            else:
                self.parts[0] = part[len(piece) :]
        self.num_queued -= filled
        self.num_sent += filled
        return frame


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """A frame to send now."""

    pcm: Int16
    """[rate / 50]"""
    rate_hz: int
    item_id: ItemId
    first_ms: int
    """Audio of the reply that was sent before, in ms."""


@dataclass(frozen=True, slots=True)
class SentAudio:
    """What was sent of a reply that was interrupted."""

    response_id: str
    item_id: ItemId
    sent_ms: int
    was_cut: bool
    """Audio of it was dropped."""
    is_active: bool
    """Its response has not ended: more may come."""


class OutputAudioBuffer:
    """Buffer of one call. Order of calls for each response: `begin`, `append`, `end`."""

    def __init__(self) -> None:
        self._replies: deque[_Reply] = deque()
        self._notices: list[OutputNotice] = []

    @property
    def queued_s(self) -> float:
        """Audio that waits, in s."""
        return sum(reply.num_queued / reply.rate_hz for reply in self._replies)

    @property
    def num_replies(self) -> int:
        """Replies that are sent, or may still bring audio."""
        return len(self._replies)

    def begin(self, response_id: str, item_id: ItemId) -> None:
        """Begin a reply."""
        self._replies.append(_Reply(response_id, item_id))

    def append(self, response_id: str, pcm: Int16, rate_hz: int) -> None:
        """Queue a piece of a reply, int16 [n]. Dropped where the reply has ended."""
        for reply in self._replies:
            if reply.response_id == response_id:
                reply.rate_hz = rate_hz
                reply.parts.append(pcm)
                reply.num_queued += len(pcm)

    def end(self, response_id: str) -> None:
        """End a reply: no more of it comes."""
        for reply in self._replies:
            if reply.response_id == response_id:
                reply.has_ended = True
        self._forget()

    def clear(self) -> list[SentAudio]:
        """Drop what was not sent. Returns the replies that were being sent."""
        sent: list[SentAudio] = []
        for reply in self._replies:
            if reply.is_audible:
                reply.is_audible = False
                self._notices.append(OutputAudioCleared(reply.response_id))
            if reply.num_sent or reply.num_queued:
                # Rounded up: half a millisecond less would cost the word that ends here.
                sent_ms = -(-reply.num_sent * 1000 // reply.rate_hz)
                was_cut, is_active = reply.num_queued > 0, not reply.has_ended
                audio = SentAudio(reply.response_id, reply.item_id, sent_ms, was_cut, is_active)
                sent.append(audio)
            reply.parts.clear()
            reply.num_queued = 0
        self._forget()
        return sent

    def next_frame(self) -> OutputFrame | None:
        """The frame that is due; None where there is no audio."""
        self._forget()
        reply = next((each for each in self._replies if each.num_queued), None)
        if reply is None:
            return None
        if not reply.is_audible:
            reply.is_audible = True
            self._notices.append(OutputAudioStarted(reply.response_id))
        first_ms = reply.num_sent * 1000 // reply.rate_hz
        pcm = reply.take(reply.rate_hz * FRAME_MS // 1000)
        frame = OutputFrame(pcm, reply.rate_hz, reply.item_id, first_ms)
        self._forget()
        return frame

    def take_notices(self) -> list[OutputNotice]:
        """What has happened since the last call of this method, in order."""
        notices, self._notices = self._notices, []
        return notices

    def _forget(self) -> None:
        """Drop replies of which all was sent."""
        for reply in [each for each in self._replies if each.has_ended and not each.num_queued]:
            self._replies.remove(reply)
            if reply.is_audible:
                self._notices.append(OutputAudioStopped(reply.response_id))


class OutputReports:
    """Playback reports of the replies, from the frames as they leave: one as soon as there was
    something to hear, then one each `REPORT_MS`. Pure."""

    def __init__(self) -> None:
        self._item_id: ItemId | None = None
        self._began_ns = 0
        self._is_audible = False
        self._due_ms = REPORT_MS

    def sent(self, frame: OutputFrame, now_ns: int) -> PlaybackReport | None:
        """A frame is sent now. Its own audio has not been played, nor has more than the time since
        the reply's first frame: after the event loop stood still, frames leave in a burst."""
        if frame.item_id != self._item_id:
            self._item_id, self._began_ns = frame.item_id, now_ns
            self._is_audible, self._due_ms = False, REPORT_MS
        played_ms = min(frame.first_ms, (now_ns - self._began_ns) // 1_000_000)
        is_due = played_ms >= self._due_ms
        if is_due:
            self._due_ms = played_ms + REPORT_MS
        if not self._is_audible and int(np.abs(frame.pcm.astype(np.int32)).max()) > AUDIBLE:
            self._is_audible = True
            self._due_ms = min(self._due_ms, frame.first_ms + FRAME_MS)
        return PlaybackReport(frame.item_id, played_ms) if is_due else None
