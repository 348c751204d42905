"""Paced sender: audio queue of a line whose peer plays frames as they arrive.

Carriers behind WebSockets queue what they get, play it in their own time, and say when they come to
a mark. Here that is done on this side: audio leaves in frames of 20 ms, each when the one before it
has been played, and what has not left yet can be taken back to the last sample.

The clock does not drift: a frame is due 20 ms after the one before it was due, not after it was
sent. Where the process itself was held up for longer than `MAX_BEHIND_NS` the clock begins anew:
the caller has heard a gap, and a burst would be thrown away at the other end, or delay all that
follows.

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
"""What the jitter buffers of telephones take as jitter."""


class PacedSender:
    """Of one connection. Bounded by whoever fills it: see `queued_ms`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytearray] | str] = deque()
        """Pieces of audio with their kind, and marks, in order."""
        self._due_ns = 0
        """When all that has left will have been played."""

    def put(self, frame: Frame, now_ns: int) -> None:
        """Audio, a mark, or the order to forget all that waits."""
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
        """Of audio that has not left."""
        return sum(
            1000 * len(each[1]) / (SAMPLE_BYTES * RATES[each[0]])
            for each in self._waiting
            if not isinstance(each, str)
        )

    def next_due_ns(self) -> int | None:
        """When `take` has something; None where nothing waits."""
        return self._due_ns if self._waiting else None

    def take(self, now_ns: int) -> list[Frame]:
        """What is due, in order: messages to be sent, and marks that were reached. A mark is when
        the audio before it has been played."""
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
        """20 ms from as many pieces as it takes; silence where there is no more."""
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
