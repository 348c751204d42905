"""Twilio's end of a stream, as its documentation has it: it sends 20 ms of the caller at a time,
queues what it gets, plays that in real time, and returns marks when it comes to them.

The carrier of measurements (`benchmarks/callers/simulated_carrier.py`) is another one on purpose:
it says what carriers
say, and nothing else. This one sends whatever a test has written, and shares no code with what it
tests but the tables of mu-law."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed

from agent.codec.g711 import mulaw_decode, mulaw_encode
from tests.agent.telephony.carriers.test_twilio import SID, frame, media, start
from tests.support.service.live_call import Int16, recording

FRAME: Final = 160
"""Samples: 20 ms."""
PATIENCE_S: Final = 60.0


class PhonePeer:
    """A carrier with a caller behind it. What is played is kept: `heard`."""

    def __init__(self, socket: websockets_client.ClientConnection) -> None:
        self.socket = socket
        self.heard: list[Int16] = []
        self.events: list[str] = []
        """Kinds of frames received, in order: "media", "mark", "clear"."""
        self._queue: deque[Int16 | str] = deque()
        self._to_say: deque[Int16] = deque()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until the server closes."""
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            try:
                async for text in self.socket:
                    self._take(json.loads(text))
            except ConnectionClosed:
                pass  # its code is for whoever asks
            finally:
                ticking.cancel()
                self._news.set()

    async def send(self, text: str) -> None:
        await self.socket.send(text)

    def say(self, name: str) -> None:
        """Put a recording behind what is still to be said."""
        self._to_say.extend(_frames(recording(name, 8_000)))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                assert self.socket.close_code is None, self.socket.close_reason
                self._news.clear()
                await self._news.wait()

    @property
    def num_heard(self) -> int:
        """Samples of the agent that were played."""
        return sum(map(len, self.heard))

    @property
    def is_quiet(self) -> bool:
        """All that came was played."""
        return not self._queue

    def _take(self, message: dict[str, Any]) -> None:
        assert message["streamSid"] == SID
        event = message["event"]
        self.events.append(event)
        if event == "media":
            self._queue.extend(_frames(mulaw_decode(base64.b64decode(message["media"]["payload"]))))
        elif event == "mark":
            self._queue.append(message["mark"]["name"])
        else:
            assert event == "clear"
            marks = [each for each in self._queue if isinstance(each, str)]
            self._queue = deque(marks)
        self._news.set()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while True:
                await self._play()
                said = self._to_say.popleft() if self._to_say else np.zeros(FRAME, np.int16)
                await self.send(media(base64.b64encode(mulaw_encode(said)).decode()))
                due_s += 0.02
                await asyncio.sleep(max(0.0, due_s - loop.time()))
        except ConnectionClosed:
            pass

    async def _play(self) -> None:
        while self._queue:
            piece = self._queue.popleft()
            self._news.set()
            if not isinstance(piece, str):
                self.heard.append(piece)
                return
            await self.send(frame("mark", mark={"name": piece}))


def _frames(pcm: Int16) -> list[Int16]:
    return [pcm[first : first + FRAME] for first in range(0, len(pcm), FRAME)]


@asynccontextmanager
async def phone_call(
    http: str, carrier: str = "twilio", *, headers: dict[str, str] | None = None, **parameters: str
) -> AsyncIterator[PhonePeer]:
    """A call that Twilio streams to the server at this address."""
    url = f"{http.replace('http', 'ws', 1)}/telephony/{carrier}/stream"
    async with websockets_client.connect(url, additional_headers=headers) as socket:
        peer = PhonePeer(socket)
        await peer.send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        await peer.send(start(customParameters=parameters))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(peer.run())
            yield peer
            running.cancel()
