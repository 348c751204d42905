"""The agent's own voice in the microphone, and a caller over it."""

import random

import numpy as np
import pytest

from asr.speech_detection.echo_gate import DOUBTFUL, MIN_KNOWN, REACH, EchoGate, level_of
from asr.speech_detection.vad import FRAME

FAR = 0.1


def frame(level: float) -> np.ndarray:
    """Of this level, 32 ms long."""
    return np.full(FRAME, level, np.float32)


def spoken(num_frames: int, lots: random.Random) -> list[float]:
    """Levels of speech: they vary by 10 dB."""
    return [FAR * lots.uniform(0.3, 1) for _ in range(num_frames)]


def listens(far_end: EchoGate, levels: list[float], gain: float, *, is_speech: bool) -> list[bool]:
    """What is said of each frame of an echo that comes 100 ms late."""
    judged = []
    for number in range(len(levels)):
        echo = gain * levels[number - 3] if number >= 3 else 0.0
        far = far_end.level(number * FRAME)
        judged.append(far_end.is_echo(frame(echo), far, is_speech=is_speech))
    return judged


def test_nothing_known_is_no_echo() -> None:
    far_end = EchoGate()
    assert far_end.gain == 0
    assert not far_end.is_echo(frame(0.001), FAR, is_speech=True)


def test_nothing_played_has_no_level() -> None:
    far_end = EchoGate()
    far_end.played(1000, [0.5, 0.2])
    assert far_end.level(0) == 0
    assert far_end.level(1000) == 0.5
    assert far_end.level(1000 + FRAME) == 0.5
    assert far_end.level(1000 + REACH) == 0.2
    assert far_end.level(1000 + FRAME + REACH) == 0


def test_an_echo_that_was_recognized_as_one_begins_nothing_again() -> None:
    far_end, lots = EchoGate(), random.Random(1)
    levels = spoken(40, lots)
    far_end.played(0, levels)
    far_end.speech_began()
    for number in range(3, 40):
        far_end.speaks(frame(0.2 * levels[number - 3]), far_end.level(number * FRAME))
    far_end.speech_ended(was_echo=True)
    assert 0.1 < far_end.gain <= 0.21
    again = EchoGate()
    again._known = far_end._known
    levels = spoken(40, lots)
    again.played(0, levels)
    assert all(listens(again, levels, 0.2, is_speech=True)[3:])
    assert not again.is_echo(frame(0.05), FAR, is_speech=True), "a caller over it gets through"


def test_what_a_caller_says_teaches_nothing() -> None:
    far_end = EchoGate()
    for _ in range(MIN_KNOWN + DOUBTFUL):
        far_end.is_echo(frame(0.0005), FAR, is_speech=False)
    before = far_end.gain
    far_end.speech_began()
    for _ in range(100):
        far_end.speaks(frame(0.1), FAR)
    far_end.speech_ended(was_echo=False)
    assert far_end.gain == before == pytest.approx(0.005, rel=1e-3)
    assert not far_end.is_echo(frame(0.01), FAR, is_speech=True)


def test_a_quiet_caller_is_never_learned() -> None:
    """No louder than the margin allows, for a minute: the echo does not grow by it."""
    far_end = EchoGate()
    for _ in range(MIN_KNOWN + DOUBTFUL):
        far_end.is_echo(frame(0.01), FAR, is_speech=False)
    before = far_end.gain
    for _ in range(2000):
        assert far_end.is_echo(frame(0.019), FAR, is_speech=True)
    assert far_end.gain == before


def test_frames_before_an_onset_are_not_believed() -> None:
    far_end = EchoGate()
    for _ in range(MIN_KNOWN + DOUBTFUL):
        far_end.is_echo(frame(0.001), FAR, is_speech=False)
    before = far_end.gain
    for _ in range(DOUBTFUL):
        far_end.is_echo(frame(0.08), FAR, is_speech=False)  # breath, and a soft beginning
    far_end.speech_began()
    far_end.speech_ended(was_echo=False)
    assert far_end.gain == before


def test_loud_click_does_not_suppress_speech() -> None:
    far_end = EchoGate()
    for number in range(80):
        far_end.is_echo(frame(0.5 if number == 40 else 0.001), FAR, is_speech=False)
    assert far_end.gain == pytest.approx(0.01, rel=1e-3)


def test_level() -> None:
    assert level_of(np.zeros(0, np.float32)) == 0
    assert level_of(frame(0.25)) == pytest.approx(0.25)
