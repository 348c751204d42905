"""Output of the simulated telephone line."""

import numpy as np
import pytest

from asr.audio.samples import last_voiced_sample
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone


def tone(
    hz: float, rate_hz: int, seconds: float = 0.5
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    phase = np.arange(int(rate_hz * seconds)) * 2 * np.pi * hz / rate_hz
    return (np.sin(phase) * 8000).astype(np.int16)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
@pytest.mark.parametrize(
    ("hz", "passes"), [(60, 0.0), (150, 0.0), (320, 1.0), (1000, 1.0), (3300, 1.0), (3700, 0.0)]
)
def test_the_band_passes_and_the_rest_does_not(rate_hz: int, hz: float, passes: float) -> None:
    out = over_telephone(tone(hz, rate_hz), rate_hz).astype(float)
    assert len(out) == LINE_RATE_HZ // 2
    level = np.sqrt((out[800:-800] ** 2).mean()) / (8000 / np.sqrt(2))
    assert level == pytest.approx(passes, abs=0.05)


def test_every_sample_is_one_of_the_256_of_mu_law() -> None:
    rng = np.random.default_rng(3)
    noise = rng.integers(-20_000, 20_000, 16_000).astype(np.int16)
    assert len(np.unique(over_telephone(noise, 16_000))) <= 255


def test_a_turn_ends_where_it_ended_before() -> None:
    speech = np.concatenate([tone(700, 16_000), np.zeros(8_000, np.int16)])
    line = over_telephone(speech, 16_000).astype(np.float32) / np.float32(32768)
    last = last_voiced_sample(np.repeat(line, 2))
    assert last is not None
    assert abs(last - 7_999) <= 320  # a frame of 20 ms


def test_nothing_comes_of_nothing_and_silence_stays_silent() -> None:
    assert len(over_telephone(np.zeros(0, np.int16), 16_000)) == 0
    assert not over_telephone(np.zeros(1600, np.int16), 16_000).any()
