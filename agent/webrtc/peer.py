"""WebRTC connection of one client: aiortc, and what is done instead of it.

aiortc brings ICE, DTLS, SRTP and SCTP. Around it, all in this module and in `sctp_guard.py`, since
they reach into the library (which is pinned to one minor version; `load` looks for the names):

- *ports*: aiortc binds any free port; here they come from `webrtc.min_port` to `max_port`.
- *RTP*: its receiver waits for four packets behind each, stands still for 16 where one is lost, and
  makes nothing of a pause. Packets are taken from it before that (`_PacketTap`); it counts them for
  the reports to the client and decodes none. The thread that would decode them ends at once: no
  signal ends it, and it would keep the process from its end where a connection was not closed.
- *sources*: it keeps statistics of every SSRC for ever. One counts here: the first with audio,
  until it has been silent for `SILENT_S`; then the next.
- *SCTP*: a client can make it compute and keep what it likes (`sctp_guard.py`).
- *DTLS*: it reads one record of each datagram, 1500 bytes of that, and keeps the others for the
  next one: 300 datagrams of 30 records leave 8541 behind. It gives other tasks no turn between
  datagrams that wait; here it does after each.
- *retransmission*: it sends again what a client asks for, as often as it asks. Nothing is here: the
  next packet holds a copy (FEC). One request of 1412 bytes names 5950 packets, which take 1.5 ms;
  so requests are cut out before it parses them.
- *candidates*: it checks every address from which a client sends a check.
- *datagrams*: it takes what is no STUN from any address, of any length, as many a second as come,
  queues it without bound, and ends the connection at an empty one, or at RTP whose header can't be
  unpacked. Here an address has to have passed a connectivity check, or to be in the offer until one
  is nominated. The nominated one, where the audio comes from, has an allowance of its own: a host
  that writes another address of the client on its datagrams, as from an offer it may, can't use it
  up. What a TURN server relays goes the same way (`Peer._take`): it may be anybody's too. Each
  record of DTLS counts as a datagram: 18 packets of SCTP fit in one.
- *names*: it looks the STUN server up for each address of this machine, on threads that others
  need. Here one lookup serves all calls (`host_resolver.py`).
- *connect*: its task for that goes on while a connection is closed, and starts what was stopped.
  It is ended here before.
- *close*: it waits for tasks of its own that may have failed, and may take no notice of a
  cancellation. Sockets are closed here all the same.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import logging
import os
import random
import struct
from collections.abc import Callable, Coroutine
from fractions import Fraction
from typing import Any, Final, cast

from agent.config.webrtc import WebRtcSettings
from agent.errors import ClientError, SlowReader

from . import private_names
from .host_resolver import HostResolver
from .jitter_buffer import RTP_HZ
from .offer import MAX_CANDIDATES, Offer, with_opus_format
from .sctp_guard import MAX_OVERRUN_BYTES, SctpGuard

CHANNEL: Final = "oai-events"
"""Label of the data channel with events, as in OpenAI's API."""

MAX_UNSENT_BYTES: Final = 4 << 20
"""Events that wait for a client that does not take them, as for a WebSocket (`send_queue.py`)."""

MAX_UNSENT_FRAMES: Final = 50
"""Audio that waits for the connection, in frames of 20 ms."""

MAX_DATAGRAMS: Final = 500
"""Datagrams that wait for the connection: ten seconds of audio. More are dropped."""

MAX_DATAGRAM_BYTES: Final = 1500
"""Longest datagram that is read; the MTU of Ethernet, and the library's own bound. With a higher
number one of 64 KiB, from any host, has its STUN fingerprint computed 8000 times, and
`MAX_DATAGRAMS` of them take 32 MB of memory; with a lower one handshakes may not come through."""

MAX_CLIENT_HZ: Final = 1000
"""Datagrams a second from the address that ICE has nominated, and at once; as many from all other
addresses of the client together. Audio is 50 a second; a client that fills the window of the data
channel (`sctp_guard.py`) sends 895 at once. More are dropped, and what they had on the data channel
is sent again. With a higher number their DTLS and SRTP cost other calls more; with a lower one a
long event takes a second longer."""

MAX_RTCP_HZ: Final = 50
"""RTCP datagrams a second, and at once, for each call. Clients send some two a second; of 180
reports each, this many take 2% of a processor. More are dropped: they change the round-trip time
alone."""

MAX_STRANGERS_HZ: Final = 200
"""STUN checks a second from other addresses, and at once, for each call. A client's first ones come
from an address that is not known, some 50 a second for each pair; the STUN server's answers too.
Any host may send more: what they cost is not the client's, whose own do not count here."""

SILENT_S: Final = 2.0
"""Silence of the caller's SSRC after which another one takes its place. With DTX a packet comes
each 0.4 s."""

MAX_REMOTE_CANDIDATES: Final = 2 * MAX_CANDIDATES
"""Addresses of a client that are checked: those of its offer, and those behind its NAT that its own
checks come from."""

TRIES_AT_ONCE: Final = 50
"""Ports that are tried, of those that are taken, until others may run: 1.4 ms."""

CHECK_S: Final = 0.1
"""Interval of `check` until the client is connected."""

SERVER_S: Final = 5.0
"""Wait for the first answer of the STUN server."""

OTHERS_S: Final = 0.5
"""Wait for its answers on the machine's other addresses: some of them lead nowhere."""

CLOSE_S: Final = 5.0
"""Limit for closing a connection."""

STEP_S: Final = 0.5
"""Limit for each part of a connection that did not close as a whole."""

_RTPFB: Final = 205

_log = logging.getLogger(__name__)

_resolver: Final = HostResolver()


class IncompatibleLibraryError(Exception):
    """A version of aiortc or aioice that this module does not know."""


def load() -> None:
    """Import aiortc, which takes 0.2 s of a processor: on a thread. Raises ImportError, and
    IncompatibleLibraryError where it lacks what this module reaches into."""
    import aiortc  # noqa: F401

    if missing := private_names.missing():
        raise IncompatibleLibraryError(", ".join(missing))


class Peer:
    """Connection of one client. Order of calls: `answer`, `wait_connected`, the others, `close`.
    Belongs to the event loop."""

    def __init__(
        self,
        settings: WebRtcSettings,
        on_packet: Callable[[int, int, bytes], None],
        on_message: Callable[[str | bytes], None],
        on_restart: Callable[[], None] = lambda: None,
        *,
        on_loopback: bool,
    ) -> None:
        """`on_packet` takes sequence number, time stamp and payload of each RTP packet;
        `on_restart` is called where the next one begins another stream. No callback may wait.
        `on_loopback`: the loopback's address is offered too."""
        self._settings = settings
        self._on_packet = on_packet
        self._on_message = on_message
        self._on_restart = on_restart
        self._on_loopback = on_loopback
        self._connection: Any = None
        self._connecting: list[asyncio.Task[None]] = []
        """The library's tasks that connect to the client."""
        self._channel: Any = None
        self._track: Any = None
        self._has_channel = False
        self._connected = asyncio.Event()
        self.closed: Final = asyncio.Event()
        """The client has gone, or the connection failed."""
        self._guard: SctpGuard | None = None
        """None: there is no data channel."""
        self._nominated_pace = _Pace(MAX_CLIENT_HZ)
        self._client_pace = _Pace(MAX_CLIENT_HZ)
        """Pace of the client's other addresses: of all until one is nominated."""
        self._strangers_pace = _Pace(MAX_STRANGERS_HZ)
        self._rtcp_pace = _Pace(MAX_RTCP_HZ)
        self.num_foreign = 0
        """RTP packets dropped because they have another SSRC."""
        self.num_dropped = 0
        """Datagrams dropped because there were too many, or because they can't be read."""

    @property
    def num_packets_dropped(self) -> int:
        """Packets of the data channel dropped because they had too many chunks."""
        return 0 if self._guard is None else self._guard.num_dropped

    @property
    def progress(self) -> str:
        """How far the connection has come, for the log."""
        if self._connection is None:
            return "closed"
        found = [
            f"ICE {dtls.transport.state}, DTLS {dtls.state}"
            for dtls in _transports(self._connection)
        ]
        if self._has_channel:
            found.append("no data channel" if self._channel is None else "a data channel")
        return ", ".join(found)

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
        self._own_connecting(connection)
        connection.on("connectionstatechange", self._state_changed)
        connection.on("datachannel", self._channel_opened)
        self._track = _agent_track()
        transceiver = connection.addTransceiver(self._track, direction="sendrecv")
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([each for each in codecs if each.name == "opus"])
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer.sdp, "offer"))
            self._hook(transceiver)
            if connection.sctp is not None:
                time_s = asyncio.get_running_loop().time
                self._guard = SctpGuard(connection.sctp, self._is_events, time_s)
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
        took longer than `webrtc.connect_s`. Raises as `check`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.connect_s):
                while not self._connected.is_set():
                    self.check()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_S):
                            await self._connected.wait()
        return self._connected.is_set() and not self.closed.is_set()

    def give_up(self) -> None:
        """Let `wait_connected` return: the call is over before it began."""
        self.closed.set()
        self._connected.set()

    def check(self) -> None:
        """Raise SlowReader for a client that does not take its events, and ClientError for one that
        passed a bound of the data channel."""
        if self._unsent_bytes() > MAX_UNSENT_BYTES:
            raise SlowReader
        if self._connection is not None and self._guard is not None:
            self._guard.check()

    def send(self, text: str) -> None:
        """Send an event, if there is a channel. Never waits."""
        if self._channel is not None and self._channel.readyState == "open":
            try:
                self._channel.send(text)
            except (ConnectionError, ValueError) as error:  # longer than the client takes
                _log.warning("an event was not sent: %s", error)

    def send_audio(self, packet: bytes, timestamp: int) -> None:
        """Send an Opus packet. `timestamp`: its time in the call, in units of the RTP clock. Never
        waits."""
        self._track.put(packet, timestamp)

    async def close(self) -> None:
        """Close the connection."""
        self.closed.set()
        self._connected.set()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        sockets, in_order = _sockets(connection), False
        try:
            for task in self._connecting:
                task.cancel()
            if self._connecting:
                await asyncio.wait(self._connecting, timeout=STEP_S)
            try:
                await _run_within(CLOSE_S, connection.close())
                in_order = True
                return
            except TimeoutError:
                _log.warning("a WebRTC connection did not close within %g s", CLOSE_S)
            except Exception:
                _log.warning("a WebRTC connection did not close in order", exc_info=True)
            await _close_parts(connection)
        finally:  # a cancellation among what may come
            for socket in [] if in_order else sockets:
                socket.close()

    async def drained(self) -> None:
        """Wait until the client has the events that were sent, at most `CLOSE_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                # The library tells of no event for it.
                while self._is_unacknowledged() and not self.closed.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    def _unsent_bytes(self) -> int:
        return 0 if self._channel is None else int(self._channel.bufferedAmount)

    def _is_unacknowledged(self) -> bool:
        """Events are on their way. What ends the connection would overtake them."""
        sctp = None if self._connection is None else self._connection.sctp
        if self._channel is None or sctp is None:
            return False
        return bool(self._unsent_bytes() or sctp._outbound_queue or sctp._sent_queue)

    def _is_events(self, stream_id: int) -> bool:
        """True for the stream of the channel with events."""
        return self._channel is not None and bool(self._channel.id == stream_id)

    def _is_overrun(self) -> bool:
        """The event loop stood still, and the client filled the data channel meanwhile."""
        return self._guard is not None and self._guard.window < -MAX_OVERRUN_BYTES

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

    def _own_connecting(self, connection: Any) -> None:
        """Let `close` end the tasks that connect to the client."""
        connect = connection._RTCPeerConnection__connect

        async def connected() -> None:
            if self._connection is connection:  # else it was closed before this began
                self._connecting.append(cast(asyncio.Task[None], asyncio.current_task()))
                await connect()

        connection._RTCPeerConnection__connect = connected

    def _hook(self, transceiver: Any) -> None:
        """Take RTP and ports into own hands."""
        receiver = transceiver.receiver
        receiver._RTCRtpReceiver__decoder_queue.put(None)  # its thread ends as soon as it begins
        receiver._RTCRtpReceiver__jitter_buffer = _PacketTap(self._on_packet)
        dtls = receiver.transport
        _hook_records(dtls)
        self._hook_rtp(receiver, dtls)
        report = receiver._send_rtcp

        async def reported(packet: Any) -> None:
            # A jitter of more than 32 bits, which a client's time stamps make, can't be written.
            with contextlib.suppress(struct.error):
                await report(packet)

        receiver._send_rtcp = reported
        ice = dtls.transport.iceGatherer._connection
        queue = ice.data_received

        def bounded(data: bytes, component: int) -> None:
            is_full = ice._queue.qsize() >= MAX_DATAGRAMS or self._is_overrun()
            if is_full or not _is_dtls_or_rtp(data):
                self.num_dropped += 1
                return
            queue(data, component)

        ice.data_received = bounded

        async def candidates(component: int, addresses: list[str]) -> list[Any]:
            return await self._candidates(ice, component, addresses)

        ice.get_component_candidates = candidates
        check = ice.check_incoming

        def checked(message: Any, addr: tuple[str, int], protocol: Any) -> None:
            if _may_check(ice, addr):
                check(message, addr, protocol)

        ice.check_incoming = checked

    async def _candidates(self, ice: Any, component: int, addresses: list[str]) -> list[Any]:
        """Candidates of an aioice connection, with ports of the range; what
        `Connection.get_component_candidates` does with any port."""
        from aioice.candidate import Candidate, candidate_foundation, candidate_priority

        found, protocols = [], []
        for address in [*addresses, *(["127.0.0.1"] if self._on_loopback else [])]:
            protocol = await _bound(
                lambda: _guarded_protocol()(ice, self._take), address, self._settings
            )
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
            ice._protocols.append(protocol)  # at once: a request that is cancelled closes these
        asked: list[Any] = []
        if ice.stun_server:
            asked.append(_reflexive(protocols, ice.stun_server))
        if ice.turn_server:
            asked.append(type(ice).get_component_candidates(ice, component, []))
        for candidates in await asyncio.gather(*asked):
            found += candidates
        for protocol in ice._protocols:
            if protocol not in protocols:  # the relay's, which takes what the TURN server passes on
                protocol.datagram_received = functools.partial(self._take, protocol)
        return found

    def _take(self, protocol: Any, data: bytes, addr: tuple[Any, ...]) -> None:
        """Take a datagram of a socket, or of a TURN server: DTLS and RTP from candidates of the
        client alone, checks from any host, and of both no more than their rates."""
        from aioice.ice import StunProtocol

        ice = protocol.receiver
        is_nominated, is_stun = _is_nominated(ice, addr), _is_stun(data)
        is_client = is_nominated or _is_known(ice, addr)
        if is_stun and not (is_client or _may_check(ice, addr)):
            return
        if not is_stun and not (is_client and _is_dtls_or_rtp(data)):
            return
        if not is_stun and not is_nominated and not _may_send(ice, addr):
            return
        pace = self._client_pace if is_client else self._strangers_pace
        if is_nominated:
            pace = self._nominated_pace
        num = 1 if is_stun else _num_records(data)
        if not pace.takes(asyncio.get_running_loop().time(), num):
            self.num_dropped += 1
        elif is_stun:
            # The parser raises whatever a message makes it, and any host may send one.
            with contextlib.suppress(Exception):
                StunProtocol.datagram_received(protocol, data, addr)
        else:
            ice.data_received(data, protocol.local_candidate.component)

    def _hook_rtp(self, receiver: Any, dtls: Any) -> None:
        """Let packets of one SSRC through, and those alone that can be read."""
        passed, loop = dtls._handle_rtp_data, asyncio.get_running_loop()
        report = dtls._handle_rtcp_data
        router = dtls._rtp_router
        source, last_s, has_changed = b"", 0.0, False

        async def filtered(data: bytes, arrival_time_ms: int) -> None:
            nonlocal source, last_s, has_changed
            if len(data) < 12 or data[1] & 0x7F not in router.payload_type_table:
                return
            ssrc, now_s = data[8:12], loop.time()
            if source and ssrc != source:
                if now_s - last_s < SILENT_S:
                    self.num_foreign += 1
                    return
                _forget_sources(receiver, router)
                if not has_changed:
                    _log.info("a client goes on with another SSRC")
                has_changed = True
                self._on_restart()
            source, last_s = ssrc, now_s
            try:
                await passed(data, arrival_time_ms=arrival_time_ms)
            except struct.error:  # a header extension of a length that it does not have
                self.num_dropped += 1

        async def reported(data: bytes) -> None:
            if not self._rtcp_pace.takes(loop.time()):
                self.num_dropped += 1
                return
            try:
                await report(_without_feedback(data))
            except struct.error:  # fewer SSRCs than the packet (REMB) says
                self.num_dropped += 1

        dtls._handle_rtp_data = filtered
        dtls._handle_rtcp_data = reported


class _Pace:
    """Leaky bucket: as many at once as in a second."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._room = float(rate_hz)
        self._at_s: float | None = None

    def takes(self, now_s: float, num: int = 1) -> bool:
        """Take so many more, or none."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._room = min(float(self._rate_hz), self._room + passed_s * self._rate_hz)
        if self._room < num:
            return False
        self._room -= num
        return True


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

        def put(self, payload: bytes, timestamp: int) -> None:
            packet = Packet(payload)
            packet.pts = timestamp
            packet.time_base = Fraction(1, RTP_HZ)
            if self._packets.full():
                self._packets.get_nowait()
            self._packets.put_nowait(packet)

        async def recv(self) -> Any:
            return await self._packets.get()

    return AgentTrack()


def _forget_sources(receiver: Any, router: Any) -> None:
    """Drop what aiortc knows of each SSRC: a report to the client has space for 31."""
    receiver._RTCRtpReceiver__remote_streams.clear()
    receiver._RTCRtpReceiver__active_ssrc.clear()
    receiver._RTCRtpReceiver__lsr.clear()
    receiver._RTCRtpReceiver__lsr_time.clear()
    router.ssrc_table.clear()


def _hook_records(dtls: Any) -> None:
    """Read all records of each datagram, and give other tasks their turn after it. Nothing is read
    any more from a connection that failed: what comes would be kept."""
    from OpenSSL import SSL

    receive_next = dtls._recv_next

    async def received_next() -> None:
        await receive_next()
        has_failed = False
        while dtls.encrypted:
            try:
                data = dtls._ssl.recv(MAX_DATAGRAM_BYTES)
            except SSL.WantReadError:
                break
            except SSL.Error as error:
                # The first one may be another connection's: OpenSSL has one queue of them a thread.
                if has_failed or isinstance(error, SSL.ZeroReturnError):
                    raise ConnectionError("the DTLS connection has ended") from error
                has_failed = True
                continue
            if dtls._data_receiver is not None:
                await dtls._data_receiver._handle_data(data)
        await asyncio.sleep(0)

    dtls._recv_next = received_next


def _num_records(data: bytes) -> int:
    """Records of DTLS in a datagram, at least those that OpenSSL reads (RFC 6347, section 4.1; RFC
    9147, section 4, where a length may be left out); 1 where it is no DTLS."""
    if not 20 <= data[0] <= 63:
        return 1
    num, begin = 0, 0
    while begin < len(data):
        num += 1
        first = data[begin]
        if first & 0xE0 == 0x20:
            head = 1 + (2 if first & 0x08 else 1) + (2 if first & 0x04 else 0)
            has_length = bool(first & 0x04)
        else:
            head, has_length = 13, True
        if not has_length:
            break
        begin += head + int.from_bytes(data[begin + head - 2 : begin + head], "big")
    return num


def _without_feedback(data: bytes) -> bytes:
    """A compound packet of RTCP without the parts that ask for packets again (RTPFB; RFC 4585). Its
    lengths may be wrong."""
    kept, begin = b"", 0
    while begin + 4 <= len(data):
        end = begin + 4 + 4 * int.from_bytes(data[begin + 2 : begin + 4], "big")
        if data[begin + 1] != _RTPFB:
            kept += data[begin:end]
        begin = end
    return kept + data[begin:]


def _is_known(ice: Any, addr: tuple[Any, ...]) -> bool:
    """True for the address of a candidate of the client."""
    known = ice._remote_candidates
    return any((each._network_host, each.port) == addr[:2] for each in known)


def _is_nominated(ice: Any, addr: tuple[Any, ...]) -> bool:
    """True for the address that audio is sent to."""
    return any(pair.remote_addr == addr[:2] for pair in ice._nominated.values())


def _may_send(ice: Any, addr: tuple[Any, ...]) -> bool:
    """True for an address that has passed a check of this server's, as a client's may that is about
    to change its path; for each of the client until one is nominated: DTLS may come before the
    answer to the check."""
    if not ice._nominated:
        return True
    return any(
        pair.state.name == "SUCCEEDED" and pair.remote_addr == addr[:2] for pair in ice._check_list
    )


def _may_check(ice: Any, addr: tuple[Any, ...]) -> bool:
    """True unless a check from this address would make one candidate too many of it."""
    return len(ice._remote_candidates) < MAX_REMOTE_CANDIDATES or _is_known(ice, addr)


def _is_dtls_or_rtp(data: bytes) -> bool:
    """True for what is no STUN and may be either, by the first byte (RFC 7983)."""
    is_short = 0 < len(data) <= MAX_DATAGRAM_BYTES
    return is_short and (20 <= data[0] <= 63 or 128 <= data[0] <= 191)


def _is_stun(data: bytes) -> bool:
    """True for what may be STUN, by the first byte (RFC 7983)."""
    return 0 < len(data) <= MAX_DATAGRAM_BYTES and data[0] < 4


async def _run_within(limit_s: float, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of the library. Raises TimeoutError once it has taken too long, even where it
    does not end when it is cancelled, and where it was cancelled from elsewhere."""
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    finally:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    if not done or task.cancelled():
        raise TimeoutError
    task.result()


def _transports(connection: Any) -> set[Any]:
    """DTLS transports of an aiortc connection."""
    sctp = [] if connection.sctp is None else [connection.sctp]
    return {each.transport for each in [*connection.getReceivers(), *sctp]}


def _sockets(connection: Any) -> list[Any]:
    """Transports of its UDP ports."""
    ice = [each.transport._connection for each in _transports(connection)]
    return [each.transport for one in ice for each in one._protocols]


async def _close_parts(connection: Any) -> None:
    """Close what an aiortc connection holds but its sockets, where it did not close itself."""
    sctp = [] if connection.sctp is None else [connection.sctp]
    dtls = _transports(connection)
    ice = [each.transport for each in dtls]
    tasks = [each._RTCRtpReceiver__rtcp_task for each in connection.getReceivers()]
    for task in [connection._RTCPeerConnection__closeTask, *tasks]:
        if task is not None:
            task.cancel()
    for part in [*connection.getSenders(), *sctp, *dtls, *ice]:
        try:
            await _run_within(STEP_S, part.stop())
        except Exception as error:  # TimeoutError, and what the library raises
            _log.debug("%s did not stop: %r", type(part).__name__, error)


@functools.cache
def _guarded_protocol() -> Any:
    """aioice's protocol of a socket, whose datagrams `Peer._take` gets."""
    from aioice.ice import StunProtocol

    class GuardedProtocol(StunProtocol):
        def __init__(self, receiver: Any, take: Callable[[Any, bytes, Any], None]) -> None:
            super().__init__(receiver)
            self._take = take

        def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
            assert isinstance(data, bytes)
            self._take(self, data, addr)

    return GuardedProtocol


async def _reflexive(protocols: list[Any], server: tuple[str, int]) -> list[Any]:
    """Addresses at which a STUN server sees these sockets. Those of the loopback, which reach none,
    and of IPv6, which no NAT changes, are not asked for."""
    from aioice.ice import server_reflexive_candidate

    found: list[Any] = []
    loop = asyncio.get_running_loop()
    asking: list[Any] = []
    tasks: list[asyncio.Task[Any]] = []
    for protocol in protocols:
        address = ipaddress.ip_address(protocol.local_candidate.host.partition("%")[0])
        if address.version == 4 and not address.is_loopback:
            asking.append(protocol)
    if not asking:
        return found
    try:
        async with asyncio.timeout(SERVER_S) as limit:
            try:
                at = await _resolver.resolve(server[0], loop.time()), server[1]
            except (OSError, UnicodeError) as error:
                _log.warning("the STUN server's name can't be looked up: %s", error)
                return found
            tasks += [loop.create_task(server_reflexive_candidate(each, at)) for each in asking]
            for answered in asyncio.as_completed(tasks):
                with contextlib.suppress(Exception):  # there are the host's own candidates
                    candidate, _ = await answered
                    found.append(candidate)
                    limit.reschedule(min(limit.when() or 0, loop.time() + OTHERS_S))
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _bound(protocol: Callable[[], Any], address: str, settings: WebRtcSettings) -> Any:
    """Bind a UDP port of the range on this address. None where no port is free, or where none could
    be bound: the address is gone, or there are no descriptors."""
    loop = asyncio.get_running_loop()
    ports = [0]
    if settings.min_port:
        ports = list(range(settings.min_port, settings.max_port + 1))
        first = random.randrange(len(ports))  # from anywhere: the first ones are taken
        ports = ports[first:] + ports[:first]
    for number, port in enumerate(ports):
        if number % TRIES_AT_ONCE == TRIES_AT_ONCE - 1:
            await asyncio.sleep(0)  # a try does not let others run
        try:
            _, bound = await loop.create_datagram_endpoint(protocol, local_addr=(address, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
        else:
            return bound
    return None
