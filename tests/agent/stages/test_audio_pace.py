"""Pace of callers' audio: a fast sender waits beside others, and nobody else does."""

import asyncio

from agent.stages.audio_pace import BURST_S, FASTEST, RECENT_NS, AudioPace
from latency_budget.account.clock import ManualClock

PATIENCE_S = 30.0


def nobody() -> None:
    """Called before a wait."""


async def test_alone_a_call_is_heard_as_fast_as_it_sends() -> None:
    call = AudioPace(ManualClock()).join()
    for _ in range(100):
        await call.take(1.0, nobody)


async def test_beside_others_a_fast_sender_waits_for_the_time_to_pass() -> None:
    clock = ManualClock()
    pace = AudioPace(clock)
    call, other = pace.join(), pace.join()
    waits: list[int] = []

    def waited() -> None:
        waits.append(len(waits))

    for _ in range(int(BURST_S)):
        await call.take(1.0, waited)
    assert not waits
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        task = group.create_task(call.take(1.0, waited))
        await asyncio.sleep(0)
        assert len(waits) == 1
        assert not task.done()
        clock.advance_ms(100)
    for _ in range(10):  # behind a job of a second, one such waits until that is made up for
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            await other.take(0.0, nobody)
            seen = len(waits)
            group.create_task(call.take(1.0, waited))
            await asyncio.sleep(0)
            assert len(waits) == seen + 1
            clock.advance_ms(1000 / FASTEST)
    assert len(waits) == 11


async def test_what_a_network_held_back_is_taken_at_once() -> None:
    clock = ManualClock()
    pace = AudioPace(clock)
    call, _ = pace.join(), pace.join()
    for _ in range(100):
        await call.take(1.0, nobody)
        clock.advance_ms(1000)
    clock.advance_ms(1000 * BURST_S)
    for _ in range(int(BURST_S)):
        await call.take(1.0, nobody)


async def test_a_fast_sender_goes_on_when_the_others_have_left() -> None:
    clock = ManualClock()
    pace = AudioPace(clock)
    call, other = pace.join(), pace.join()
    for _ in range(int(BURST_S)):
        await call.take(1.0, nobody)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(call.take(1.0, other.leave))
    other.leave()
    await call.take(20.0, nobody)
    await call.take(20.0, nobody)
    assert call is not pace.join()


async def test_a_call_without_audio_slows_nobody() -> None:
    """Its client is lost, mute, or types."""
    clock = ManualClock()
    pace = AudioPace(clock)
    call, _ = pace.join(), pace.join()
    clock.advance_ms(RECENT_NS / 1e6 + 1)
    for _ in range(100):
        await call.take(1.0, nobody)


async def test_one_caller_alone_owes_nothing_when_another_comes() -> None:
    clock = ManualClock()
    pace = AudioPace(clock)
    call = pace.join()
    for _ in range(100):
        await call.take(1.0, nobody)
    pace.join()
    clock.advance_ms(1100 / FASTEST)
    await call.take(1.0, nobody)
