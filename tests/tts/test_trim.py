"""Silence around a sentence, and its loudness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts import loudness
from tts.trim import LEAD_MS, PAUSE_MS, Samples, find_voiced, pause_after, trim

RATE_HZ = 24_000


def tone(ms: float, amplitude: float, hz: float = 220.0) -> Samples:
    time_s = np.arange(round(RATE_HZ * ms / 1000)) / RATE_HZ
    return (amplitude * np.sin(2 * np.pi * hz * time_s)).astype(np.float32)


def silence(ms: float) -> Samples:
    return np.zeros(round(RATE_HZ * ms / 1000), np.float32)


def sentence(lead_ms: float = 320, tail_ms: float = 450, amplitude: float = 0.2) -> Samples:
    """Soft onset, loud middle, soft end: like speech, but known to the sample."""
    parts = (tone(40, amplitude / 20), tone(500, amplitude), tone(40, amplitude / 20))
    return np.concatenate([silence(lead_ms), *parts, silence(tail_ms)])


@given(st.floats(0, 600), st.floats(0, 600), st.floats(0.02, 0.9))
def test_speech_is_found_to_a_window(lead_ms: float, tail_ms: float, amplitude: float) -> None:
    samples = sentence(lead_ms, tail_ms, amplitude)
    voiced = find_voiced(samples, RATE_HZ)
    assert voiced is not None
    window = RATE_HZ * 5 // 1000
    assert abs(voiced.start - len(silence(lead_ms))) <= window
    assert abs(voiced.end - (len(samples) - len(silence(tail_ms)))) <= window


@pytest.mark.parametrize("samples", [silence(0), silence(3), silence(500), silence(500) + 1e-6])
def test_silence_has_no_speech(samples: Samples) -> None:
    assert find_voiced(samples, RATE_HZ) is None


@pytest.mark.parametrize("mark", PAUSE_MS)
def test_pauses_follow_the_mark(mark: str) -> None:
    samples = sentence()
    voiced = find_voiced(samples, RATE_HZ)
    assert voiced is not None
    pause_ms = pause_after(mark)
    speech, cut_off = trim(samples, voiced, RATE_HZ, pause_ms)
    lead = voiced.start - cut_off
    assert lead == round(RATE_HZ * LEAD_MS / 1000)
    kept_tail_ms = 30.0
    pause = len(speech) - lead - (voiced.end - voiced.start)
    assert pause == round(RATE_HZ * max(pause_ms, kept_tail_ms) / 1000)


def test_pauses_are_ordered() -> None:
    marks = ("", ",", ";", ".", "…")
    assert sorted(marks, key=pause_after) == list(marks)
    assert pause_after(",", paragraph=True) > pause_after(".")


def test_pieces_join_without_a_click() -> None:
    # An engine that begins and stops in the middle of a wave.
    samples = tone(500, 0.5) + np.float32(0.3)
    voiced = find_voiced(samples, RATE_HZ)
    assert voiced is not None
    speech, _ = trim(samples, voiced, RATE_HZ, 120)
    assert speech[0] == 0.0
    assert speech[-1] == 0.0
    joined = np.concatenate([speech, speech])
    steps = np.abs(np.diff(joined))
    # No step larger than the tone itself and the steepest fade make.
    assert steps.max() < 0.5 * 2 * np.pi * 220 / RATE_HZ + 0.02


def test_the_input_is_left_alone() -> None:
    samples = sentence()
    before = samples.copy()
    voiced = find_voiced(samples, RATE_HZ)
    assert voiced is not None
    trim(samples, voiced, RATE_HZ, 250)
    assert np.array_equal(samples, before)


@given(st.floats(-50, -6))
def test_level_is_measured_over_speech_only(dbfs: float) -> None:
    amplitude = float(np.sqrt(2) * 10 ** (dbfs / 20))
    samples = np.concatenate([silence(1000), tone(500, amplitude), silence(1000)])
    measured = loudness.active_dbfs(samples, RATE_HZ)
    assert measured == pytest.approx(dbfs, abs=0.3)


def test_level_of_silence_is_unknown() -> None:
    assert loudness.active_dbfs(silence(0), RATE_HZ) is None
    assert loudness.active_dbfs(silence(100), RATE_HZ) is None


def test_gain_stays_near_the_voice() -> None:
    assert loudness.gain_db(-26, voice_gain_db=5) == loudness.TARGET_DBFS + 26
    assert loudness.gain_db(-60, voice_gain_db=5) == 9
    assert loudness.gain_db(-10, voice_gain_db=5) == 1


@given(st.floats(-20, 40))
def test_nothing_clips(gain: float) -> None:
    samples = tone(50, 0.8)
    loud = loudness.apply_gain(samples, gain)
    assert np.abs(loud).max() <= 0.951
    assert np.abs(loudness.to_int16(loud).astype(np.int32)).max() < 32_767
    quiet = np.abs(samples) * 10 ** (gain / 20) < 0.69
    assert np.allclose(loud[quiet], samples[quiet] * 10 ** (gain / 20), rtol=1e-4, atol=1e-6)
    assert np.all(np.sign(loud) == np.sign(samples))


def test_int16_takes_what_is_out_of_range() -> None:
    samples = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32)
    assert loudness.to_int16(samples).tolist() == [-32767, -32767, 0, 32767, 32767]
