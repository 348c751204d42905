"""How the GPU's memory is divided, before anything of it is taken.

    weights + keys and values + workspace + graphs <= what is free

Weights follow from the model's shape, keys and values from the setting, and the other two are
generous estimates: they are small beside the first two, and a model that is refused although it
would have fitted by a few megabytes would not have been of use.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from llm_engine.config import MAX_STEP_ROWS, ModelConfig
from llm_engine.errors import ModelError

MAX_PROMPT_ROWS: Final = 512
"""Rows of the largest prefill step. Longer prompts are computed in several. Workspace grows with
it; fewer rows would read the weights more often for a long prompt."""
_RESERVE: Final = 768 << 20
"""For what others allocate after us: code of kernels, cuBLAS's workspace (32 MiB on Hopper), NCCL,
attention's scratch, and what a pool of blocks cannot use. An allowance, not a measurement."""
_GRAPH_NODE: Final = 16 << 10
"""An allowance for each kernel of a captured graph."""
_KERNELS_PER_LAYER: Final = 8
_LOGIT_COPIES: Final = 4
"""Logits, and what sampling makes of them: sorted values, their places, running sums."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of a number."""

    weight: int = 2
    head: int = 2
    kv: int = 2
    """Of keys and values."""
    scale_block: tuple[int, int] = (1, 0)
    """Of 8-bit weights: rows and columns that share a float32 scale. (1, 0): one for each row."""

    def __str__(self) -> str:
        names = {1: "FP8", 2: "bfloat16", 4: "float32"}
        return f"{names[self.weight]} weights, {names[self.kv]} cache"


BFLOAT16: Final = Storage()
FP8: Final = Storage(weight=1, head=1)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part."""

    weights: int
    """Draft heads and rotary tables among them."""
    page: int
    """Of one page in all layers."""
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
    """What is wanted of the GPU's memory."""

    free_bytes: int
    page_size: int
    """Tokens."""
    context_length: int
    """Rotary tables are as long."""
    cache_bytes: int | None = None
    """For keys and values. None: whatever is left."""
    draft_bytes: int = 0
    """Of draft heads."""
    num_graphs: int = 32
    """An allowance: sizes of steps, each with every way to choose, and of parts of prompts."""


def plan_memory(
    config: ModelConfig, storage: Storage, room: MemoryBudget, *, name: str = "the model"
) -> MemoryPlan:
    """Divide what is free. Raises ModelError with the arithmetic, and with what would fit."""
    plan = _plan(config, storage, room)
    if plan.num_pages < 1 or plan.total > room.free_bytes:
        raise ModelError(
            f"{name} ({storage}) does not fit: weights {_gib(plan.weights)} + cache "
            f"{_gib(max(plan.cache, plan.page))} + workspace {_gib(plan.workspace)} + graphs "
            f"{_gib(plan.graphs)} > {_gib(room.free_bytes)} GiB free; "
            + (" or ".join(_remedies(config, storage, room, plan)) or "take a smaller model")
        )
    return plan


def _plan(config: ModelConfig, storage: Storage, room: MemoryBudget) -> MemoryPlan:
    weights = weight_bytes(config, storage) + rope_bytes(config, room.context_length)
    weights += room.draft_bytes
    page = room.page_size * token_bytes(config, storage)
    workspace = workspace_bytes(config)
    graphs = room.num_graphs * config.num_layers * _KERNELS_PER_LAYER * _GRAPH_NODE
    left = room.free_bytes - weights - workspace - graphs
    wanted = left if room.cache_bytes is None else room.cache_bytes
    return MemoryPlan(weights, page, max(wanted // page, 0), workspace, graphs)


def _remedies(
    config: ModelConfig, storage: Storage, room: MemoryBudget, plan: MemoryPlan
) -> Iterator[str]:
    """What would make it fit, one at a time; nothing that would not."""
    left = room.free_bytes - (plan.total - plan.cache)
    if room.cache_bytes is not None and left >= plan.page:
        if room.cache_bytes < plan.page:
            yield f"raise kv_cache_mb to {-(-plan.page >> 20)} or more: a page takes as much"
            return
        yield f"lower kv_cache_mb to {left >> 20}"
    if storage.kv > 1 and _fits(config, replace(storage, kv=1), room):
        yield "keep keys and values in FP8"
    if storage.weight > 1:
        smaller = replace(storage, weight=1, head=1)
        if _fits(config, smaller, room):
            yield f"choose precision fp8 (weights {_gib(weight_bytes(config, smaller))})"
    shortage = plan.total - plan.cache + max(plan.cache, plan.page) - room.free_bytes
    yield f"free {_gib(shortage)} GiB of the GPU"


def _fits(config: ModelConfig, storage: Storage, room: MemoryBudget) -> bool:
    plan = _plan(config, storage, room)
    return plan.num_pages >= 1 and plan.total <= room.free_bytes


def weight_bytes(config: ModelConfig, storage: Storage) -> int:
    """Matrices with their scales, the embedding's table, norms and biases."""
    hidden, vocab = config.hidden_size, config.vocab_size
    layer = sum(_matrix(rows, columns, storage.weight, storage) for rows, columns in shapes(config))
    norms = 2 * hidden + 2 * config.head_dim * config.has_qk_norm
    biases = qkv_rows(config) * (config.architecture == "qwen2")
    head = _matrix(vocab, hidden, storage.head, storage)
    embedding = vocab * hidden * 2
    return config.num_layers * (layer + 4 * (norms + biases)) + head + embedding + 4 * hidden


def shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a layer's matrices, as they are fused: QKV, O, gate and up, down."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    return (qkv_rows(config), hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)


def qkv_rows(config: ModelConfig) -> int:
    return (config.num_heads + 2 * config.num_kv_heads) * config.head_dim


def token_bytes(config: ModelConfig, storage: Storage) -> int:
    """Keys and values of one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * storage.kv


def rope_bytes(config: ModelConfig, context_length: int) -> int:
    """Sines and cosines, float32."""
    return context_length * config.head_dim * 4


def workspace_bytes(config: ModelConfig) -> int:
    """What passes from one operation to the next, logits, and the reserve."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    row = 2 * hidden + 2 * qkv_rows(config) + 2 * heads + 3 * inner
    logits = MAX_STEP_ROWS * config.vocab_size * 4 * _LOGIT_COPIES
    return MAX_PROMPT_ROWS * row * 4 + logits + _RESERVE


def _matrix(rows: int, columns: int, size: int, storage: Storage) -> int:
    scales = 0
    if size == 1:
        block_rows, block_columns = storage.scale_block
        scales = -(-rows // block_rows) * -(-columns // (block_columns or columns)) * 4
    return rows * columns * size + scales


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
