"""Paced sender: audio queue of a line whose peer plays frames as they arrive.

Carriers behind WebSockets queue audio, play it at their own pace, and report marks. Here this side
does that: audio leaves in frames of 20 ms, each when the one before it has been played, and audio
that has not left can be cleared to the sample.

The schedule does not drift: a frame is due 20 ms after the one before it was due, not after it was
sent. After a delay of the process of more than `MAX_BEHIND_NS` the schedule restarts: the caller
has heard a gap, and a burst would be dropped by the peer, or delay everything after it.

Pure: no I/O and no clock. `agent/telephony/audiosocket_listener.py` writes and waits.
"""

from collections import deque
from typing import Final

from agent.telephony.carriers.audiosocket import CLEAR, RATES, message
from agent.telephony.carriers.media_stream import Frame

FRAME_MS: Final = 20
FRAME_NS: Final = FRAME_MS * 1_000_000
SAMPLE_BYTES: Final = 2

MAX_BEHIND_NS: Final = 3 * FRAME_NS
"""Delay that the jitter buffers of telephones absorb."""


class PacedSender:
    """Audio queue of one connection. Its user bounds it: see `queued_ms`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytearray] | str] = deque()
        """Pieces of audio with their message kind, and marks, in order."""
        self._due_ns = 0
        """End of playback of all audio that has left."""

    def put(self, frame: Frame, now_ns: int) -> None:
        """Queue audio or a mark; `CLEAR` empties the queue."""
        if frame == CLEAR:
            self._waiting.clear()
            return
        if not self._waiting:
            self._due_ns = max(self._due_ns, now_ns)
        if isinstance(frame, str):
            self._waiting.append(frame)
        else:
            self._waiting.append((frame[0], bytearray(frame[1:])))

    @property
    def queued_ms(self) -> float:
        """Length of the audio that has not left."""
        return sum(
            1000 * len(each[1]) / (SAMPLE_BYTES * RATES[each[0]])
            for each in self._waiting
            if not isinstance(each, str)
        )

    def next_due_ns(self) -> int | None:
        """Time at which `take` has frames; None with an empty queue."""
        return self._due_ns if self._waiting else None

    def take(self, now_ns: int) -> list[Frame]:
        """Frames that are due, in order: messages to send, and marks that were reached. A mark is
        reached when the audio before it has been played."""
        if now_ns - self._due_ns > MAX_BEHIND_NS:
            self._due_ns = now_ns
        out: list[Frame] = []
        while self._waiting and self._due_ns <= now_ns:
            head = self._waiting[0]
            if isinstance(head, str):
                out.append(head)
                self._waiting.popleft()
            else:
                out += self._next_frame(head[0])
        return out

    def _next_frame(self, kind: int) -> list[Frame]:
        """Message of 20 ms, from as many pieces as needed, padded with silence."""
        size = SAMPLE_BYTES * RATES[kind] * FRAME_MS // 1000
        pcm = bytearray()
        marks: list[str] = []
        while self._waiting and len(pcm) < size:
            head = self._waiting[0]
            if isinstance(head, str):
                marks.append(head)
                self._waiting.popleft()
                continue
            piece, lacking = head[1], size - len(pcm)
            pcm += piece[:lacking]
            del piece[:lacking]
            if not piece:
                self._waiting.popleft()
        self._waiting.extendleft(reversed(marks))  # reached when this frame has been played
        self._due_ns += FRAME_NS
        return [message(kind, bytes(pcm.ljust(size, b"\0")))]
