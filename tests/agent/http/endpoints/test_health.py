"""Readiness: parts without which calls still work make it "degraded" and say why."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.endpoints import health_and_sessions
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.turn_taking.end_of_turn_model import WORDS_RULE
from latency_budget.account.clock import SystemClock


@pytest.fixture
async def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(Stages, "status", "ready")
    stages = Stages(Config(), ModelStore(tmp_path, {}), SystemClock())
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    app = create_app(Config(), stages, SystemClock(), None, access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await stages.close()


async def test_with_the_shipped_weights_it_is_ready(http: httpx.AsyncClient) -> None:
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert "end_of_turn" not in answer.json()


async def test_without_weights_for_the_end_of_turn_it_is_degraded(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = replace(WORDS_RULE, problem="version 1, this needs 2")
    monkeypatch.setattr(health_and_sessions, "shipped_score", lambda: refused)
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["end_of_turn"] == "version 1, this needs 2"
