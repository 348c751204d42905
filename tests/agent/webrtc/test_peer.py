"""Connection to a client: its ports, and offers that no browser sends."""

import asyncio
import contextlib
import copy
import errno
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aioice import stun
from aioice.ice import CandidatePair
from aiortc.rtcsctptransport import DataChunk, SackChunk
from aiortc.rtp import (
    RTCP_RTPFB_NACK,
    RtcpByePacket,
    RtcpPacket,
    RtcpPsfbPacket,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    RtpPacket,
)
from OpenSSL import SSL

from agent.config.webrtc import WebRtcSettings
from agent.errors import ClientError
from agent.webrtc import peer as peer_module
from agent.webrtc.host_resolver import HostResolver
from agent.webrtc.offer import Offer, read_offer
from agent.webrtc.peer import (
    MAX_CLIENT_HZ,
    MAX_DATAGRAM_BYTES,
    MAX_DATAGRAMS,
    MAX_REMOTE_CANDIDATES,
    MAX_RTCP_HZ,
    MAX_STRANGERS_HZ,
    Peer,
)
from agent.webrtc.sctp_guard import MAX_CHANNELS, MAX_FRAGMENTS, MAX_OVERRUN_BYTES
from tests.support.service.live_call import PATIENCE_S
from tests.support.webrtc.webrtc_peer import WebRtcPeer


@pytest.fixture
async def offer() -> AsyncIterator[Offer]:
    client = WebRtcPeer()
    try:
        yield read_offer(await client.offer())
    finally:
        await client.close()


def new_peer(settings: WebRtcSettings | None = None) -> Peer:
    return Peer(
        settings or WebRtcSettings(),
        lambda seq, timestamp, payload: None,
        lambda message: None,
        on_loopback=True,
    )


def ports_in(answer: str) -> set[int]:
    return {int(port) for port in re.findall(r"a=candidate:\S+ \d udp \d+ \S+ (\d+)", answer)}


async def test_ports_come_from_the_range_and_run_out(offer: Offer) -> None:
    first = new_peer()
    (free, *_) = ports_in(await first.answer(offer))
    await first.close()
    settings = WebRtcSettings(min_port=free, max_port=free)
    held, refused = new_peer(settings), new_peer(settings)
    assert ports_in(await held.answer(offer)) == {free}
    with pytest.raises(ClientError, match="No UDP port is free"):
        await refused.answer(offer)
    await held.close()
    again = new_peer(settings)
    assert ports_in(await again.answer(offer)) == {free}
    await again.close()


async def test_any_offer_is_answered_or_refused(
    offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    lines = offer.sdp.split("\r\n")
    outcomes = []
    for number in range(len(lines)):
        name, _, _ = lines[number].partition(":")
        for changed in ([], [f"{name}:"], [f"{name}:9 x 9999999999 -1 %00"]):
            if "candidate" in name and changed:
                continue
            sdp = "\r\n".join([*lines[:number], *changed, *lines[number + 1 :]])
            peer = new_peer()
            try:
                outcomes.append((await peer.answer(read_offer(sdp)))[:3])
            except ClientError as error:
                outcomes.append(error.code)
            finally:
                await peer.close()
    assert {"v=0", "invalid_offer"} == set(outcomes)
    assert caplog.records == []
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


@dataclass
class Connected:
    """Both ends of a connection, without a call in it."""

    client: WebRtcPeer
    server: Peer
    addresses: list[tuple[str, int]]
    """Of the server's sockets with IPv4."""
    messages: asyncio.Queue[str | bytes] = field(default_factory=asyncio.Queue)

    @property
    def receiver(self) -> Any:
        return self.server._connection.getReceivers()[0]

    @property
    def ice(self) -> Any:
        return self.receiver.transport.transport.iceGatherer._connection

    async def comes_through(self, text: str) -> bool:
        """A message of the client reaches the server."""
        self.client.channel.send(text)
        async with asyncio.timeout(PATIENCE_S):
            return await self.messages.get() == text


@pytest.fixture
async def connected() -> AsyncIterator[Connected]:
    messages: asyncio.Queue[str | bytes] = asyncio.Queue()
    client = WebRtcPeer()
    server = Peer(
        WebRtcSettings(connect_s=60), lambda *_: None, messages.put_nowait, on_loopback=True
    )
    try:
        answer = await server.answer(read_offer(await client.offer()))
        await client.connect(answer)
        assert await server.wait_connected()
        found = re.findall(r"a=candidate:\S+ \d udp \d+ ([\d.]+) (\d+)", answer)
        addresses = [(host, int(port)) for host, port in found]
        yield Connected(client, server, addresses, messages)
    finally:
        await client.close()
        await server.close()


GARBAGE: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"\x16",
    b"\x16\xfe\xfd" + bytes(60),
    b"\x80",
    b"\x80\xc8" + bytes(20),
    b"\xff" * 1400,
    bytes.fromhex("000100082112a442") + bytes(12) + bytes.fromhex("0024000100000000"),
    bytes.fromhex("000100042112a442") + bytes(12) + bytes.fromhex("00060000"),
)
"""Nothing, the beginnings of each protocol, and STUN whose attributes can't be read."""


async def test_datagrams_of_others_do_not_touch_a_connection(connected: Connected) -> None:
    problems: list[object] = []
    queued: list[bytes] = []
    queue = connected.ice.data_received

    def noticed(data: bytes, component: int) -> None:
        queued.append(data)
        queue(data, component)

    connected.ice.data_received = noticed
    asyncio.get_running_loop().set_exception_handler(lambda _, told: problems.append(told))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in GARBAGE * 20:
            for address in connected.addresses:
                stranger.sendto(data, address)
    assert await connected.comes_through("one")
    assert {*queued} & {*GARBAGE} <= {b"\x00"}, "the others got no further than their socket"
    ice = connected.client.connection.getSenders()[0].transport.transport
    (pair,) = ice._connection._nominated.values()
    for data in GARBAGE * 20:
        pair.protocol.transport.sendto(data, pair.remote_addr)
    assert await connected.comes_through("two")
    assert not connected.server.closed.is_set()
    assert problems == []


async def test_datagrams_that_nobody_reads_are_bounded(offer: Offer) -> None:
    server = new_peer()
    await server.answer(offer)
    receiver = server._connection.getReceivers()[0]
    ice = receiver.transport.transport.iceGatherer._connection
    for _ in range(MAX_DATAGRAMS + 7):
        ice.data_received(b"\x16 DTLS", 1)
    assert (ice._queue.qsize(), server.num_dropped) == (MAX_DATAGRAMS, 7)
    ice._queue.get_nowait()
    server._connection.sctp._advertised_rwnd = -MAX_OVERRUN_BYTES - 1
    ice.data_received(b"\x16 DTLS", 1)
    assert (ice._queue.qsize(), server.num_dropped) == (MAX_DATAGRAMS - 1, 8)
    with pytest.raises(ClientError, match="too long for the data channel"):
        await server.wait_connected()
    await server.close()


@pytest.fixture
async def answered(offer: Offer) -> AsyncIterator[Peer]:
    """One that has answered, and that no client connects to."""
    server = new_peer()
    await server.answer(offer)
    yield server
    await server.close()


class SentTsn(int):
    """TSN of a SACK that counts the additions to it, one for each number that is looked at."""

    num_added = 0

    def __add__(self, other: int) -> int:
        SentTsn.num_added += 1
        return int(self) + other


async def test_a_sack_costs_no_more_than_what_was_sent(
    answered: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sctp: Any = answered._connection.sctp
    base = 2**32 - 3  # numbers begin again at zero

    def sack(*gaps: tuple[int, int]) -> SackChunk:
        chunk = SackChunk()
        chunk.cumulative_tsn, chunk.advertised_rwnd = SentTsn(base), 1 << 20
        chunk.gaps = [*gaps]
        return chunk

    def acknowledged() -> list[bool]:
        return [each._acked for each in sctp._sent_queue]

    for number in range(1, 7):
        chunk = DataChunk()
        chunk.tsn = (base + number) % 2**32
        chunk._acked = chunk._in_flight = False
        chunk._book_size, chunk._misses, chunk._sent_count = 1, 0, 1
        chunk._retransmit = chunk._abandoned = False
        chunk._max_retransmits, chunk._expiry, chunk._sent_time = None, None, 0.0
        sctp._sent_queue.append(chunk)
    sctp._last_sacked_tsn = sctp._advanced_peer_ack_tsn = base
    monkeypatch.setattr(SentTsn, "num_added", 0)
    await sctp._receive_sack_chunk(sack(*[(1, 65_535)] * 280))
    assert acknowledged() == [False] * 6
    await sctp._receive_sack_chunk(sack((9, 12), (5, 3)))
    assert acknowledged() == [False] * 6
    assert SentTsn.num_added == 0
    await sctp._receive_sack_chunk(sack((2, 3), (5, 65_535)))
    assert acknowledged() == [False, True, True, False, True, True]
    assert SentTsn.num_added == 4


def fragment(tsn: int, flags: int, stream_id: int = 1) -> DataChunk:
    """One byte of a message. Flags: 2 begins one, 1 ends it."""
    chunk = DataChunk(flags=flags)
    chunk.tsn, chunk.stream_id, chunk.stream_seq, chunk.protocol = tsn, stream_id, 0, 51
    chunk.user_data = b"x"
    return chunk


@pytest.mark.parametrize("num_streams", [1, 7])
async def test_fragments_that_wait_are_bounded(answered: Peer, num_streams: int) -> None:
    sctp: Any = answered._connection.sctp
    sctp._last_received_tsn = 0
    for tsn in range(1, 3 * MAX_FRAGMENTS):
        stream = tsn % num_streams
        await sctp._receive_data_chunk(fragment(tsn, 2 if tsn <= num_streams else 0, stream))
        if tsn <= MAX_FRAGMENTS:
            answered.check()
    held = sum(len(each.reassembly) for each in sctp._inbound_streams.values())
    assert held == MAX_FRAGMENTS + 1
    with pytest.raises(ClientError, match="too long for the data channel"):
        answered.check()


async def test_addresses_that_a_client_checks_from_are_bounded(connected: Connected) -> None:
    """All with the right credentials, of which a client has those."""
    ice, protocol = connected.ice, connected.ice._protocols[0]
    answers: list[tuple[str, int]] = []
    protocol.send_stun = lambda message, addr: answers.append(addr)

    def check(port: int) -> None:
        query = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        query.attributes["USERNAME"] = f"{ice.local_username}:{ice.remote_username}"
        query.attributes["PRIORITY"] = 1
        query.attributes["ICE-CONTROLLING"] = 2**64 - 1
        query.add_message_integrity(ice.local_password.encode())
        protocol.datagram_received(bytes(query), ("192.0.2.1", port))

    num_known = len(ice._remote_candidates)
    for port in range(1000, 1200):
        check(port)
    assert len(ice._remote_candidates) == MAX_REMOTE_CANDIDATES
    num_new = MAX_REMOTE_CANDIDATES - num_known
    checks = [addr for addr in answers if addr[0] == "192.0.2.1"]
    assert set(checks) == {("192.0.2.1", 1000 + each) for each in range(num_new)}
    check(1000)
    assert answers.count(("192.0.2.1", 1000)) > checks.count(("192.0.2.1", 1000))
    relayed = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    ice.check_incoming(relayed, ("192.0.2.1", 5000), protocol)
    assert len(ice._remote_candidates) == MAX_REMOTE_CANDIDATES


async def test_long_datagrams_are_dropped(answered: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    ice = answered._connection.getReceivers()[0].transport.transport.iceGatherer._connection
    read: list[bytes] = []
    parse = stun.parse_message

    def noticed(data: bytes) -> stun.Message:
        read.append(data)
        return parse(data)

    monkeypatch.setattr(stun, "parse_message", noticed)
    for first in (b"\x16", b"\x80"):
        ice.data_received(first * MAX_DATAGRAM_BYTES, 1)
        ice.data_received(first * (MAX_DATAGRAM_BYTES + 1), 1)
    assert (ice._queue.qsize(), answered.num_dropped) == (2, 2)
    fits, long = bytes(MAX_DATAGRAM_BYTES), bytes(MAX_DATAGRAM_BYTES + 1)
    for data in (fits, long):
        ice._protocols[0].datagram_received(data, ("192.0.2.1", 9))
    assert read == [fits]


async def test_every_record_of_a_datagram_is_read(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiortc reads one, so that the others stay in OpenSSL's memory."""
    dtls, client = connected.receiver.transport, connected.client.connection.sctp
    assert client is not None
    of_client: Any = client.transport
    came: list[bytes] = []
    all_there = asyncio.Event()

    async def noticed(data: bytes) -> None:
        if data.isdigit():  # else it is SCTP's
            came.append(data)
        if len(came) >= 300:
            all_there.set()

    async def nothing() -> None: ...

    monkeypatch.setattr(of_client, "_write_ssl", nothing)
    monkeypatch.setattr(dtls._data_receiver, "_handle_data", noticed)
    for first in range(0, 300, 20):
        for number in range(first, first + 20):
            of_client._ssl.send(b"%d" % number)
        datagram = of_client._ssl.bio_read(1500)
        assert datagram.count(b"\x17\xfe\xfd") >= 20
        await of_client.transport._send(datagram)
    async with asyncio.timeout(PATIENCE_S):
        await all_there.wait()
    assert came == [b"%d" % number for number in range(300)]


async def test_other_tasks_have_their_turn_between_datagrams(answered: Peer) -> None:
    dtls: Any = answered._connection.getReceivers()[0].transport
    waiting = [b"\x80 RTP"] * 20
    turns: list[int] = []

    async def received() -> bytes:
        return waiting.pop()

    async def read() -> None:
        while waiting:
            await dtls._recv_next()

    async def run() -> None:
        while waiting:
            turns.append(len(waiting))
            await asyncio.sleep(0)

    dtls.transport._recv, dtls._RTCDtlsTransport__handshake_done = received, True
    await asyncio.gather(run(), read())
    assert turns == [*range(20, 0, -1)]


@pytest.mark.parametrize("failing", [1, 2])
async def test_nothing_is_read_from_a_dtls_connection_that_failed(
    answered: Peer, failing: int
) -> None:
    """One failure may be another connection's."""
    dtls: Any = answered._connection.getReceivers()[0].transport
    failures = [SSL.SysCallError(-1, "closed")] * failing

    class Failing:
        def recv(self, _: int) -> bytes:
            raise failures.pop() if failures else SSL.WantReadError

        def bio_write(self, data: bytes) -> None: ...

        def bio_read(self, _: int) -> bytes:
            raise SSL.WantReadError

        def DTLSv1_get_timeout(self) -> None: ...

        def shutdown(self) -> None: ...

    async def received() -> bytes:
        return b"\x80 RTP"

    dtls._ssl, dtls.encrypted, dtls.transport._recv = Failing(), True, received
    if failing == 1:
        await dtls._recv_next()
    else:
        with pytest.raises(ConnectionError):
            await dtls._recv_next()


async def test_channels_of_a_client_that_closes_none_end_its_call(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = connected.client.connection.sctp

    async def ignored(param: object) -> None: ...

    monkeypatch.setattr(client, "_receive_reconfig_param", ignored)
    for number in range(2 * MAX_CHANNELS):
        connected.client.connection.createDataChannel(f"other {number}")
    sctp: Any = connected.server._connection.sctp
    refused: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while not refused:
            await asyncio.sleep(0.01)
            try:
                connected.server.check()
            except ClientError as error:
                refused.append(error.message)
    assert refused == ["A call has at most 16 data channels."]
    assert len(sctp._data_channels) == MAX_CHANNELS


async def test_rtp_that_can_t_be_unpacked_is_dropped(connected: Connected) -> None:
    """A header extension of the wrong length, and a REMB with fewer SSRCs than it says."""
    dtls: Any = connected.receiver.transport
    num_before = connected.server.num_dropped
    remb = RtcpPsfbPacket(fmt=15, ssrc=1, media_ssrc=0, fci=b"REMB\x05\x00\x00\x00")
    await dtls._handle_rtcp_data(bytes(remb))
    extension = next(
        each for each in transceiver(connected.server)._headerExtensions if "mid" not in each.uri
    )
    packet = RtpPacket(96, sequence_number=1)
    packet.ssrc = connected.client.connection.getSenders()[0]._ssrc
    header = bytearray(packet.serialize())
    header[0] |= 0x10
    wrong = bytes([(extension.id << 4) | 6]) + bytes(7)
    await dtls._handle_rtp_data(bytes(header) + b"\xbe\xde\x00\x02" + wrong, arrival_time_ms=0)
    assert connected.server.num_dropped == num_before + 2
    assert await connected.comes_through("still here")


async def test_a_nack_is_answered_with_nothing(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sender,) = connected.server._connection.getSenders()
    sent, is_sent = [], asyncio.Event()
    send = sender.transport._send_rtp

    async def noticed(data: bytes) -> None:
        sent.append(data)
        is_sent.set()
        await send(data)

    monkeypatch.setattr(sender.transport, "_send_rtp", noticed)
    connected.server.send_audio(b"\xf8\xff\xfe", 0)
    async with asyncio.timeout(PATIENCE_S):
        await is_sent.wait()
    first = [each for each in sent if each[1] & 0x7F < 64 or each[1] & 0x7F >= 96]
    assert len(first) == 1
    lost = [RtpPacket.parse(first[0]).sequence_number]
    before = len(sent)
    nack = RtcpRtpfbPacket(RTCP_RTPFB_NACK, ssrc=1, media_ssrc=sender._ssrc, lost=lost)
    await sender.transport._handle_rtcp_data(bytes(nack))
    assert [each for each in sent[before:] if each[1:4] == first[0][1:4]] == []


async def test_what_a_client_asks_for_again_is_not_parsed(
    answered: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One packet of 1412 bytes names 5950 others. What is beside it in the datagram is read."""
    dtls: Any = answered._connection.getReceivers()[0].transport
    parsed: list[object] = []
    parse = RtcpPacket.parse

    def noticed(data: bytes) -> list[Any]:
        parsed.append(parse(data))
        return []

    monkeypatch.setattr(RtcpPacket, "parse", noticed)
    asked = b"".join(struct.pack("!HH", 17 * number % 65_536, 0xFFFF) for number in range(350))
    nack = struct.pack("!BBHLL", 0x81, 205, 2 + 350, 1, 2) + asked
    report, bye = RtcpRrPacket(ssrc=1), RtcpByePacket(sources=[1])
    for data in (nack, bytes(report) + nack + bytes(bye) + nack, nack[:8]):
        await dtls._handle_rtcp_data(data)
    assert parsed == [[], [report, bye], []]


async def test_rtcp_a_second_is_bounded(answered: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    dtls: Any = answered._connection.getReceivers()[0].transport
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock.time)
    parsed: list[bytes] = []

    def noticed(data: bytes) -> list[Any]:
        parsed.append(data)
        return []

    monkeypatch.setattr(RtcpPacket, "parse", noticed)
    data = bytes(RtcpRrPacket(ssrc=1))

    async def num_parsed(num: int) -> int:
        parsed.clear()
        for _ in range(num):
            await dtls._handle_rtcp_data(data)
        return len(parsed)

    assert await num_parsed(MAX_RTCP_HZ + 7) == MAX_RTCP_HZ
    assert answered.num_dropped == 7
    clock.now_s = 0.5
    assert await num_parsed(MAX_RTCP_HZ) == MAX_RTCP_HZ // 2
    monkeypatch.undo()  # `close` has limits of time


async def test_another_source_is_heard_once_the_first_is_silent(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=peer_module.__name__)
    came: list[object] = []
    server = Peer(
        WebRtcSettings(),
        lambda seq, *_: came.append(seq),
        lambda _: None,
        lambda: came.append("restart"),
        on_loopback=True,
    )
    await server.answer(offer)
    receiver: Any = server._connection.getReceivers()[0]
    await receiver.receive(server._connection._RTCPeerConnection__remoteRtp(transceiver(server)))

    async def send(ssrc: int, seq: int, payload_type: int = 96) -> None:
        packet = RtpPacket(payload_type, sequence_number=seq, timestamp=seq * 960)
        packet.ssrc, packet.payload = ssrc, b"\xf8\xff\xfe"
        await receiver.transport._handle_rtp_data(packet.serialize(), arrival_time_ms=0)

    monkeypatch.setattr(peer_module, "SILENT_S", 1e9)
    await send(7, 0, payload_type=101)  # not negotiated: it is nobody's audio
    await send(8, 1)
    await send(9, 2)
    await send(8, 3)
    assert (came, server.num_foreign) == ([1, 3], 1)
    monkeypatch.setattr(peer_module, "SILENT_S", 0.0)
    for number in range(40):
        await send(100 + number, 10 + number)
    heard = [each for number in range(40) for each in ("restart", 10 + number)]
    assert (came[2:], server.num_foreign) == (heard, 1)
    assert [*receiver._RTCRtpReceiver__remote_streams] == [139]
    assert [*receiver.transport._rtp_router.ssrc_table] == [139]
    assert len(caplog.records) == 1
    await server.close()


def transceiver(server: Peer) -> Any:
    (only,) = server._connection.getTransceivers()
    return only


def can_be_bound(address: tuple[str, int]) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind(address)
        except OSError:
            return False
    return True


@pytest.mark.parametrize("step", ["receiver", "sctp", "dtls", "ice"])
async def test_ports_come_back_from_a_connection_that_does_not_close(
    connected: Connected, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(peer_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(peer_module, "STEP_S", 0.05)
    receiver, sctp = connected.receiver, connected.server._connection.sctp
    part = {
        "receiver": receiver,
        "sctp": sctp,
        "dtls": receiver.transport,
        "ice": receiver.transport.transport,
    }[step]

    async def never() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise RuntimeError("stop failed")

    async def ignores() -> None:
        """Takes no notice of a cancellation."""
        while not is_over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await is_over.wait()

    is_over = asyncio.Event()
    instead = {"sctp": fails, "ice": ignores}.get(step, never)
    monkeypatch.setattr(part, "stop", instead)
    assert not any(map(can_be_bound, connected.addresses))
    try:
        await connected.server.close()
        await asyncio.sleep(0.05)  # a closed socket is gone in the loop's next round
        assert all(map(can_be_bound, connected.addresses))
    finally:
        is_over.set()


async def test_a_cancelled_close_gives_the_ports_back(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closing = asyncio.Event()

    async def never() -> None:
        is_closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(connected.receiver, "stop", never)
    closing = asyncio.get_running_loop().create_task(connected.server.close())
    await is_closing.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(0.05)  # a closed socket is gone in the loop's next round
    assert all(map(can_be_bound, connected.addresses))


async def test_a_connection_that_is_never_closed_holds_no_thread(connected: Connected) -> None:
    """No signal ends the library's, and a process waits for it at its end."""

    def decoders() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "audio-decoder"}

    receivers: list[Any] = connected.client.connection.getReceivers()
    of_client = {each._RTCRtpReceiver__decoder_thread for each in receivers}
    assert len(of_client) == 1
    async with asyncio.timeout(PATIENCE_S):
        while decoders() - of_client:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert connected.receiver._RTCRtpReceiver__decoder_thread is not None, "it was there"


async def test_what_is_closed_while_it_connects_starts_nothing(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's task that connects goes on by itself, and would start what was stopped."""
    server, before = new_peer(), asyncio.all_tasks()
    await server.answer(offer)
    dtls = server._connection.getReceivers()[0].transport
    starts, is_over = asyncio.Event(), asyncio.Event()

    async def start(_: object) -> None:
        starts.set()
        await is_over.wait()

    async def at_once(_: object) -> None:
        pass

    monkeypatch.setattr(dtls.transport, "start", at_once)
    monkeypatch.setattr(dtls, "start", start)
    await starts.wait()
    await server.close()
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_time_stamps_that_jump_do_not_end_the_reports(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    """Their jitter has more than 32 bits, where packets of the larger one come in the same moment
    as those of the smaller one."""
    report, tried = connected.receiver._send_rtcp, asyncio.Event()

    async def noticed(packet: Any) -> None:
        await report(packet)
        if any(each.jitter >= 1 << 32 for each in packet.reports):
            tried.set()

    connected.receiver._send_rtcp = noticed
    number = 0
    async with asyncio.timeout(PATIENCE_S):
        while not tried.is_set():
            for timestamp in (0, 2**32 - 1) * 2:
                if timestamp == 0:
                    await asyncio.sleep(0.001)
                packet = RtpPacket(96, sequence_number=number & 0xFFFF, timestamp=timestamp)
                packet.ssrc, packet.payload = 4711, b"\xf8\xff\xfe"
                await connected.receiver._handle_rtp_packet(packet, arrival_time_ms=0)
                number += 1
    assert not connected.receiver._RTCRtpReceiver__rtcp_task.done()
    await connected.server.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("number", "num_tries"),
    [(errno.EADDRNOTAVAIL, 1), (errno.EADDRINUSE, 500), (errno.EACCES, 500)],
)
async def test_a_range_without_a_free_port_is_searched_while_others_run(
    monkeypatch: pytest.MonkeyPatch, number: int, num_tries: int
) -> None:
    """And not at all where no port could be bound."""
    tried: set[int] = set()
    rounds: set[int] = set()

    async def create(_: object, local_addr: tuple[str, int]) -> None:
        tried.add(local_addr[1])
        raise OSError(number, "not bound")

    async def run() -> None:
        while True:
            rounds.add(len(tried))
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    other = loop.create_task(run())
    monkeypatch.setattr(loop, "create_datagram_endpoint", create)
    settings = WebRtcSettings(min_port=20_001, max_port=20_500)
    assert await peer_module._bound(asyncio.DatagramProtocol, "192.0.2.1", settings) is None
    other.cancel()
    assert len(tried) == num_tries
    assert len(rounds) == (10 if num_tries > 1 else 0)


async def test_an_address_that_is_gone_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    create, tried = loop.create_datagram_endpoint, []

    async def noticed(protocol: Any, local_addr: tuple[str, int]) -> Any:
        tried.append(local_addr)
        return await create(protocol, local_addr=local_addr)

    monkeypatch.setattr(loop, "create_datagram_endpoint", noticed)
    settings = WebRtcSettings(min_port=20_001, max_port=20_500)
    assert await peer_module._bound(asyncio.DatagramProtocol, "203.0.113.99", settings) is None
    assert len(tried) == 1


class TurnServer(asyncio.DatagramProtocol):
    """Gives one relayed address, 198.51.100.9, without a password."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        query = stun.parse_message(data)
        answer = stun.Message(query.message_method, stun.Class.RESPONSE, query.transaction_id)
        answer.attributes["LIFETIME"] = query.attributes.get("LIFETIME", 600)
        answer.attributes["XOR-MAPPED-ADDRESS"] = addr
        answer.attributes["XOR-RELAYED-ADDRESS"] = ("198.51.100.9", 5000)
        self._transport.sendto(bytes(answer), addr)


async def test_relayed_datagrams_have_the_bounds_of_direct_ones(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        TurnServer, local_addr=("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]
    peer = new_peer(WebRtcSettings(turn_url=f"turn:127.0.0.1:{port}", turn_username="u"))
    assert "198.51.100.9 5000 typ relay" in await peer.answer(offer)
    ice = peer._connection.getReceivers()[0].transport.transport.iceGatherer._connection
    (relay,) = [each for each in ice._protocols if each.local_candidate.type == "relay"]
    turn = relay.transport._TurnTransport__inner_protocol
    of_client, stranger = (ice._remote_candidates[0], ("192.0.2.1", 9))
    turn.channel_to_peer = {
        0x4000: (of_client._network_host, of_client.port),
        0x4001: stranger,
    }
    read: list[bytes] = []
    parse = stun.parse_message

    def noticed(data: bytes) -> stun.Message:
        read.append(data)
        return parse(data)

    monkeypatch.setattr(stun, "parse_message", noticed)
    fits, long = bytes(MAX_DATAGRAM_BYTES), bytes(MAX_DATAGRAM_BYTES + 1)
    unreadable = bytes.fromhex("000100042112a442") + bytes(12) + bytes.fromhex("00060000")
    for channel in (0x4000, 0x4001):
        for data in (fits, long, unreadable, b"\x16" + fits[1:], b"\x80" + long[1:], b""):
            head = channel.to_bytes(2, "big") + len(data).to_bytes(2, "big")
            turn.datagram_received(head + data, ("127.0.0.1", port))
    assert read == [fits, unreadable] * 2
    assert ice._queue.qsize() == 1, "that of the client, and not the stranger's"
    await peer.close()
    transport.close()


class Clock:
    """Time of the event loop, as `Peer._take` sees it."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class Counted:
    """What becomes of datagrams of a peer that no client has connected to, by a manual clock."""

    def __init__(self, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.peer = peer
        self.ice: Any = peer._connection.getReceivers()[0].transport.transport.iceGatherer
        self.ice = self.ice._connection
        self.protocol = self.ice._protocols[0]
        self._passed: list[bytes] = []
        self._read: list[bytes] = []
        self.ice.data_received = lambda data, component: self._passed.append(data)
        monkeypatch.setattr("agent.webrtc.peer.asyncio.get_running_loop", lambda: self.clock)

        def noticed(data: bytes) -> stun.Message:
            self._read.append(data)
            raise RuntimeError  # as a parser of the library may

        monkeypatch.setattr(stun, "parse_message", noticed)

    def counts(self, data: bytes, addr: tuple[str, int], number: int) -> tuple[int, int, int]:
        """Of so many: passed on, read as STUN, and counted as dropped."""
        self._passed.clear()
        self._read.clear()
        before = self.peer.num_dropped
        for _ in range(number):
            self.protocol.datagram_received(data, addr)
        return len(self._passed), len(self._read), self.peer.num_dropped - before


CHECK, MEDIA = bytes(20), b"\x80" + bytes(40)
STRANGER = ("192.0.2.1", 9)


async def test_datagrams_a_second_are_bounded(
    answered: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers' checks take nothing from the client's."""
    counted = Counted(answered, monkeypatch)
    counts, known = counted.counts, counted.ice._remote_candidates[0]
    client = (known._network_host, known.port)
    assert counts(CHECK, STRANGER, MAX_STRANGERS_HZ + 7) == (0, MAX_STRANGERS_HZ, 7)
    assert counts(MEDIA, STRANGER, 9) == (0, 0, 0), "as before: they are none of the call's"
    assert counts(CHECK, client, 3) == (0, 3, 0)
    assert counts(MEDIA, client, MAX_CLIENT_HZ) == (MAX_CLIENT_HZ - 3, 0, 3)
    counted.clock.now_s = 0.5
    assert counts(MEDIA, client, MAX_CLIENT_HZ) == (MAX_CLIENT_HZ // 2, 0, MAX_CLIENT_HZ // 2)
    assert counts(CHECK, STRANGER, MAX_STRANGERS_HZ)[1] == MAX_STRANGERS_HZ // 2
    counted.clock.now_s = 60.0
    assert counts(MEDIA, client, MAX_CLIENT_HZ + 1) == (MAX_CLIENT_HZ, 0, 1)


def record(size: int) -> bytes:
    return b"\x17\xfe\xfd" + bytes(8) + size.to_bytes(2, "big") + bytes(size)


@pytest.mark.parametrize(
    ("data", "num"),
    [
        (record(40), 1),
        (record(40) * 18, 18),
        (record(0) * 100, 100),
        (record(40) + record(99)[:20], 2),  # the library reads no more of it
        (record(40) + b"\x17", 2),
        (b"\x2f\x00\x00\x00\x05" + bytes(5), 1),  # DTLS 1.3: two bytes each
        ((b"\x2c\x00\x00\x00\x05" + bytes(5)) * 9, 9),
        ((b"\x24\x00\x00\x05" + bytes(5)) * 9, 9),
        (b"\x20\x00" + bytes(50), 1),  # to the end
        (b"\x80" + record(0) * 9, 1),  # RTP
    ],
)
async def test_records_of_a_datagram_count_as_datagrams(
    answered: Peer, monkeypatch: pytest.MonkeyPatch, data: bytes, num: int
) -> None:
    """Each may be a packet of the data channel, with eight chunks to be answered."""
    counted = Counted(answered, monkeypatch)
    known = counted.ice._remote_candidates[0]
    passed, _, dropped = counted.counts(data, (known._network_host, known.port), MAX_CLIENT_HZ)
    assert (passed, passed + dropped) == (MAX_CLIENT_HZ // num, MAX_CLIENT_HZ)


async def test_datagrams_with_another_address_of_the_client_take_nothing_from_it(
    answered: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offer has addresses that any host may write on its datagrams."""
    counted = Counted(answered, monkeypatch)
    counts, ice, protocol = counted.counts, counted.ice, counted.protocol
    known = ice._remote_candidates[0]
    client, spoofed = (known._network_host, known.port), ("192.0.2.7", 4711)
    other = copy.copy(known)
    other._network_host, other.port = spoofed
    ice._remote_candidates.append(other)
    pairs = [CandidatePair(protocol, each) for each in (known, other)]
    ice._check_list[:] = pairs
    pairs[0].state, ice._nominated[1] = CandidatePair.State.SUCCEEDED, pairs[0]
    assert counts(MEDIA, spoofed, 9) == (0, 0, 0), "nobody has answered a check there"
    assert counts(CHECK, spoofed, 2 * MAX_CLIENT_HZ) == (0, MAX_CLIENT_HZ, MAX_CLIENT_HZ)
    assert counts(MEDIA, client, MAX_CLIENT_HZ + 1) == (MAX_CLIENT_HZ, 0, 1)
    counted.clock.now_s = 60.0
    pairs[1].state = CandidatePair.State.SUCCEEDED
    assert counts(MEDIA, spoofed, MAX_CLIENT_HZ + 1) == (MAX_CLIENT_HZ, 0, 1)
    assert counts(CHECK, client, 3) == (0, 3, 0)
    ice._nominated[1] = pairs[1]
    assert counts(MEDIA, spoofed, MAX_CLIENT_HZ) == (MAX_CLIENT_HZ - 3, 0, 3), "the path is another"
    assert counts(CHECK, STRANGER, MAX_STRANGERS_HZ + 7) == (0, MAX_STRANGERS_HZ, 7)


async def test_a_connection_has_the_address_that_its_audio_comes_from(connected: Connected) -> None:
    ice, client = connected.ice, connected.client.connection.getSenders()[0].transport.transport
    (pair,) = client._connection._nominated.values()
    (nominated,) = ice._nominated.values()
    assert nominated.remote_addr == (pair.local_candidate.host, pair.local_candidate.port)
    took: list[object] = []
    takes = connected.server._nominated_pace.takes

    def noticed(now_s: float, num: int = 1) -> bool:
        took.append(now_s)
        return takes(now_s, num)

    connected.server._nominated_pace.takes = noticed  # type: ignore[method-assign]
    assert await connected.comes_through("one")
    assert took


class StunServer(asyncio.DatagramProtocol):
    """Answers some queries. Each client is at 198.51.100.7."""

    def __init__(self, answered: int | None = None) -> None:
        """`answered`: so many; None: all."""
        self.asked: list[str] = []
        self._answered = answered

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        query = stun.parse_message(data)
        if addr[0] not in self.asked:
            self.asked.append(addr[0])
        if self._answered is None or len(self.asked) <= self._answered:
            answer = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, query.transaction_id)
            answer.attributes["XOR-MAPPED-ADDRESS"] = ("198.51.100.7", addr[1])
            self._transport.sendto(bytes(answer), addr)


async def test_the_name_of_the_stun_server_is_looked_up_once_for_all_calls(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def look_up(host: str) -> str:
        asked.append(host)
        return "127.0.0.1"

    def no_lookup(host: str) -> str:
        assert host == "127.0.0.1", "the library looks names up in the default executor"
        return host

    monkeypatch.setattr(peer_module, "_resolver", HostResolver(look_up))
    monkeypatch.setattr(socket, "gethostbyname", no_lookup)
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(StunServer, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    for _ in range(3):
        peer = new_peer(WebRtcSettings(stun_url=f"stun:stun.test:{port}"))
        answer = await peer.answer(offer)
        await peer.close()
        assert ("198.51.100.7" in answer) == bool(server.asked)
    assert asked == ["stun.test"] * bool(server.asked)
    transport.close()


@pytest.mark.parametrize("answered", [None, 0])
async def test_a_stun_server_is_asked_for_addresses_that_can_reach_it(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, answered: int | None
) -> None:
    if answered == 0:
        monkeypatch.setattr(peer_module, "SERVER_S", 0.05)
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: StunServer(answered), local_addr=("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]
    peer = new_peer(WebRtcSettings(stun_url=f"stun:127.0.0.1:{port}"))
    answer = await peer.answer(offer)
    own = set(re.findall(r"udp \d+ ([\d.]+) \d+ typ host", answer)) - {"127.0.0.1"}
    seen = set(re.findall(r"udp \d+ ([\d.]+) \d+ typ srflx", answer))
    assert set(server.asked) == own
    assert seen == ({"198.51.100.7"} if own and answered is None else set())
    await peer.close()
    transport.close()
