"""Export to a collector that fails or hangs: calls do not notice, and traces are kept or
counted."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import Request

from agent.calls.registry import CallRegistry
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.endpoints.health_and_sessions import Endpoints
from agent.http.endpoints.metrics import Metrics
from agent.observability.spans import Finished, FinishedCall
from agent.observability.trace_export import MAX_BATCH, MAX_WAITING, TraceExporter
from agent.stages.registry import Stages
from agent.stages.transcription_jobs import LanguageFinding
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.support.service.otlp_collector import (
    PATIENCE_S,
    Answer,
    Collector,
    free_port,
    serving,
    turn,
)

pytest_plugins = ["tests.support.service.otlp_fixtures"]


def test_a_collector_that_comes_late_and_restarts(
    collector: Collector, exporting: Callable[[int], TraceExporter]
) -> None:
    port = free_port()
    exporter = exporting(port)
    exporter.add(turn(1))
    assert not exporter.flush()
    assert exporter.problem == "no traces reach the collector: Connection refused"
    assert exporter.waiting == 1
    assert exporter.failures >= 1
    for number in (2, 3):
        with serving(collector, port):
            exporter.add(turn(number))
            assert exporter.flush()
            assert exporter.problem is None
            assert collector.names().count("turn") == number
        exporter.add(turn(number + 10))
        assert not exporter.flush()
        assert exporter.problem is not None
        with serving(collector, port):
            assert exporter.flush()
        collector.taken.pop()
    assert exporter.exported == 5
    assert exporter.refused == exporter.dropped == 0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_one_that_asks_for_patience_gets_it(
    collector: Collector, exporter: TraceExporter, status: int
) -> None:
    collector.answers.append(Answer(status, {"Retry-After": "100000"}))
    collector.may_answer.clear()
    exporter.add(turn())
    collector.wait_hanging()  # this pass is the one that is refused
    collector.may_answer.set()
    assert exporter.flush()  # asks for another at once, whatever pause was agreed
    assert exporter.failures == 1
    assert exporter.refused == 0
    assert exporter.problem is None
    assert collector.names().count("turn") == 1


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 500])
def test_what_is_refused_for_good_is_not_sent_again(
    collector: Collector, exporter: TraceExporter, status: int
) -> None:
    collector.answers.append(Answer(status))
    exporter.add(turn(1))
    assert exporter.flush()
    assert collector.taken == []
    assert exporter.refused == exporter.failures == 1
    problem = exporter.problem
    assert problem is not None
    assert problem.startswith(f"the collector refuses traces: {status} ")
    exporter.add(turn(2))
    assert exporter.flush()
    assert exporter.problem is None
    assert (exporter.exported, exporter.refused) == (1, 1)


def test_one_that_takes_a_part(collector: Collector, exporter: TraceExporter) -> None:
    collector.answers.append(Answer(num_rejected=3))
    exporter.add(turn())
    assert exporter.flush()
    assert exporter.problem == "the collector refuses 3 spans: too long"
    assert exporter.refused == 1


def test_one_that_hangs(
    collector: Collector,
    collector_port: int,
    exporting: Callable[[int], TraceExporter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    exporter = exporting(collector_port)
    collector.may_answer.clear()
    exporter.add(turn(1))
    assert not exporter.flush()
    assert exporter.problem == "no traces reach the collector: it does not answer in time"
    collector.may_answer.set()
    assert exporter.flush()
    assert exporter.problem is None
    assert exporter.exported == 1


async def test_one_that_hangs_holds_up_neither_the_loop_nor_the_end(
    collector: Collector, exporter: TraceExporter
) -> None:
    collector.may_answer.clear()
    exporter.add(turn(0))
    await asyncio.to_thread(collector.wait_hanging)
    for number in range(MAX_WAITING + 9):
        exporter.add(turn(number))
    await asyncio.sleep(0)
    assert exporter.waiting == MAX_WAITING
    assert exporter.dropped == 10
    assert exporter.problem == "the collector takes traces more slowly than they come"
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(exporter.close, 0.05)
    assert collector.num_hanging == 1
    assert exporter.exported == 0


def test_what_waits_is_sent_at_the_end(
    collector: Collector, collector_port: int, exporting: Callable[[int], TraceExporter]
) -> None:
    exporter = exporting(collector_port)
    for number in range(3 * MAX_BATCH + 1):
        exporter.add(FinishedCall(SessionId(f"s{number}"), "a", 1, 2, 0, None))
    exporter.close(PATIENCE_S)
    assert len(collector.spans()) == exporter.exported == 3 * MAX_BATCH + 1
    assert (
        max(len(taken.request.resource_spans[0].scope_spans[0].spans) for taken in collector.taken)
        == MAX_BATCH
    )
    assert not [each for each in threading.enumerate() if each.name == "trace-export"]


def test_the_end_waits_for_a_collector_that_restarts(
    collector: Collector, exporting: Callable[[int], TraceExporter]
) -> None:
    port = free_port()
    exporter = exporting(port)
    exporter.add(turn())
    closing = threading.Thread(target=exporter.close, args=(PATIENCE_S,))
    closing.start()
    while not exporter.failures:
        threading.Event().wait(0.01)
    with serving(collector, port):
        closing.join(PATIENCE_S)
    assert collector.names().count("turn") == 1


def test_a_mistake_of_ours_costs_one_batch(collector: Collector, exporter: TraceExporter) -> None:
    exporter.add(cast(Finished, None))
    assert exporter.flush()
    assert exporter.refused == 1
    assert exporter.problem is not None
    exporter.add(turn())
    assert exporter.flush()
    assert exporter.exported == 1


class Working:
    """Stages that all work."""

    status = "ready"
    remote_llm = None
    language_finding = LanguageFinding()

    def remote_problems(self) -> dict[str, str]:
        return {}

    llm = type("Thinker", (), {"model": None})

    def progress(self) -> dict[str, str]:
        return {}

    def threads(self) -> dict[str, object]:
        return {}


async def test_readiness_and_figures(
    collector: Collector, exporting: Callable[[int], TraceExporter], tmp_path: Path
) -> None:
    port = free_port()
    exporter = exporting(port)
    calls = CallRegistry(Config(), ManualClock(), exporter=exporter)
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), ManualClock())
    endpoints = Endpoints(cast(Stages, Working()), calls, access)
    metrics = Metrics(cast(Stages, Working()), calls)
    request = Request({"type": "http"})

    async def readiness() -> tuple[int, dict[str, object]]:
        answer = await endpoints.readyz(request)
        return answer.status_code, json.loads(bytes(answer.body))

    async def figures() -> str:
        return bytes((await metrics.serve(request)).body).decode()

    exporter.add(turn())
    assert not exporter.flush()
    status, body = await readiness()
    assert (status, body["status"]) == (200, "degraded")
    assert body["exporter"] == "no traces reach the collector: Connection refused"
    told = await figures()
    assert "halfsec_traces_ok 0.0" in told
    assert "halfsec_traces_waiting 1.0" in told
    assert "halfsec_traces_exported_total 0.0" in told
    assert 'halfsec_traces_dropped_total{reason="queue_full"} 0.0' in told
    with serving(collector, port):
        assert exporter.flush()
    status, body = await readiness()
    assert (status, body["status"]) == (200, "ready")
    assert "exporter" not in body
    told = await figures()
    assert "halfsec_traces_ok 1.0" in told
    assert "halfsec_traces_exported_total 1.0" in told
    assert f"halfsec_trace_export_failures_total {float(exporter.failures)}" in told
