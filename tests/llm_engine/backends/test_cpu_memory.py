"""Memory plan of the processor's backends, and models that do not fit."""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_engine.backends import cpu_memory
from llm_engine.backends.cpu_memory import converted_bytes, plan_memory
from llm_engine.backends.onnx_int4 import CPU_GROUPS
from llm_engine.backends.onnx_weights import NO_GROUPS, convert
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.engine import Engine
from llm_engine.errors import MemoryShortageError
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

QWEN_HALF_BILLION = ModelConfig(
    architecture="qwen2",
    num_layers=24,
    hidden_size=896,
    intermediate_size=4864,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=151936,
    context_length=32768,
    norm_eps=1e-6,
    rope_theta=1e6,
)
INT8 = EngineConfig(precision=Precision.INT8, max_batch=4)
INT4 = EngineConfig(precision=Precision.INT4, max_batch=4)


def test_weights_are_the_published_number_of_parameters() -> None:
    # 357,826,560 in matrices of layers, 136,134,656 in the vocabulary, which is there twice.
    plan = plan_memory(QWEN_HALF_BILLION, INT8, 4096)
    assert plan.weights_mb == round(
        (1.0625 * (357_826_560 + 136_134_656) + 2 * 136_134_656) / 2**20
    )
    stored = plan_memory(QWEN_HALF_BILLION, INT4, 4096, is_stored_int4=True)
    assert stored.weights_mb == round((0.5625 * 357_826_560 + 3.0625 * 136_134_656) / 2**20)
    # Of a file that is not in 4 bits, `down` (24 x 896 x 4864) and the head are rounded.
    rounded = plan_memory(QWEN_HALF_BILLION, INT4, 4096)
    assert rounded.weights_mb == round(
        (
            1.0625 * (357_826_560 - 104_595_456)
            + 0.640625 * (104_595_456 + 136_134_656)
            + 2 * 136_134_656
        )
        / 2**20
    )


def test_weights_in_blocks_with_offsets_are_counted_as_stored() -> None:
    """Of a file in Q4_K all but `down` and the head, which are counted as rounded."""
    num_affine = 357_826_560 - 104_595_456
    rounded = plan_memory(QWEN_HALF_BILLION, INT4, 4096)
    kept = plan_memory(QWEN_HALF_BILLION, INT4, 4096, num_affine=num_affine)
    saved = num_affine * (1.0625 - 0.640625 * 33 / 32) / 2**20
    assert abs(rounded.weights_mb - kept.weights_mb - saved) <= 1


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_what_a_conversion_takes_is_what_was_planned(kind: str, tmp_path: Path) -> None:
    """Within what the vectors and a packing for another processor take."""
    save_tiny_model(
        tmp_path,
        "qwen2",
        hidden_size=512,
        intermediate_size=2048,
        head_dim=128,
        num_hidden_layers=2,
    )
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    config = EngineConfig(precision=Precision.INT4, num_threads=1, cache_dir=tmp_path / "converted")
    planned = converted_bytes(load_checkpoint(tmp_path / "model.gguf"), config)
    Engine.load(tmp_path / "model.gguf", config).close()
    (file,) = (tmp_path / "converted").glob("*.weights")
    assert 0.75 * file.stat().st_size < planned < 1.25 * file.stat().st_size


@pytest.mark.parametrize(
    ("is_tied", "kind", "groups"),
    [
        (True, "Q8_0", CPU_GROUPS),
        (True, "Q4_1", CPU_GROUPS),
        (False, "Q8_0", NO_GROUPS),
        (False, "Q4_1", CPU_GROUPS),
    ],
)
def test_a_conversion_holds_one_large_tensor(
    is_tied: bool, kind: str, groups: Mapping[str, int], tmp_path: Path
) -> None:
    """The embedding as floats and in 16 bits, which are 1.5 of the former: nothing beside them, so
    that a machine with room to run a model has room to convert it."""
    shape = {"vocab_size": 60_000, "hidden_size": 256, "num_hidden_layers": 1}
    save_tiny_model(tmp_path, "qwen2", tie_word_embeddings=is_tied, **shape)
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    tracemalloc.start()
    try:
        for name, array in convert(
            checkpoint, lambda share: None, keeps_int4=bool(groups), int4_groups=groups
        ):
            del name, array
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.8 * 4 * shape["vocab_size"] * shape["hidden_size"]


def test_the_cache_counts_with_a_batch_and_its_limit() -> None:
    token = 24 * 2 * 2 * 64 * 4
    plan = plan_memory(QWEN_HALF_BILLION, INT8, 4096)
    assert plan.cache_mb == 4 * 4096 * token >> 20
    small = EngineConfig(precision=Precision.INT8, max_batch=4, kv_cache_mb=100)
    assert plan_memory(QWEN_HALF_BILLION, small, 4096).cache_mb == 100
    assert plan_memory(QWEN_HALF_BILLION, small, 4096).sessions_mb == plan.sessions_mb


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FLOAT32])
def test_a_model_without_room_is_refused_before_it_is_loaded(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(tmp_path / "tiny", "llama", num_hidden_layers=1, head_dim=16)
    monkeypatch.setattr(cpu_memory, "available_mb", lambda: 100)
    config = EngineConfig(precision=precision, num_threads=1, cache_dir=tmp_path / "converted")
    with pytest.raises(MemoryShortageError) as refused:
        Engine.load(tmp_path / "tiny", config)
    message = str(refused.value)
    assert "does not fit: weights 0 MB + cache 1 MB + sessions 100 MB = 101 MB > 100 MB" in message
    assert message.endswith("take a smaller model")
    assert not (tmp_path / "converted").exists()
    monkeypatch.setattr(cpu_memory, "available_mb", lambda: None)
    Engine.load(tmp_path / "tiny", config).close()


def test_a_smaller_cache_is_offered_where_it_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(
        tmp_path, "llama", num_hidden_layers=3, head_dim=16, max_position_embeddings=100_000
    )
    monkeypatch.setattr(cpu_memory, "available_mb", lambda: 130)
    config = EngineConfig(precision=Precision.INT8, num_threads=1, max_batch=4)
    with pytest.raises(MemoryShortageError, match="lower kv_cache_mb to 29 or take a smaller"):
        Engine.load(tmp_path, config)
