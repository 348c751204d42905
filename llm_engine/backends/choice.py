"""Which backend calculates. Each is imported only where it is chosen."""

from collections.abc import Callable

from llm_engine.backends.base import Backend
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import BackendName, EngineConfig, ModelConfig, Precision
from llm_engine.errors import ModelError

_HEAD_SIZES = range(16, 129, 16)
"""ONNX Runtime's attention takes multiples of 16; beyond 128 the order in which it adds depends on
how many tokens there are, so that rows would depend on how a prompt is cut."""


def make_backend(
    checkpoint: Checkpoint,
    config: EngineConfig,
    context_length: int,
    on_progress: Callable[[float], None],
) -> Backend:
    """Load a model's weights. Raises ModelError."""
    unfit = _unfit_for_onnx(checkpoint.config)
    if config.backend is BackendName.ONNX and unfit is not None:
        raise ModelError(f"{checkpoint.path}: {unfit}; use backend torch")
    wants_onnx = config.backend is not BackendName.TORCH and config.precision is Precision.INT8
    if wants_onnx and unfit is None:
        from llm_engine.backends.onnx_cpu import OnnxBackend

        return OnnxBackend(checkpoint, config, context_length, on_progress=on_progress)
    from llm_engine.backends.cpu import CpuBackend

    return CpuBackend(checkpoint, config, context_length)


def _unfit_for_onnx(config: ModelConfig) -> str | None:
    """What of a model the ONNX backend can't do."""
    if config.head_dim not in _HEAD_SIZES:
        return f"has heads of {config.head_dim}, and onnx takes multiples of 16 up to 128"
    if any(window is not None for window in config.sliding_windows):
        return "has a sliding window, which onnx does not know"
    return None
