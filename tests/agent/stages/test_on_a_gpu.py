"""Models that load on the GPU load one after another: none may wait for all of it while another
records its graphs. All others load beside them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.config.schema import AsrSettings, Config, LlmSettings
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock


@pytest.mark.parametrize(
    ("dtype", "device", "side_by_side"),
    [("fp8", "cuda", {"asr"}), ("fp8", "cpu", {"asr", "llm"}), ("int8", "cuda", {"asr", "llm"})],
)
async def test_models_that_load_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, device: Any, side_by_side: set[str]
) -> None:
    config = Config(
        asr=replace(AsrSettings(), device=device), llm_engine=replace(LlmSettings(), dtype=dtype)
    )
    stages = Stages(config, ModelStore(tmp_path, {}), SystemClock())
    loading: set[str] = set()
    seen: list[set[str]] = []

    def load(name: str) -> Callable[..., Awaitable[None]]:
        async def start(*_: object) -> None:
            loading.add(name)
            for _turn in range(5):
                await asyncio.sleep(0)
            seen.append(set(loading))
            loading.remove(name)

        return start

    monkeypatch.setattr(stages.detector, "start", load("vad"))
    monkeypatch.setattr(stages.turn_model, "start", load("turn"))
    monkeypatch.setattr(stages.recognizer, "start", load("asr"))
    monkeypatch.setattr(stages, "_start_llm", load("llm"))
    for voice in stages._voices.values():
        monkeypatch.setattr(voice, "start", load("voice"))
    await stages.start()
    assert set(stages.progress().values()) == {"ready"}
    assert seen[0] & {"asr", "llm"} == side_by_side
    assert {"vad", "turn", "voice"} <= seen[0]
    assert any("llm" in each for each in seen)
