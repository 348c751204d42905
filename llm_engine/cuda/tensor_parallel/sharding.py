"""Sharding of a model among several GPUs: each has some of the heads and some of the inner units.

Megatron's scheme (arXiv 1909.08053): matrices that fan out (QKV, gate and up, the LM head) are cut
into rows, those that project back (out, down) into columns. Each device computes its part without
communication up to such a projection, whose partial products are summed over all devices. Embedding
and norms are replicated.
"""

from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from llm_engine.checkpoints.int4 import Int4Matrix
from llm_engine.config import ModelConfig
from llm_engine.cuda.ops.int4_layout import pack, unpack
from llm_engine.cuda.ops.interface import Int4Weight, Matrix, Weight
from llm_engine.errors import ModelError

_VOCAB_UNIT: Final = 128
"""The LM head is cut at multiples of this, so that no block of scales is cut in two."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One device's share of a model."""

    rank: int
    count: int
    """Number of devices."""

    def check(self, config: ModelConfig) -> None:
        """Raise ModelError for a model that can't be divided among `count` devices."""
        for name in ("num_kv_heads", "num_heads", "intermediate_size"):
            size = getattr(config, name)
            if size % self.count:
                raise ModelError(
                    f"a model with {name} {size} can't be divided among {self.count} GPUs; choose "
                    "a number that divides it"
                )

    def local(self, config: ModelConfig) -> ModelConfig:
        """Shape of a shard, with the whole vocabulary."""
        return replace(
            config,
            num_heads=config.num_heads // self.count,
            num_kv_heads=config.num_kv_heads // self.count,
            intermediate_size=config.intermediate_size // self.count,
        )

    def vocab_rows(self, config: ModelConfig) -> int:
        """Rows of the LM head on each device; the last devices may have fewer."""
        units = -(-config.vocab_size // (_VOCAB_UNIT * self.count))
        return units * _VOCAB_UNIT

    def cut(self, name: str, matrix: Weight, config: ModelConfig) -> Weight:
        """This device's shard of a layer's matrix, by its name in `FusedWeights`, or of `head`.

        Raises ModelError where blocks or groups that share a scale would be cut in two.
        """
        if name == "qkv":
            queries = config.num_heads * config.head_dim
            keys = config.num_kv_heads * config.head_dim
            return self._rows_of(matrix, [queries, keys, keys])
        if name == "gate_up":
            return self._rows_of(matrix, [config.intermediate_size] * 2)
        if name == "head":
            size = self.vocab_rows(config)
            first = min(self.rank * size, config.vocab_size)
            return _rows(matrix, [slice(first, min(first + size, config.vocab_size))])
        return self._columns_of(matrix)

    def _rows_of(self, matrix: Weight, sizes: list[int]) -> Weight:
        """This device's share of each of the parts that stand one below the other."""
        slices, first = [], 0
        for size in sizes:
            own = size // self.count
            slices.append(slice(first + self.rank * own, first + (self.rank + 1) * own))
            first += size
        return _rows(matrix, slices)

    def _columns_of(self, matrix: Weight) -> Weight:
        num_columns = matrix.num_in
        own = num_columns // self.count
        columns = slice(self.rank * own, (self.rank + 1) * own)
        bias = matrix.bias if self.rank == 0 else None
        if isinstance(matrix, Int4Weight):
            return _int4_columns(matrix, columns, bias)
        values = matrix.values[:, columns].contiguous()
        if matrix.scales is None:
            return Matrix(values, bias=bias)
        block_rows, block_columns = matrix.block
        if block_columns >= num_columns:
            return Matrix(values, matrix.scales, (block_rows, own), bias)
        _require_blocks(columns, block_columns, num_columns)
        scales = matrix.scales[:, _blocks(columns, block_columns)].contiguous()
        return Matrix(values, scales, matrix.block, bias)


def _rows(matrix: Weight, slices: list[slice]) -> Weight:
    bias = None if matrix.bias is None else _joined(matrix.bias, slices)
    if isinstance(matrix, Int4Weight):
        scales, offsets = (
            None if each is None else _joined(each.T, slices).T.contiguous()
            for each in (matrix.scales, matrix.offsets)
        )
        assert scales is not None
        codes = _joined(matrix.codes, slices)
        return replace(matrix, codes=codes, scales=scales, offsets=offsets, bias=bias)
    values = _joined(matrix.values, slices)
    if matrix.scales is None:
        return Matrix(values, bias=bias)
    block_rows = matrix.block[0]
    for rows in slices:
        _require_blocks(rows, block_rows, len(matrix.values))
    scales = _joined(matrix.scales, [_blocks(rows, block_rows) for rows in slices])
    return Matrix(values, scales, matrix.block, bias)


def _int4_columns(matrix: Int4Weight, columns: slice, bias: Tensor | None) -> Int4Weight:
    if columns.start % matrix.group or columns.stop % matrix.group:
        raise ModelError(
            f"4-bit weights in groups of {matrix.group} can't be cut at {columns.start} to "
            f"{columns.stop}: a group would be on two GPUs; choose another number of GPUs, or a "
            "checkpoint in smaller groups"
        )
    whole = unpack(matrix)
    groups = slice(columns.start // matrix.group, columns.stop // matrix.group)
    part = Int4Matrix(
        whole.codes[:, columns].contiguous(),
        whole.scales[:, groups],
        whole.zeros[:, groups],
        matrix.group,
    )
    return pack(part, bias)


def _joined(whole: Tensor, slices: list[slice]) -> Tensor:
    parts = [whole[part] for part in slices]
    if len(parts) == 1:
        return parts[0].clone()
    joined = whole.new_empty(sum(map(len, parts)), *whole.shape[1:])
    first = 0
    for part in parts:
        joined[first : first + len(part)].copy_(part)
        first += len(part)
    return joined


def _blocks(part: slice, size: int) -> slice:
    return slice(part.start // size, -(-part.stop // size))


def _require_blocks(part: slice, size: int, total: int) -> None:
    if part.start % size or (part.stop % size and part.stop != total):
        raise ModelError(
            f"weights with a scale for every {size} can't be cut at {part.start} to {part.stop}; "
            "choose another number of GPUs, or a checkpoint with scales by row"
        )
