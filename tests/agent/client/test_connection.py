"""Frames that are sent again when the connection breaks, with sockets that break where a test
wants."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

from websockets.exceptions import ConnectionClosedError

from agent.client.connection import SENT_AGAIN, ClientLine
from agent.client.dial import EXTENSIONS, Connection, Dial
from agent.client.events import Resumed, SessionUpdated
from latency_budget.account.clock import ManualClock

PAGE = Path(__file__).parents[3] / "web_demo" / "call" / "resend-buffer.js"


class FakeSocket:
    """A connection that breaks after some frames, and sends each when the test lets it."""

    subprotocol = EXTENSIONS

    def __init__(self, breaks_after: int | None = None) -> None:
        self.sent: list[int] = []
        self.waiting = asyncio.Event()
        """A frame is to be sent."""
        self.sends = asyncio.Event()
        self.sends.set()
        self.transport = self
        self._breaks_after = breaks_after

    async def send(self, text: str) -> None:
        self.waiting.set()
        await self.sends.wait()
        if self._breaks_after is not None and len(self.sent) >= self._breaks_after:
            raise ConnectionClosedError(None, None)
        self.sent.append(json.loads(text)["number"])

    def abort(self) -> None:
        self._breaks_after = 0


class FakeDial:
    """Opens connections that resume the call; `received`: frames that the server has by then."""

    def __init__(self, *further: tuple[FakeSocket, int]) -> None:
        self.clock = ManualClock()
        self.further = list(further)

    async def open(self, token: str | None) -> Connection:
        socket, received = self.further.pop(0)
        return connection(socket, Resumed([], 0, received, False, 0))


def connection(socket: FakeSocket, resumed: Resumed | None = None) -> Connection:
    return Connection(cast(Any, socket), SessionUpdated({}, 0), resumed)


def line_of(first: FakeSocket, *further: tuple[FakeSocket, int]) -> ClientLine:
    return ClientLine(cast(Dial, FakeDial(*further)), connection(first), reconnects=True)


def frame(number: int) -> dict[str, Any]:
    return {"type": "response.create", "number": number}


def test_the_page_and_the_python_client_send_the_same_again() -> None:
    found = re.search(r"SENT_AGAIN = new Set\(\[(.*?)\]\)", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert set(re.findall(r"'([a-z_.]+)'", found[1])) == SENT_AGAIN


async def test_frames_survive_a_break_while_they_are_sent_again() -> None:
    first, second, third = FakeSocket(3), FakeSocket(1), FakeSocket()
    line = line_of(first, (second, 0), (third, 1))
    for number in range(1, 6):
        await line.send(frame(number))
    assert first.sent == [1, 2, 3]
    assert second.sent == [1]
    assert third.sent == [2, 3, 4, 5]


async def test_other_frames_wait_until_the_lost_ones_were_sent_again() -> None:
    first, second = FakeSocket(3), FakeSocket()
    line = line_of(first, (second, 0))
    for number in range(1, 4):
        await line.send(frame(number))
    second.sends.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(line.send(frame(4)))
        await second.waiting.wait()
        assert not await line.send_now(frame(99)), "audio is dropped meanwhile"
        group.create_task(line.send(frame(5)))
        await asyncio.sleep(0)
        second.sends.set()
    assert second.sent == [1, 2, 3, 4, 5]


async def test_frames_that_waited_for_a_connection_come_before_newer_ones() -> None:
    first, second = FakeSocket(1), FakeSocket()
    line = line_of(first, (second, 1))
    await line.send(frame(1))
    second.sends.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(line.send(frame(2)))
        await second.waiting.wait()
        for number in range(3, 6):
            group.create_task(line.send(frame(number)))
        await asyncio.sleep(0)
        second.sends.set()
        group.create_task(line.send(frame(6)))  # runs as soon as there is a connection
        group.create_task(line.send_now(frame(99)))
    assert second.sent == [2, 3, 4, 5, 6]
    assert await line.send_now(frame(7))


async def test_a_resend_that_is_cancelled_leaves_the_rest_to_the_next_connection() -> None:
    first, second, third = FakeSocket(3), FakeSocket(), FakeSocket()
    line = line_of(first, (second, 0), (third, 0))
    for number in range(1, 4):
        await line.send(frame(number))
    second.sends.clear()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(line.send(frame(4)))
        await second.waiting.wait()
        sending.cancel()
    assert sending.cancelled()
    second.sends.set()
    await line.send(frame(5))
    assert (second.sent, third.sent) == ([], [1, 2, 3, 4, 5])
