import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio.conversion import Resampler
from asr.audio.samples import RATE_HZ
from asr.errors import AudioError

RATES = [4000, 8000, 11025, 16000, 22050, 24000, 44100, 48000, 96000]


def in_pieces(
    pcm: npt.NDArray[np.float32], rate_hz: int, sizes: list[int]
) -> npt.NDArray[np.float32]:
    resampler = Resampler(rate_hz)
    out = []
    start = turn = 0
    while start < len(pcm):
        size = sizes[turn % len(sizes)]
        out.append(resampler.push(pcm[start : start + size]))
        start += size
        turn += 1
    return np.concatenate([*out, resampler.flush()])


@pytest.mark.parametrize("rate_hz", RATES)
def test_a_second_stays_a_second_and_the_delay_is_as_stated(rate_hz: int) -> None:
    resampler = Resampler(rate_hz)
    given_out = 0
    frame = np.zeros(rate_hz // 50, np.float32)
    for index in range(50):
        given_out += len(resampler.push(frame))
        held_ms = (index + 1) * len(frame) / rate_hz * 1000 - given_out / RATE_HZ * 1000
        assert held_ms <= resampler.delay_ms
    given_out += len(resampler.flush())
    assert abs(given_out - 50 * len(frame) * RATE_HZ / rate_hz) <= 1


@pytest.mark.parametrize("rate_hz", RATES)
def test_speech_frequencies_pass_unchanged(rate_hz: int) -> None:
    for hz in (200, 1000, 0.4 * min(rate_hz, RATE_HZ)):
        tone = np.sin(2 * np.pi * hz * np.arange(rate_hz) / rate_hz).astype(np.float32)
        out = in_pieces(tone, rate_hz, [rate_hz])[2000:14000]
        assert np.sqrt(np.mean(out**2) * 2) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("rate_hz", [24000, 48000])
def test_what_16_khz_cannot_carry_is_removed(rate_hz: int) -> None:
    tone = np.sin(2 * np.pi * 10_000 * np.arange(rate_hz) / rate_hz).astype(np.float32)
    assert np.abs(in_pieces(tone, rate_hz, [rate_hz])[1000:-1000]).max() < 1e-3


def test_telephone_audio_has_no_images() -> None:
    tone = np.sin(2 * np.pi * 3000 * np.arange(8000) / 8000).astype(np.float32)
    ideal = np.sin(2 * np.pi * 3000 * np.arange(16000) / 16000)
    error = (in_pieces(tone, 8000, [160]) - ideal)[1000:-1000]
    assert np.abs(error).max() < 1e-3


@settings(max_examples=25, deadline=None)
@given(
    rate_hz=st.sampled_from([8000, 16000, 24000, 44100]),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
)
def test_any_cut_gives_the_same_samples(rate_hz: int, sizes: list[int]) -> None:
    noise = np.random.default_rng(1).uniform(-1, 1, 3000).astype(np.float32)
    whole = in_pieces(noise, rate_hz, [len(noise)])
    assert np.array_equal(in_pieces(noise, rate_hz, sizes), whole)


@pytest.mark.parametrize("rate_hz", [8000, 48000])
def test_one_sample_at_a_time(rate_hz: int) -> None:
    noise = np.random.default_rng(2).uniform(-1, 1, 1500).astype(np.float32)
    assert np.array_equal(in_pieces(noise, rate_hz, [1]), in_pieces(noise, rate_hz, [1500]))


def test_stereo_integers_are_taken_as_they_come() -> None:
    mono = (1000 * np.sin(np.arange(4800) / 9)).astype(np.int16)
    stereo = np.stack([mono, mono], axis=1)
    one, two = Resampler(48000), Resampler(48000)
    assert np.allclose(one.push(stereo), two.push(mono), atol=1e-6)


@pytest.mark.parametrize("rate_hz", [0, -8000, 3999, 200_000])
def test_a_rate_that_no_speech_has(rate_hz: int) -> None:
    with pytest.raises(AudioError, match=f"{rate_hz} Hz is not supported"):
        Resampler(rate_hz)
