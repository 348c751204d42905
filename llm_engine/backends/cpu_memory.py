"""Memory plan of a model on a processor: does it fit, before anything of it is loaded?

Weights are mapped from a file, and pages of a file can be dropped; but every token reads all of
them, so a machine without room for all reads them from the disk for each token. The cache counts
with what the replies of one batch can fill: more conversations share it, or are computed anew.
"""

from dataclasses import dataclass
from typing import Final

from latency_budget.host import available_mb
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.packed_weights import FusedWeights
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.errors import MemoryShortageError

from .onnx_int4 import CPU_GROUPS

_MB: Final = 1 << 20
_SESSION_ROWS: Final = 64
"""Rows of a step, for which a session has logits and activations."""
_RUNTIME_MB: Final = 100
"""Graphs, tokenizer and libraries of any model."""
_BYTES: Final = {Precision.FLOAT32: 4.0, Precision.INT8: 1 + 4 / 64, Precision.INT4: 0.5 + 4 / 64}
"""Bytes of a weight with its share of the block's scale."""
_ROUNDED_BYTES: Final = 0.5 + 4.5 / 32
"""Bytes of a weight that was rounded to 4 bits, with its share of scale and zero point."""
_AFFINE_BYTES: Final = _ROUNDED_BYTES * 33 / 32
"""Bytes of a weight in GGUF's 4-bit blocks, with its share of those for the blocks' sums."""


@dataclass(frozen=True, slots=True)
class CpuMemoryPlan:
    """What a model takes, in MB."""

    weights_mb: int
    cache_mb: int
    sessions_mb: int
    """Logits and activations of the sessions, and the runtime."""

    @property
    def total_mb(self) -> int:
        return self.weights_mb + self.cache_mb + self.sessions_mb


def plan_memory(
    model: ModelConfig,
    config: EngineConfig,
    context_length: int,
    *,
    is_stored_int4: bool = False,
    num_affine: int = 0,
) -> CpuMemoryPlan:
    """Plan the memory; `is_stored_int4`: the layers' matrices are stored in 4 bits. `num_affine`:
    weights in GGUF's 4-bit blocks that would otherwise have 8 bits."""
    precision = config.precision
    is_rounded = precision is Precision.INT4 and not is_stored_int4
    if is_rounded:
        precision = Precision.INT8  # most of it
    heads = model.num_heads * model.head_dim
    pairs = 2 * model.num_kv_heads * model.head_dim
    layer = model.hidden_size * (2 * heads + pairs + 3 * model.intermediate_size)
    vocabulary = model.vocab_size * model.hidden_size
    is_exact = precision is Precision.FLOAT32
    weights = model.num_layers * layer * _BYTES[precision]
    weights += vocabulary * (4 if is_exact else 2 + _BYTES[Precision.INT8])  # embedding and head
    if is_rounded:  # the matrices of `onnx_int4.CPU_GROUPS`
        down = model.num_layers * model.hidden_size * model.intermediate_size
        weights -= (down + vocabulary) * (_BYTES[Precision.INT8] - _ROUNDED_BYTES)
        weights -= num_affine * (_BYTES[Precision.INT8] - _AFFINE_BYTES)
    token = 4 * model.num_layers * pairs
    cache = min(config.kv_cache_mb * _MB, config.max_batch * context_length * token)
    row = 4 * (model.vocab_size + 2 * heads + 3 * model.intermediate_size)
    num_sessions = 1 if config.max_batch == 1 else 1 + config.max_batch
    sessions = num_sessions * _SESSION_ROWS * row
    return CpuMemoryPlan(
        round(weights / _MB), max(1, round(cache / _MB)), round(sessions / _MB) + _RUNTIME_MB
    )


def converted_bytes(checkpoint: Checkpoint, config: EngineConfig) -> int:
    """Size of the file of converted weights: matrices are in it as they are and packed."""
    model = checkpoint.config
    plan = _plan(checkpoint, config, 1)
    return 2 * plan.weights_mb * _MB - 2 * model.vocab_size * model.hidden_size


def _plan(checkpoint: Checkpoint, config: EngineConfig, context_length: int) -> CpuMemoryPlan:
    num_affine = 0
    if config.calibration is None:
        weights = FusedWeights(checkpoint)
        num_affine = sum(
            matrix.num_inputs * sum(num_outputs for _, num_outputs in matrix.parts)
            for layer in range(checkpoint.config.num_layers)
            for matrix in weights.matrices(layer)
            if matrix.may_be_affine_int4 and matrix.name not in CPU_GROUPS
        )
    return plan_memory(
        checkpoint.config,
        config,
        context_length,
        is_stored_int4=checkpoint.has_int4_layers,
        num_affine=num_affine,
    )


def require_memory(checkpoint: Checkpoint, config: EngineConfig, context_length: int) -> None:
    """Raise MemoryShortageError, with the arithmetic, for a model that this machine or its
    container has no room for. A platform that does not report its memory is taken to have it."""
    free_mb = available_mb()
    plan = _plan(checkpoint, config, context_length)
    if free_mb is None or plan.total_mb <= free_mb:
        return
    remedies = []
    spare_mb = free_mb - (plan.total_mb - plan.cache_mb)
    if spare_mb >= 16:
        remedies.append(f"lower kv_cache_mb to {spare_mb}")
    raise MemoryShortageError(
        f"{checkpoint.path} ({config.precision}) does not fit: weights {plan.weights_mb} MB + "
        f"cache {plan.cache_mb} MB + sessions {plan.sessions_mb} MB = {plan.total_mb} MB > "
        f"{free_mb} MB that are left to this process; "
        + " or ".join([*remedies, "take a smaller model"])
    )
