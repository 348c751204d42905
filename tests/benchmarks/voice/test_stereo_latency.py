"""Turns found in a stereo recording, by the file alone."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import BenchError
from benchmarks.voice.stereo_latency import FileTurns, find_turns, read_turns

RATE_HZ = 8_000
Sound = tuple[float, float, float]
"""From, to (s), level."""


def channel(sounds: list[Sound], seconds: float) -> npt.NDArray[np.float64]:
    """A tone for each sound, silence between them."""
    wave = np.sin(np.arange(round(seconds * RATE_HZ)) * 2 * np.pi * 300 / RATE_HZ + 0.3)
    levels = np.zeros(len(wave))
    for first_s, last_s, level in sounds:
        levels[round(first_s * RATE_HZ) : round(last_s * RATE_HZ)] = level
    found: npt.NDArray[np.float64] = wave * levels
    return found


def found_in(caller: list[Sound], agent: list[Sound], seconds: float = 12.0) -> FileTurns:
    return find_turns(channel(caller, seconds), channel(agent, seconds), RATE_HZ)


def test_a_wait_lasts_from_the_last_voiced_frame_to_the_first_audible_sample() -> None:
    # A voice that fades is over where it is 25 dB down; what is below 1 % is not heard yet.
    caller = [(1.0, 2.0, 0.5), (2.0, 2.2, 0.04), (2.2, 2.6, 0.01)]
    found = found_in(caller, [(2.5, 2.75, 0.009), (2.75, 4.0, 0.3)])
    (turn,) = found.turns
    assert turn.voiced_s == pytest.approx(2.2)
    assert turn.onset_s == pytest.approx(2.75, abs=0.001)
    assert turn.waited_ms == pytest.approx(550, abs=1)
    assert not turn.goes_on
    assert (found.unanswered, found.unasked) == ((), ())


def test_pauses_of_either_side_begin_no_turn() -> None:
    caller = [(0.5, 1.0, 0.5), (1.9, 3.0, 0.5), (8.0, 9.0, 0.05)]
    agent = [(3.5, 4.0, 0.3), (4.8, 5.5, 0.3), (9.4, 10.0, 0.3)]
    waits = [turn.waited_ms for turn in found_in(caller, agent).turns]
    assert waits == pytest.approx([500, 400], abs=1), "a quiet one has its own loudness"


def test_what_has_no_answer_and_what_nobody_asked_for() -> None:
    caller = [(2.0, 3.0, 0.5), (5.5, 6.0, 0.5), (9.0, 10.0, 0.5)]
    found = found_in(caller, [(0.5, 1.5, 0.3), (6.5, 7.0, 0.3)])
    assert [turn.waited_ms for turn in found.turns] == pytest.approx([500], abs=1)
    assert found.unanswered == pytest.approx((3.0, 10.0))
    assert found.unasked == pytest.approx((0.5,), abs=0.001)


def test_a_caller_who_goes_on_is_told() -> None:
    caller = [(0.5, 1.0, 0.5), (1.5, 3.0, 0.5)]
    found = found_in(caller, [(1.4, 1.8, 0.3), (3.3, 4.0, 0.3)])
    assert [turn.goes_on for turn in found.turns] == [True, False]
    assert [turn.waited_ms for turn in found.turns] == pytest.approx([400, 300], abs=1)


@given(
    st.lists(
        st.tuples(st.integers(10, 40), st.integers(1, 60), st.integers(10, 90)),
        min_size=1,
        max_size=5,
    )
)
def test_any_conversation_is_measured_to_the_sample(plan: list[tuple[int, int, int]]) -> None:
    """Of each turn: frames of speech, frames of waiting, frames of answer."""
    caller: list[Sound] = []
    agent: list[Sound] = []
    at = 5
    for spoken, waited, answered in plan:
        caller.append((at * 0.02, (at + spoken) * 0.02, 0.5))
        onset = at + spoken + waited
        agent.append((onset * 0.02, (onset + answered) * 0.02, 0.3))
        at = onset + answered + 15
    found = found_in(caller, agent, at * 0.02)
    waits = [turn.waited_ms for turn in found.turns]
    assert waits == pytest.approx([waited * 20 for _, waited, _ in plan], abs=0.3)
    assert found.unanswered == ()


def test_silence_has_no_turns() -> None:
    assert found_in([], []) == FileTurns((), (), ())
    assert found_in([(1.0, 2.0, 0.5)], []).unanswered == (2.0,)


def test_files_that_are_no_recording_of_a_call(tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    with pytest.raises(BenchError, match="Can't read"):
        read_turns(path)
    soundfile.write(path, np.zeros(800), RATE_HZ)
    with pytest.raises(BenchError, match="1 channels"):
        read_turns(path)
    sound = np.stack([channel([(0.5, 1.0, 0.5)], 3), channel([(1.5, 2.0, 0.3)], 3)], axis=1)
    soundfile.write(path, sound, RATE_HZ, subtype="PCM_16")
    assert [turn.waited_ms for turn in read_turns(path).turns] == pytest.approx([500], abs=1)
