"""GGUF's K-quants written by hand: the `gguf` package reads them but cannot write them.

A super-block holds 256 numbers of a row: small integers, a scale (and, for two of the kinds, a
minimum) for each sub-block, itself a small integer, and one or two float16 factors for all of them.
Layouts: the comments and structures of ggml's `ggml-common.h`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
SIZE = 256

Bytes = npt.NDArray[np.uint8]


def pack(values: Any, kind: str) -> tuple[Bytes, Any]:
    """Rows `[..., n * 256]` as bytes `[..., n * bytes of a super-block]`, and what those stand for.

    Rounds coarsely; what matters is that the second result follows from the format's definition
    and not from code that reads it.
    """
    blocks = np.asarray(values, np.float32).reshape(-1, SIZE)
    raw, plain = _pack_6(blocks) if kind == "Q6_K" else _pack_with_minima(blocks, int(kind[1]))
    lead = np.shape(values)[:-1]
    return raw.reshape(*lead, -1), plain.reshape(np.shape(values)).astype(np.float32)


def _pack_with_minima(blocks: Any, num_bits: int) -> tuple[Bytes, Any]:
    """Q4_K and Q5_K: value = d * scale * q - dmin * minimum, in sub-blocks of 32."""
    parts = blocks.reshape(-1, 8, 32)
    minima = np.maximum(-parts.min(axis=2), 0)
    steps = (parts.max(axis=2) + minima) / (2**num_bits - 1)
    d, scales = _six_bits(steps)
    dmin, small = _six_bits(minima)
    step, floor = d[:, None] * scales, dmin[:, None] * small
    safe = np.where(step > 0, step, 1)[..., None]
    q = np.clip(np.rint((parts + floor[..., None]) / safe), 0, 2**num_bits - 1).astype(np.uint8)
    plain = step[..., None] * q - floor[..., None]
    pairs = q.reshape(-1, 4, 2, 32) & 0xF
    low = pairs[:, :, 0] | pairs[:, :, 1] << 4
    # Q5_K: bit j of byte i is the fifth bit of number i of sub-block j.
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    head = [_f16(d), _f16(dmin), _packed_scales(scales, small)]
    body = [high] if num_bits == 5 else []
    return np.concatenate([*head, *body, low.reshape(-1, 128)], axis=1), plain


def _pack_6(blocks: Any) -> tuple[Bytes, Any]:
    """Q6_K: value = d * scale * (q - 32), in sub-blocks of 16 with signed 8-bit scales."""
    parts = blocks.reshape(-1, 16, 16)
    steps = np.abs(parts).max(axis=2) / 31
    d = (steps.max(axis=1) / 127).astype(np.float16).astype(np.float32)
    signs = np.where(np.arange(16) % 3 == 0, -1, 1)  # scales may be negative
    scales = np.minimum(np.rint(steps / np.where(d > 0, d, 1)[:, None]), 127) * signs
    step = d[:, None] * scales
    q = np.clip(np.rint(parts / np.where(step != 0, step, 1)[..., None]), -32, 31)
    plain = step[..., None] * q
    codes = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves, quarters of a half
    low = np.concatenate(
        [codes[:, :, 0] & 0xF | codes[:, :, 2] << 4, codes[:, :, 1] & 0xF | codes[:, :, 3] << 4],
        axis=2,
    )
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce((codes >> 4) << shifts, axis=2)
    raw = [low.reshape(-1, 128), high.reshape(-1, 64), scales.astype(np.int8).view(np.uint8)]
    return np.concatenate([*raw, _f16(d)], axis=1), plain


def _six_bits(values: Any) -> tuple[Any, Any]:
    """A float16 factor for each super-block, and numbers of 6 bits to multiply it with."""
    factor = (values.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    return factor, np.clip(np.rint(values / np.where(factor > 0, factor, 1)[:, None]), 0, 63)


def _packed_scales(scales: Any, minima: Any) -> Bytes:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    sc, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = sc[:, :4] | sc[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    third = sc[:, 4:] & 0xF | (m[:, 4:] & 0xF) << 4
    return np.concatenate([first, second, third], axis=1)


def _f16(values: Any) -> Bytes:
    raw: Bytes = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw
