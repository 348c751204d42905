"""Playback position of one reply: what was sent, what was heard, when the next frame is due.

Theory of operation: audio leaves at most `lead_ms` ahead of real time, so that a barge-in recalls
little and the position of the listener is known without asking. The client is assumed to play from
the moment the first sample reaches it, or from the end of a response that it still plays
(`play_after`); where it ran dry, it starts again with the next sample. A client's playback report
counts only where it claims *less* than that: what was not sent was not heard, and a word counts as
heard when its last sample was played.

Sent audio is kept for a while, because a reply that was interrupted without words goes on from the
first word that was not heard (`rest`), which lies behind what was sent.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.api.session_state import SpokenChunk

FRAME_MS: Final = 100
"""Audio per frame. Larger frames make barge-in coarser, smaller ones cost a message each; stock
clients are fine with anything up to 200 ms."""


KEPT_S: Final = 5
"""Seconds of sent audio that are kept for `rest`: a client is behind what was sent by `lead_ms` and
its own buffer. A reply is not resumed from further back, whatever the client claims."""

FADE_IN_MS: Final = 5
"""Fade-in at the word where a reply is resumed: without it a cut outside silence clicks."""


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word and the sample of the chunk at which it has been spoken."""

    char_end: int
    """End of the word, in characters of the reply."""
    end_sample: int
    """First sample after the word, counted from the chunk's first sample."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One frame for the transport."""

    pcm: npt.NDArray[np.int16]
    """[n], at the playback's rate."""
    first_sample: int
    """First sample of this frame, counted from the start of the reply."""
    at_ns: int
    """Time at which the client plays its first sample, ns."""
    text: tuple[int, int] | None
    """Characters of the reply whose speech begins in this frame: to be sent just before it."""


@dataclass(slots=True)
class _Chunk:
    first_sample: int
    end_sample: int
    span: tuple[int, int]
    words: tuple[HeardWord, ...]
    pcm: npt.NDArray[np.int16]
    announced: bool = False

    def begins(self, first_char: int) -> int:
        """Sample of the chunk at which this character's word begins."""
        before = [word.end_sample for word in self.words if word.char_end <= first_char]
        return before[-1] if before else 0


class Playback:
    """The audio of one reply. Not thread-safe; reads no clock."""

    def __init__(self, rate_hz: int, lead_ms: int) -> None:
        self.rate_hz = rate_hz
        self._lead_ms = lead_ms
        self._lead = rate_hz * lead_ms // 1000
        self._frame = rate_hz * FRAME_MS // 1000
        self._pending: deque[_Chunk] = deque()
        self._chunks: list[_Chunk] = []
        self._num_forgotten = 0
        """Chunks whose samples are gone. Their spans stay for the history."""
        self._queued = 0
        self.sent = 0
        """Samples sent so far."""
        self._not_before_ns = 0
        self._anchor_ns: int | None = None
        self._anchor_sample = 0
        self._reported: tuple[int, int] | None = None
        """(at_ns, sample) of the client's last report."""
        self.is_client_lost = False
        """The client was lost before the end: a cut is no interruption."""
        self._finished = False
        self._held_from: int | None = None
        """First sample that may not be sent yet; None: all may."""

    def push(
        self, pcm: npt.NDArray[np.int16], span: tuple[int, int], words: tuple[HeardWord, ...]
    ) -> None:
        """Queue the speech of characters `span`; `words` in order of time."""
        chunk = _Chunk(self._queued, self._queued + len(pcm), span, words, pcm)
        self._queued = chunk.end_sample
        self._pending.append(chunk)
        self._chunks.append(chunk)

    def put_in_front(
        self,
        pcm: npt.NDArray[np.int16],
        num_chars: int,
        words: tuple[HeardWord, ...],
        *,
        holds_rest: bool,
    ) -> None:
        """Queue the speech of `num_chars` characters in front of all others, whose characters count
        on from there; nothing was sent yet. `holds_rest`: only this speech is sent before
        `release_rest`."""
        assert not self.sent
        for chunk in self._chunks:
            chunk.first_sample += len(pcm)
            chunk.end_sample += len(pcm)
            chunk.span = (chunk.span[0] + num_chars, chunk.span[1] + num_chars)
            chunk.words = tuple(
                HeardWord(word.char_end + num_chars, word.end_sample) for word in chunk.words
            )
        first = _Chunk(0, len(pcm), (0, num_chars), words, pcm)
        self._queued += len(pcm)
        self._pending.appendleft(first)
        self._chunks.insert(0, first)
        self._held_from = len(pcm) if holds_rest else None

    @property
    def queued_chars(self) -> int:
        """End of the speech pushed so far, in characters of the reply; 0 where there is none."""
        return self._chunks[-1].span[1] if self._chunks else 0

    def play_after(self, end_ns: int) -> None:
        """The client plays another response until then; nothing of this one was sent yet."""
        assert not self.sent
        self._not_before_ns = end_ns

    def release_rest(self) -> None:
        """What is behind the speech that was put in front may be sent as well."""
        self._held_from = None

    @property
    def _is_held(self) -> bool:
        return self._held_from is not None and self.sent >= self._held_from

    def finish(self) -> None:
        """Nothing more will be pushed."""
        self._finished = True

    @property
    def all_sent(self) -> bool:
        return self._finished and not self._pending

    def due(self, now_ns: int) -> list[Outgoing]:
        """The frames to send now, in order."""
        frames: list[Outgoing] = []
        while not self._is_held and self._pending and self._is_within_lead(now_ns):
            frames.append(self._next_frame(now_ns))
        return frames

    def _is_within_lead(self, now_ns: int) -> bool:
        return self.sent - self.position(now_ns) < self._lead

    def _next_frame(self, now_ns: int) -> Outgoing:
        chunk = self._pending[0]
        offset = self.sent - chunk.first_sample
        pcm = chunk.pcm[offset : offset + self._frame]
        text = None if chunk.announced else chunk.span
        chunk.announced = True
        if self._anchor_ns is None or self.position(now_ns) >= self.sent:
            self._anchor_ns = max(now_ns, self._not_before_ns)
            self._anchor_sample = self.sent
        first_sample = self.sent
        self.sent += len(pcm)
        if self.sent >= chunk.end_sample:
            self._pending.popleft()
            self._forget(self.sent - KEPT_S * self.rate_hz)
        since_anchor = duration_ns(first_sample - self._anchor_sample, self.rate_hz)
        return Outgoing(pcm, first_sample, self._anchor_ns + since_anchor, text)

    def _forget(self, sample: int) -> None:
        """The samples of chunks that ended by then."""
        while self._chunks[self._num_forgotten].end_sample <= sample:
            chunk = self._chunks[self._num_forgotten]
            chunk.pcm = chunk.pcm[:0].copy()  # a view would keep all of it
            self._num_forgotten += 1

    def rest(self, first_char: int) -> "Playback | None":
        """Audio of the reply from this character on, to be sent anew. None if it is not kept any
        more."""
        rest = Playback(self.rate_hz, self._lead_ms)
        for number, chunk in enumerate(self._chunks):
            if chunk.span[1] <= first_char:
                continue
            if number < self._num_forgotten:
                return None
            start = max(first_char, chunk.span[0])
            cut = chunk.begins(start)
            words = tuple(
                HeardWord(word.char_end, word.end_sample - cut)
                for word in chunk.words
                if word.char_end > start
            )
            pcm = _faded_in(chunk.pcm[cut:], self.rate_hz) if cut else chunk.pcm
            rest.push(pcm, (start, chunk.span[1]), words)
        rest._finished = self._finished
        return rest

    def spoken(self) -> tuple[SpokenChunk, ...]:
        """All chunks so far, without their samples."""
        return tuple(
            SpokenChunk(
                chunk.first_sample,
                chunk.end_sample,
                chunk.span,
                tuple((word.char_end, word.end_sample) for word in chunk.words),
            )
            for chunk in self._chunks
        )

    @classmethod
    def of_spoken(cls, rate_hz: int, chunks: Sequence[SpokenChunk]) -> "Playback":
        """The playback of a reply that another server sent, of which nothing more is sent. Any of
        it may have reached the client."""
        playback = cls(rate_hz, lead_ms=0)
        nothing = np.zeros(0, np.int16)
        for chunk in chunks:
            words = tuple(HeardWord(*word) for word in chunk.words)
            kept = _Chunk(chunk.first_sample, chunk.end_sample, chunk.span, words, nothing, True)
            playback._chunks.append(kept)
        playback._num_forgotten = len(playback._chunks)
        playback._queued = playback.sent = chunks[-1].end_sample if chunks else 0
        playback._finished = True
        return playback

    def next_due_ns(self) -> int | None:
        """Time at which `due` has the next frame, ns; None while nothing is queued, or the rest is
        held back."""
        if not self._pending or self._is_held:
            return None
        if self._anchor_ns is None:
            return 0
        played_then = self.sent - self._lead + 1
        return self._anchor_ns + duration_ns(played_then - self._anchor_sample, self.rate_hz)

    def end_ns(self) -> int:
        """Time at which the last sample sent so far will have been played, ns."""
        if self._anchor_ns is None:
            return 0
        return self._anchor_ns + duration_ns(self.sent - self._anchor_sample, self.rate_hz)

    def lasts_until_ns(self, now_ns: int) -> int:
        """Time at which all that was pushed so far will have been played, if it is sent from now
        on, ns."""
        begins_ns = self._not_before_ns if self._anchor_ns is None else self._anchor_ns
        left = self._queued - self.position(now_ns)
        return max(now_ns, begins_ns) + duration_ns(left, self.rate_hz)

    def position(self, now_ns: int) -> int:
        """Samples that the client can have played by now, if it played without a gap."""
        if self._anchor_ns is None:
            return 0
        passed = (now_ns - self._anchor_ns) * self.rate_hz // 1_000_000_000
        return min(self.sent, self._anchor_sample + max(passed, 0))

    def heard_samples(self, now_ns: int) -> int:
        """Samples heard: `position`, limited by the client's own reports."""
        position = self.position(now_ns)
        if self._reported is None:
            return position
        at_ns, sample = self._reported
        return min(position, sample + (now_ns - at_ns) * self.rate_hz // 1_000_000_000)

    def report(self, played_ms: int, now_ns: int) -> None:
        """Record a client's report that it has played `played_ms` of this reply."""
        self._reported = (now_ns, self.samples_claimed(played_ms))

    def client_lost(self, now_ns: int) -> None:
        """Nothing more reaches the client. One that used to report has played, since its last
        report, no more than it can have had by then."""
        self.is_client_lost = True
        if self._reported is not None:
            at_ns, sample = self._reported
            since = min((now_ns - at_ns) * self.rate_hz // 1_000_000_000, self._lead)
            self._reported = now_ns, min(self.position(now_ns), sample + since)

    def samples_claimed(self, played_ms: int) -> int:
        """Samples that a client reports as played, clamped to what was sent."""
        return max(0, min(played_ms * self.rate_hz // 1000, self.sent))

    def chars_heard(self, num_samples: int) -> int:
        """End of the last word, in characters of the reply, that `num_samples` make audible."""
        heard = 0
        for chunk in self._chunks:
            if chunk.end_sample <= num_samples:
                heard = chunk.span[1]
                continue
            inside = num_samples - chunk.first_sample
            spoken = [word.char_end for word in chunk.words if word.end_sample <= inside]
            return max(heard, *spoken) if spoken else heard
        return heard


def _faded_in(pcm: npt.NDArray[np.int16], rate_hz: int) -> npt.NDArray[np.int16]:
    faded = pcm.copy()
    num = min(len(pcm), rate_hz * FADE_IN_MS // 1000)
    faded[:num] = (pcm[:num] * np.linspace(0, 1, num)).astype(np.int16)
    return faded


def duration_ns(num_samples: int, rate_hz: int) -> int:
    """Duration of `num_samples`, rounded up."""
    return -(-num_samples * 1_000_000_000 // rate_hz)
