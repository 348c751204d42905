"""Readiness: parts without which calls still work make it "degraded" and say why."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.endpoints import health_and_sessions
from agent.http.endpoints.health_and_sessions import without_folders
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.turn_taking.end_of_turn_model import WORDS_RULE
from latency_budget.account.clock import SystemClock
from latency_budget.storage.postgres_url import PostgresUrl
from latency_budget.storage.store import TurnStore


@pytest.fixture(autouse=True)
def ready_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stages, "status", "ready")


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with served(tmp_path) as http:
        yield http


@contextlib.asynccontextmanager
async def served(
    tmp_path: Path, store: TurnStore | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    stages = Stages(Config(), ModelStore(tmp_path, {}), SystemClock())
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    app = create_app(Config(), stages, SystemClock(), store, access=access)
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


def test_no_directory_of_this_machine_is_shown() -> None:
    folders = [Path("/srv/my calls"), Path("/srv/my calls/state")]
    said = (
        "/srv/my calls/state/turns.sqlite can't be written: [Errno 30] '/home/me/x.wav';"
        " /srv/my calls is read-only, ~/.cache/y and http://collector:4318/v1/traces are away,"
        " at 3/4 of ../z/model.bin, and/or /tmp"
    )
    assert without_folders(said, folders) == (
        "turns.sqlite can't be written: [Errno 30] 'x.wav';"
        " my calls is read-only, y and http://collector:4318/v1/traces are away,"
        " at 3/4 of model.bin, and/or tmp"
    )


async def test_a_store_that_was_set_aside_makes_it_degraded(tmp_path: Path) -> None:
    path = tmp_path / "state" / "turns.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"this is no database " * 100)
    store = TurnStore(path)
    store.start()
    assert store.flush()
    async with served(tmp_path, store) as http:
        body = (await http.get("/readyz")).json()
        assert body["status"] == "degraded"
        assert "turns.sqlite was damaged and set aside as turns.sqlite.damaged-" in body["store"]
        assert str(tmp_path) not in str(body)
        for aside in path.parent.glob("*.damaged-*"):
            aside.unlink()
        assert (await http.get("/readyz")).json()["status"] == "ready"
    store.close()


async def test_a_store_that_cannot_be_written_is_named_without_its_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    store = TurnStore(tmp_path / "file" / "turns.sqlite")
    store.start()
    assert store.flush()
    async with served(tmp_path, store) as http:
        body = (await http.get("/readyz")).json()
    store.close()
    assert body["status"] == "degraded"
    assert "turns.sqlite can't be written" in body["store"]
    assert str(tmp_path) not in str(body)


async def test_a_database_that_is_gone_is_told_without_its_address(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    store = TurnStore(PostgresUrl("postgresql://ana:s3cret@127.0.0.1:1/turns"))
    store.start()
    assert store.flush()
    async with served(tmp_path, store) as http:
        body = (await http.get("/readyz")).json()
        older = await http.get("/v1/latency/turns?since=0")
        metrics = (await http.get("/metrics")).text
    store.close()
    assert body["status"] == "degraded"
    assert body["store"] == (
        "the database of turns can't be written: nothing listens at its address; it is tried again"
    )
    assert older.status_code == 503
    assert "postgresql://***@127.0.0.1:1/turns" in older.json()["error"]["message"]
    assert "halfsec_store_ok 0.0" in metrics
    for told in (str(body), older.text, metrics):
        assert not any(secret in told for secret in ("ana", "s3cret"))
