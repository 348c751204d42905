"""WebRTC client as a browser is one: aiortc, with an audio track and a data channel for events.

What aiortc does worse than a browser is done here instead, by reaching into it (it is pinned, and
`agent/webrtc/private_names.py` says of what):

- *receiving*: its jitter buffer holds four packets back, 80 ms, and its decoder conceals nothing.
  With `take_packets` packets are taken before that, as `agent/webrtc/peer.py` takes them.
- *a bad line*: `spoil` loses and delays RTP and RTCP in both directions, at the client's socket.
  ICE, DTLS and with it the data channel are left as they are: SCTP would send again what is lost,
  a second later at the earliest, and events that late would say nothing of what is heard.
- *closing*: its thread that decodes ends whatever happens to the connection, also where it begins
  later: no signal ends it, and the process would wait for it.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import aiortc

from latency_budget.account.clock import SystemClock

from .lossy_line import DatagramPath

CHANNEL: Final = "oai-events"

CLOSE_S: Final = 60.0
"""Limit for closing the connection, in s. Only a hang takes so long."""


class WebRtcClient:
    """Client of one call. Order of calls: `spoil` and `take_packets` (or neither), `offer`,
    `connect`, `close`."""

    def __init__(
        self, track: aiortc.MediaStreamTrack, on_message: Callable[[str | bytes], None]
    ) -> None:
        """`track`: the caller's audio. `on_message` takes each message of the data channel."""
        self.connection = aiortc.RTCPeerConnection()
        self.channel = self.connection.createDataChannel(CHANNEL)
        self.connection.addTrack(track)
        self.closed = asyncio.Event()
        """The server has closed the channel, or the connection failed."""
        self.channel.on("message", on_message)
        self.channel.on("close", self.closed.set)
        self.connection.on("connectionstatechange", self._state_changed)

    async def offer(self) -> str:
        """The SDP offer, with all candidates."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp: str = self.connection.localDescription.sdp
        return sdp

    async def connect(self, answer: str) -> None:
        """Connect to the server whose SDP answer this is."""
        description = aiortc.RTCSessionDescription(answer, "answer")
        await self.connection.setRemoteDescription(description)

    def send(self, kind: str, **fields: Any) -> None:
        """Send an event. Raises aiortc.InvalidStateError where the channel is not open."""
        self.channel.send(json.dumps({"type": kind, **fields}))

    def take_packets(self, on_packet: Callable[[int, int, bytes], None]) -> None:
        """Take sequence number, time stamp and payload of each RTP packet, as it arrives."""
        (receiver,) = self._receivers
        receiver._RTCRtpReceiver__jitter_buffer = _PacketTap(on_packet)

    def spoil(self, up: DatagramPath, down: DatagramPath) -> None:
        """Send and receive RTP over a bad line from now on."""
        (receiver,) = self._receivers
        transport = receiver.transport.transport
        ice = transport.iceGatherer._connection
        loop, clock = asyncio.get_running_loop(), SystemClock()
        received, sent = ice.data_received, transport._send

        def carry(path: DatagramPath, deliver: Callable[..., None], *arguments: Any) -> None:
            now_ns = clock.now_ns()
            due_ns = path.arrival_ns(now_ns)
            if due_ns is not None:
                loop.call_later((due_ns - now_ns) / 1e9, deliver, *arguments)

        def depart(data: bytes) -> None:
            pair = ice._nominated.get(1)
            if pair is not None and not pair.protocol.transport.is_closing():
                pair.protocol.transport.sendto(data, pair.remote_addr)

        def arrive(data: bytes, component: int) -> None:
            if is_media(data):
                carry(down, received, data, component)
            else:
                received(data, component)

        async def send(data: bytes) -> None:
            if is_media(data):
                carry(up, depart, data)
            else:
                await sent(data)

        ice.data_received, transport._send = arrive, send

    async def close(self) -> None:
        """Close the connection."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.connection.close()
        finally:
            for receiver in self._receivers:
                receiver._RTCRtpReceiver__decoder_queue.put(None)

    @property
    def _receivers(self) -> list[Any]:
        receivers: list[Any] = self.connection.getReceivers()
        return receivers

    def _state_changed(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self.closed.set()


def is_media(data: bytes) -> bool:
    """True for RTP and RTCP, by the first byte (RFC 7983)."""
    return len(data) > 0 and 128 <= data[0] <= 191


class _PacketTap:
    """Takes the place of aiortc's jitter buffer: passes packets on, and gives none back."""

    def __init__(self, on_packet: Callable[[int, int, bytes], None]) -> None:
        self._on_packet = on_packet

    def add(self, packet: Any) -> tuple[bool, None]:
        if packet.payload:
            self._on_packet(packet.sequence_number, packet.timestamp, packet.payload)
        return False, None
