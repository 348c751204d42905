"""The operations on one of several GPUs, each with its shard of the model (`sharding.py`).

Up to eight rows, partial products are all-gathered and added in the order of the ranks: an
all-reduce may add in another order for another number of rows, and a row's result must not depend
on the others. Longer prompts are all-reduced.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from llm_engine.cuda.ops.interface import (
    MAX_ROWS,
    Attention,
    LayerPages,
    Norm,
    PartOps,
    Rope,
    Rows,
    Weight,
)

_gather: Callable[[Tensor, Tensor], object] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
"""All-gather into one tensor: newer torch has another name for it, and warns of the old one."""


class ParallelOps:
    """`Ops` of one rank of the default process group; every rank must make the same calls."""

    def __init__(self, ops: PartOps, shard_vocab: int, hidden: Tensor) -> None:
        """`shard_vocab`: rows of the LM head on each rank but the last. `hidden [rows, hidden]`:
        zeroed buffer of partial sums, for the largest number of rows."""
        self._ops = ops
        self.step = ops.step
        self._count = dist.get_world_size()
        self._partial = hidden
        few = MAX_ROWS, hidden.shape[1]
        self._part = torch.zeros(few, device=hidden.device)
        self._parts = torch.zeros(self._count, *few, device=hidden.device)
        shape = MAX_ROWS, shard_vocab
        self._logits = torch.zeros(shape, device=hidden.device)
        self._all_logits = torch.zeros(self._count, *shape, device=hidden.device)

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        self._ops.queries(x, layer, rope, rows, pages, out)

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        self._ops.attend(queries, layer, rows, pages, out)

    def gate_up(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        self._ops.gate_up(x, norm, weight, out)

    def add_product(self, x: Tensor, weight: Weight, residual: Tensor) -> None:
        num_rows = len(residual)
        if num_rows > MAX_ROWS:
            partial = self._partial[:num_rows].zero_()
            self._ops.add_product(x, weight, partial)
            dist.all_reduce(partial)
            residual += partial
            return
        part = self._part[:num_rows]
        parts = self._parts.flatten()[: self._count * part.numel()]
        self._ops.part(x, weight, part)
        _gather(parts, part.flatten())
        self._ops.add_parts(parts.view(self._count, *part.shape), residual)

    def logits(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        num_rows, width = len(x), self._logits.shape[1]
        own = self._logits.flatten()[: num_rows * width].view(num_rows, width)
        num_own = weight.num_out
        if num_own == width:
            self._ops.logits(x, norm, weight, own)
        elif num_own:
            fewer = torch.empty(num_rows, num_own, device=x.device)
            self._ops.logits(x, norm, weight, fewer)
            own[:, :num_own] = fewer
        parts = self._all_logits.flatten()[: self._count * own.numel()]
        _gather(parts, own.flatten())
        whole = parts.view(self._count, num_rows, width).transpose(0, 1).flatten(1)
        out.copy_(whole[:, : out.shape[1]])
