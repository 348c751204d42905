"""A scripted call by WebRTC: the service's own connection, and events known to the sample."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.config.webrtc import WebRtcSettings
from agent.webrtc.jitter_buffer import FRAME
from agent.webrtc.opus import FRAME_MS, OpusDecoder, OpusEncoder
from agent.webrtc.peer import Peer
from latency_budget.account.clock import SystemClock

RATE_HZ: Final = 24_000
WAIT_S: Final = 60.0
"""Only a deadlock lasts that long."""

Pcm = npt.NDArray[np.int16]


class FakePeerCall:
    """One connection of the page. Belongs to the server's loop, but for what a test reads."""

    def __init__(self, condition: threading.Condition) -> None:
        self.events: list[dict[str, Any]] = []
        """Everything the page sent on the channel, in order."""
        self.heard: list[Pcm] = []
        """The caller's audio, a piece for each packet."""
        self.peer: Final = Peer(WebRtcSettings(), self._hear, self._receive, on_loopback=True)
        self._condition = condition
        self._decoder = OpusDecoder(RATE_HZ)
        self._encoder = OpusEncoder(RATE_HZ)
        self._num_frames = 0
        self._clock = SystemClock()
        self._pulse = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    async def send(self, kind: str, **fields: Any) -> None:
        self.peer.send(json.dumps({"type": kind, "event_id": "event", **fields}))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something the page sends."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._pulse.clear()
                await self._pulse.wait()

    async def play(self, response_id: str, pcm: Pcm) -> int:
        """Send audio of a reply in real time, until the page clears it. Returns the ms sent."""
        await self.send("output_audio_buffer.started", response_id=response_id)
        size = RATE_HZ * FRAME_MS // 1000
        num_cleared = len(self.of_type("output_audio_buffer.clear"))
        began_ns = self._clock.now_ns()
        for index, start in enumerate(range(0, len(pcm) - size + 1, size)):
            if len(self.of_type("output_audio_buffer.clear")) > num_cleared:
                await self.send("output_audio_buffer.cleared", response_id=response_id)
                return index * FRAME_MS
            packet = self._encoder.encode(pcm[start : start + size])
            if packet is not None:
                self.peer.send_audio(packet, self._num_frames * FRAME)
            self._num_frames += 1
            due_ns = began_ns + (index + 1) * FRAME_MS * 1_000_000
            await asyncio.sleep(max(0, due_ns - self._clock.now_ns()) / 1e9)
        await self.send("output_audio_buffer.stopped", response_id=response_id)
        return len(pcm) * 1000 // RATE_HZ

    def end(self) -> None:
        """End the call, from any thread: a browser that is closed says no goodbye."""
        self._loop.call_soon_threadsafe(self.peer.closed.set)

    def cut_line(self) -> None:
        """Drop all datagrams, both ways: a network that is gone says nothing. From any thread."""
        transport = self.peer._connection.getReceivers()[0].transport.transport
        for protocol in transport.iceGatherer._connection._protocols:
            protocol.datagram_received = protocol.send_stun = _drop
            protocol.send_data = _drop_later

    def changed(self) -> None:
        """Wake all who wait."""
        with self._condition:
            self._condition.notify_all()
        self._pulse.set()

    def _hear(self, seq: int, timestamp: int, payload: bytes) -> None:
        self.heard.append(self._decoder.decode(payload))
        self.changed()

    def _receive(self, message: str | bytes) -> None:
        self.events.append(json.loads(message))
        self.changed()


def _drop(*_: object) -> None:
    """Drop a datagram."""


async def _drop_later(*_: object) -> None:
    """Drop a datagram whose sender awaits that it is sent."""
