"""Streams that do not say what call they are: how many there may be, and who makes room."""

import asyncio

import pytest

from agent.telephony.carriers.media_stream import StreamError
from agent.telephony.pending_streams import CROWDED_OUT, MAX_STREAMS, PendingStreams


class Waiting:
    """One stream that says nothing until it is told to."""

    def __init__(self, streams: PendingStreams, address: str, seconds: float = 3600) -> None:
        self._says = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._wait(streams, address, seconds))

    async def _wait(self, streams: PendingStreams, address: str, seconds: float) -> None:
        async with streams.wait(address, seconds):
            await self._says.wait()

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def outcome(self) -> object:
        """What it ended with, after it has spoken if it still can."""
        self._says.set()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        return ended


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_more_takes_the_place_of_the_oldest() -> None:
    streams = PendingStreams()
    waiting = [Waiting(streams, f"192.0.2.{number}") for number in range(MAX_STREAMS)]
    await settled()
    assert len(streams) == MAX_STREAMS
    newest = Waiting(streams, "198.51.100.1")
    await settled()
    assert [each.is_over for each in waiting] == [True] + [False] * (MAX_STREAMS - 1)
    assert len(streams) == MAX_STREAMS
    with pytest.raises(StreamError, match=CROWDED_OUT):
        raise await waiting[0].outcome()  # type: ignore[misc]
    assert [await each.outcome() for each in (newest, *waiting[1:])] == [None] * MAX_STREAMS
    assert len(streams) == 0


async def test_who_floods_from_one_address_is_in_his_own_way() -> None:
    """However long he goes on. An IPv6 network is one address."""
    streams = PendingStreams()
    genuine = Waiting(streams, "192.0.2.1")
    await settled()
    flood = [Waiting(streams, f"2001:db8::{number:x}") for number in range(4 * MAX_STREAMS)]
    await settled()
    assert not genuine.is_over
    assert sum(not each.is_over for each in flood) == MAX_STREAMS - 1
    assert [each.is_over for each in flood] == sorted((e.is_over for e in flood), reverse=True)
    assert await genuine.outcome() is None
    for each in flood:
        await each.outcome()
    assert len(streams) == 0


async def test_a_stream_whose_time_is_over_at_that_moment_makes_the_room() -> None:
    streams = PendingStreams()
    waiting = [Waiting(streams, "192.0.2.1") for _ in range(MAX_STREAMS)]
    await settled()
    next(iter(streams._networks)).reschedule(0)  # it expires just before the newest comes
    newest = Waiting(streams, "192.0.2.1")
    await settled()
    assert [each.is_over for each in waiting] == [True] + [False] * (MAX_STREAMS - 1)
    assert isinstance(await waiting[0].outcome(), TimeoutError)
    assert [await each.outcome() for each in (newest, *waiting[1:])] == [None] * MAX_STREAMS


async def test_who_says_nothing_is_given_up() -> None:
    streams = PendingStreams()
    waiting = Waiting(streams, "192.0.2.1", seconds=0)
    await settled()
    assert waiting.is_over
    assert isinstance(await waiting.outcome(), TimeoutError)
    assert len(streams) == 0
