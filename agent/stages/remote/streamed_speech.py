"""Speech of one piece of text from samples as they come: trimmed, resampled, with word times.

A server tells no word times, and how long a piece lasts is known only at its end. So the times are
estimated from the letters, at the pace of the voice so far, and the last chunk takes the words that
are left. After a barge-in the history then holds about the words that were heard.

Pure.
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.ports.playback import HeardWord
from agent.session.ports.stage_ports import Speech
from latency_budget.account.marks import AUDIBLE
from tts.resample import StreamResampler

MIN_CHUNK_MS: Final = 40
"""Shortest chunk. Shorter ones cost an event each and are heard no sooner: a frame of playback has
100 ms."""

HELD_MS: Final = 20
"""Newest audio that is held back, so that the last chunk, which ends the text, has samples."""

LEAD_IN_MS: Final = 10
"""Silence that is left in front of the first sound, as with the voices of this process."""

MAX_LEAD_IN_S: Final = 2
"""Longest silence in front that is dropped. A server that sends more sends silence."""

FIRST_CHARS_PER_S: Final = 15.0
"""Pace of a voice of which nothing is known: English at 150 words a minute."""

_TOKEN: Final = re.compile(r"\S+")
Int16 = npt.NDArray[np.int16]


class Pace:
    """Pace of one voice, in characters a second, from the pieces that it has spoken."""

    def __init__(self) -> None:
        self.chars_per_s = FIRST_CHARS_PER_S

    def spoke(self, num_chars: int, seconds: float) -> None:
        """Note that a piece of so many characters took so long. Short ones say little."""
        if num_chars >= 10 and seconds > 0:
            found = min(max(num_chars / seconds, 5.0), 40.0)
            self.chars_per_s += (found - self.chars_per_s) / 4


class StreamedSpeech:
    """Chunks of one piece. The spans are contiguous and cover the piece."""

    def __init__(
        self, text: str, first_char: int, rate_hz: int, pace: Pace, speed: float = 1.0
    ) -> None:
        """`first_char`: the piece's first character in the reply; `rate_hz`: rate of the output;
        `speed`: what the server was asked for, 1 being the pace's own."""
        self._text = text
        self._first_char = first_char
        self._rate_hz = rate_hz
        self._pace = pace
        self._speed = speed
        self._resampler: StreamResampler | None = None
        self._silence: list[Int16] | None = []
        """Samples before the first sound, at the server's rate; None after it."""
        self._num_silent = 0
        """Their number."""
        self._pcm = np.zeros(0, np.int16)
        """Samples at the output's rate that are in no chunk yet."""
        self._num_sent = 0
        self._num_chars = 0
        """Characters that the chunks so far speak."""

    def push(self, samples: Int16, rate_hz: int) -> Speech | None:
        """Add int16 [n] at the server's rate; returns a chunk where enough is there."""
        if self._silence is not None:
            samples = self._trimmed(self._silence, samples, rate_hz)
        if not len(samples):
            return None
        if self._resampler is None:
            self._resampler = StreamResampler(rate_hz, self._rate_hz)
        self._pcm = np.concatenate([self._pcm, self._resampler.push(samples)])
        num_ready = len(self._pcm) - self._rate_hz * HELD_MS // 1000
        is_enough = num_ready >= self._rate_hz * MIN_CHUNK_MS // 1000
        return self._chunk(num_ready) if is_enough else None

    @property
    def is_silent(self) -> bool:
        """Nothing could be heard so far."""
        return self._silence is not None

    def finish(self) -> Speech:
        """The last chunk, with the rest of the text."""
        if self._resampler is not None:
            self._pcm = np.concatenate([self._pcm, self._resampler.flush()])
        seconds = (self._num_sent + len(self._pcm)) / self._rate_hz
        self._pace.spoke(len(self._text), seconds * self._speed)
        return self._chunk(len(self._pcm), is_last=True)

    def _trimmed(self, silence: list[Int16], samples: Int16, rate_hz: int) -> Int16:
        """Drop the silence before the first sound."""
        sounds = np.flatnonzero(np.abs(samples.astype(np.int32)) > AUDIBLE)
        if not len(sounds) and self._num_silent + len(samples) <= MAX_LEAD_IN_S * rate_hz:
            silence.append(samples)
            self._num_silent += len(samples)
            return samples[:0]
        before = np.concatenate([*silence, samples])
        first = self._num_silent + (int(sounds[0]) if len(sounds) else len(samples))
        self._silence = None
        return before[max(0, first - rate_hz * LEAD_IN_MS // 1000) :]

    def _chunk(self, num_samples: int, *, is_last: bool = False) -> Speech:
        pcm, self._pcm = self._pcm[:num_samples], self._pcm[num_samples:]
        begins, self._num_sent = self._num_sent, self._num_sent + num_samples
        chars_per_s = self._pace.chars_per_s * self._speed
        ends = [
            (found.end(), round(found.end() / chars_per_s * self._rate_hz))
            for found in _TOKEN.finditer(self._text)
            if found.end() > self._num_chars
        ]
        words = [
            HeardWord(self._first_char + end, min(max(at - begins, 0), num_samples))
            for end, at in ends
            if is_last or at <= self._num_sent
        ]
        first = self._num_chars
        if is_last:
            self._num_chars = len(self._text)
        elif words:
            self._num_chars = words[-1].char_end - self._first_char
        span = (self._first_char + first, self._first_char + self._num_chars)
        return Speech(pcm, span, tuple(words))
