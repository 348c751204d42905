"""Settings out of range are refused by name."""

from pathlib import Path
from typing import Any

import pytest

from llm_engine.config import BackendName, EngineConfig, Precision, SamplingParams
from llm_engine.errors import RequestError

BAD_SAMPLING: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("nan")),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.5),
    ("min_p", 1),
    ("min_p", -1),
    ("repetition_penalty", 0.9),
    ("top_k", -1),
    ("top_k", 1.5),
    ("seed", -1),
    ("seed", 1 << 63),
    ("max_tokens", 0),
    ("stop", "a string"),
    ("stop", ("",)),
    ("stop", (1,)),
    ("stop", ("x",) * 17),
]
BAD_ENGINE: list[tuple[str, Any]] = [
    ("precision", "int2"),
    ("backend", "abacus"),
    ("backend", "onnx"),  # float32 is not its business
    ("kv_cache_mb", 0),
    ("max_batch", 0),
    ("num_threads", 0),
    ("prefill_chunk", 0),
    ("context_length", 3),
    ("max_sequences", 0),
]


@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING)
def test_sampling_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(("field", "value"), BAD_ENGINE)
def test_engine_settings_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field):
        EngineConfig(**{field: value})


@pytest.mark.parametrize("backend", BackendName)
@pytest.mark.parametrize("precision", Precision)
def test_a_precision_has_its_backends(backend: BackendName, precision: Precision) -> None:
    fitting = {
        BackendName.TORCH: {Precision.FLOAT32},
        BackendName.ONNX: {Precision.INT8, Precision.INT4},
        BackendName.CUDA: {Precision.BFLOAT16, Precision.FP8, Precision.INT4},
        BackendName.AUTO: set(Precision),
    }
    if precision in fitting[backend]:
        assert EngineConfig(precision=precision, backend=backend).backend is backend
        return
    with pytest.raises(RequestError, match=f"calculates in .* for {precision} choose") as caught:
        EngineConfig(precision=precision, backend=backend)
    assert caught.value.field == "backend"


def test_int4_is_for_the_cpu_unless_a_gpu_is_chosen() -> None:
    config = EngineConfig(precision=Precision.INT4)
    assert (config.chosen_backend, config.on_gpu) == (BackendName.ONNX, False)
    on_gpu = EngineConfig(precision=Precision.INT4, backend=BackendName.CUDA)
    assert (on_gpu.chosen_backend, on_gpu.on_gpu) == (BackendName.CUDA, True)
    assert on_gpu.prompt_chunk == EngineConfig(precision=Precision.FP8).prompt_chunk


def test_good_values_are_taken() -> None:
    params = SamplingParams(temperature=2, top_p=1, seed=0, stop=["a", "b"])  # type: ignore[arg-type]
    assert params.stop == ("a", "b")
    assert EngineConfig(precision="int8").precision is Precision.INT8  # type: ignore[arg-type]
    config = EngineConfig(precision="int8", backend="onnx", cache_dir="here")  # type: ignore[arg-type]
    assert config.backend is BackendName.ONNX
    assert config.cache_dir == Path("here")
