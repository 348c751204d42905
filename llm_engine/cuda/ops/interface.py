"""Operations of a step: five fused matrix products, attention, sampling, and the next step's
inputs.

`reference_ops.py` computes them in plain torch, `triton_ops.py` with our Triton kernels; both pass
the same tests. Every result is written into a given tensor, so that a captured graph finds its
operands at fixed addresses; no operation reads back to the host.

*Rows* are tokens, `[M, ...]`. A step has B sequences of Q rows each, M = B * Q; row m belongs to
sequence m // Q. For M = 1..8 a row's result must not depend on M nor on the other rows, to the last
bit (batch invariance): drafting and batching would change replies otherwise.

*Precision.* Activations, keys and values are of one type, bfloat16 on a GPU; sums are float32.
Where M is small, 8-bit weights are converted to the activations' type: only the bytes of weights
count then. Long prompts may be multiplied in 8 bits on both sides, activations with a scale for
each row, or for as many columns as share one of the weights'. 4-bit weights are always converted;
their scales multiply float32 sums.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from llm_engine.config import MAX_STEP_ROWS

MAX_ROWS = MAX_STEP_ROWS
"""Rows of a step for which the fused kernels are written. Prompts are longer, and take others."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer's weight on the device, in floats of 8 bits and more."""

    values: Tensor
    """`[out, in]`, rows contiguous: the activations' type, or float8_e4m3fn."""
    scales: Tensor | None = None
    """Scales of 8-bit values: `[ceil(out / block rows), ceil(in / block columns)]`, float32. A
    weight is its value times its block's scale."""
    block: tuple[int, int] = (1, 0)
    """Rows and columns that share a scale: (1, in) for one a row, (128, 128)."""
    bias: Tensor | None = None
    """`[out]`, float32."""

    @property
    def num_out(self) -> int:
        return self.values.shape[0]

    @property
    def num_in(self) -> int:
        return self.values.shape[1]

    @property
    def bits(self) -> int:
        """Bits of a stored weight."""
        return 8 * self.values.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        return _num_bytes(self.values, self.scales, self.bias)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A linear layer's weight on the device in 4 bits: (code - 8 - offset) * scale. The layout is
    that of the kernels (`kernels/int4.py`); `int4_layout.py` packs and unpacks it."""

    codes: Tensor
    """`[out, ceil(in / 2 unit) * unit]`, uint8: of each unit of max(32, group / 2) bytes,
    the lower halves are its first columns, the upper halves those behind. Filled up with codes
    of 0."""
    scales: Tensor
    """`[groups, out]`, float16, or float32 where float16 does not hold them."""
    offsets: Tensor | None
    """Zero points less 8, `[groups, out]`, float16; None: all are 8."""
    group: int
    """Columns that share a scale: 32, 64 or 128."""
    num_in: int
    bias: Tensor | None = None
    """`[out]`, float32."""

    @property
    def num_out(self) -> int:
        return self.codes.shape[0]

    @property
    def bits(self) -> int:
        """Bits of a stored weight."""
        return 4

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        return _num_bytes(self.codes, self.scales, self.offsets, self.bias)


Weight: TypeAlias = Matrix | Int4Weight
"""A linear layer's weight on the device."""


def _num_bytes(*parts: Tensor | None) -> int:
    return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS normalization of rows `[..., width]`: x / sqrt(mean(x^2) + eps) * weight."""

    weight: Tensor
    """`[width]`, float32."""
    eps: float


@dataclass(frozen=True, slots=True)
class Heads:
    """Division of a row of queries, keys and values into heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Keys and values of one layer, each `[pages, kv_heads, page_size, head_dim]`: the activations'
    type, or float8_e4m3fn, rounded without scales."""

    keys: Tensor
    values: Tensor

    @property
    def page_size(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class Rows:
    """Positions and pages of a step's rows. All on the device, all int32."""

    positions: Tensor
    """`[M]`. -1: a padding row; nothing of it is stored, and its result is undefined (but finite
    where the row is)."""
    tables: Tensor
    """Block tables `[B, pages of the longest sequence]`: page i of a sequence holds its positions
    from i * page_size. Entries behind the last page may be any page."""

    @property
    def num_seqs(self) -> int:
        return self.tables.shape[0]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary tables, `[context_length, head_dim / 2]` float32 each. The first half of a head
    rotates with the second: (a, b) -> (a cos - b sin, b cos + a sin)."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """Weights of a layer's attention block."""

    norm: Norm
    qkv: Weight
    """Queries, keys and values, one below the other."""
    heads: Heads
    q_norm: Norm | None = None
    """Norm of each query head before rotation. With `k_norm` or neither."""
    k_norm: Norm | None = None
    window: int | None = None
    """A row at p sees positions greater than p - window; None: all up to its own."""


@dataclass(frozen=True, slots=True)
class StepState:
    """State of a step's sequences on the device, all int32: read by the step, and updated by it for
    the next one."""

    tokens: Tensor
    """`[B, Q]` or wider: tokens of each sequence's rows."""
    first_positions: Tensor
    """`[B]`: position of each sequence's first row."""
    num_rows: Tensor
    """`[B]`: rows in use, 0 to Q."""
    first_sampled: Tensor
    """`[B]`: the first row after which a token is wanted; those before belong to a prompt."""

    @property
    def num_seqs(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Sampling parameters of each sequence on the device, `[B]` each (see `SamplingParams`)."""

    temperature: Tensor
    """Float32; 0: greedy."""
    top_k: Tensor
    """Int32; 0: no limit."""
    top_p: Tensor
    min_p: Tensor
    """Float32, as `top_p`."""
    seeds: Tensor
    """Int64: the 64 bits of each seed."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Logit masks of M rows; token i is bit i % 8 of byte i // 8."""

    allowed: Tensor
    """`[M, ceil(vocab / 8)]`, uint8: tokens that may be chosen."""
    penalized: Tensor
    """`[M, ceil(vocab / 8)]`, uint8: tokens of the reply so far."""
    penalty: Tensor
    """`[M]`, float32: `SamplingParams.repetition_penalty`."""


class StepOps(Protocol):
    """Operations around a forward pass: embedding, sampling, the next step's inputs. All calls come
    from one thread."""

    def embed(self, state: StepState, table: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """Embed each sequence's first Q rows, M in all: from `table [vocab, hidden]` into `hidden
        [M, hidden]`; their positions into `positions [M]`, -1 for rows not in use."""
        ...

    def likeliest(self, logits: Tensor, out: Tensor) -> None:
        """Greedy choice: index of the largest of each row's `logits [M, vocab]`, float32, for up to
        `MAX_ROWS` rows; the first of equal ones. Into `out [B, Q]`, int32."""
        ...

    def mask(self, logits: Tensor, masks: RowMasks) -> None:
        """Apply masks as `llm_engine.backends.sampler` does, in float32 `logits [M, vocab]`, for up
        to `MAX_ROWS` rows: forbidden tokens become -inf, penalized ones are lowered."""
        ...

    def sample(
        self, logits: Tensor, positions: Tensor, sampling: SamplingInputs, out: Tensor
    ) -> None:
        """Sample a token after each row as `llm_engine.backends.sampler` does, from float32 `logits
        [M, vocab]` of rows at `positions [M]`, int32, for up to `MAX_ROWS` rows. Into `out [B, Q]`,
        int32. Any token where logits are NaN."""
        ...

    def advance(self, state: StepState, chosen: Tensor, last: Tensor) -> None:
        """Verify the draft and make the next step's inputs, for up to `MAX_ROWS` rows. `chosen
        [B, Q]`, int32: the token after each row. Rows are accepted up to the first whose chosen
        token differs from the next row; a sequence's next row is that chosen token. The index of
        that row goes into `last [B]`, int32."""
        ...


class Ops(Protocol):
    """Operations of the decoder on one device. All calls come from one thread."""

    @property
    def step(self) -> StepOps: ...

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        """Normalize `x [M, hidden]`, project, rotate; store keys and values at the rows' positions,
        and the queries in `out [M, heads, head_dim]`."""
        ...

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        """Attention of each row's queries over the keys up to its own position, into `out [M,
        heads, head_dim]`, which may not be `queries`. The keys of all rows are stored already.
        Scores are divided by sqrt(head_dim)."""
        ...

    def add_product(self, x: Tensor, weight: Weight, residual: Tensor) -> None:
        """`residual [M, out] += x [M, in] @ weight^T`."""
        ...

    def gate_up(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        """Normalize `x [M, hidden]`, multiply with gate and up, one below the other in `weight
        [2 * inner, hidden]`; silu(gate) * up into `out [M, inner]`."""
        ...

    def logits(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        """Normalize `x [M, hidden]`, multiply with the LM head, into `out [M, vocab]`, float32."""
        ...


class PartOps(Ops, Protocol):
    """Additional operations of tensor parallelism, each device having a shard of the model; for up
    to `MAX_ROWS` rows."""

    def part(self, x: Tensor, weight: Weight, out: Tensor) -> None:
        """This device's partial product, of a weight whose columns are sharded: `x [M, in] @
        weight^T` into `out [M, out]`, float32."""
        ...

    def add_parts(self, parts: Tensor, residual: Tensor) -> None:
        """`residual [M, out] +=` each of `parts [devices, M, out]`, float32, in their order."""
        ...
