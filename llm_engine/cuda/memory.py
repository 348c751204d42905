"""Memory plan of the GPU, made before anything is allocated.

    weights + KV cache + workspace + graphs <= free memory

Weights follow from the model's shape, the KV cache from the setting, and the other two are generous
estimates: they are small beside the first two, and a model that is refused although it would have
fitted by a few megabytes would have had no cache to speak of.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from llm_engine.config import MAX_STEP_ROWS, ModelConfig
from llm_engine.errors import MemoryShortageError

MAX_PROMPT_ROWS: Final = 512
"""Rows of the largest prefill step. Longer prompts are computed in several. Workspace grows with
it; fewer rows would read the weights more often for a long prompt."""
_RESERVE: Final = 768 << 20
"""Reserve for later allocations: code of kernels, cuBLAS's workspace (32 MiB on Hopper), NCCL,
attention's scratch, and fragmentation of torch's pool. An allowance, not a measurement."""
_GRAPH_NODE: Final = 16 << 10
"""Bytes of each kernel in a captured graph. An allowance, not a measurement."""
_KERNELS_PER_LAYER: Final = 8
MATRICES: Final = ("qkv", "out", "gate_up", "down")
"""Names of a layer's fused matrices, in the order of `shapes`."""
_LOGIT_COPIES: Final = 4
"""Logits, and buffers of sampling: sorted values, their indices, running sums."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Int4Storage:
    """Matrices that are stored in 4 bits, and the bytes of a group of their columns."""

    layers: tuple[frozenset[str], ...]
    """Names of each layer's: `qkv`, `out`, `gate_up`, `down`."""
    has_head: bool = False
    group: int = 128
    """Columns that share a scale; the smallest, where matrices differ."""
    group_bytes: int = 4
    """Bytes of a group's scale and zero point: 2 where all zero points are 8."""

    @property
    def is_whole(self) -> bool:
        """True if all matrices of the layers are in 4 bits."""
        return all(names == set(MATRICES) for names in self.layers)

    def matrix_bytes(self, rows: int, columns: int) -> int:
        unit = 2 * int4_unit_bytes(self.group)
        stored = -(-columns // unit) * unit
        return rows * (stored // 2 + stored // self.group * self.group_bytes)


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of a stored number, by kind."""

    weight: int = 2
    head: int = 2
    kv: int = 2
    """Bytes of a key's or value's element."""
    scale_block: tuple[int, int] = (1, 0)
    """Rows and columns of 8-bit weights that share a float32 scale. (1, 0): one for each row."""
    int4: Int4Storage | None = None
    """Matrices in 4 bits; `weight` and `head` are of the others."""

    def __str__(self) -> str:
        names = {1: "FP8", 2: "bfloat16", 4: "float32"}
        weights = names[self.weight]
        if self.int4 is not None:
            weights = f"{'int4' if self.int4.is_whole else 'int4 and ' + weights}"
        return f"{weights} weights, {names[self.kv]} cache"


BFLOAT16: Final = Storage()
FP8: Final = Storage(weight=1, head=1)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Division of the memory, in bytes."""

    weights: int
    """Weights, draft heads and rotary tables."""
    page: int
    """Bytes of one page in all layers."""
    num_pages: int
    workspace: int
    graphs: int

    @property
    def cache(self) -> int:
        return self.page * self.num_pages

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.workspace + self.graphs


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Free memory and what is asked of it."""

    free_bytes: int
    page_size: int
    """Tokens in a page."""
    context_length: int
    """Length of the rotary tables."""
    cache_bytes: int | None = None
    """Bytes for keys and values. None: all that is left."""
    draft_bytes: int = 0
    """Bytes of draft heads."""
    num_graphs: int = 32
    """Captured graphs: decode steps by size and way to choose, and prefill steps. An allowance."""


def plan_memory(
    config: ModelConfig, storage: Storage, budget: MemoryBudget, *, name: str = "the model"
) -> MemoryPlan:
    """Plan the memory. Raises MemoryShortageError with the arithmetic, and with what would fit."""
    plan = _plan(config, storage, budget)
    if plan.num_pages < 1 or plan.total > budget.free_bytes:
        raise MemoryShortageError(
            f"{name} ({storage}) does not fit: weights {_gib(plan.weights)} + cache "
            f"{_gib(max(plan.cache, plan.page))} + workspace {_gib(plan.workspace)} + graphs "
            f"{_gib(plan.graphs)} > {_gib(budget.free_bytes)} GiB free; "
            + (" or ".join(_remedies(config, storage, budget, plan)) or "take a smaller model")
        )
    return plan


def _plan(config: ModelConfig, storage: Storage, budget: MemoryBudget) -> MemoryPlan:
    weights = weight_bytes(config, storage) + rope_bytes(config, budget.context_length)
    weights += budget.draft_bytes
    page = budget.page_size * token_bytes(config, storage)
    workspace = workspace_bytes(config)
    graphs = budget.num_graphs * config.num_layers * _KERNELS_PER_LAYER * _GRAPH_NODE
    left = budget.free_bytes - weights - workspace - graphs
    wanted = left if budget.cache_bytes is None else budget.cache_bytes
    return MemoryPlan(weights, page, max(wanted // page, 0), workspace, graphs)


def _remedies(
    config: ModelConfig, storage: Storage, budget: MemoryBudget, plan: MemoryPlan
) -> Iterator[str]:
    """Changes each of which would make the model fit."""
    left = budget.free_bytes - (plan.total - plan.cache)
    if budget.cache_bytes is not None and left >= plan.page:
        if budget.cache_bytes < plan.page:
            yield f"raise kv_cache_mb to {-(-plan.page >> 20)} or more: a page takes as much"
            return
        yield f"lower kv_cache_mb to {left >> 20}"
    if storage.kv > 1 and _fits(config, replace(storage, kv=1), budget):
        yield "keep keys and values in FP8"
    if storage.weight > 1 and storage.int4 is None:
        smaller = replace(storage, weight=1, head=1)
        if _fits(config, smaller, budget):
            yield f"choose precision fp8 (weights {_gib(weight_bytes(config, smaller))})"
    shortage = plan.total - plan.cache + max(plan.cache, plan.page) - budget.free_bytes
    yield f"free {_gib(shortage)} GiB of the GPU"


def _fits(config: ModelConfig, storage: Storage, budget: MemoryBudget) -> bool:
    plan = _plan(config, storage, budget)
    return plan.num_pages >= 1 and plan.total <= budget.free_bytes


def weight_bytes(config: ModelConfig, storage: Storage) -> int:
    """Bytes of matrices with their scales, embedding table, norms and biases."""
    hidden, vocab = config.hidden_size, config.vocab_size
    fours = storage.int4
    layers = 0
    for index in range(config.num_layers):
        for name, (rows, columns) in zip(MATRICES, shapes(config), strict=True):
            if fours is not None and name in fours.layers[index]:
                layers += fours.matrix_bytes(rows, columns)
            else:
                layers += _matrix(rows, columns, storage.weight, storage)
    norms = 2 * hidden + 2 * config.head_dim * config.has_qk_norm
    biases = qkv_rows(config) * (config.architecture == "qwen2")
    if fours is not None and fours.has_head:
        head = fours.matrix_bytes(vocab, hidden)
    else:
        head = _matrix(vocab, hidden, storage.head, storage)
    embedding = vocab * hidden * 2
    return layers + 4 * config.num_layers * (norms + biases) + head + embedding + 4 * hidden


def shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a layer's fused matrices: QKV, O, gate and up, down."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    return (qkv_rows(config), hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)


def qkv_rows(config: ModelConfig) -> int:
    return (config.num_heads + 2 * config.num_kv_heads) * config.head_dim


def token_bytes(config: ModelConfig, storage: Storage) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * storage.kv


def rope_bytes(config: ModelConfig, context_length: int) -> int:
    """Bytes of the rotary tables, float32."""
    return context_length * config.head_dim * 4


def workspace_bytes(config: ModelConfig) -> int:
    """Bytes of activations, logits and the reserve."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    row = 2 * hidden + 2 * qkv_rows(config) + 2 * heads + 3 * inner
    logits = MAX_STEP_ROWS * config.vocab_size * 4 * _LOGIT_COPIES
    return MAX_PROMPT_ROWS * row * 4 + logits + _RESERVE


def int4_unit_bytes(group: int) -> int:
    """Bytes of a unit of 4-bit weights (`kernels/int4.py`), which has two columns for each: those
    of a group, but no fewer than fill a sector of memory. Of groups of 64, two in a unit of 64
    bytes would leave no registers: with zero points, the widest kernels of a step would spill."""
    return max(32, group // 2)


def _matrix(rows: int, columns: int, size: int, storage: Storage) -> int:
    scales = 0
    if size == 1:
        block_rows, block_columns = storage.scale_block
        scales = -(-rows // block_rows) * -(-columns // (block_columns or columns)) * 4
    return rows * columns * size + scales


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
