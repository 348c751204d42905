import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.audio.conversion import finite, to_mono
from asr.audio.samples import (
    RATE_HZ,
    VOICED_FRAME,
    float32_to_pcm16,
    last_voiced_sample,
    ms_from_samples,
    pcm16_to_float32,
    quietest_sample,
    samples_from_ms,
)
from asr.errors import AudioError


def tone(seconds: float, level: float = 0.5) -> np.ndarray:
    phase = 2 * np.pi * 220 * np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (level * np.sin(phase)).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


@given(st.binary(max_size=400).filter(lambda data: len(data) % 2 == 0))
def test_pcm16_survives_the_round_trip(data: bytes) -> None:
    assert float32_to_pcm16(pcm16_to_float32(data)) == data


def test_an_odd_number_of_bytes_is_the_senders_mistake() -> None:
    with pytest.raises(AudioError, match="two bytes a sample, got 3"):
        pcm16_to_float32(b"abc")


def test_what_lies_outside_full_scale_is_clipped_and_nan_is_silence() -> None:
    pcm = np.array([2.0, -2.0, np.nan, np.inf, 0.5], np.float32)
    assert np.frombuffer(float32_to_pcm16(pcm), "<i2").tolist() == [32767, -32768, 0, 0, 16384]


def test_finite_returns_clean_audio_itself() -> None:
    pcm = tone(0.1)
    assert finite(pcm) is pcm


def test_channels_are_averaged_whatever_the_type() -> None:
    left = np.array([16384, 0], np.int16)
    stereo = np.stack([left, np.zeros(2, np.int16)], axis=1)
    assert to_mono(stereo).tolist() == [0.25, 0.0]
    assert to_mono(stereo.astype(np.int32) << 16).tolist() == [0.25, 0.0]
    assert to_mono(stereo / 32768.0).tolist() == [0.25, 0.0]
    assert to_mono(left).dtype == np.float32


def test_huge_floats_do_not_overflow() -> None:
    pcm = np.full((3, 2), 1e300)
    assert to_mono(pcm).tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    "pcm", [np.zeros((2, 3, 1)), np.zeros((4, 0)), np.zeros(3, np.uint8), np.zeros((1, 100))]
)
def test_other_shapes_and_types_are_refused(pcm: np.ndarray) -> None:
    with pytest.raises(AudioError):
        to_mono(pcm)


def test_milliseconds_and_samples() -> None:
    assert samples_from_ms(96) == 1536
    assert ms_from_samples(512) == 32.0


def test_the_last_voiced_sample_is_where_the_tone_ends() -> None:
    pcm = np.concatenate([silence(0.2), tone(0.5), silence(0.4)])
    assert last_voiced_sample(pcm, first_sample=1000) == 1000 + round(0.7 * RATE_HZ) - 1


def test_a_quiet_word_counts_down_to_25_db() -> None:
    for quieter_db, end_s in ((20, 0.8), (30, 0.5)):
        word = tone(0.3, 0.5 * 10 ** (-quieter_db / 20))
        pcm = np.concatenate([tone(0.5), word, silence(0.3)])
        assert last_voiced_sample(pcm) == round(end_s * RATE_HZ) - 1


def test_dc_is_not_voice() -> None:
    pcm = np.concatenate([tone(0.5, 0.1), silence(0.5)]) + np.float32(0.3)
    assert last_voiced_sample(pcm) == round(0.5 * RATE_HZ) - 1


@pytest.mark.parametrize("pcm", [silence(1), silence(0), tone(0.01), silence(1) + np.float32(0.5)])
def test_nothing_voiced(pcm: np.ndarray) -> None:
    assert last_voiced_sample(pcm) is None


def test_the_quietest_place_is_found() -> None:
    pcm = np.concatenate([tone(3), silence(0.4), tone(3)])
    cut = quietest_sample(pcm, RATE_HZ, 6 * RATE_HZ)
    assert 3.0 <= cut / RATE_HZ <= 3.4


def test_of_equally_quiet_places_the_latest() -> None:
    assert quietest_sample(silence(3), 0, 3 * RATE_HZ) > 2.8 * RATE_HZ


def test_no_room_to_choose_cuts_at_the_first_place() -> None:
    assert quietest_sample(tone(1), 100, 100 + VOICED_FRAME) == 100


@pytest.mark.parametrize("around_s", [0.0, 0.3, 4.0])
def test_silence_around_an_utterance_does_not_count(around_s: float) -> None:
    """Its loudest frames are one in fifty of its own, and less of all there are."""
    said = [tone(0.04, 0.5), tone(1.96, 0.25), tone(0.4, 0.5 * 10 ** (-27 / 20))]
    pcm = np.concatenate([silence(around_s), *said, silence(around_s)])
    assert last_voiced_sample(pcm) == round((around_s + 2.0) * RATE_HZ) - 1
