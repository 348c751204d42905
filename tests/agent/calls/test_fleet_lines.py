"""Calls at once of a key on all servers of a fleet."""

from agent.calls.fleet_lines import HELD_S, FleetLines
from agent.calls.state_store.memory import MemoryStateStore
from agent.http.auth.principal import KeyLimits, Principal
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId

TWO = Principal("ana", "key", KeyLimits(2), key_id="key:1")
CALLS = [SessionId(f"sess_{number}") for number in range(4)]


async def test_a_limit_holds_for_all_servers() -> None:
    clock = ManualClock()
    store = MemoryStateStore(clock, is_shared=True)
    first, second = FleetLines(store), FleetLines(store)
    taken = [
        await lines.take(TWO, call) for lines, call in zip((first, second) * 2, CALLS, strict=True)
    ]
    assert taken == [True, True, False, False]
    other = Principal("ben", "key", KeyLimits(1), key_id="key:2")
    assert await second.take(other, CALLS[3])
    assert await second.take(Principal("cy", "key", key_id="key:3"), CALLS[3]), "no limit"
    await first.release(TWO, CALLS[0])
    assert await second.take(TWO, CALLS[2])
    assert not await first.take(TWO, CALLS[3])
    clock.advance_ms((HELD_S - 1) * 1000)
    assert await second.take(TWO, CALLS[2]), "it goes on"
    clock.advance_ms(1001)
    assert await first.take(TWO, CALLS[3]), "the server of the other one is dead"


async def test_a_call_that_goes_on_elsewhere_keeps_its_slot() -> None:
    store = MemoryStateStore(ManualClock(), is_shared=True)
    first, second = FleetLines(store), FleetLines(store)
    assert await first.take(TWO, CALLS[0])
    assert await first.take(TWO, CALLS[1])
    assert await second.take(TWO, CALLS[0])


async def test_without_a_shared_store_nothing_is_counted() -> None:
    store = MemoryStateStore(ManualClock())
    lines = FleetLines(store)
    for call in CALLS:
        assert await lines.take(TWO, call)
        await lines.release(TWO, call)
    assert len(store) == 0
