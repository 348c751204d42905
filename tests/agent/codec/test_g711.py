"""Every code and every sample of both laws, against formulas written another way."""

import importlib.util
import warnings
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from agent.codec.g711 import alaw_decode, alaw_encode, mulaw_decode, mulaw_encode

EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
EVERY_CODE = bytes(range(256))


def mulaw_expand(code: int) -> int:
    """The textbook decoder, one code at a time."""
    code = ~code & 0xFF
    value = (((code & 0x0F) << 3) + 0x84) << (code >> 4 & 7)
    return 0x84 - value if code & 0x80 else value - 0x84


def alaw_expand(code: int) -> int:
    code ^= 0x55
    value = (code & 0x0F) << 4
    segment = code >> 4 & 7
    value = value + 8 if segment == 0 else (value + 0x108) << (segment - 1)
    return value if code & 0x80 else -value


def mulaw_compress(sample: int) -> int:
    """By bit length instead of by table of segments."""
    sample >>= 2
    sign = 0x7F if sample < 0 else 0xFF
    biased = min(abs(sample), 8158) + 33
    segment = biased.bit_length() - 6
    return (segment << 4 | biased >> (segment + 1) & 0x0F) ^ sign


def alaw_compress(sample: int) -> int:
    sample >>= 3
    sign = 0x55 if sample < 0 else 0xD5
    magnitude = ~sample if sample < 0 else sample
    segment = max(magnitude.bit_length() - 5, 0)
    return (segment << 4 | magnitude >> max(segment, 1) & 0x0F) ^ sign


def audioop_module() -> ModuleType:
    """The C implementation that Python carried until 3.12."""
    if importlib.util.find_spec("audioop") is None:
        pytest.skip("this Python has no audioop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("audioop")


def test_every_code_decodes_as_the_formula_says() -> None:
    assert mulaw_decode(EVERY_CODE).tolist() == [mulaw_expand(code) for code in range(256)]
    assert alaw_decode(EVERY_CODE).tolist() == [alaw_expand(code) for code in range(256)]


def test_every_sample_encodes_as_the_formula_says() -> None:
    assert list(mulaw_encode(EVERY_SAMPLE)) == [mulaw_compress(int(s)) for s in EVERY_SAMPLE]
    assert list(alaw_encode(EVERY_SAMPLE)) == [alaw_compress(int(s)) for s in EVERY_SAMPLE]


def test_every_code_and_sample_agrees_with_audioop() -> None:
    audioop = audioop_module()
    pcm = EVERY_SAMPLE.astype("<i2").tobytes()
    assert mulaw_encode(EVERY_SAMPLE) == audioop.lin2ulaw(pcm, 2)
    assert alaw_encode(EVERY_SAMPLE) == audioop.lin2alaw(pcm, 2)
    assert mulaw_decode(EVERY_CODE).astype("<i2").tobytes() == audioop.ulaw2lin(EVERY_CODE, 2)
    assert alaw_decode(EVERY_CODE).astype("<i2").tobytes() == audioop.alaw2lin(EVERY_CODE, 2)


@pytest.mark.parametrize(
    ("sample", "mulaw", "alaw"),
    [(0, 0xFF, 0xD5), (-1, 0x7E, 0x55), (32767, 0x80, 0xAA), (-32768, 0x00, 0x2A)],
)
def test_known_vectors(sample: int, mulaw: int, alaw: int) -> None:
    pcm = np.array([sample], dtype=np.int16)
    assert mulaw_encode(pcm) == bytes([mulaw])
    assert alaw_encode(pcm) == bytes([alaw])


def test_codes_survive_a_round_trip_except_negative_zero() -> None:
    assert alaw_encode(alaw_decode(EVERY_CODE)) == EVERY_CODE
    expected = EVERY_CODE.replace(b"\x7f", b"\xff")
    assert mulaw_encode(mulaw_decode(EVERY_CODE)) == expected


def test_decoded_arrays_are_int16_and_own_their_memory() -> None:
    pcm: npt.NDArray[np.int16] = mulaw_decode(b"\x00\x01")
    assert pcm.dtype == np.int16
    pcm[0] = 0
    assert mulaw_decode(b"\x00")[0] == -32124
    assert mulaw_decode(b"").shape == (0,)
