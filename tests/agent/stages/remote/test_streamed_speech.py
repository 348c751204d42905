"""Chunks of one piece of text from streamed samples."""

from itertools import pairwise

import numpy as np
import pytest

from agent.session.ports.stage_ports import Speech
from agent.stages.remote.streamed_speech import LEAD_IN_MS, Int16, Pace, StreamedSpeech

TEXT = " One two three, four five."
FIRST = 40


def tone(seconds: float, rate_hz: int) -> Int16:
    times = np.arange(int(seconds * rate_hz)) / rate_hz
    return (8000 * np.sin(2 * np.pi * 300 * times)).astype(np.int16)


def spoken(
    samples: Int16, from_hz: int, to_hz: int, size: int = 1000, pace: Pace | None = None
) -> list[Speech]:
    streamed = StreamedSpeech(TEXT, FIRST, to_hz, pace or Pace())
    chunks = [
        streamed.push(samples[at : at + size], from_hz) for at in range(0, len(samples), size)
    ]
    return [chunk for chunk in [*chunks, streamed.finish()] if chunk is not None]


@pytest.mark.parametrize("seconds", [0.5, 1.7, 6.0])
def test_the_chunks_cover_the_text_and_their_words_are_in_order(seconds: float) -> None:
    chunks = spoken(tone(seconds, 24_000), 24_000, 24_000)
    assert len(chunks) > 2
    assert chunks[0].span[0] == FIRST
    assert chunks[-1].span[1] == FIRST + len(TEXT)
    for before, after in pairwise(chunks):
        assert before.span[1] == after.span[0]
    ends = [FIRST + TEXT.index(word) + len(word) for word in TEXT.split()]
    assert [word.char_end for chunk in chunks for word in chunk.words] == ends
    for chunk in chunks:
        times = [word.end_sample for word in chunk.words]
        assert times == sorted(times)
        assert all(0 <= time <= len(chunk.pcm) for time in times)
        assert all(chunk.span[0] < word.char_end <= chunk.span[1] for word in chunk.words)
        assert len(chunk.pcm)


def test_the_samples_do_not_depend_on_the_cut_and_are_at_the_output_rate() -> None:
    samples = tone(1.0, 22_050)
    found = [
        np.concatenate([chunk.pcm for chunk in spoken(samples, 22_050, 8_000, size)])
        for size in (220, 5000, len(samples))
    ]
    assert len(found[0]) == 8_000
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    equal = spoken(tone(1.0, 24_000), 24_000, 24_000)
    assert np.array_equal(np.concatenate([chunk.pcm for chunk in equal]), tone(1.0, 24_000))


def test_silence_in_front_is_dropped() -> None:
    sound = tone(0.5, 24_000)[20:]  # begins with a loud sample
    quiet = np.full(24_000, 30, np.int16)
    chunks = spoken(np.concatenate([quiet, sound]), 24_000, 24_000)
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert len(pcm) == len(sound) + 24 * LEAD_IN_MS


def test_what_is_only_silence_says_so() -> None:
    streamed = StreamedSpeech(TEXT, FIRST, 24_000, Pace())
    assert streamed.push(np.zeros(24_000, np.int16), 24_000) is None
    assert streamed.is_silent


class Counted(np.ndarray[tuple[int], np.dtype[np.int16]]):
    """Samples that count how often their number is asked for."""

    num_asked = 0

    def __len__(self) -> int:
        Counted.num_asked += 1
        return super().__len__()


def test_silence_in_front_costs_the_same_in_each_piece() -> None:
    streamed = StreamedSpeech(TEXT, FIRST, 24_000, Pace())
    asked = []
    for _ in range(100):
        before = Counted.num_asked
        streamed.push(np.zeros(10, np.int16).view(Counted), 24_000)
        asked.append(Counted.num_asked - before)
    assert streamed.is_silent
    assert len(set(asked)) == 1


def test_the_pace_of_a_voice_is_learned_and_bounded() -> None:
    pace = Pace()
    for _ in range(20):
        spoken(tone(len(TEXT) / 20, 24_000), 24_000, 24_000, pace=pace)
    assert pace.chars_per_s == pytest.approx(20, rel=0.05)
    for _ in range(40):
        pace.spoke(10_000, 0.001)
    assert pace.chars_per_s <= 40
    pace.spoke(3, 100.0)
    assert pace.chars_per_s > 39
