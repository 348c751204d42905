"""Real engines for tests of sessions: one with random weights, one that can speak."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import Engine
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.models import model_path

SMOLLM2 = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.models)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param == "tiny":
        path = tmp_path
        save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    else:
        path = model_path(SMOLLM2)
    engine = await asyncio.to_thread(Engine.load, path, EngineConfig(num_threads=1))
    yield engine
    engine.close()
