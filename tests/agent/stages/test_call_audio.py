"""Capture time of a sample, from the arrival of frames over a network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.stages.call_audio import ArrivalClock

MS = 1_000_000
FRAME = 320
"""20 ms."""


def arrivals(*at_ms: float) -> ArrivalClock:
    """Of frames of 20 ms, in order."""
    found = ArrivalClock()
    for number, each in enumerate(at_ms, start=1):
        found.note(number * FRAME, round(each * MS))
    return found


def spoken_ms(found: ArrivalClock, sample: int) -> float:
    return found.when(sample)[0] / MS


def test_a_steady_stream() -> None:
    found = arrivals(1020, 1040, 1060, 1080)
    assert found.when(FRAME + 160) == (1030 * MS, 1040 * MS)
    assert found.when(0) == (1000 * MS, 1020 * MS)
    assert found.when(4 * FRAME) == (1080 * MS, 1080 * MS), "not in yet"


def test_a_frame_that_was_held_up_moves_nothing() -> None:
    found = arrivals(1020, 1040, 1120, 1121, 1122)
    assert found.when(2 * FRAME + 160) == (1050 * MS, 1120 * MS)


def test_a_stream_that_stood_still_is_counted_anew() -> None:
    found = arrivals(1020, 1040, 4060, 4080)
    assert found.when(2 * FRAME + 160) == (4050 * MS, 4060 * MS)
    assert found.when(3 * FRAME + 160) == (4070 * MS, 4080 * MS)


def test_a_recording_that_comes_at_once_is_as_old_as_its_frames() -> None:
    found = arrivals(1000, 1001, 1002, 1003)
    assert found.when(FRAME + 160) == (991 * MS, 1001 * MS)


@given(st.lists(st.integers(0, 150), min_size=2, max_size=60), st.integers(0, 19_000))
def test_the_error_is_what_the_most_direct_frame_was_held_up(
    held_up_ms: list[int], sample: int
) -> None:
    """Frames come in order, none more than 150 ms late."""
    times: list[float] = []
    for number, late_ms in enumerate(held_up_ms, start=1):
        times.append(max([1000 + 20 * number + late_ms, *times[-1:]]))
    sample %= len(times) * FRAME
    own = sample // FRAME
    spoken, arrived = arrivals(*times).when(sample)
    assert arrived == round(times[own] * MS)
    true_ms = 1000 + sample / 16
    recent = [n for n in range(own + 1) if times[n] >= times[own] - 1000]
    least = min(times[n] - (1000 + 20 * (n + 1)) for n in recent)
    assert spoken / MS - true_ms == pytest.approx(least, abs=0.001)
    assert spoken <= arrived
