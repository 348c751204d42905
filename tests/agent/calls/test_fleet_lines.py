"""Calls at once of a key on all servers of a fleet."""

import asyncio
import contextlib

from agent.calls.fleet_lines import HELD_S, HOLD_ON_EVERY_S, FleetLine
from agent.calls.state_store.memory import MemoryStateStore
from agent.http.auth.principal import KeyLimits, Principal
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.support.session import virtual_time

TWO = Principal("ana", "key", KeyLimits(2), key_id="key:1")
CALLS = [SessionId(f"sess_{number}") for number in range(4)]


async def test_a_limit_holds_for_all_servers() -> None:
    clock = ManualClock()
    store = MemoryStateStore(clock, is_shared=True)
    lines = [FleetLine(store, TWO, call) for call in CALLS]
    assert [await line.take() for line in lines] == [True, True, False, False]
    other = Principal("ben", "key", KeyLimits(1), key_id="key:2")
    assert await FleetLine(store, other, CALLS[3]).take()
    unlimited = Principal("cy", "key", key_id="key:3")
    assert await FleetLine(store, unlimited, CALLS[3]).take()
    await lines[0].release()
    assert await lines[2].take()
    assert not await lines[3].take()
    clock.advance_ms((HELD_S - 1) * 1000)
    assert await lines[2].take(), "it goes on"
    clock.advance_ms(1001)
    assert await lines[3].take(), "the server of the other one is dead"


def test_a_call_that_is_taken_over_keeps_its_slot() -> None:
    """The server that had it may not know yet, and end it for reasons of its own."""

    async def story(clock: ManualClock) -> None:
        store = MemoryStateStore(clock, is_shared=True)
        old, another = (FleetLine(store, TWO, call) for call in CALLS[:2])
        assert await old.take()
        assert await another.take()
        new, third = FleetLine(store, TWO, CALLS[0]), FleetLine(store, TWO, CALLS[2])
        assert await new.take()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5 * HOLD_ON_EVERY_S):
                await old.hold()
        await old.release()
        assert not await third.take()
        await new.release()
        assert await third.take()

    virtual_time.run(story)


async def test_without_a_shared_store_nothing_is_counted() -> None:
    store = MemoryStateStore(ManualClock())
    for call in CALLS:
        line = FleetLine(store, TWO, call)
        assert not line.counts
        assert await line.take()
        await line.release()
    assert len(store) == 0
