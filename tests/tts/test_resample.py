"""Resampling a stream: no seam, nothing lost, whatever the chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts.resample import Pcm, StreamResampler

_RATES = [(24_000, 8_000), (22_050, 24_000), (22_050, 8_000), (24_000, 16_000), (24_000, 24_000)]


def tone(hz: float, rate_hz: int, seconds: float = 0.5) -> Pcm:
    time_s = np.arange(round(rate_hz * seconds)) / rate_hz
    pcm: Pcm = np.rint(10_000 * np.sin(2 * np.pi * hz * time_s)).astype(np.int16)
    return pcm


def whole(pcm: Pcm, from_hz: int, to_hz: int) -> Pcm:
    resampler = StreamResampler(from_hz, to_hz)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


@given(
    st.sampled_from(_RATES),
    st.lists(st.integers(0, 2_000), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_any_split_gives_the_same_samples(
    rates: tuple[int, int], sizes: list[int], seed: int
) -> None:
    pcm = np.random.default_rng(seed).integers(-32768, 32768, 6_000).astype(np.int16)
    resampler = StreamResampler(*rates)
    parts: list[Pcm] = []
    at = 0
    for size in sizes:
        parts.append(resampler.push(pcm[at : at + size]))
        at += size
    parts += [resampler.push(pcm[at:]), resampler.flush()]
    assert np.array_equal(np.concatenate(parts), whole(pcm, *rates))


@pytest.mark.parametrize(("from_hz", "to_hz"), _RATES)
def test_length_and_time_are_kept(from_hz: int, to_hz: int) -> None:
    resampled = whole(tone(440, from_hz), from_hz, to_hz)
    assert len(resampled) == pytest.approx(0.5 * to_hz, abs=1)
    expected = tone(440, to_hz)
    middle = slice(to_hz // 20, to_hz // 4)
    # In phase: the filter's delay is taken out, so word times hold after resampling.
    assert np.abs(resampled[middle].astype(np.int32) - expected[middle]).max() < 30


def test_what_8_khz_cannot_hold_is_gone() -> None:
    resampled = whole(tone(5_000, 24_000), 24_000, 8_000)
    assert np.abs(resampled[400:-400].astype(np.int32)).max() < 20


@pytest.mark.parametrize(("from_hz", "to_hz"), _RATES)
def test_little_is_held_back(from_hz: int, to_hz: int) -> None:
    resampler = StreamResampler(from_hz, to_hz)
    pcm = tone(440, from_hz, 0.3)
    out = len(resampler.push(pcm))
    assert 1000 * (len(pcm) / from_hz - out / to_hz) <= 80


def test_a_reset_forgets() -> None:
    resampler = StreamResampler(24_000, 8_000)
    resampler.push(tone(440, 24_000))
    resampler.reset()
    pcm = tone(300, 24_000)
    again = np.concatenate([resampler.push(pcm), resampler.flush()])
    assert np.array_equal(again, whole(pcm, 24_000, 8_000))


def test_full_scale_does_not_wrap() -> None:
    square = np.where(tone(100, 24_000) >= 0, 32767, -32768).astype(np.int16)
    resampled = whole(square, 24_000, 8_000).astype(np.int32)
    # The middles of half waves, where the filter overshoots full scale around the edges.
    assert resampled[220] < -30_000
    assert resampled[260] > 30_000
    edges = np.abs(np.diff(np.sign(resampled))).nonzero()[0]
    assert np.diff(edges).min() > 30


@pytest.mark.parametrize("rates", [(0, 8_000), (8_000, -1)])
def test_impossible_rates(rates: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        StreamResampler(*rates)
