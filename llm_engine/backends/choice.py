"""Which backend calculates. Each is imported only where it is chosen."""

from collections.abc import Callable

from llm_engine.backends.base import Backend
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision
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
    fits_onnx = checkpoint.config.head_dim in _HEAD_SIZES
    if config.backend is BackendName.ONNX and not fits_onnx:
        raise ModelError(
            f"{checkpoint.path}: has heads of {checkpoint.config.head_dim}; onnx takes multiples "
            "of 16 up to 128, use backend torch"
        )
    wants_onnx = config.backend is not BackendName.TORCH and config.precision is Precision.INT8
    if wants_onnx and fits_onnx:
        from llm_engine.backends.onnx_cpu import OnnxBackend

        return OnnxBackend(checkpoint, config, context_length, on_progress=on_progress)
    from llm_engine.backends.cpu import CpuBackend

    return CpuBackend(checkpoint, config, context_length)
