"""Draft heads on the device, run inside the captured step that chooses the tokens.

The arithmetic is that of `llm_engine.models.medusa_heads`, by the operations of the decoder itself.
Precision does not matter for replies: a draft only decides how many rows are accepted.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import Int4Weight, Matrix, Norm, Ops, Weight
from llm_engine.models.medusa_heads import DraftHead, DraftHeads, HeadsShape


@dataclass(frozen=True, slots=True)
class _Head:
    token: Matrix
    norm: Norm
    gate_up: Matrix
    down: Matrix
    out_norm: Norm


class DeviceHeads:
    """Heads of one model and their buffers, for one sequence at a time."""

    def __init__(self, heads: DraftHeads, model: DeviceModel) -> None:
        """Copies the LM head's rows of the tokens that can be drafted."""
        like, shape = model.embedding, heads.shape
        self.count = shape.num_heads
        self._model = model
        self._heads = [_on_device(head, shape.norm_eps, like) for head in heads.heads]
        self._tokens = heads.tokens.to(like.device, torch.int32)
        self._output = _rows(model.head, heads.tokens.to(like.device), like.dtype)

        def buffer(size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(1, size, dtype=dtype, device=like.device)

        self._state = buffer(shape.hidden_size, like.dtype)
        self._embedded = buffer(shape.hidden_size, like.dtype)
        self._inner = buffer(shape.inner_size, like.dtype)
        self._logits = buffer(shape.num_tokens, torch.float32)
        self._best = buffer(1, torch.int32)

    def draft(self, ops: Ops, hidden: Tensor, token: Tensor, out: Tensor) -> None:
        """Draft the likeliest tokens after `token [1]`, which was chosen after the row `hidden [1,
        hidden]` of the residual stream, into `out [1, count]`; all int32."""
        norm = self._model.norm
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(1, keepdim=True) + norm.eps)
        self._state.copy_(wide * scale * norm.weight)
        for index, head in enumerate(self._heads):
            torch.index_select(self._model.embedding, 0, token, out=self._embedded)
            ops.add_product(self._embedded, head.token, self._state)
            ops.gate_up(self._state, head.norm, head.gate_up, self._inner)
            ops.add_product(self._inner, head.down, self._state)
            ops.logits(self._state, head.out_norm, self._output, self._logits)
            ops.step.likeliest(self._logits, self._best)
            token = self._tokens.index_select(0, self._best[0])
            out[:, index] = token


def heads_bytes(shape: HeadsShape) -> int:
    """Most bytes that heads take on a device: their weights in bfloat16, and a float32 row of the
    LM head for every token that can be drafted."""
    weights = sum(math.prod(each) for name, each in shape.shapes().items() if name != "tokens")
    return 2 * weights + 4 * shape.num_tokens * shape.hidden_size


def step_bytes(shape: HeadsShape, model: DeviceModel) -> int:
    """Bytes that drafting adds to what a step reads: the matrices of each head and, for each, the
    LM head's rows of the tokens that can be drafted."""
    size = model.embedding.itemsize
    layer = shape.hidden_size**2 + 3 * shape.inner_size * shape.hidden_size
    row = model.head.num_bytes // shape.vocab_size
    if isinstance(model.head, Matrix) and _has_blocks(model.head):
        row = shape.hidden_size * size  # see `_rows`
    return shape.num_heads * (layer * size + shape.num_tokens * row)


def _on_device(head: DraftHead, eps: float, like: Tensor) -> _Head:
    def matrix(values: Tensor) -> Matrix:
        return Matrix(values.to(like.device, like.dtype))

    def norm(values: Tensor) -> Norm:
        return Norm(values.to(like.device, torch.float32), eps)

    return _Head(
        token=matrix(head.token),
        norm=norm(head.norm),
        gate_up=matrix(head.gate_up),
        down=matrix(head.down),
        out_norm=norm(head.out_norm),
    )


def _has_blocks(matrix: Matrix) -> bool:
    """True if rows share a scale."""
    return matrix.scales is not None and matrix.block[0] > 1


def _rows(matrix: Weight, rows: Tensor, dtype: torch.dtype) -> Weight:
    """Some rows of an LM head. Scales of whole rows are copied; with scales of blocks the rows are
    dequantized."""
    if isinstance(matrix, Int4Weight):
        return replace(
            matrix,
            codes=matrix.codes[rows],
            scales=matrix.scales[:, rows].contiguous(),
            offsets=None if matrix.offsets is None else matrix.offsets[:, rows].contiguous(),
        )
    if matrix.scales is None:
        return Matrix(matrix.values[rows])
    values = matrix.values.view(torch.uint8)[rows].view(matrix.values.dtype)
    if matrix.block[0] == 1:
        return Matrix(values, matrix.scales[rows], matrix.block)
    scales = matrix.scales[rows // matrix.block[0]].repeat_interleave(matrix.block[1], 1)
    return Matrix((values.float() * scales[:, : values.shape[1]]).to(dtype))
