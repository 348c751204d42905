"""A whole session in virtual time, and clients that say what they like of their playback."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.observability.pending_records import REPORT_S
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking.reply_outcome import NOTICE_NS, WINDOW_NS
from latency_budget.account.clock import ManualClock
from latency_budget.account.ledger import records_of
from latency_budget.account.playback_time import MAX_TRANSPORT_NS
from latency_budget.account.turn import Stage
from latency_budget.reporting.trace import read_trace
from latency_budget.storage.history import TurnEntry
from tests.support.session.guess_call import let_work
from tests.support.session.session_call import Call, call_with
from tests.support.session.virtual_time import run

LONG = "One two three four five six seven eight nine ten eleven twelve."
SHORT = "Yes."
"""200 ms: all of it is sent at once."""
WINDOW_S = (WINDOW_NS + NOTICE_NS) / 1e9
"""Time after a reply's first sound in which its record waits for a caller who goes on."""
Report = tuple[int, int]
"""Milliseconds after the one before (or the release), and milliseconds played."""


async def ask_aloud(call: Call, clock: ManualClock) -> say.ReplyStarted:
    """Until the answer is on its way."""
    count = len(call.of(say.ReplyStarted)) + 1
    at_ns = clock.now_ns()
    call.ears.hear(SpeechResult(call.ears.utterance + 1, last_voiced_ns=(at_ns, at_ns)))
    call.ears.say("Well?")
    started = (await call.until(say.ReplyStarted, count))[-1]
    assert isinstance(started, say.ReplyStarted)
    await call.until(say.ReplyAudio, len(call.of(say.ReplyAudio)) or 1)
    return started


async def report(call: Call, item_id: ItemId, played_ms: int) -> None:
    await call.session.handle(ask.PlaybackReport(item_id, played_ms))


async def over(call: Call) -> TurnEntry:
    """The turn, once all of its reply has been played."""
    await asyncio.sleep(len(LONG) * 0.05 + REPORT_S)
    (entry,) = call.turns
    return entry


def turn_of(reports: Sequence[Report]) -> TurnEntry:
    """One turn whose client reports this. Nothing in it takes time but the reply."""
    found: list[TurnEntry] = []

    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, clock=clock) as call:
            started = await ask_aloud(call, clock)
            for after_ms, played_ms in reports:
                await asyncio.sleep(after_ms / 1000)
                await report(call, started.item_id, played_ms)
            found.append(await over(call))
            kept = records_of(read_trace(call.trace.lines()).marks())
            assert kept[0].e2e_server_ns == found[0].record.e2e_server_ns

    run(test)
    return found[0]


def test_client_without_reports_has_no_ear_latency() -> None:
    record = turn_of([]).record
    assert record.answered
    assert (record.e2e_ear_ns, record.incomplete.count("heard")) == (None, 0)


def test_plausible_playback_reports_set_the_ear_latency() -> None:
    record = turn_of([(240, 200), (230, 400)]).record
    assert record.e2e_server_ns is not None
    assert record.e2e_ear_ns == record.e2e_server_ns + 40_000_000
    assert record.stages[Stage.TRANSPORT].exposed_ns == 40_000_000


ATTACKS: list[list[Report]] = [
    [(10, 1 << 40)],  # what was not sent
    [(10, 5_000), (500, 300)],
    [(1, 350)],  # what was sent, sooner than it can be played
    [(400, 300), (100, 100)],  # backwards
    [(400, 300), (1, 0)],
    [(100, 90), *[(1, 1 << 30)] * 1000],
]


@pytest.mark.parametrize("reports", ATTACKS)
def test_implausible_reports_leave_the_turn_without_ear_latency(reports: list[Report]) -> None:
    record = turn_of(reports).record
    assert record.answered
    assert record.e2e_ear_ns is None
    assert record.e2e_server_ns is not None
    assert "reports of playback that can't be true" in record.incomplete


def test_thousand_reports_per_second_do_not_change_the_turn() -> None:
    record = turn_of([(1, 1 + number) for number in range(1000)]).record
    assert record.e2e_ear_ns == record.e2e_server_ns
    assert not [flaw for flaw in record.incomplete if "heard" in flaw or "playback" in flaw]


@pytest.mark.parametrize("per_mille", [980, 1020])
def test_a_client_that_plays_too_fast_or_too_slow(per_mille: int) -> None:
    reports = [(200, 200 * number * per_mille // 1000) for number in range(1, 14)]
    record = turn_of(reports).record
    if record.e2e_ear_ns is not None:
        transport_ns = record.stages[Stage.TRANSPORT].exposed_ns
        assert 0 <= transport_ns <= 20_000_000
    assert (record.e2e_ear_ns is None) is any("playback" in flaw for flaw in record.incomplete)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 800), st.integers(0, 4000)), max_size=12))
def test_ear_latency_stays_within_the_servers_bounds(reports: list[Report]) -> None:
    record = turn_of(reports).record
    assert record.e2e_server_ns is not None
    assert all(time.exposed_ns >= 0 <= time.spent_ns for time in record.stages.values())
    assert sum(time.exposed_ns for time in record.stages.values()) == record.e2e_ns
    if record.e2e_ear_ns is not None:
        transport_ns = record.e2e_ear_ns - record.e2e_server_ns
        assert transport_ns == record.stages[Stage.TRANSPORT].exposed_ns
        assert 0 <= transport_ns <= MAX_TRANSPORT_NS
        assert transport_ns <= sum(after_ms for after_ms, _ in reports) * 1_000_000


# --- replies that are over before anybody can have heard them ---


async def first_turn(call: Call, clock: ManualClock) -> None:
    """Long enough for the client to show that it reports its playback."""
    started = await ask_aloud(call, clock)
    await asyncio.sleep(0.24)
    await report(call, started.item_id, 200)
    await over(call)


def test_short_reply_is_recorded_when_it_was_played() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, SHORT, clock=clock) as call:
            await first_turn(call, clock)
            started = await ask_aloud(call, clock)
            await call.until(say.ReplyEnded, 2)
            assert len(call.turns) == 1, "sent, but nobody knows yet when it is heard"
            await asyncio.sleep(0.1)
            await report(call, started.item_id, 70)
            await asyncio.sleep(WINDOW_S)
            record = call.turns[1].record
            assert record.e2e_server_ns is not None
            assert record.e2e_ear_ns == record.e2e_server_ns + 30_000_000

    run(test)


def test_missing_reports_do_not_delay_the_turn_record() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, SHORT, clock=clock) as call:
            await first_turn(call, clock)
            await ask_aloud(call, clock)
            await call.until(say.ReplyEnded, 2)
            await asyncio.sleep(0.2 + REPORT_S - 0.01)
            assert len(call.turns) == 1, "the caller may show that the reply cut in"
            await asyncio.sleep(WINDOW_S)
            record = call.turns[1].record
            assert (record.answered, record.e2e_ear_ns) == (True, None)

    run(test)


def test_the_next_turn_and_the_end_of_the_call_wait_for_no_report() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, SHORT, SHORT, clock=clock) as call:
            await first_turn(call, clock)
            await ask_aloud(call, clock)
            await call.until(say.ReplyEnded, 2)
            await asyncio.sleep(0.3)
            await ask_aloud(call, clock)
            assert [entry.record.turn for entry in call.turns] == [1, 2]
            await call.until(say.ReplyEnded, 3)
        assert [entry.record.turn for entry in call.turns] == [1, 2, 3]
        assert [entry.agent_text for entry in call.turns] == [LONG, SHORT, SHORT]

    run(test)


def test_truncated_reply_is_recorded_with_its_last_report() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, LONG, clock=clock) as call:
            await first_turn(call, clock)
            started = await ask_aloud(call, clock)
            await asyncio.sleep(0.05)
            await call.session.handle(ask.CancelResponse())
            await let_work()
            assert len(call.turns) == 1
            await report(call, started.item_id, 30)
            record = call.turns[1].record
            assert record.e2e_server_ns is not None
            assert record.e2e_ear_ns == record.e2e_server_ns + 20_000_000

    run(test)


def test_a_reply_that_was_never_released_waits_for_nothing() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(LONG, LONG, clock=clock) as call:
            await first_turn(call, clock)
            call.chat.hold = asyncio.Event()
            call.ears.say("Well?")
            await call.until(say.ReplyStarted, 2)
            call.session.feed(ev.ReplyCancelled())
            await let_work()
            assert len(call.turns) == 2
            assert not call.turns[1].record.answered

    run(test)
