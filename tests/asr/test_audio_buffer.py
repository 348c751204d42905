import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asr.speech_detection.vad import FRAME
from asr.stream.audio_buffer import AudioBuffer


def counted(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 9000)), max_size=20))
def test_positions_are_those_of_the_call(steps: list[tuple[int, int]]) -> None:
    recording = AudioBuffer()
    given_up = 0
    for count, keep in steps:
        recording.append(counted(recording.end_sample, count))
        while (frame := recording.next_frame()) is not None:
            assert frame.tolist() == counted(recording.end_of_frames, FRAME).tolist()
            recording.add_probability(0.0)
        given_up = max(given_up, recording.end_sample - keep)
        recording.forget_before(recording.end_sample - keep)
        first, end = recording.first_sample, recording.end_sample
        assert first <= given_up
        assert recording.read(0, end + 10).tolist() == counted(first, end - first).tolist()


def test_memory_stays_in_proportion_to_what_is_kept() -> None:
    recording = AudioBuffer()
    for _ in range(2000):
        recording.append(np.zeros(1600, np.float32))
        while recording.next_frame() is not None:
            recording.add_probability(0.0)
        recording.forget_before(recording.end_sample - 16_000)
    assert recording.end_sample == 3_200_000
    assert recording.room_bytes <= 4 * 4 * 32_768


def test_voiced_time_counts_frames() -> None:
    recording = AudioBuffer()
    recording.append(np.zeros(6 * FRAME, np.float32))
    for probability in (0.1, 0.9, 0.9, 0.4, 0.6, 0.2):
        recording.add_probability(probability)
    assert recording.voiced_ms(0, 6 * FRAME, 0.5) == 96
    assert recording.voiced_ms(2 * FRAME, 4 * FRAME, 0.5) == 32
    assert recording.voiced_ms(2 * FRAME, 2 * FRAME, 0.5) == 0
    assert recording.first_voiced(0, 0.5) == FRAME
    assert recording.first_voiced(3 * FRAME, 0.5) == 4 * FRAME
    assert recording.first_voiced(5 * FRAME, 0.5) is None


def test_reading_gives_copies() -> None:
    recording = AudioBuffer()
    recording.append(counted(0, 10))
    recording.read(0, 10)[:] = 0
    assert recording.read(0, 10).tolist() == list(range(10))
