"""WebRTC connection of one client: aiortc, and what is done instead of it.

aiortc brings ICE, DTLS, SRTP and SCTP. Around it, all in this module, since it reaches into the
library (which is pinned to one minor version):

- *ports*: aiortc binds any free port; here they come from `webrtc.min_port` to `max_port`.
- *RTP*: its receiver waits for four packets behind each, stands still for 16 where one is lost, and
  makes nothing of a pause. Packets are taken from it before that (`_PacketTap`); it counts them for
  the reports to the client and decodes none.
- *sources*: it keeps statistics of every SSRC for ever. One counts here, the first.
- *messages*: its reassembly of fragments has no bound but a window that a client may ignore.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

from agent.config.webrtc import WebRtcSettings
from agent.errors import ClientError, SlowReader

from .jitter_buffer import FRAME, RTP_HZ
from .offer import Offer, with_opus_format

CHANNEL: Final = "oai-events"
"""Label of the data channel with events, as in OpenAI's API."""

MAX_UNSENT_BYTES: Final = 4 << 20
"""Events that wait for a client that does not take them, as for a WebSocket (`send_queue.py`)."""

MAX_UNSENT_FRAMES: Final = 50
"""Audio that waits for the connection, in frames of 20 ms."""

MAX_DATAGRAMS: Final = 500
"""Datagrams that wait to be read. Until the client's keys are agreed nobody reads them."""

SERVER_S: Final = 5.0
"""Wait for the STUN server."""

CLOSE_S: Final = 5.0
"""Limit for closing a connection."""

_log = logging.getLogger(__name__)


class Peer:
    """Connection of one client. Order of calls: `answer`, `wait_connected`, the others, `close`.
    Belongs to the event loop."""

    def __init__(
        self,
        settings: WebRtcSettings,
        on_packet: Callable[[int, int, bytes], None],
        on_message: Callable[[str | bytes], None],
        *,
        on_loopback: bool,
    ) -> None:
        """`on_packet` takes sequence number, time stamp and payload of each RTP packet. Both
        callbacks may not wait. `on_loopback`: the loopback's address is offered too."""
        self._settings = settings
        self._on_packet = on_packet
        self._on_message = on_message
        self._on_loopback = on_loopback
        self._connection: Any = None
        self._channel: Any = None
        self._track: Any = None
        self._has_channel = False
        self._connected = asyncio.Event()
        self.closed: Final = asyncio.Event()
        """The client has gone, or the connection failed."""
        self.num_foreign = 0
        """RTP packets dropped because they have another SSRC."""

    async def answer(self, offer: Offer) -> str:
        """SDP answer to an offer. Raises ClientError for one that can't be answered."""
        from aiortc import (
            RTCBundlePolicy,
            RTCConfiguration,
            RTCPeerConnection,
            RTCRtpSender,
            RTCSessionDescription,
        )

        logging.getLogger("aioice").setLevel(logging.WARNING)  # a line for each candidate
        self._has_channel = offer.has_channel
        connection = RTCPeerConnection(
            RTCConfiguration(iceServers=self._servers(), bundlePolicy=RTCBundlePolicy.MAX_BUNDLE)
        )
        self._connection = connection
        connection.on("connectionstatechange", self._state_changed)
        connection.on("datachannel", self._channel_opened)
        self._track = _agent_track()
        transceiver = connection.addTransceiver(self._track, direction="sendrecv")
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([each for each in codecs if each.name == "opus"])
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer.sdp, "offer"))
            self._hook(transceiver.receiver)
            await connection.setLocalDescription(await connection.createAnswer())
        except Exception as error:  # the library's parser raises whatever an offer makes it
            await self.close()
            raise ClientError(
                f"The SDP offer can't be answered: {error or type(error).__name__}.",
                code="invalid_offer",
                param="sdp",
            ) from error
        except BaseException:
            await self.close()
            raise
        if not transceiver.receiver.transport.transport.iceGatherer.getLocalCandidates():
            await self.close()
            raise ClientError(
                "No UDP port is free for the audio of another call; try again later.",
                code="no_port",
            )
        return with_opus_format(connection.localDescription.sdp)

    async def wait_connected(self) -> bool:
        """Wait until the client is connected, its data channel included. False: it has gone, or
        took longer than `webrtc.connect_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.connect_s):
                await self._connected.wait()
        return self._connected.is_set() and not self.closed.is_set()

    def give_up(self) -> None:
        """Let `wait_connected` return: the call is over before it began."""
        self.closed.set()
        self._connected.set()

    def check(self) -> None:
        """Raise SlowReader for a client that does not take its events, and ClientError for one that
        sends a message without end."""
        if self._unsent_bytes() > MAX_UNSENT_BYTES:
            raise SlowReader
        sctp = None if self._connection is None else self._connection.sctp
        if sctp is not None and sctp._advertised_rwnd <= 0:
            raise ClientError("A message is too long for the data channel.", code="invalid_event")

    def send(self, text: str) -> None:
        """Send an event, if there is a channel. Never waits."""
        if self._channel is not None and self._channel.readyState == "open":
            try:
                self._channel.send(text)
            except (ConnectionError, ValueError) as error:  # longer than the client takes
                _log.warning("an event was not sent: %s", error)

    def send_audio(self, packet: bytes, number: int) -> None:
        """Send the Opus packet of frame `number`, counted from the beginning of the call. Never
        waits."""
        self._track.put(packet, number)

    async def close(self) -> None:
        """Close the connection."""
        self.closed.set()
        self._connected.set()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await connection.close()
        except TimeoutError:
            _log.warning("a WebRTC connection did not close within %g s", CLOSE_S)
        except Exception:
            _log.warning("a WebRTC connection did not close in order", exc_info=True)

    async def drained(self) -> None:
        """Wait until the client has the events that were sent, at most `CLOSE_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                # The library tells of no event for it.
                while self._unsent_bytes() and not self.closed.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    def _unsent_bytes(self) -> int:
        return 0 if self._channel is None else int(self._channel.bufferedAmount)

    def _servers(self) -> list[Any]:
        from aiortc import RTCIceServer

        settings, servers = self._settings, []
        if settings.stun_url:
            servers.append(RTCIceServer(settings.stun_url))
        if settings.turn_url:
            password = os.environ.get(settings.turn_password_env, "")
            servers.append(RTCIceServer(settings.turn_url, settings.turn_username, password))
        return servers

    def _state_changed(self) -> None:
        state = "closed" if self._connection is None else self._connection.connectionState
        if state in ("failed", "closed"):
            self.closed.set()
            self._connected.set()
        elif state == "connected" and (self._channel is not None or not self._has_channel):
            self._connected.set()

    def _channel_opened(self, channel: Any) -> None:
        if channel.label != CHANNEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self.closed.set)
        self._state_changed()

    def _hook(self, receiver: Any) -> None:
        """Take RTP and ports into own hands."""
        receiver._RTCRtpReceiver__jitter_buffer = _PacketTap(self._on_packet)
        dtls = receiver.transport
        passed, first = dtls._handle_rtp_data, None

        async def filtered(data: bytes, arrival_time_ms: int) -> None:
            nonlocal first
            if len(data) < 12:
                return
            ssrc = data[8:12]
            first = first or ssrc
            if ssrc != first:
                self.num_foreign += 1
                return
            await passed(data, arrival_time_ms=arrival_time_ms)

        dtls._handle_rtp_data = filtered
        ice = dtls.transport.iceGatherer._connection
        queue = ice.data_received

        def bounded(data: bytes, component: int) -> None:
            # Any host may send datagrams; aiortc ends the call at an empty one.
            if data and ice._queue.qsize() < MAX_DATAGRAMS:
                queue(data, component)

        ice.data_received = bounded

        async def candidates(component: int, addresses: list[str]) -> list[Any]:
            return await _candidates(ice, component, addresses, self._settings, self._on_loopback)

        ice.get_component_candidates = candidates


class _PacketTap:
    """Takes the place of aiortc's jitter buffer: passes packets on, and gives none back."""

    def __init__(self, on_packet: Callable[[int, int, bytes], None]) -> None:
        self._on_packet = on_packet

    def add(self, packet: Any) -> tuple[bool, None]:
        if packet.payload:
            self._on_packet(packet.sequence_number, packet.timestamp, packet.payload)
        return False, None


def _agent_track() -> Any:
    """Track of packets that are encoded already."""
    from aiortc import MediaStreamTrack
    from av import Packet

    class AgentTrack(MediaStreamTrack):
        kind = "audio"

        def __init__(self) -> None:
            super().__init__()
            self._packets: asyncio.Queue[Any] = asyncio.Queue(MAX_UNSENT_FRAMES)

        def put(self, payload: bytes, number: int) -> None:
            packet = Packet(payload)
            packet.pts = number * FRAME
            packet.time_base = Fraction(1, RTP_HZ)
            if self._packets.full():
                self._packets.get_nowait()
            self._packets.put_nowait(packet)

        async def recv(self) -> Any:
            return await self._packets.get()

    return AgentTrack()


async def _candidates(
    ice: Any,
    component: int,
    addresses: list[str],
    settings: WebRtcSettings,
    on_loopback: bool,
) -> list[Any]:
    """Candidates of an aioice connection, with ports of the range; what
    `Connection.get_component_candidates` does with any port."""
    from aioice.candidate import Candidate, candidate_foundation, candidate_priority
    from aioice.ice import StunProtocol, server_reflexive_candidate

    found, protocols = [], []
    for address in [*addresses, *(["127.0.0.1"] if on_loopback else [])]:
        protocol = await _bound(lambda: StunProtocol(ice), address, settings)
        if protocol is None:
            continue
        host, port, *_ = protocol.transport.get_extra_info("sockname")
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", host),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host"),
            host=host,
            port=port,
            type="host",
        )
        found.append(protocol.local_candidate)
        protocols.append(protocol)
    ice._protocols += protocols
    if ice.stun_server:
        for protocol in protocols:
            if ":" in protocol.local_candidate.host:
                continue
            with contextlib.suppress(Exception):  # there are the host's own candidates
                async with asyncio.timeout(SERVER_S):
                    candidate, _ = await server_reflexive_candidate(protocol, ice.stun_server)
                    found.append(candidate)
    if ice.turn_server:
        stun_server, ice.stun_server = ice.stun_server, None
        try:
            found += await type(ice).get_component_candidates(ice, component, [])
        finally:
            ice.stun_server = stun_server
    return found


async def _bound(protocol: Callable[[], Any], address: str, settings: WebRtcSettings) -> Any:
    """Bind a UDP port of the range on this address. None where no port is free."""
    loop = asyncio.get_running_loop()
    ports = [0]
    if settings.min_port:
        ports = list(range(settings.min_port, settings.max_port + 1))
        first = random.randrange(len(ports))  # from anywhere: the first ones are taken
        ports = ports[first:] + ports[:first]
    for port in ports:
        with contextlib.suppress(OSError):
            _, bound = await loop.create_datagram_endpoint(protocol, local_addr=(address, port))
            return bound
    return None
