"""A model that has lost what it calculates on ends the service, with the reason."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn

from agent.calls.registry import CallRegistry
from agent.config.layers import load_config
from agent.server.server import _end_when_lost
from agent.stages.llm_chat import HANGS_S
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import StageLostError
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import Plan, StepHandle
from llm_engine.checkpoints.huggingface_tokenizer import load_tokenizer
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.cuda.tensor_parallel.follower_watchdog import HangTimeout
from llm_engine.engine import Engine, read_vocabulary
from llm_engine.errors import DeviceLostError
from tests.support.fakes.llm_models import LosableBackend, ScriptedBackend, save_tiny_model


class LostBackend(ScriptedBackend):
    def launch(self, plan: Plan) -> StepHandle:
        raise DeviceLostError("the GPU is lost: CUDA error: unspecified launch failure")


def fails(backend: LostBackend) -> None:
    """The engine's thread comes back with an error."""


def hangs(backend: LosableBackend) -> None:
    """It does not, and another one tells."""
    assert backend.reached.acquire(timeout=60)
    backend.lose(DeviceLostError("the GPU is lost: CUDA error: unspecified launch failure"))


@pytest.mark.parametrize(
    ("backend", "lose"), [(LostBackend(lambda held: 1), fails), (LosableBackend(), hangs)]
)
async def test_the_service_ends_once_a_device_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: ScriptedBackend,
    lose: Callable[[ScriptedBackend], None],
) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    monkeypatch.setattr("agent.server.server.LOOK_EVERY_S", 0.001)
    stages = Stages(load_config({}), ModelStore(), SystemClock())
    stages._progress = {"llm": "ready"}
    engine = Engine(
        backend,
        read_vocabulary(load_tokenizer(tmp_path, {}), tmp_path),
        context_length=64,
        config=EngineConfig(),
        clock=SystemClock(),
    )
    stages.llm.model = engine
    calls, server = CallRegistry(load_config({}), SystemClock()), uvicorn.Server(cast(Any, None))
    server.should_exit = False
    async with asyncio.TaskGroup() as group:
        group.create_task(_end_when_lost(stages, calls, server))
        await asyncio.sleep(0.05)
        assert stages.status == "ready"
        group.create_task(asyncio.to_thread(lose, backend))
        with pytest.raises(DeviceLostError, match="unspecified launch failure"):
            async for _ in engine.generate((1, 2, 3), SamplingParams(max_tokens=4)):
                pass
    assert (stages.status, server.should_exit) == ("failed", True)
    assert "llm: the GPU is lost: CUDA error: unspecified launch" in capsys.readouterr().err
    if isinstance(backend, LosableBackend):
        backend.gate.release(1000)
    engine.close()


@pytest.mark.parametrize(
    "error", [DeviceLostError("it has not ended"), StageLostError("it has not ended")]
)
def test_a_model_that_only_a_new_process_can_load_ends_this_one(error: Exception) -> None:
    """As where processes of several GPUs hang, or threads, and are given up."""
    stages = Stages(load_config({}), ModelStore(), SystemClock())
    stages._progress = {"llm": "ready"}
    found = []
    for each in (OSError("it is being replaced"), error):
        stages.llm._broken = each
        found.append((stages.status, stages.failure()))
    assert found == [("broken", ""), ("failed", "llm: it has not ended")]


def test_lost_device_is_reported_before_the_hang_timeout() -> None:
    """That would load another one, beside which there is no room."""
    patience = HangTimeout()
    assert patience.poll_s * (patience.num_polls + 1) < HANGS_S / 2
