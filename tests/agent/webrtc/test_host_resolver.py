"""Lookup of host names: once for all, on a thread of its own."""

import asyncio
import threading

import pytest

from agent.webrtc.host_resolver import FAILED_S, KEPT_S, HostResolver
from tests.support.service.live_call import PATIENCE_S


class SlowResolver:
    """Answers once `may_answer` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.may_answer = threading.Event()
        self.fails = False

    def look_up(self, host: str) -> str:
        self.asked.append(host)
        self.threads.add(threading.get_ident())
        self.may_answer.wait(PATIENCE_S)
        if self.fails:
            raise OSError("no such name")
        return "192.0.2.9"


async def test_all_who_ask_share_one_lookup_and_its_answer() -> None:
    slow = SlowResolver()
    resolver = HostResolver(slow.look_up)
    loop = asyncio.get_running_loop()
    gone = loop.create_task(resolver.resolve("stun.test", 0))
    waiting = [loop.create_task(resolver.resolve("stun.test", each)) for each in range(100)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    slow.may_answer.set()
    assert await asyncio.gather(*waiting) == ["192.0.2.9"] * 100
    assert await resolver.resolve("stun.test", KEPT_S) == "192.0.2.9"
    assert slow.asked == ["stun.test"]
    assert await resolver.resolve("stun.test", KEPT_S + 1) == "192.0.2.9"
    assert slow.asked == ["stun.test"] * 2
    assert threading.get_ident() not in slow.threads


async def test_a_name_that_is_not_found_is_not_asked_for_at_each_call() -> None:
    slow = SlowResolver()
    slow.fails = True
    slow.may_answer.set()
    resolver = HostResolver(slow.look_up)
    for now_s in (0, 1, FAILED_S):
        with pytest.raises(OSError, match="no such name"):
            await resolver.resolve("stun.test", now_s)
    assert slow.asked == ["stun.test"]
    slow.fails = False
    assert await resolver.resolve("stun.test", FAILED_S + 1) == "192.0.2.9"


async def test_an_address_is_not_looked_up() -> None:
    slow = SlowResolver()
    assert await HostResolver(slow.look_up).resolve("192.0.2.1", 0) == "192.0.2.1"
    assert slow.asked == []
