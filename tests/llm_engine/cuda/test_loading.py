"""Checks of the GPU backend before a GPU is touched."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config.sources import read_config
from agent.stages.load_progress import Conversion
from agent.stages.loading import Loading
from agent.stages.model_store.catalogue import ModelStore
from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Backend
from llm_engine.backends.factory import make_backend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision
from llm_engine.cuda import loading
from llm_engine.cuda.device import DeviceProbe
from llm_engine.cuda.loading import Progress
from llm_engine.cuda.tensor_parallel.group import Make, ProcessGroup
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from llm_engine.speculative.draft_model import load_drafter
from tests.support.fakes.llm_cuda import H200
from tests.support.fakes.llm_models import save_tiny_model

FP8 = EngineConfig(precision=Precision.FP8)
SMALL = replace(H200, free_bytes=64 << 20, total_bytes=80 << 20)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    return load_checkpoint(tmp_path)


def refused(checkpoint: Checkpoint, config: EngineConfig) -> str:
    with pytest.raises(ModelError) as caught:
        make_backend(checkpoint, config, 64, lambda share: None)
    return str(caught.value)


def test_no_gpu_and_too_small_a_gpu(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "llm_engine.cuda.device.probe", lambda index: DeviceProbe(torch="2.13.0+cpu")
    )
    assert "built without CUDA" in refused(checkpoint, FP8)
    found = DeviceProbe(
        H200.torch, H200.cuda, H200.triton, H200.driver, num_devices=1, device=SMALL
    )
    monkeypatch.setattr("llm_engine.cuda.device.probe", lambda index: found)
    assert "does not fit: weights" in refused(checkpoint, FP8)


def test_heads_and_several_gpus(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = EngineConfig(precision=Precision.FP8, num_gpus=2, draft_heads=tmp_path)
    assert "draft heads work on one GPU" in refused(checkpoint, config)
    config = replace(FP8, num_gpus=2, megakernel=True)
    assert "megakernel works on one GPU" in refused(checkpoint, config)


def test_what_stands_beside_a_divided_model_is_not_divided(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can lead one team: a second one would fail at the start."""
    asked: list[EngineConfig] = []

    def note(checkpoint: Checkpoint, config: EngineConfig, *rest: object) -> Backend:
        asked.append(config)
        raise ModelError("seen")

    monkeypatch.setattr("llm_engine.speculative.draft_model.make_backend", note)
    config = EngineConfig(precision=Precision.FP8, num_gpus=2, calibration=tmp_path / "said.txt")
    with pytest.raises(ModelError, match="seen"):
        load_drafter(checkpoint.path, checkpoint.tokenizer, config)

    def load(path: Path, config: EngineConfig, **rest: object) -> Engine:
        asked.append(config)
        raise ModelError("seen")

    monkeypatch.setattr("llm_engine.Engine.load", load)
    settings = {"llm_engine.model": str(tmp_path), "llm_engine.small_model": str(tmp_path)}
    settings |= {"llm_engine.dtype": "fp8", "llm_engine.gpus": "2"}
    agent_config = read_config(settings, env={})
    clock = ManualClock()
    models = Loading(agent_config, ModelStore(), clock, Conversion(str(tmp_path), clock))
    for build in (models.small_engine, models.engine):
        with pytest.raises(ModelError, match="seen"):
            build()
    assert [each.num_gpus for each in asked] == [1, 1, 2]
    assert asked[0].calibration is None


def test_several_gpus_say_how_far_they_have_loaded(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lead(count: int, *of_team: str, make_own: Make, **rest: object) -> Backend:
        return make_own(ProcessGroup(0, count, "", ""))()

    def load(
        found: Checkpoint, config: EngineConfig, length: int, shard: Shard, on_progress: Progress
    ) -> Callable[[], Backend]:
        assert (found, shard) == (checkpoint, Shard(0, 2))
        on_progress(0.5)
        raise ModelError("seen")

    monkeypatch.setattr(loading, "lead", lead)
    monkeypatch.setattr(loading, "_load", load)
    shares: list[float] = []
    with pytest.raises(ModelError, match="seen"):
        make_backend(checkpoint, replace(FP8, num_gpus=2), 64, shares.append)
    assert shares == [0.5]


def test_a_text_to_calibrate_with(checkpoint: Checkpoint, tmp_path: Path) -> None:
    text = tmp_path / "said.txt"
    config = replace(FP8, calibration=text)
    with pytest.raises(ModelError, match="cannot be read"):
        loading._calibration(checkpoint, config)
    text.write_text("")
    with pytest.raises(ModelError, match="no text"):
        loading._calibration(checkpoint, config)
    text.write_text("Good morning! " * 400)
    pieces = loading._calibration(checkpoint, config)
    assert {len(piece) for piece in pieces[:-1]} <= {1024}
    assert [each for piece in pieces for each in piece] == list(
        checkpoint.tokenizer.encode(text.read_text())
    )
    assert loading._calibration(checkpoint, FP8) == []
