"""Factory of backends. Each backend is imported only where it is chosen."""

from collections.abc import Callable

from llm_engine.backends.base import Backend
from llm_engine.backends.cpu_memory import require_memory
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.config import BackendName, EngineConfig, Precision
from llm_engine.torch_extra import require_torch


def make_backend(
    checkpoint: Checkpoint,
    config: EngineConfig,
    context_length: int,
    on_progress: Callable[[float], None],
) -> Backend:
    """Load a model's weights into the backend that `config` chooses. Raises ModelError."""
    name = config.chosen_backend
    if name is BackendName.CUDA:
        require_torch("a GPU", extra="cuda")
        from llm_engine.cuda.loading import load_backend

        return load_backend(checkpoint, config, context_length, on_progress)
    if name is BackendName.TORCH:
        require_torch("precision float32")
    elif (
        config.precision is Precision.INT4 and checkpoint.int4_names - checkpoint.affine_int4_names
    ):
        require_torch(f"{checkpoint.path}: keeping 4-bit weights, instead of int8,")
    elif config.precision is Precision.INT4 and config.calibration is not None:
        require_torch("calibration")
    require_memory(checkpoint, config, context_length)
    if name is BackendName.ONNX:
        from llm_engine.backends.onnx_cpu import OnnxBackend

        return OnnxBackend(checkpoint, config, context_length, on_progress=on_progress)
    from llm_engine.backends.cpu import CpuBackend

    return CpuBackend(checkpoint, config, context_length)
