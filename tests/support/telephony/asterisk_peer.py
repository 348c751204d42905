"""Asterisk's end of a `chan_websocket`, by its documentation and `chan_websocket.c`."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from agent.codec.g711 import mulaw_decode, mulaw_encode
from tests.support.service.live_call import Int16, recording

FRAME: Final = 160
"""Bytes of 20 ms as mu-law: the optimal_frame_size."""
MAX_ORDER: Final = 128
MAX_MESSAGE: Final = 65_500
PATIENCE_S: Final = 60.0
CHANNEL: Final = {"channel": "WebSocket/halfsec/0x7f00", "channel_id": "pbx1-1732200000.7"}


class AsteriskPeer:
    """One channel. What is played is kept: `heard`."""

    def __init__(
        self, socket: websockets_client.ClientConnection, *, is_json: bool, xoff: int, xon: int
    ) -> None:
        """`xoff`, `xon`: lengths of the queue, in frames; Asterisk has 900 and 800."""
        self.socket = socket
        self.heard: list[Int16] = []
        self.orders: list[str] = []
        """In order, without their ids."""
        self.events: list[str] = []
        self.num_dropped = 0
        """Bytes that were no whole frame."""
        self.is_hung_up = False
        self._is_json = is_json
        self._xoff, self._xon = xoff, xon
        self._queue: deque[bytes | str] = deque()
        """Frames, and marks among them."""
        self._length = 0
        """Length of the queue, without marks."""
        self._is_full = False
        self._to_say: deque[Int16] = deque()
        self._news = asyncio.Event()

    async def start(self, **variables: str) -> None:
        fields = {
            "connection_id": "halfsec", **CHANNEL,
            "format": "ulaw", "optimal_frame_size": FRAME, "ptime": 20,
        }  # fmt: skip
        if self._is_json:
            fields["channel_variables"] = {"MEDIA_WEBSOCKET_CONNECTION_ID": "halfsec", **variables}
        await self.tell("MEDIA_START", **fields)

    async def tell(self, event: str, **fields: Any) -> None:
        self.events.append(event)
        if self._is_json:
            await self.socket.send(json.dumps({"event": event, **fields}))
        else:
            identity = fields.pop("correlation_id", None)
            words = [event, *([identity] if identity else [])]
            await self.socket.send(" ".join([*words, *(f"{k}:{v}" for k, v in fields.items())]))

    async def run(self) -> None:
        """Until the server closes."""
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            try:
                async for message in self.socket:
                    if isinstance(message, str):
                        self._obey(message)
                    else:
                        await self._take(message)
            except ConnectionClosed:
                pass  # its code is for whoever asks
            finally:
                ticking.cancel()
                self._news.set()

    def say(self, name: str) -> None:
        """Put a recording behind what is still to be said."""
        pcm = recording(name, 8_000)
        self._to_say.extend(pcm[first : first + FRAME] for first in range(0, len(pcm), FRAME))

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

    def _obey(self, message: str) -> None:
        assert len(message.encode()) <= MAX_ORDER, "it would be dropped without a word"
        if self._is_json:
            fields = json.loads(message)
            order, identity = fields["command"], fields.get("correlation_id", "")
        else:
            order, _, identity = message.partition(" ")
        self.orders.append(order)
        self._news.set()
        match order:
            case "MARK_MEDIA":
                self._queue.append(identity)
            case "FLUSH_MEDIA":
                self._queue.clear()
                self._length = 0
            case "HANGUP":
                self.is_hung_up = True
            case _:
                raise AssertionError(f"an order that Asterisk does not know: {message}")

    async def _take(self, audio: bytes) -> None:
        assert len(audio) <= MAX_MESSAGE, "it would end the call"
        whole = len(audio) // FRAME * FRAME
        self.num_dropped += len(audio) - whole
        for first in range(0, whole, FRAME):
            self._queue.append(audio[first : first + FRAME])
            self._length += 1
            if not self._is_full and self._length >= self._xoff:
                self._is_full = True
                await self.tell("MEDIA_XOFF")

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while True:
                await self._play()
                said = self._to_say.popleft() if self._to_say else np.zeros(FRAME, np.int16)
                await self.socket.send(mulaw_encode(said))
                due_s += 0.02
                await asyncio.sleep(max(0.0, due_s - loop.time()))
        except ConnectionClosed:
            pass

    async def _play(self) -> None:
        if self._is_full and self._length < self._xon:
            self._is_full = False
            await self.tell("MEDIA_XON")
        while self._queue and isinstance(mark := self._queue[0], str):
            self._queue.popleft()
            await self.tell("MEDIA_MARK_PROCESSED", correlation_id=mark)
        if self._queue:
            frame = self._queue.popleft()
            assert isinstance(frame, bytes)
            self._length -= 1
            self.heard.append(mulaw_decode(frame))
            self._news.set()


@asynccontextmanager
async def asterisk_call(
    http: str,
    key: str = "",
    *,
    is_json: bool = True,
    xoff: int = 900,
    xon: int = 800,
    **variables: str,
) -> AsyncIterator[AsteriskPeer]:
    """`Dial(WebSocket/halfsec/c(ulaw))` by an Asterisk whose `websocket_client.conf` names the
    server at this address. `key`: its password."""
    url = f"{http.replace('http', 'ws', 1)}/telephony/asterisk/stream"
    if key:
        url = url.replace("://", f"://halfsec:{key}@")  # sent as Authorization: Basic
    async with websockets_client.connect(
        url, subprotocols=[Subprotocol("media")], compression=None
    ) as socket:
        peer = AsteriskPeer(socket, is_json=is_json, xoff=xoff, xon=xon)
        await peer.start(**variables)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(peer.run())
            yield peer
            running.cancel()
