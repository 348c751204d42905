"""`/metrics` as Prometheus reads it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

import llm_engine
from agent.calls.registry import CallRegistry
from agent.config.schema import Config, LlmSettings
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.endpoints.metrics import Metrics, engine_state, engine_stats
from agent.http.hardening.http_protocol import HttpConnection
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.tools.server_tools import MAX_COUNTED, OTHERS, ServerTools
from latency_budget.account.clock import SystemClock
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, Stage, TurnId
from latency_budget.storage.history import TurnEntry
from tests.latency_budget.test_store import stored
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to

pytest_plugins = ["tests.support.service.live_fixtures"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(answer: httpx.Response) -> Samples:
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "llama", num_hidden_layers=1)
    return path


@pytest.fixture
async def stages(model: Path, tmp_path: Path) -> AsyncIterator[Stages]:
    """Not started."""
    settings = LlmSettings(model=str(model), dtype="float32", context=256, cache_mb=16)
    stages = Stages(Config(llm_engine=settings), ModelStore(tmp_path, {}), SystemClock())
    yield stages
    await stages.close()


@pytest.fixture
async def http(stages: Stages, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    app = create_app(Config(), stages, SystemClock(), access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def scrape(http: httpx.AsyncClient) -> Samples:
    return samples_of(await http.get("/metrics"))


async def test_metrics_before_the_model_is_loaded(http: httpx.AsyncClient) -> None:
    samples = await scrape(http)
    assert value(samples, "halfsec_calls") == 0
    assert value(samples, "halfsec_stage_ready", stage="llm") == 0
    assert value(samples, "process_resident_memory_bytes") > 0
    assert not [name for name, _ in samples if name.startswith("halfsec_llm_")]


async def test_barge_in_counters(stages: Stages) -> None:
    calls = CallRegistry(Config(), SystemClock())
    calls.barge_ins.kept["stock"] += 2
    calls.barge_ins.barged_in["ducks"] += 1
    families = {family.name: family for family in Metrics(stages, calls)._overlaps()}
    found = {
        (name, sample.labels["client"]): sample.value
        for name, family in families.items()
        for sample in family.samples
    }
    assert found == {
        ("halfsec_barge_ins", "stock"): 0,
        ("halfsec_barge_ins", "ducks"): 1,
        ("halfsec_backchannels_kept", "stock"): 2,
        ("halfsec_backchannels_kept", "ducks"): 0,
    }


async def test_tool_speculation_and_connection_counters(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpConnection, "num_refused", 7)
    calls = CallRegistry(Config(), SystemClock())
    calls.guesses.made, calls.guesses.used, calls.guesses.dropped = 5, 3, 1
    tools = ServerTools(Config(), SystemClock())
    for name in ("clock", *(f"tool{number}" for number in range(MAX_COUNTED + 10))):
        tools.tool_counts.add(name, "started")
    tools.tool_counts.add("clock", "failed")
    text = bytes((await Metrics(stages, calls, tools).serve(Request({"type": "http"}))).body)
    lines = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    assert lines["halfsec_connections_refused_total"] == "7.0"
    made = [lines[f"halfsec_guesses{name}_total"] for name in ("", "_used", "_dropped")]
    assert made == ["5.0", "3.0", "1.0"]
    found = {line: value for line, value in lines.items() if line.startswith("halfsec_tool_calls")}
    assert found['halfsec_tool_calls_total{state="failed",tool="clock"}'] == "1.0"
    assert found['halfsec_tool_calls_total{state="started",tool="clock"}'] == "1.0"
    assert found[f'halfsec_tool_calls_total{{state="started",tool="{OTHERS}"}}'] == "11.0"
    assert len(found) == MAX_COUNTED + 2


async def test_engine_state_for_event_subscribers(stages: Stages) -> None:
    calls = CallRegistry(Config(), SystemClock())
    calls.guesses.made = 5
    await stages.llm.start()
    stats = await engine_stats(stages)
    assert stats is not None
    state = engine_state(stats, calls)
    assert state["guesses"] == {"made": 5, "used": 0, "dropped": 0, "wasted_ms": 0.0}
    assert state["page_tokens"] * state["pages_total"] > 0
    assert {"time_to_first_token_p95_ms", "inter_token_p95_ms", "inter_token_p99_ms"} <= set(state)
    assert (state["drafted_tokens"], state["accepted_tokens"]) == (0, 0)


async def test_turn_latency_histograms(stages: Stages) -> None:
    calls = CallRegistry(Config(), SystemClock())
    turn = stored().entry
    slow = replace(turn, budget=replace(turn.budget, name="cpu"))
    for entry in (turn, turn, slow):
        calls.history.add(entry)
    unanswered = TurnLedger(TurnId(9)).record()
    calls.history.add(TurnEntry(SessionId("s"), unanswered))
    text = bytes((await Metrics(stages, calls).serve(Request({"type": "http"}))).body).decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    name = "halfsec_turn_e2e_seconds"
    for bound, number in (("0.425", 0), ("0.45", 2), ("0.5", 2), ("+Inf", 2)):  # 450 ms
        assert float(lines[f'{name}_bucket{{le="{bound}",profile="embedded"}}']) == number
    assert float(lines[f'{name}_sum{{profile="embedded"}}']) == pytest.approx(0.9)
    assert float(lines[f'{name}_count{{profile="cpu"}}']) == 1
    record = turn.record
    exposed_s = record.stages[Stage.ENDPOINT].exposed_ms / 1e3
    found_s = float(lines['halfsec_stage_exposed_seconds_sum{stage="endpoint"}'])
    assert exposed_s > 0
    assert found_s == pytest.approx(3 * exposed_s)
    assert float(lines["halfsec_guesses_wasted_tokens_total"]) == 3 * 15
    assert float(lines["halfsec_guesses_wasted_seconds_total"]) == pytest.approx(
        3 * record.wasted_ms / 1e3
    )


async def test_turns_that_were_re_opened(stages: Stages) -> None:
    calls = CallRegistry(Config(), SystemClock())
    for number in (1, 2):
        ledger = TurnLedger(TurnId(number))
        ledger.add(Mark(ledger.turn, MarkName.REOPENED if number == 2 else MarkName.INTERRUPTED, 0))
        calls.history.add(TurnEntry(SessionId("s"), ledger.record()))
    answer = await Metrics(stages, calls).serve(Request({"type": "http"}))
    lines = bytes(answer.body).decode().splitlines()
    assert "halfsec_turns_total 2.0" in lines
    assert "halfsec_turns_reopened_total 1.0" in lines
    assert "halfsec_turns_withdrawn_total 0.0" in lines
    assert "halfsec_turns_withdrawn_openers_total 0.0" in lines
    assert "halfsec_turns_interrupted_total 1.0" in lines


async def test_engine_counters(stages: Stages, http: httpx.AsyncClient) -> None:
    await stages.llm.start()
    engine = stages.llm.model
    assert engine is not None
    before = await scrape(http)
    assert value(before, "halfsec_llm_time_to_first_token_seconds_count") == 0
    sampling = llm_engine.SamplingParams(max_tokens=6, ignore_eos=True)
    async for _ in engine.generate([5, 6, 7, 8], sampling):
        pass
    samples = await scrape(http)
    stats = await engine.stats()
    assert value(samples, "halfsec_llm_prompt_tokens_total") == 4
    assert value(samples, "halfsec_llm_prompt_tokens_cached_total") == 0
    assert value(samples, "halfsec_llm_output_tokens_total") == 6
    assert value(samples, "halfsec_llm_requests_replying") == 0
    assert value(samples, "halfsec_llm_cache_pages_high_water") == stats.pages_high_water > 0
    assert value(samples, "halfsec_llm_cache_pages") == stats.pages_total
    assert (
        value(samples, "halfsec_llm_draft_tokens_total", drafter="ngram")
        == stats.drafts["ngram"].num_drafted
    )
    for name, histogram in (
        ("time_to_first_token", stats.first_token_ms),
        ("inter_token_latency", stats.between_tokens_ms),
        ("queue_time", stats.queue_ms),
    ):
        full = f"halfsec_llm_{name}_seconds"
        assert value(samples, f"{full}_count") == histogram.count > 0
        assert value(samples, f"{full}_sum") == pytest.approx(histogram.sum_ms / 1e3)
        buckets = sorted(
            (float(dict(labels)["le"]), number)
            for (each, labels), number in samples.items()
            if each == f"{full}_bucket"
        )
        numbers = [number for _, number in buckets]
        assert numbers == sorted(numbers)
        assert (buckets[-1][0], numbers[-1]) == (float("inf"), histogram.count)
        median_s = histogram.quantile(0.5) / 1e3
        assert any(number >= histogram.count / 2 for le, number in buckets if le < 2 * median_s)


async def test_what_finding_languages_costs(stages: Stages, http: httpx.AsyncClient) -> None:
    finding = stages.language_finding
    finding.num_passes, finding.ms = 3, 1500.0
    samples = await scrape(http)
    assert value(samples, "halfsec_asr_language_passes_total") == 3
    assert value(samples, "halfsec_asr_language_seconds_total") == 1.5


async def test_metrics_of_an_engine_that_does_not_answer(
    stages: Stages, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stages.llm.start()
    engine = stages.llm.model
    assert engine is not None
    monkeypatch.setattr("agent.http.endpoints.metrics.ANSWER_TIMEOUT_S", 0.0)
    samples = await scrape(http)
    assert not [name for name, _ in samples if name.startswith("halfsec_llm_")]
    monkeypatch.undo()
    engine.close()
    samples = await scrape(http)
    assert not [name for name, _ in samples if name.startswith("halfsec_llm_")]


@pytest.mark.models
async def test_calls_and_turns_of_the_service(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.http, trust_env=False, timeout=30) as http:
        before = await scrape(http)
        async with call_to(live.url) as call:
            await call.type("What is the capital of France?")
            await call.send("response.create")
            await call.response()
            during = await scrape(http)
            assert value(during, "halfsec_calls") == 1
    admitted, turns = "halfsec_calls_admitted_total", "halfsec_turns_total"
    assert value(during, admitted) == value(before, admitted) + 1
    assert value(during, turns) == value(before, turns) + 1
    assert value(during, "halfsec_stage_ready", stage="llm") == 1
    tokens = "halfsec_llm_output_tokens_total"
    assert value(during, tokens) > value(before, tokens)
