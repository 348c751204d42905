"""What a step is made of: five products with all around them fused in, and attention; before them
rows from what the lanes hold, behind them the tokens and what the next step needs.

`reference_ops.py` computes them in plain torch, `triton_ops.py` with kernels of our own; both pass
the
same tests. Everything is written into tensors that are given, so that a captured graph finds its
operands where they were; no operation reads anything back to the host.

*Rows* are tokens, `[M, ...]`. A step has B lanes of Q rows each, M = B * Q; row m is of lane
m // Q. For M = 1..8 a row's result must not depend on M nor on the other rows, to the last bit:
drafting and batching would change replies otherwise.

*Precision.* Activations, keys and values are of one type, bfloat16 on a GPU; sums are float32.
8-bit weights are converted, not the activations, where M is small: only the bytes of weights count
then. Long prompts may be multiplied in 8 bits on both sides, activations with a scale for each row,
or for as many columns as share one of the weights'.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from llm_engine.config import MAX_STEP_ROWS

MAX_ROWS = MAX_STEP_ROWS
"""Rows of a step for which the fused kernels are written. Prompts are longer, and take others."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer's weight on the device."""

    values: Tensor
    """`[out, in]`, rows contiguous: the activations' type, or float8_e4m3fn."""
    scales: Tensor | None = None
    """Of 8-bit values: `[ceil(out / block rows), ceil(in / block columns)]`, float32. A weight is
    its value times its block's scale."""
    block: tuple[int, int] = (1, 0)
    """Rows and columns that share a scale: (1, in) for one a row, (128, 128)."""
    bias: Tensor | None = None
    """`[out]`, float32."""

    @property
    def num_bytes(self) -> int:
        """That a product reads."""
        parts = (self.values, self.scales, self.bias)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS normalization of rows `[..., width]`: x / sqrt(mean(x^2) + eps) * weight."""

    weight: Tensor
    """`[width]`, float32."""
    eps: float


@dataclass(frozen=True, slots=True)
class Heads:
    """How a row of queries, keys and values is divided."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Keys and values of one layer, each `[pages, kv_heads, page_size, head_dim]`: the activations'
    type, or float8_e4m3fn, which is then simply rounded."""

    keys: Tensor
    values: Tensor

    @property
    def page_size(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a step stand. All on the device, all int32."""

    positions: Tensor
    """`[M]`. -1: a row that only fills up; nothing of it is stored, what comes out is not defined
    (but finite where the row is)."""
    tables: Tensor
    """`[B, pages of the longest sequence]`: page i of a lane has its positions from i * page_size.
    Entries behind the last page are of any page."""

    @property
    def num_seqs(self) -> int:
        return self.tables.shape[0]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding by tables, `[context_length, head_dim / 2]` float32 each. The first half of
    a head turns with the second: (a, b) -> (a cos - b sin, b cos + a sin)."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's weights up to its attention."""

    norm: Norm
    qkv: Matrix
    """Queries, keys and values, one below the other."""
    heads: Heads
    q_norm: Norm | None = None
    """Of each head, before it is turned. Both or none."""
    k_norm: Norm | None = None
    window: int | None = None
    """A row at p sees positions greater than p - window; None: all up to its own."""


@dataclass(frozen=True, slots=True)
class StepState:
    """What lanes hold, on the device, all int32: where a step begins, and what it leaves there for
    the next one."""

    tokens: Tensor
    """`[B, Q]` or wider: each lane's rows."""
    first_positions: Tensor
    """`[B]`: of a lane's first row."""
    num_rows: Tensor
    """`[B]`: rows that are in use, 0 to Q."""
    first_sampled: Tensor
    """`[B]`: the first row behind which a token is wanted; those before are of a prompt."""

    @property
    def num_seqs(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """How tokens are chosen in each lane, on the device, `[B]` each (see `SamplingParams`)."""

    temperature: Tensor
    """Float32; 0: the likeliest."""
    top_k: Tensor
    """Int32; 0: all."""
    top_p: Tensor
    min_p: Tensor
    """Both float32."""
    seeds: Tensor
    """Int64: the 64 bits of the seed."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What else decides about each of M rows; in bits, token i is bit i % 8 of byte i // 8."""

    allowed: Tensor
    """`[M, ceil(vocab / 8)]`, uint8. Others are never chosen."""
    penalized: Tensor
    """The same: the reply's tokens so far."""
    penalty: Tensor
    """`[M]`, float32: `SamplingParams.repetition_penalty`."""


class StepOps(Protocol):
    """What stands around a forward pass. All calls come from one thread."""

    def embed(self, state: StepState, table: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """For each lane's first Q rows, M in all: the embedding from `table [vocab, hidden]` into
        `hidden [M, hidden]`, and where it stands into `positions [M]`, -1 for rows not in use."""
        ...

    def likeliest(self, logits: Tensor, out: Tensor) -> None:
        """The place of the largest of each row's `logits [M, vocab]`, float32, for up to
        `MAX_ROWS`: the first of several. Into `out [B, Q]`, int32."""
        ...

    def mask(self, logits: Tensor, masks: RowMasks) -> None:
        """Set what is not allowed to -inf and lower what is penalized, as `llm_engine.sampler`
        does, in float32 `logits [M, vocab]`, for up to `MAX_ROWS`."""
        ...

    def sample(
        self, logits: Tensor, positions: Tensor, sampling: SamplingInputs, out: Tensor
    ) -> None:
        """A token after each row, drawn as `llm_engine.sampler` draws it, from float32 `logits
        [M, vocab]` of rows that stand at `positions [M]`, int32, for up to `MAX_ROWS`. Into
        `out [B, Q]`, int32. Where logits are not numbers: any token."""
        ...

    def advance(self, state: StepState, chosen: Tensor, last: Tensor) -> None:
        """Go on behind the tokens `chosen [B, Q]`, int32, after each row, for up to `MAX_ROWS`, as
        far as the rows were right: the first that the model would have said otherwise is the last
        that was of use. A lane's next row is the token after that one; which one it was goes into
        `last [B]`, int32."""
        ...


class Ops(Protocol):
    """One device's way to compute. All calls come from one thread."""

    @property
    def step(self) -> StepOps: ...

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        """Normalize `x [M, hidden]`, multiply, turn; store keys and values at the rows' positions,
        and the queries in `out [M, heads, head_dim]`."""
        ...

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        """Each row's queries over the keys up to its own position, into `out [M, heads, head_dim]`,
        which may not be `queries`. The keys of all rows are there already. Scores are divided by
        sqrt(head_dim)."""
        ...

    def add_product(self, x: Tensor, weight: Matrix, residual: Tensor) -> None:
        """`residual [M, out] += x [M, in] @ weight^T`."""
        ...

    def gate_up(self, x: Tensor, norm: Norm, weight: Matrix, out: Tensor) -> None:
        """Normalize `x [M, hidden]`, multiply with gate and up, one below the other in `weight
        [2 * inner, hidden]`; silu(gate) * up into `out [M, inner]`."""
        ...

    def logits(self, x: Tensor, norm: Norm, weight: Matrix, out: Tensor) -> None:
        """Normalize `x [M, hidden]`, multiply with the head, into `out [M, vocab]`, float32."""
        ...


class PartOps(Ops, Protocol):
    """What one of several devices needs besides, each with its part of the model: both for up to
    `MAX_ROWS`."""

    def part(self, x: Tensor, weight: Matrix, out: Tensor) -> None:
        """Of a product whose columns the devices share: `x [M, in] @ weight^T` into `out [M, out]`,
        float32."""
        ...

    def add_parts(self, parts: Tensor, residual: Tensor) -> None:
        """`residual [M, out] +=` all of `parts [devices, M, out]`, float32, one after another."""
        ...
