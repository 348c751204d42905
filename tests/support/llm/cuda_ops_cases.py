"""Random operands for the GPU's operations, of awkward shapes, and how close results should be."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_engine.cuda.ops.interface import Attention, Heads, LayerPages, Matrix, Norm, Rope, Rows

FP8 = torch.float8_e4m3fn
CONTEXT = 320


@dataclass(frozen=True)
class Kind:
    """A kind of weights."""

    name: str
    activations: torch.dtype
    block: tuple[int, int] | None = None
    """Block of the scales; None: as the activations. A zero stands for the whole width."""


BF16 = Kind("bf16", torch.bfloat16)
FLOAT32 = Kind("float32", torch.float32)
ROW_SCALES = Kind("fp8 by row", torch.bfloat16, (1, 0))
BLOCK_SCALES = Kind("fp8 by block", torch.bfloat16, (128, 128))
KINDS = (BF16, ROW_SCALES, BLOCK_SCALES)


class Maker:
    """Draws operands on a device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._device, dtype)

    def matrix(self, num_out: int, num_in: int, kind: Kind, *, bias: bool = False) -> Matrix:
        weight = self.normal(num_out, num_in) / math.sqrt(num_in)
        biases = self.normal(num_out) if bias else None
        if kind.block is None:
            return Matrix(weight.to(kind.activations), bias=biases)
        rows, columns = kind.block[0], kind.block[1] or num_in
        grid = -(-num_out // rows), -(-num_in // columns)
        # Scales that differ much: to take a neighbour's would show.
        scales = torch.exp2(self.normal(*grid)).mul_(0.01)
        spread = scales.repeat_interleave(rows, 0)[:num_out].repeat_interleave(columns, 1)
        values = (weight / spread[:, :num_in]).clamp(-448, 448).to(FP8)
        return Matrix(values, scales, (rows, columns), biases)

    def norm(self, width: int) -> Norm:
        return Norm(1 + self.normal(width) / 4, 1e-5)

    def rope(self, head_dim: int) -> Rope:
        angles = torch.arange(CONTEXT)[:, None] * 100 ** -torch.linspace(0, 1, head_dim // 2)
        return Rope(angles.cos().to(self._device), angles.sin().to(self._device))

    def attention(
        self, hidden: int, heads: Heads, kind: Kind, *, window: int | None = None,
        qk_norm: bool = False, bias: bool = False,
    ) -> Attention:  # fmt: skip
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        norms = [self.norm(heads.head_dim) if qk_norm else None for _ in range(2)]
        qkv = self.matrix(width, hidden, kind, bias=bias)
        return Attention(self.norm(hidden), qkv, heads, norms[0], norms[1], window)

    def pages(self, heads: Heads, num_pages: int, page_size: int, dtype: torch.dtype) -> LayerPages:
        """All NaN: whatever was not written must not be used."""
        shape = num_pages, heads.num_kv_heads, page_size, heads.head_dim
        keys, values = (torch.full(shape, math.nan, device=self._device).to(dtype) for _ in "kv")
        return LayerPages(keys, values)

    def rows(self, lanes: list[list[int]], page_size: int, num_pages: int) -> Rows:
        """The lanes' positions; pages in no order. Behind a lane's last page, the table has entries
        of pages that it may not touch."""
        shuffled = torch.randperm(num_pages, generator=self._generator).tolist()
        width = CONTEXT // page_size
        tables = torch.full((len(lanes), width), num_pages, dtype=torch.int32)
        for table, positions in zip(tables, lanes, strict=True):
            for index in range(max(positions) // page_size + 1):
                table[index] = shuffled.pop()
        flat = torch.tensor([p for lane in lanes for p in lane], dtype=torch.int32)
        return Rows(flat.to(self._device), tables.to(self._device))

    def fill(self, pages: LayerPages, rows: Rows) -> None:
        """Keys and values at all positions up to the rows' last."""
        num_queries = len(rows.positions) // rows.num_seqs
        for lane in range(rows.num_seqs):
            last = int(rows.positions[lane * num_queries : (lane + 1) * num_queries].max())
            for position in range(last + 1):
                page = int(rows.tables[lane, position // pages.page_size])
                for part in (pages.keys, pages.values):
                    shape = part.shape[1], part.shape[3]
                    part[page, :, position % pages.page_size] = self.normal(*shape).to(part.dtype)


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=device)


def copied(pages: LayerPages) -> LayerPages:
    return LayerPages(pages.keys.clone(), pages.values.clone())


def lane(rows: Rows, index: int, num_queries: int) -> Rows:
    """One lane of a step."""
    chosen = slice(index * num_queries, (index + 1) * num_queries)
    return Rows(rows.positions[chosen].clone(), rows.tables[index : index + 1].clone())


def shortened(rows: Rows, num_queries: int, kept: int) -> Rows:
    """The first `kept` of each lane's queries."""
    positions = rows.positions.view(-1, num_queries)[:, :kept]
    return replace(rows, positions=positions.reshape(-1).clone())


def assert_near(actual: Tensor, expected: Tensor, *, exact: bool = False) -> None:
    """Within what roundings of bfloat16 make of sums of a hundred to a thousand numbers; `exact`:
    of float32. NaN is near to nothing."""
    relative, absolute = (1e-5, 2e-5) if exact else (2**-6, 0.03)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=relative, atol=absolute)
