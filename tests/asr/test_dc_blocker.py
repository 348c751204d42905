"""The constant part of a signal is taken out, and nothing else."""

import numpy as np
import pytest

from asr.audio.conversion import DcBlocker
from asr.audio.samples import RATE_HZ


def tone(hz: float, seconds: float = 2.0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE_HZ)) / RATE_HZ).astype(np.float32)


def test_a_voice_keeps_its_shape_and_loses_its_offset() -> None:
    voice = 0.1 * tone(120)
    plain, shifted = DcBlocker().push(voice), DcBlocker().push(voice + np.float32(0.3))
    assert np.abs(shifted - plain).max() < 1e-5, "an offset from the first sample on is never heard"
    assert np.abs(plain - voice)[RATE_HZ:].max() < 0.001


def test_an_offset_that_begins_in_mid_call_fades() -> None:
    out = DcBlocker().push(np.repeat(np.array([0, 0.3], np.float32), [RATE_HZ, 4 * RATE_HZ]))
    assert out[RATE_HZ] == pytest.approx(0.3, abs=0.001)
    assert np.abs(out[4 * RATE_HZ :]).max() < 0.001


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513])
def test_pieces_of_any_length_give_the_same(size: int) -> None:
    rng = np.random.default_rng(size)
    sound = (rng.normal(0.2, 0.1, 2000)).astype(np.float32)
    whole, remover = DcBlocker().push(sound), DcBlocker()
    pieces = [remover.push(sound[at : at + size]) for at in range(0, len(sound), size)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-7)


def test_nothing_in_nothing_out() -> None:
    assert len(DcBlocker().push(np.zeros(0, np.float32))) == 0
