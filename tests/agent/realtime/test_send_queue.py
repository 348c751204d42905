"""Queue of frames to one client."""

import asyncio

import pytest

from agent.errors import SlowReader
from agent.realtime.send_queue import MAX_AGE_NS, MAX_BYTES, SendQueue
from latency_budget.account.clock import ManualClock


async def test_frames_come_out_in_order() -> None:
    outbox = SendQueue(ManualClock())
    for frame in "abc":
        outbox.put(frame)
    assert [await outbox.get() for _ in range(3)] == ["a", "b", "c"]
    assert outbox.peak_bytes == 3


async def test_bytes_are_counted_not_characters() -> None:
    outbox = SendQueue(ManualClock())
    outbox.put("\N{CJK UNIFIED IDEOGRAPH-65E5}" * 100)
    assert outbox.peak_bytes == 300
    await outbox.get()
    outbox.put("\N{CJK UNIFIED IDEOGRAPH-65E5}" * (MAX_BYTES // 3 + 1))
    with pytest.raises(SlowReader):
        await outbox.get()


async def test_client_that_stops_reading_is_disconnected() -> None:
    clock = ManualClock()
    outbox = SendQueue(clock)
    outbox.put("a")
    clock.advance_ms(MAX_AGE_NS / 1e6 + 1)
    outbox.put("b")
    with pytest.raises(SlowReader):
        await outbox.get()


async def test_reading_pauses_while_the_send_queue_is_long() -> None:
    outbox = SendQueue(ManualClock())
    await outbox.room()
    outbox.put("x" * (MAX_BYTES // 2))
    await outbox.room()
    outbox.put("y")
    waiting = asyncio.get_running_loop().create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.get()
    async with asyncio.timeout(30):
        await waiting
