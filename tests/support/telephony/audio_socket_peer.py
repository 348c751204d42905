"""Asterisk's end of an AudioSocket, as its documentation and `res_audiosocket.c` have it: it sends
the UUID and then 20 ms of the caller at a time, and hands what it gets to the caller as it comes.
"""

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from agent.telephony.audiosocket_listener import AudioSockets
from agent.telephony.carriers.audiosocket import (
    HANG_UP,
    KEY,
    UUID,
    AudioSocket,
    MessageReader,
    message,
)
from tests.support.service.live_call import Int16, recording

SLIN: Final = 0x10
FRAME: Final = 160
"""Samples: 20 ms at 8 kHz."""
PATIENCE_S: Final = 60.0


class AudioSocketPeer:
    """A telephone call behind it. What its caller hears is kept: `heard`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.heard: list[Int16] = []
        """In messages, which are to have 20 ms each."""
        self.num_ticks = 0
        """Frames of 20 ms that the caller has sent: the peer's own time."""
        self.was_hung_up = False
        self.is_closed = False
        self._to_say: deque[Int16] = deque()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until the server closes."""
        messages = MessageReader()
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            with contextlib.suppress(ConnectionError):
                while data := await self._reader.read(4096):
                    for kind, payload in messages.feed(data):
                        self._take(kind, payload)
            ticking.cancel()
            self.is_closed = True
            self._news.set()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def press(self, key: str) -> None:
        self.send(message(KEY, key.encode()))

    def hang_up(self) -> None:
        """Close the connection, as Asterisk does when its channel ends."""
        self._writer.close()

    def say(self, name: str) -> None:
        """Put a recording behind what is still to be said."""
        pcm = recording(name, 8_000)
        self._to_say.extend(pcm[first : first + FRAME] for first in range(0, len(pcm), FRAME))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                assert not self.is_closed, "the server closed the connection"
                self._news.clear()
                await self._news.wait()

    async def closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.is_closed:
                self._news.clear()
                await self._news.wait()

    @property
    def num_heard(self) -> int:
        """Samples of the agent."""
        return sum(map(len, self.heard))

    def _take(self, kind: int, payload: bytes) -> None:
        self._news.set()
        if kind == HANG_UP:
            self.was_hung_up = True
            return
        assert kind == SLIN, "answers travel as the caller's audio"
        assert not self.was_hung_up
        self.heard.append(np.frombuffer(payload, "<i2"))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while not self._writer.is_closing():
            said = self._to_say.popleft() if self._to_say else np.zeros(FRAME, np.int16)
            self.send(message(SLIN, said.astype("<i2").tobytes()))
            self.num_ticks += 1
            self._news.set()
            due_s += 0.02
            await asyncio.sleep(max(0.0, due_s - loop.time()))


@asynccontextmanager
async def audio_socket(port: int) -> AsyncIterator[AudioSocketPeer]:
    """A call that an Asterisk on this machine brings to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(message(UUID, uuid.uuid4().bytes))
        peer = AudioSocketPeer(reader, writer)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(peer.run())
            yield peer
            running.cancel()
    finally:
        writer.close()


@contextmanager
def audio_socket_agent(sockets: AudioSockets, agent: str) -> Iterator[None]:
    """Let this agent answer the calls that come by AudioSocket."""
    carrier = sockets._carrier
    sockets._carrier = replace(carrier, media_stream=partial(AudioSocket, agent))
    try:
        yield
    finally:
        sockets._carrier = carrier
