"""Audio frames of any shape: cut anywhere, with gaps, repeated, damaged, for hours."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio.samples import RATE_HZ, AudioFrame
from asr.errors import AudioError
from asr.speech_detection.endpointing import EndpointEvent, SpeechStarted
from asr.speech_detection.vad import FRAME
from tests.asr.test_stream import listener, said, silence


def test_a_gap_is_filled_and_a_repetition_skipped() -> None:
    ears = listener()
    ears.feed(AudioFrame(0, said(1)))
    ears.feed(AudioFrame(ears.position + 800, said(1)))
    assert ears.position == 2 * len(said(1)) + 800
    ears.feed(AudioFrame(ears.position - 100, silence(0.032)))
    assert ears.position == 2 * len(said(1)) + 800 + FRAME - 100
    ears.feed(AudioFrame(0, silence(0.032)))
    counts = ears.counts
    assert (counts.gap_samples, counts.repeated_samples) == (800, 100 + FRAME)


def test_a_jump_is_refused() -> None:
    ears = listener()
    with pytest.raises(AudioError, match=r"jumps ahead by 6\.2 s"):
        ears.feed(AudioFrame(100_000, said(1)))
    assert ears.position == 0


@pytest.mark.parametrize("pcm", [np.zeros(10), np.zeros((5, 2), np.float32)])
def test_other_arrays_are_refused(pcm: npt.NDArray[np.float32]) -> None:
    with pytest.raises(AudioError, match=r"takes float32 \[n\]"):
        listener().feed(pcm)


def test_nan_is_silence() -> None:
    ears = listener()
    assert ears.feed(np.full(RATE_HZ, np.nan, np.float32)).events == ()


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_any_cut_gives_the_same_events_and_audio(sizes: list[int]) -> None:
    pcm = np.concatenate([silence(0.5), said(1), silence(0.5), said(0.7), silence(1.2)])
    whole = listener(partial_interval_ms=0)
    expected = whole.feed(pcm).events
    cut = listener(partial_interval_ms=0)
    events: list[EndpointEvent] = []
    start = turn = 0
    while start < len(pcm):
        size = sizes[turn % len(sizes)]
        events += cut.feed(pcm[start : start + size]).events
        start += size
        turn += 1
    assert tuple(events) == expected
    one, other = whole.finalize(1, 40_000), cut.finalize(1, 40_000)
    assert one is not None
    assert other is not None
    assert one.pcm.tolist() == other.pcm.tolist()


def test_a_call_of_hours_keeps_a_second_or_two() -> None:
    ears = listener(partial_interval_ms=0)
    for minute in range(30):
        events = ears.feed(np.concatenate([said(1), silence(59)])).events
        assert events[0] == SpeechStarted(minute + 1, minute * (len(said(1)) + len(silence(59))))
        ears.end(minute + 1)
    # A feed of a minute is taken in by the second; an utterance ended late costs its silence.
    assert ears.counts.peak_bytes < 4 * 4 * 62 * RATE_HZ
    for _ in range(100):
        ears.feed(silence(0.1))
    assert ears.counts.held_bytes < 4 * 4 * 3 * RATE_HZ
