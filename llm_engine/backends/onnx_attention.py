"""Padding of attention heads to sizes that ONNX Runtime's attention supports.

GroupQueryAttention rotates heads of multiples of 16. Others are stored larger, each half of a head
padded with zeros (the rotary embedding pairs one half with the other): zeros add nothing to a
score, and the values' zeros meet zeros in the output matrix. What divides by a head's size, the
scale of the scores and the norms of Qwen3, uses the true one.

Rows are batch-invariant (see `onnx_cpu`) as long as a score is summed in one go. Beyond 128 inputs
the matrix product under it sums in pieces, of a length that depends on how many keys it is given;
from 65 keys on it is one length (MLAS halves its tile of 128 x 128 in one direction and doubles it
in the other where there are fewer). Sequences with such heads therefore begin with 64 keys that a
mask hides, and go the way of attention that takes all keys at once, not in tiles of which the last
may be small: an attention sink without weight, which has no other purpose, selects that kernel.
Measured with heads of 144 to 512; the memory is 64 tokens a sequence.
"""

import math

import numpy as np

from llm_engine.checkpoints.packed_cache import Array
from llm_engine.config import ModelConfig
from llm_engine.models import rope

_MULTIPLE = 16
_LARGEST_IN_ONE_GO = 128
_NUM_HIDDEN = 64


def stored_size(head_dim: int) -> int:
    """Size of a head in the graph and its buffers."""
    return -(-head_dim // _MULTIPLE) * _MULTIPLE


def num_hidden_keys(head_dim: int) -> int:
    """Number of masked keys before a sequence's own."""
    return _NUM_HIDDEN if stored_size(head_dim) > _LARGEST_IN_ONE_GO else 0


def pad_heads(values: Array, head_dim: int, axis: int) -> Array:
    """Pad heads that lie one behind the other along an axis, each to its stored size."""
    stored = stored_size(head_dim)
    if stored == head_dim:
        return values
    half = head_dim // 2
    before, after = values.shape[:axis], values.shape[axis + 1 :]
    num_halves = values.shape[axis] // half
    padded = np.zeros((*before, num_halves, stored // 2, *after), values.dtype)
    parts = values.reshape(*before, num_halves, half, *after)
    np.moveaxis(padded, axis + 1, 0)[:half] = np.moveaxis(parts, axis + 1, 0)
    return padded.reshape(*before, num_halves * (stored // 2), *after)


def norm_factor(head_dim: int) -> float:
    """Correction of a norm over a padded head, which divides by too many elements: its weight is
    multiplied by this, and its epsilon by the square of it."""
    return math.sqrt(head_dim / stored_size(head_dim))


def rotary_tables(config: ModelConfig, num_positions: int) -> tuple[Array, Array]:
    """Cosines and sines `[hidden keys + positions, stored size / 2]`, float32."""
    hidden = num_hidden_keys(config.head_dim)
    tables = rope.rotary_tables(config, np.arange(-hidden, num_positions).clip(min=0))
    # What is rotated there is zero.
    missing = stored_size(config.head_dim) // 2 - config.head_dim // 2
    cosines, sines = (np.pad(table, ((0, 0), (0, missing))) for table in tables)
    return cosines, sines
