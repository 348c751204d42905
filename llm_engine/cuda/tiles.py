"""How products are divided among programs.

The choice may depend on the weight and the device, never on the number of rows: other tiles would
round otherwise. No trial runs at start either: a table is the same on every start.
"""

from dataclasses import dataclass

from llm_engine.cuda.ops import Matrix

MAX_SPLITS = 8

MIN_BLOCKS = 4
"""Of columns for one program. With fewer, filling the pipeline and adding up cost more than is
won."""

_ACTIVATION_BYTES = 2
_NORM_BYTES = 4
_ROWS_BYTES = 16 * _ACTIVATION_BYTES + _NORM_BYTES
"""Beside every column of weights: 16 rows of activations, and the norm's weight."""

_STAGED_BYTES = 160 << 10
"""On their way for each multiprocessor, of up to four programs (two of 128 rows: they have twice
the registers). The rest of its 227 KB is for what programs multiply, 4 KB
each, and for the next kernel's first programs, which begin while these end."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of one product."""

    block_n: int
    """Rows of the weight that a program has."""
    block_k: int
    """Columns that it multiplies at once."""
    num_splits: int
    """Programs that share the columns of the same rows."""
    span: int
    """Columns of one program, a multiple of `block_k`; the last may have fewer to do."""
    num_warps: int
    num_stages: int
    """Blocks of the weight on their way at once, with up to 16 rows."""

    def stages(self, weight: Matrix, num_rows: int) -> int:
        """How many are on their way with so many rows of activations, which lie beside them."""
        values = weight.values.itemsize
        stage = self.block_k * (self.block_n * values + num_rows * _ACTIVATION_BYTES + _NORM_BYTES)
        return 1 + max(1, min(self.num_stages - 1, _STAGED_BYTES // stage))


def product_tiles(weight: Matrix, num_sms: int, *, divisible: bool) -> Tiles:
    """`divisible`: whether several programs may share the columns. Raises ValueError for scales
    that no block of columns fits.

    64 rows are what four warps multiply in one instruction. There should be enough programs for
    every multiprocessor, all of them resident at once, as a second round leaves most of the device
    idle at its end; if not, few enough large ones. And they should have 4 MB of weights on their
    way together, which is what 4.3 TB/s with 0.8 microseconds of latency needs.
    """
    num_out, num_in = weight.values.shape
    block_k = _block_of_columns(weight)
    block_n = 64
    if not divisible and num_out < block_n * num_sms:
        block_n = 32
    elif num_out > block_n * num_sms * 4:
        block_n = 128
    num_blocks = -(-num_in // block_k)
    num_splits = 1
    if divisible:
        num_tiles = -(-num_out // block_n)
        most = min(MAX_SPLITS, num_blocks // MIN_BLOCKS, 2 * num_sms // num_tiles)
        num_splits = 1 << max(0, most.bit_length() - 1)
    span = -(-num_blocks // num_splits) * block_k
    num_splits = -(-num_in // span)  # a last one may have been left nothing
    per_sm = min(256 // max(64, block_n), -(-num_out * num_splits // (block_n * num_sms)))
    stage = block_k * (block_n * weight.values.itemsize + _ROWS_BYTES)
    num_stages = 1 + max(1, min(8, _STAGED_BYTES // per_sm // stage))
    return Tiles(block_n, block_k, num_splits, span, block_n // 16, num_stages)


def attention_splits(num_kv_heads: int, num_sms: int, num_tiles: int = 1) -> int:
    """Programs that share the keys of the same rows: about one for each multiprocessor and up to
    16, a power of two. For steps of up to `MAX_ROWS` rows `num_tiles` is not told: rows would
    depend on their number."""
    wanted = max(1, min(16, num_sms // (num_kv_heads * num_tiles)))
    return 1 << (wanted.bit_length() - 1)


def _block_of_columns(weight: Matrix) -> int:
    num_in = weight.values.shape[1]
    whole = min(128, max(32, 1 << (num_in - 1).bit_length()))
    across = num_in if weight.scales is None else weight.block[1]
    if across >= num_in:
        return whole
    block = min(whole, across)
    if block < 16 or block & (block - 1) or across % block:
        raise ValueError(f"scales of {across} columns each are not supported")
    return block
