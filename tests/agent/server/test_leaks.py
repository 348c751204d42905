"""Twenty calls, most of them broken off, leave nothing behind."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.session import Session
from agent.stages.speech_input import SpeechInput
from tests.support.service.live import LiveServer
from tests.support.service.live_call import LiveCall, call_to, recording

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

MAX_GROWTH_MB = 60
"""Traces of ended calls are kept (16 of them), and allocators keep what they once had. A call that
stayed would hold its audio, its cache of 23 MB and more."""


NUM_LOOKS = 600
"""A minute: a pass of the recognizer takes seconds on a busy machine."""
NUM_TASK_LOOKS = 10


async def leave_at_once(call: LiveCall) -> None:
    pass


async def leave_in_mid_word(call: LiveCall) -> None:
    await call.append(recording("vm-nobodyavail")[:40_000])
    await call.until("input_audio_buffer.speech_started")


async def leave_while_it_thinks(call: LiveCall) -> None:
    await call.type("Tell me a long story about a dragon.")
    await call.send("response.create")
    await call.until("response.created")


async def leave_in_mid_reply(call: LiveCall) -> None:
    await leave_while_it_thinks(call)
    for _ in range(3):
        await call.until("response.output_audio.delta")


async def leave_behind_a_flood(call: LiveCall) -> None:
    await call.append(recording("vm-nobodyavail"), piece_ms=20)
    await call.send("input_audio_buffer.commit")


async def leave_out_of_band(call: LiveCall) -> None:
    await call.send("response.create", response={"conversation": "none"})
    await call.until("response.created")


WAYS: tuple[Callable[[LiveCall], Awaitable[None]], ...] = (
    leave_at_once,
    leave_in_mid_word,
    leave_while_it_thinks,
    leave_in_mid_reply,
    leave_behind_a_flood,
    leave_out_of_band,
)


async def break_off(
    live: LiveServer, way: Callable[[LiveCall], Awaitable[None]], rude: bool
) -> None:
    # One that is broken off rudely, and could come back, waits for that; it is ended by `settle`.
    async with call_to(live.url, protocols=("halfsec.v1",) if rude else ()) as call:
        await way(call)
        if rude:
            call.hang_up_rudely()


async def num_tasks(live: LiveServer) -> int:
    """Of the service's loop, when no call is on: the fewest of some looks, for what a call has left
    to do may not be over."""

    async def count() -> int:
        return len(asyncio.all_tasks())

    return min([await asyncio.to_thread(live.ask, count) for _ in range(NUM_TASK_LOOKS)])


def resident_mb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmRSS")


def working_threads() -> Counter[str]:
    """By name, without those of the loops' pools: these grow to their bound as they are needed."""
    names = (thread.name for thread in threading.enumerate())
    return Counter(name for name in names if not name.startswith("asyncio_"))


def alive(*kinds: type) -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) in kinds]


async def left_behind(before: set[int]) -> list[str]:
    """What of calls stays alive. A model's thread may still be at the last job of one."""
    left: list[str] = []
    for _ in range(NUM_LOOKS):
        found = alive(Session, SpeechInput, RealtimeProtocol)
        left = [repr(each) for each in found if id(each) not in before]
        del found  # else what was alive at one look would be kept alive for the next
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_calls_that_are_broken_off_leave_nothing(live: LiveServer) -> None:
    async def rounds(number: int) -> None:
        for index in range(number):
            rude = index % 2 == 1
            async with asyncio.TaskGroup() as group:
                group.create_task(break_off(live, WAYS[index % len(WAYS)], rude))
                group.create_task(break_off(live, WAYS[(index + 3) % len(WAYS)], not rude))
            await asyncio.to_thread(live.settle)

    # What a stage that hangs in another test holds on to is none of this one's.
    before = {id(each) for each in alive(Session, SpeechInput, RealtimeProtocol)}
    await rounds(len(WAYS))  # the first of everything allocates what stays
    tasks, threads, megabytes = await num_tasks(live), working_threads(), resident_mb()
    await rounds(2 * len(WAYS))
    assert await num_tasks(live) <= tasks
    assert not working_threads() - threads
    assert await left_behind(before) == []
    growth = resident_mb() - megabytes
    print(f"{4 * len(WAYS)} calls: {growth} MB more, {threads.total()} threads, {tasks} tasks")
    assert growth <= MAX_GROWTH_MB
    async with call_to(live.url) as call:
        await call.prove_alive()
