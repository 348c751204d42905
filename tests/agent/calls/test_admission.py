"""Callers who are refused lest those inside are answered too late."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from agent.calls.registry import CallRegistry
from agent.config.schema import Config, LatencySettings
from latency_budget import TurnRecord
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId, Span, Stage
from latency_budget.enforcement.admission import MIN_TURNS, OverloadForecast
from latency_budget.storage.history import TurnEntry
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to
from tests.support.session.chain_turns import chain_turn

pytest_plugins = ["tests.support.service.live_fixtures"]

SECOND_MS = 1000
CORES = 2


class ServerUnderTest:
    """A service in which one call talks, as much as the processor is told to be used for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr("agent.calls.registry.usable_cores", lambda: CORES)
        self.clock = ManualClock()
        self.processor_ns = 0
        self.num_asked = 0
        config = replace(Config(), latency_budget=LatencySettings(**settings))
        self.calls = CallRegistry(config, self.clock, processor_ns=self._asked)
        self.call = self.calls.admit(SessionId("s"), "default")

    def _asked(self) -> int:
        self.num_asked += 1
        return self.processor_ns

    def turns(
        self,
        share: float,
        change: Callable[[TurnRecord], TurnRecord] = lambda record: record,
        **links: float,
    ) -> None:
        """Enough to judge by, eight seconds each."""
        for number in range(MIN_TURNS):
            self.clock.advance_ms(8 * SECOND_MS)
            self.processor_ns += round(8e9 * share * CORES)
            record = change(chain_turn(**links, number=number + 1))
            self.calls.turn_over(self.call, TurnEntry(SessionId("s"), record))


async def test_call_is_admitted_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerUnderTest(monkeypatch)
    server.turns(0.1)
    assert server.calls.crowd() is None


async def test_call_is_refused_when_answers_would_be_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ServerUnderTest(monkeypatch)
    server.turns(0.3)  # 350 ms become 612
    crowd = server.calls.crowd()
    assert crowd is not None
    assert crowd.predicted_ms == pytest.approx(350 * 0.7 / 0.4 + 40)
    server.calls.leave(server.call)
    assert server.calls.crowd() is None, "the line is free"


async def test_tool_time_does_not_count_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerUnderTest(monkeypatch)
    slow = Span(Stage.TOOL, 0, 3 * 10**9)
    server.turns(0.3, lambda record: replace(record, spans=(*record.spans, slow)))
    assert server.calls.crowd() is None


async def test_failed_turn_does_not_count_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its apology is heard, and late."""
    server = ServerUnderTest(monkeypatch)

    def failed(record: TurnRecord) -> TurnRecord:
        model = (Stage.LLM_PREFILL, Stage.LLM_CLAUSE)
        return replace(record, spans=tuple(s for s in record.spans if s.stage not in model))

    server.turns(0.3, failed, words=20_000)
    assert server.calls.crowd() is None


async def test_cpu_load_is_not_sampled_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ServerUnderTest(monkeypatch)
    before = server.num_asked
    for number in range(100):
        server.clock.advance_ms(10)
        server.calls.turn_over(
            server.call, TurnEntry(SessionId("s"), chain_turn(number=number + 1))
        )
    assert server.num_asked <= before + 1


async def test_admission_control_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerUnderTest(monkeypatch, admission=False)
    server.turns(0.5, words=900)
    assert server.calls.crowd() is None


async def test_refusal_names_the_reason_and_a_retry_time(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.calls, "crowd", lambda num_kept: OverloadForecast(612.3, 500))
    refused = live.calls.refusals.total
    with pytest.raises(InvalidStatus) as caught:
        async with call_to(live.url):
            pass
    response = caught.value.response
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    body = response.body or b""
    assert b"over_budget" in body
    assert b"up to 612 ms, and 500 ms are promised" in body
    assert live.calls.refusals.total == refused + 1
    monkeypatch.undo()
    async with call_to(live.url) as call:
        await call.prove_alive()
