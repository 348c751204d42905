"""G.711 codec by table: mu-law and A-law at 8 kHz to and from 16-bit samples.

ITU-T G.711 defines both laws on integers, so a table is exact and one gather is all it costs; a
floating-point logarithm gets hundreds of the 65,536 codes wrong at the segment borders.

Encoding floors as the reference C code of ITU-T G.191 does: the low bits that a code can't keep are
shifted out of the two's complement before the sign is taken. mu-law has two zeros; negative zero
(0x7F) decodes to 0 and therefore encodes to 0xFF again.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Int16Array = npt.NDArray[np.int16]
ByteArray = npt.NDArray[np.uint8]

_MULAW_BIAS: Final = 33
"""Added to 14-bit magnitudes so that every segment begins at a power of two."""
_MULAW_CLIP: Final = 8158
"""Largest 14-bit magnitude that still fits in segment 7 after the bias."""
_MULAW_SEGMENT_ENDS: Final = np.array([(0x40 << segment) - 1 for segment in range(8)])
_ALAW_SEGMENT_ENDS: Final = np.array([(0x20 << segment) - 1 for segment in range(8)])
_ALAW_EVEN_BITS: Final = 0x55
"""A-law inverts every other bit on the line."""


def _mulaw_decode_table() -> Int16Array:
    code = ~np.arange(256) & 0xFF
    segment = (code & 0x70) >> 4
    magnitude = ((((code & 0x0F) << 1) + _MULAW_BIAS) << segment) - _MULAW_BIAS
    return (np.where(code & 0x80, -magnitude, magnitude) << 2).astype(np.int16)


def _alaw_decode_table() -> Int16Array:
    code = np.arange(256) ^ _ALAW_EVEN_BITS
    segment = (code & 0x70) >> 4
    step = (code & 0x0F) << 1
    linear = step + 1
    curved = (step + 33) << np.maximum(segment - 1, 0)
    magnitude = np.where(segment == 0, linear, curved)
    return (np.where(code & 0x80, magnitude, -magnitude) << 3).astype(np.int16)


def _mulaw_encode_table() -> ByteArray:
    sample = np.arange(-32768, 32768) >> 2
    magnitude = np.minimum(np.abs(sample), _MULAW_CLIP) + _MULAW_BIAS
    segment = np.searchsorted(_MULAW_SEGMENT_ENDS, magnitude)
    code = segment << 4 | (magnitude >> (segment + 1)) & 0x0F
    return np.asarray(code ^ np.where(sample < 0, 0x7F, 0xFF), dtype=np.uint8)


def _alaw_encode_table() -> ByteArray:
    sample = np.arange(-32768, 32768) >> 3
    magnitude = np.where(sample < 0, ~sample, sample)
    segment = np.searchsorted(_ALAW_SEGMENT_ENDS, magnitude)
    code = segment << 4 | (magnitude >> np.maximum(segment, 1)) & 0x0F
    sign = np.where(sample < 0, 0, 0x80)
    return np.asarray((code | sign) ^ _ALAW_EVEN_BITS, dtype=np.uint8)


_MULAW_DECODE: Final = _mulaw_decode_table()
_ALAW_DECODE: Final = _alaw_decode_table()
_MULAW_ENCODE: Final = _mulaw_encode_table()
_ALAW_ENCODE: Final = _alaw_encode_table()


def mulaw_decode(codes: bytes) -> Int16Array:
    """One sample a byte. int16 [len(codes)]."""
    return _MULAW_DECODE[np.frombuffer(codes, dtype=np.uint8)]


def alaw_decode(codes: bytes) -> Int16Array:
    """One sample a byte. int16 [len(codes)]."""
    return _ALAW_DECODE[np.frombuffer(codes, dtype=np.uint8)]


def mulaw_encode(pcm: Int16Array) -> bytes:
    """One byte a sample; `pcm` is int16 [n]."""
    return _MULAW_ENCODE[pcm.astype(np.int32) + 32768].tobytes()


def alaw_encode(pcm: Int16Array) -> bytes:
    """One byte a sample; `pcm` is int16 [n]."""
    return _ALAW_ENCODE[pcm.astype(np.int32) + 32768].tobytes()
