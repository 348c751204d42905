"""Turns over HTTP, from memory and from the store, and a store that cannot be written."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request

from agent.calls.registry import CallRegistry
from agent.calls.rejections import MAX_KEPT
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.endpoints.health_and_sessions import Endpoints
from agent.http.endpoints.latency import MAX_PAGE, LatencyEndpoints
from agent.http.responses import CLIENT_GONE
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.account.turn import SessionId
from latency_budget.statistics.aggregate import TurnAggregate
from latency_budget.storage import history
from latency_budget.storage.history import TurnEntry, profiles_json, turns_json
from latency_budget.storage.store import TurnStore
from tests.latency_budget.test_store import stored


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TurnStore]:
    kept = TurnStore(tmp_path / "turns.sqlite", max_days=36_500)
    kept.start()
    yield kept
    kept.close()


async def client(store: TurnStore | None, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    stages = Stages(Config(), ModelStore(tmp_path, {}), SystemClock())
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    app = create_app(Config(), stages, SystemClock(), store, access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await stages.close()


@pytest.fixture
async def http(store: TurnStore, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async for each in client(store, tmp_path):
        yield each


@pytest.fixture
async def http_without(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async for each in client(None, tmp_path):
        yield each


async def test_pages_of_older_turns(http: httpx.AsyncClient, store: TurnStore) -> None:
    for number in range(1, 6):
        store.add(stored(number, f"s{number % 2}", number * 10**9))
    first = (await http.get("/v1/latency/turns?since=0&limit=2")).json()
    assert [turn["turn"] for turn in first["turns"]] == [4, 5]
    assert first["turns"][0]["at"] == "1970-01-01T00:00:04.000+00:00"
    assert first["turns"][0]["agent"] == "default"
    assert first["turns"][0]["waterfall"]["path"]
    second = (await http.get(f"/v1/latency/turns?limit=2&before={first['before']}")).json()
    assert [turn["turn"] for turn in second["turns"]] == [2, 3]
    last = (await http.get(f"/v1/latency/turns?limit=2&before={second['before']}")).json()
    assert [turn["turn"] for turn in last["turns"]] == [1]
    assert last["before"] is None
    of_one = (await http.get("/v1/latency/turns?profile=embedded&session=s1")).json()
    assert [turn["turn"] for turn in of_one["turns"]] == [1, 3, 5]


async def test_the_summary_of_a_time(http: httpx.AsyncClient, store: TurnStore) -> None:
    for number in range(1, 6):
        store.add(stored(number, at_unix_ns=number * 10**9))
    found = (await http.get("/v1/latency/summary?since=1970-01-01T00:00:02Z&until=4.5")).json()
    assert found["summary"]["turns"] == 3
    assert found["summary"]["p50"] == 450
    assert found["profiles"]["embedded"]["turns"] == 3
    memory = (await http.get("/v1/latency/summary")).json()
    assert memory["summary"]["turns"] == 0
    assert memory["policy"]["predicted_ms"] is None
    assert {each["action"] for each in memory["policy"]["actions"]} == {
        *("pause_sooner", "short_clause", "tail_decode", "skip_partials"),
    }


async def test_the_summary_by_windows_of_time(http: httpx.AsyncClient, store: TurnStore) -> None:
    for number in range(1, 6):
        store.add(stored(number, at_unix_ns=number * 10**9))
    found = (await http.get("/v1/latency/summary?window=2")).json()
    assert list(found) == ["session", "summary", "errors", "profiles", "replicas", "windows"]
    assert [window["summary"]["turns"] for window in found["windows"]] == [1, 2, 2]
    assert found["windows"][1]["since"] == "1970-01-01T00:00:02.000+00:00"
    assert found["windows"][1]["profiles"]["embedded"]["stages"]["tts"]["spent_ms"]["p50"] == 39
    assert found["summary"]["turns"] == 5
    for query, complaint in (
        ("window=0", "a second or more"),
        ("window=1h", "window is a whole number"),
        ("window=10000000000", "at most, not 10000000000"),
        ("window=99999999999999999999", "window is out of range"),
    ):
        answer = await http.get(f"/v1/latency/summary?{query}")
        assert answer.status_code == 400
        assert complaint in answer.json()["error"]["message"]


async def test_a_turn_of_a_clock_that_was_ahead_takes_no_windows_of_others(
    http: httpx.AsyncClient, store: TurnStore
) -> None:
    now_ns = unix_ns()
    for number, hours in ((1, -1), (2, 0), (3, 2)):
        store.add(stored(number, at_unix_ns=now_ns + hours * 3600 * 10**9))
    since = now_ns / 1e9 - 2 * 3600
    answer = await http.get(f"/v1/latency/summary?since={since}&window=90")
    assert answer.status_code == 200, answer.text
    assert answer.json()["summary"]["turns"] == 2
    assert sum(window["summary"]["turns"] for window in answer.json()["windows"]) == 2


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("since=yesterday", "since: 'yesterday' is no time; one is seconds"),
        ("until=1e400", "until: '1e400' lies outside"),
        ("since=nan", "since: 'nan' lies outside"),
        ("before=x", "before is a whole number"),
        ("before=99999999999999999999", "before is out of range"),
        ("limit=0", "limit is between 1 and"),
        (f"limit={MAX_PAGE + 1}", "limit is between 1 and"),
        ("limit=many", "limit is a whole number"),
    ],
)
async def test_invalid_queries_are_refused(
    http: httpx.AsyncClient, query: str, complaint: str
) -> None:
    answer = await http.get(f"/v1/latency/turns?{query}")
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]


async def test_a_request_whose_client_has_gone_leaves_the_queue(
    store: TurnStore, tmp_path: Path
) -> None:
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    endpoints = LatencyEndpoints(CallRegistry(Config(), SystemClock(), store), access)
    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    listens, has_gone = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        listens.set()
        await has_gone.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "query_string": b"since=0", "headers": []}
    async with endpoints._reading, asyncio.TaskGroup() as group:  # another client's turn
        asked = group.create_task(endpoints.turns(Request(scope, receive)))
        async with asyncio.timeout(10):
            await listens.wait()
            has_gone.set()
            assert (await asked).status_code == CLIENT_GONE
    assert not endpoints._reading.locked(), "nobody waits any more"


async def test_service_without_a_store(http_without: httpx.AsyncClient) -> None:
    assert (await http_without.get("/v1/latency/turns")).json()["turns"] == []
    answer = await http_without.get("/v1/latency/turns?since=0")
    assert answer.status_code == 400
    assert "latency_budget.store is off" in answer.json()["error"]["message"]


async def test_transcripts_are_stored_only_when_configured(
    store: TurnStore, http: httpx.AsyncClient
) -> None:
    for wants_texts in (False, True):
        config = Config()
        kept = replace(config.latency_budget, store_texts=wants_texts)
        calls = CallRegistry(replace(config, latency_budget=kept), SystemClock(), store)
        call = calls.admit(SessionId(f"s{wants_texts:d}"), "sales")
        calls.turn_over(call, replace(stored().entry, session=call.session_id, agent="sales"))
        assert call.num_turns == len(calls.history) == 1
    turns = (await http.get("/v1/latency/turns?since=0")).json()["turns"]
    assert [turn["caller_text"] for turn in turns] == ["", "Hi."]
    assert {turn["agent"] for turn in turns} == {"sales"}
    assert turns[0]["config_fingerprint"] != turns[1]["config_fingerprint"]


async def test_a_turn_has_the_agent_that_answered_and_the_settings_of_its_call(
    store: TurnStore, http: httpx.AsyncClient
) -> None:
    """The turn that hands the call off is told when the other agent has the call already."""
    config = Config()
    calls = CallRegistry(config, SystemClock(), store)
    call = calls.admit(SessionId("s1"), "desk")
    calls.handed_off(call, "sales")
    calls.use(replace(config, agent=replace(config.agent, max_sessions=9)))
    for agent in ("desk", "sales"):
        calls.turn_over(call, replace(stored().entry, session=call.session_id, agent=agent))
    of_memory = turns_json(None, calls.history.newest())["turns"]
    assert [turn["agent"] for turn in of_memory] == ["desk", "sales"]
    turns = (await http.get("/v1/latency/turns?since=0")).json()["turns"]
    assert [turn["agent"] for turn in turns] == ["desk", "sales"]
    assert {turn["config_fingerprint"] for turn in turns} == {config.fingerprint()}
    (of_desk,) = (await http.get("/v1/latency/turns?agent=desk")).json()["turns"]
    assert of_desk["row"] == turns[0]["row"]
    summary = (await http.get("/v1/latency/summary?agent=sales")).json()["summary"]
    assert summary["turns"] == 1


async def test_unwritable_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = TurnStore(tmp_path / "file" / "turns.sqlite")
    broken.start()
    broken.add(stored())
    assert not broken.flush()
    async for http in client(broken, tmp_path):
        assert "can't be written" in (await http.get("/readyz")).json()["store"]
        metrics = (await http.get("/metrics")).text
        assert "halfsec_store_ok 0.0" in metrics
        assert "halfsec_store_turns_waiting 1.0" in metrics
        assert "halfsec_traces_kept 0.0" in metrics
        for path in ("latency/turns?since=0", "latency/summary?window=9", "calls", "calls/sess_a"):
            refused = await http.get(f"/v1/{path}")
            assert refused.status_code == 503, "the client has made no mistake"
            error = refused.json()["error"]
            assert error["type"] == "server_error"
            assert "there is no store" in error["message"]
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    calls = CallRegistry(Config(), SystemClock(), broken)
    ready = Endpoints(cast(Stages, Ready()), calls, access)
    answer = await ready.readyz(Request({"type": "http"}))
    assert answer.status_code == 200
    assert json.loads(bytes(answer.body))["status"] == "degraded"
    broken.close()


async def test_latency_histograms(http: httpx.AsyncClient, store: TurnStore) -> None:
    """The same buckets from the store and from memory, and only where they are asked for."""
    for number in range(1, 5):
        store.add(stored(number, at_unix_ns=number * 10**9))
    found = (await http.get("/v1/latency/summary?since=0&histogram=1")).json()
    ((upper_ms, count),) = found["histograms"]["e2e"]
    assert (450 <= upper_ms < 450 * 1.05, count) == (True, 4)
    assert found["histograms"]["stages"]["tool"] == [[0, 4]]
    assert sum(count for _, count in found["histograms"]["stages"]["tts"]) == 4
    assert found["summary"]["within"] == found["profiles"]["embedded"]["within"] == 1
    assert "histograms" not in (await http.get("/v1/latency/summary?since=0")).json()
    calls = CallRegistry(Config(), SystemClock())
    for number in range(1, 5):
        calls.history.add(stored(number).entry)
    memory = profiles_json(None, calls.history.entries(), histograms=True)
    assert memory["histograms"] == found["histograms"]
    windows = (await http.get("/v1/latency/summary?window=2&histogram=1")).json()
    assert [window["summary"]["within"] for window in windows["windows"]] == [1, 1, 1]
    assert windows["histograms"] == found["histograms"]
    wrong = await http.get("/v1/latency/summary?histogram=yes")
    assert wrong.status_code == 400
    assert "histogram is 0 or 1" in wrong.json()["error"]["message"]


async def test_turns_have_their_marks_from_memory_and_from_the_store(
    http: httpx.AsyncClient, store: TurnStore
) -> None:
    entry = replace(stored().entry, recording=(12.5, 17.25))
    store.add(replace(stored(), entry=entry))
    (turn,) = (await http.get("/v1/latency/turns?since=0")).json()["turns"]
    marks = {mark["name"]: mark["ms"] for mark in turn["marks"]}
    assert (marks["caller_last_voiced"], marks["endpoint"], marks["heard"]) == (0, 420, 450)
    assert [mark["ms"] for mark in turn["marks"]] == sorted(marks.values())
    assert turn["recording"] == {"from_s": 12.5, "to_s": 17.25}
    calls = CallRegistry(Config(), SystemClock())
    calls.turn_over(calls.admit(SessionId("s1"), "sales"), entry)
    (of_memory,) = turns_json(None, calls.history.newest())["turns"]
    assert of_memory["marks"] == turn["marks"]
    assert (of_memory["agent"], of_memory["row"]) == (turn["agent"], None)
    assert len(of_memory["at"]) == len(turn["at"])


@pytest.mark.parametrize("path", ["turns", "turns?since=0", "summary"])
async def test_responses_are_built_beside_the_event_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: list[threading.Thread] = []
    aggregate = history.aggregate_of

    def aggregated(entries: Sequence[TurnEntry]) -> TurnAggregate:
        threads.append(threading.current_thread())
        return aggregate(entries)

    monkeypatch.setattr(history, "aggregate_of", aggregated)
    assert (await http.get(f"/v1/latency/{path}")).status_code == 200
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_turns_of_an_older_version_have_no_marks(
    http: httpx.AsyncClient, store: TurnStore
) -> None:
    store.add(stored())
    assert await asyncio.to_thread(store.flush)
    with sqlite3.connect(str(store.place)) as connection:
        connection.execute(
            "UPDATE turns SET detail = json_remove(detail, '$.marks', '$.recording')"
        )
    (turn,) = (await http.get("/v1/latency/turns?since=0")).json()["turns"]
    assert (turn["marks"], turn["recording"]) == (None, None)
    assert turn["waterfall"]["path"]


async def test_stored_refusals_are_listed(tmp_path: Path) -> None:
    calls = CallRegistry(Config(), SystemClock())
    for number in range(MAX_KEPT + 5):
        calls.refuse("busy" if number else "over_budget")
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    answer = await LatencyEndpoints(calls, access).refusals(Request({"type": "http"}))
    told = json.loads(bytes(answer.body))
    assert told["total"] == MAX_KEPT + 5
    assert [each["code"] for each in told["refusals"]] == ["busy"] * MAX_KEPT
    assert told["refusals"][0]["at"] <= told["refusals"][-1]["at"]


class Ready:
    """Stages that all work."""

    status = "ready"
    remote_llm = None

    def remote_problems(self) -> dict[str, str]:
        return {}

    def progress(self) -> dict[str, str]:
        return {}
