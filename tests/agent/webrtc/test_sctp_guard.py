"""Bounds of SCTP: what a hostile client can make it do, and that honest ones do not notice."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from aiortc import RTCDataChannel, RTCDataChannelParameters, RTCSctpTransport
from aiortc.rtcsctptransport import (
    Chunk,
    DataChunk,
    ForwardTsnChunk,
    HeartbeatChunk,
    InboundStream,
    ReconfigChunk,
    RTCSctpCapabilities,
    SackChunk,
    StreamAddOutgoingParam,
    decode_params,
    parse_packet,
    serialize_packet,
)
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import ClientError
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.webrtc import sctp_guard
from agent.webrtc.sctp_guard import (
    MAX_CHANNELS,
    MAX_CONTROL_AT_ONCE,
    MAX_CONTROL_CHUNKS,
    MAX_CONTROL_HZ,
    MAX_DATA_HZ,
    MAX_FRAGMENTS,
    MAX_GAPS,
    MAX_IGNORED,
    MAX_MISORDERED,
    MAX_OPEN_BYTES,
    MAX_TSN_AHEAD,
    ChunkCounts,
    SctpGuard,
    counted_chunks,
)

EVENTS = 0
"""Stream of the channel with events."""

Sctp = Any


class Wire:
    """Takes the place of a DTLS transport: keeps what is sent until the test delivers it."""

    state = "connected"

    def __init__(self, role: str) -> None:
        self._role = role
        self.sent: list[bytes] = []

    async def _send_data(self, data: bytes) -> None:
        self.sent.append(data)

    def _register_data_receiver(self, receiver: object) -> None: ...

    def _unregister_data_receiver(self, receiver: object) -> None: ...


class Association:
    """Two associations of aiortc, the server's with a guard, and the channel with events."""

    def __init__(self) -> None:
        self.client: Sctp = RTCSctpTransport(Wire("client"))  # type: ignore[arg-type]
        self.server: Sctp = RTCSctpTransport(Wire("server"))  # type: ignore[arg-type]
        self.clock_s = 0.0
        self.step_s = 60.0
        """Time between two looks at the clock: as many chunks as may come at once, by default."""
        self.guard = SctpGuard(self.server, lambda stream_id: stream_id == EVENTS, self._time_s)
        self.messages: list[str | bytes] = []
        self.server.on("datachannel", self._opened)
        self.channel: Any = None
        """The client's."""
        self.opened: list[Any] = []

    def _time_s(self) -> float:
        self.clock_s += self.step_s
        return self.clock_s

    def pause(self, pause_s: float) -> None:
        """Let so much time pass, and no more from then on."""
        self.clock_s += pause_s
        self.step_s = 0.0

    def _opened(self, channel: Any) -> None:
        self.opened.append(channel)
        if channel.id == EVENTS:
            channel.on("message", self.messages.append)
        else:
            channel.close()

    async def connect(self) -> None:
        for each in (self.server, self.client):
            await each.start(RTCSctpCapabilities(maxMessageSize=1 << 18), 5000)
        await self.deliver()
        self.channel = await self.open("oai-events")
        assert self.channel.readyState == "open"

    async def open(self, label: str) -> Any:
        channel = RTCDataChannel(self.client, RTCDataChannelParameters(label=label))
        await self.deliver()
        return channel

    async def deliver(self, order: Callable[[list[bytes]], Iterable[bytes]] = list) -> None:
        """Deliver what both ends send until nothing is sent; the client's in this order."""
        idle = 0
        while idle < 10:  # the library sends from tasks of its own
            await asyncio.sleep(0)
            ends = (self.client, self.server), (self.server, self.client)
            for source, target in ends:
                packets, source.transport.sent = source.transport.sent, []
                idle = 0 if packets else idle + 1
                for packet in order(packets) if source is self.client else packets:
                    await target._handle_data(packet)

    def packet(self, *chunks: Chunk) -> bytes:
        """A packet to the server."""
        return packet(self.server._local_verification_tag, b"".join(map(bytes, chunks)))

    async def receive(self, *chunks: Chunk) -> None:
        await self.server._handle_data(self.packet(*chunks))

    def data(self, ahead: int, stream_id: int = EVENTS, flags: int = 7) -> DataChunk:
        """A DATA chunk so far from the last number in order. Flags: 4, unordered, 2 begins and 1
        ends a message."""
        chunk = DataChunk(flags=flags)
        chunk.tsn = (self.server._last_received_tsn + ahead) % 2**32
        chunk.stream_id, chunk.protocol, chunk.user_data = stream_id, 51, b"x"
        return chunk

    def is_refused(self, why: str) -> bool:
        with pytest.raises(ClientError) as raised:
            self.guard.check()
        return str(raised.value) == why

    async def stop(self) -> None:
        await self.client.stop()
        await self.server.stop()


def packet(tag: int, body: bytes) -> bytes:
    header = struct.pack("!HHL", 5000, 5000, tag)
    return header + struct.pack("<L", crc32c(header + bytes(4) + body)) + body


@pytest.fixture
async def association() -> AsyncIterator[Association]:
    made = Association()
    await made.connect()
    yield made
    await made.stop()


# --- honest clients ---


async def test_messages_come_through_a_network_that_reorders_and_loses(
    association: Association,
) -> None:
    chance = random.Random(7)

    def order(packets: list[bytes]) -> list[bytes]:
        late = [each for each in packets if chance.random() < 0.95]
        chance.shuffle(late)
        return late

    client = association.client
    client._cwnd = 1 << 20
    sent = [f"{number} " + "m" * 10_000 for number in range(20)]
    for text in sent:
        association.channel.send(text)
    while len(association.messages) < len(sent):
        await association.deliver(order)
        client._t3_cancel()
        client._t3_expired()  # in place of the timer
        association.guard.check()
    assert association.messages == sent


async def test_a_window_that_is_full_behind_a_lost_packet_is_no_attack(
    association: Association,
) -> None:
    num = 895
    chunks = [association.data(number) for number in range(1, num + 1)]
    for last in range(num, 1, -50):
        await association.receive(*chunks[max(1, last - 50) : last])
        association.guard.check()
    assert len(association.server._sack_misordered) == num - 1
    await association.receive(chunks[0])
    assert association.server._sack_misordered == set()
    assert association.server._last_received_tsn == chunks[-1].tsn
    assert len(association.messages) == num
    association.guard.check()


async def test_messages_that_are_complete_leave_no_fragments_behind(
    association: Association,
) -> None:
    num_before = association.server._inbound_streams[EVENTS].sequence_number
    for number in range(MAX_FRAGMENTS):
        pair = association.data(1, flags=2), association.data(2, flags=1)
        for chunk in pair:
            chunk.stream_seq = num_before + number
        await association.receive(*pair)
    assert association.messages == ["xx"] * MAX_FRAGMENTS
    association.guard.check()


async def test_other_channels_are_closed_and_leave_nothing(association: Association) -> None:
    for number in range(3 * MAX_CHANNELS):
        other = await association.open(f"other {number}")
        assert other.readyState == "closed"
        assert [*association.server._data_channels] == [EVENTS]
        association.guard.check()
    association.channel.send("still here")
    await association.deliver()
    assert association.messages == ["still here"]


async def test_messages_that_a_client_gives_up_are_no_attack(association: Association) -> None:
    """A channel with partial reliability, as few use it."""
    for _ in range(0, 2 * MAX_FRAGMENTS, 50):
        chunks = [association.data(ahead, flags=2 * (ahead == 1)) for ahead in range(1, 51)]
        await association.receive(*chunks)
        forward = ForwardTsnChunk()
        forward.cumulative_tsn = (chunks[-1].tsn + 1) % 2**32
        forward.streams = [(EVENTS, 0)]
        await association.receive(forward)
    association.guard.check()
    assert association.server._inbound_streams[EVENTS].reassembly == []


# --- chunks that are missing ---


async def test_a_gap_that_is_never_closed_ends_the_call(association: Association) -> None:
    base = association.data(0).tsn
    for ahead in range(2, 3 * MAX_MISORDERED, 70):
        await association.receive(*map(association.data, range(ahead, ahead + 70)))
    assert association.server._last_received_tsn == base
    assert len(association.server._sack_misordered) == MAX_MISORDERED + 1
    assert len(association.messages) == MAX_MISORDERED + 1
    assert association.is_refused(sctp_guard.TOO_MANY_MISSING)


class Counted(set[int]):
    """Numbers that count how often all of them are looked at."""

    num_read = 0

    def __iter__(self) -> Any:
        self.num_read += 1
        return super().__iter__()


async def test_numbers_that_wait_are_sorted_once_a_packet(association: Association) -> None:
    server = association.server
    for ahead in range(3, 900):
        server._sack_misordered.add(association.data(ahead).tsn)
    server._sack_misordered = waiting = Counted(server._sack_misordered)
    await association.receive(*map(association.data, [*range(900, 969), 2]))
    assert server._sack_misordered is waiting
    assert (len(waiting), waiting.num_read) == (897 + 70, 1)
    await association.receive(association.data(1))
    assert (len(waiting), waiting.num_read) == (0, 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(10, 2**32 - 61), st.lists(st.integers(-10, 60), max_size=60))
def test_numbers_are_noted_as_the_library_notes_them(first: int, steps: list[int]) -> None:
    async def story() -> None:
        made = Association()
        ours, library = made.server, made.client
        ours._last_received_tsn = library._last_received_tsn = first
        for step in steps:
            tsn = first + step
            assert ours._mark_received(tsn) == library._mark_received(tsn)
            assert ours._last_received_tsn == library._last_received_tsn
            assert ours._sack_misordered == library._sack_misordered
        assert {*library._sack_duplicates} <= {*ours._sack_duplicates}

    asyncio.run(story())


async def test_a_gap_is_closed_where_the_numbers_begin_again(association: Association) -> None:
    """The library sorts them as they are, and waits for ever."""
    server = association.server
    server._last_received_tsn = 2**32 - 3
    for ahead in (4, 3, 2):
        await association.receive(association.data(ahead))
    await association.receive(association.data(1))
    assert (server._last_received_tsn, server._sack_misordered) == (1, set())
    assert len(association.messages) == 4


async def test_what_no_sack_can_name_is_dropped(association: Association) -> None:
    await association.receive(association.data(MAX_TSN_AHEAD + 1))
    assert association.server._sack_misordered == set()
    await association.receive(association.data(MAX_TSN_AHEAD))
    assert len(association.server._sack_misordered) == 1
    association.guard.check()


async def test_an_acknowledgement_fits_in_a_datagram(association: Association) -> None:
    server = association.server
    for ahead in range(2, 2 * MAX_MISORDERED, 2):
        server._sack_misordered.add(association.data(ahead).tsn)
    server.transport.sent.clear()
    await association.receive(*[association.data(2)] * 80)
    (sack,) = server.transport.sent
    assert len(sack) <= 1200
    chunk = parse_packet(sack)[3][0]
    assert isinstance(chunk, SackChunk)
    assert chunk.gaps == [(each, each) for each in range(2, 2 + 2 * MAX_GAPS, 2)]
    association.guard.check()


# --- streams and channels ---


async def test_streams_are_bounded(association: Association) -> None:
    server = association.server
    for stream_id in range(1, 3 * MAX_CHANNELS):
        await association.receive(association.data(1, stream_id, flags=2))
        if len(server._inbound_streams) < MAX_CHANNELS:
            association.guard.check()
    assert len(server._inbound_streams) == MAX_CHANNELS
    assert association.is_refused(sctp_guard.TOO_MANY_CHANNELS)


async def test_a_forward_tsn_looks_at_few_streams(
    association: Association, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, searched = association.server, []
    pop = InboundStream.pop_messages

    def noticed(stream: InboundStream) -> Any:
        searched.append(stream)
        return pop(stream)

    monkeypatch.setattr(InboundStream, "pop_messages", noticed)
    forward = ForwardTsnChunk()
    forward.cumulative_tsn = last = (server._last_received_tsn + 1) % 2**32
    forward.streams = [(EVENTS, each) for each in range(300)]
    await association.receive(forward)
    stream = server._inbound_streams[EVENTS]
    assert (searched, stream.sequence_number) == ([stream], 300)
    association.guard.check()
    forward.cumulative_tsn = (last + 1) % 2**32
    forward.streams = [(each, 0) for each in range(100, 100 + MAX_CHANNELS)]
    await association.receive(forward)
    assert (server._last_received_tsn, [*server._inbound_streams]) == (last, [EVENTS])
    assert association.is_refused(sctp_guard.TOO_MANY_CHANNELS)


def opening(label: bytes, protocol: bytes = b"") -> bytes:
    return struct.pack("!BBHLHH", 3, 0, 0, 0, len(label), len(protocol)) + label + protocol


async def test_channels_are_bounded_in_number_and_length(association: Association) -> None:
    """A client that agrees to close none."""
    take, channels = association.server._data_channel_receive, association.server._data_channels
    for stream_id in range(1, 3 * MAX_CHANNELS):
        await take(stream_id, 50, opening(b"x" * (MAX_OPEN_BYTES - 12)))
        if stream_id < MAX_CHANNELS:
            association.guard.check()
    assert [*channels] == [*range(MAX_CHANNELS)]
    assert len(association.opened) == MAX_CHANNELS
    assert association.is_refused(sctp_guard.TOO_MANY_CHANNELS)


async def test_a_channel_with_a_long_label_is_not_opened(association: Association) -> None:
    long = b"x" * 65_535
    await association.server._data_channel_receive(2, 50, opening(long, long))
    assert [*association.server._data_channels] == [EVENTS]
    assert association.is_refused(sctp_guard.LONG_LABEL)


@pytest.mark.parametrize(
    ("stream_id", "kind"), [(2, 51), (EVENTS, 99), (EVENTS, 50)], ids=["other", "unknown", "DCEP"]
)
async def test_messages_that_nothing_takes_are_bounded(
    association: Association, stream_id: int, kind: int
) -> None:
    for _ in range(0, MAX_IGNORED + 1, 50):
        association.guard.check()
        chunks = [association.data(ahead, stream_id) for ahead in range(1, 51)]
        for chunk in chunks:
            chunk.protocol = kind
        await association.receive(*chunks)
    assert association.is_refused(sctp_guard.IGNORED)
    assert association.messages == []


# --- packets ---


HEADED = {1: bytes(16), 2: bytes(16), 4: b"", 5: b"", 6: b"", 9: b"", 130: b""}


@pytest.mark.parametrize("kind", HEADED)
@pytest.mark.parametrize("before", [b"", b"\x00\x07\x00\x05\xff\x00\x00\x00"])
async def test_a_parameter_without_length_is_not_read(
    association: Association, kind: int, before: bytes
) -> None:
    """The library reads it for ever, and keeps it each time."""
    body = HEADED[kind] + before + b"\x00\x01\x00\x00"
    chunk = struct.pack("!BBH", kind, 0, len(body) + 4) + body
    tag = 0 if kind == 1 else association.server._local_verification_tag
    association.server.transport.sent.clear()
    await association.server._handle_data(packet(tag, chunk))
    assert association.server.transport.sent == []
    assert association.is_refused(sctp_guard.UNREADABLE)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=9)), st.binary(max_size=7))
def test_parameters_are_counted_as_the_library_does(values: list[bytes], rest: bytes) -> None:
    body = b"".join(
        struct.pack("!HH", 1, len(each) + 4) + each + bytes(-len(each) % 4) for each in values
    )
    body += b"\x00\x01" + rest
    num = sctp_guard._num_parameters(body, 0, len(body))
    if num is not None:
        assert num == len(decode_params(body))


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_any_packet_can_be_looked_through(body: bytes) -> None:
    counted_chunks(bytes(12) + body)


async def test_a_packet_is_answered_with_few(association: Association) -> None:
    sent = association.server.transport.sent
    sent.clear()
    await association.receive(*[HeartbeatChunk()] * MAX_CONTROL_CHUNKS)
    assert len(sent) == MAX_CONTROL_CHUNKS
    association.guard.check()
    await association.receive(*[HeartbeatChunk()] * 300)
    await association.receive(HeartbeatChunk())
    assert len(sent) == MAX_CONTROL_CHUNKS
    assert association.is_refused(sctp_guard.UNREADABLE)


async def test_answers_of_many_packets_are_bounded(association: Association) -> None:
    """Eighteen packets are in one datagram."""
    sent = association.server.transport.sent
    sent.clear()
    association.pause(60.0)
    num_chunks = 4

    async def num_answers(num_packets: int) -> int:
        for _ in range(num_packets):
            await association.receive(*[HeartbeatChunk()] * num_chunks)
        answers = len(sent)
        sent.clear()
        return answers

    assert await num_answers(1000) == MAX_CONTROL_AT_ONCE
    assert association.guard.num_dropped == 1000 - MAX_CONTROL_AT_ONCE // num_chunks
    association.pause(1.0)
    assert await num_answers(1000) == MAX_CONTROL_HZ
    await association.receive(association.data(1))
    assert association.messages == ["x"], "DATA is counted apart"
    association.guard.check()


async def test_chunks_that_the_server_has_are_bounded(association: Association) -> None:
    """A packet holds 70 of them, and is answered with a SACK."""
    sent = association.server.transport.sent
    sent.clear()
    association.pause(60.0)
    num_chunks = 50
    for _ in range(MAX_DATA_HZ // num_chunks + 100):
        await association.receive(*[association.data(0)] * num_chunks)
    assert len(sent) == MAX_DATA_HZ // num_chunks
    assert association.guard.num_dropped == 100
    association.pause(1.0)
    await association.receive(association.data(1))
    assert association.messages == ["x"]
    association.guard.check()


async def test_messages_come_through_where_packets_are_dropped_for_their_number(
    association: Association,
) -> None:
    """What was dropped is sent again: nothing is lost or comes twice."""
    association.guard._control = LeakyBucket(MAX_CONTROL_HZ, 1, association.clock_s)
    association.guard._data = LeakyBucket(MAX_DATA_HZ, 5, association.clock_s)
    association.step_s = 0.0002
    texts = [f"message {number}" for number in range(40)]
    for text in texts:
        association.channel.send(text)
    for _ in range(100):
        await association.deliver()
        if len(association.messages) == len(texts):
            break
        association.client._t3_expired()
    assert association.messages == texts
    assert association.guard.num_dropped > 0


def test_chunks_of_a_packet_are_counted_by_kind() -> None:
    data = DataChunk(flags=7)
    data.user_data = b"x"
    heartbeat = HeartbeatChunk()
    body = b"".join(map(bytes, [heartbeat, data, data, heartbeat, data]))
    assert counted_chunks(packet(9, body)) == ChunkCounts(num_control=2, num_data=3)
    assert counted_chunks(packet(9, body[:-4])) == ChunkCounts(num_control=2, num_data=2)


async def test_a_reconfiguration_has_two_parameters(association: Association) -> None:
    def requests(num: int) -> ReconfigChunk:
        chunk = ReconfigChunk()
        chunk.params = [(17, bytes(StreamAddOutgoingParam(each, 1))) for each in range(num)]
        return chunk

    sent = association.server.transport.sent
    sent.clear()
    await association.receive(requests(2))
    assert len(sent) == 2
    association.guard.check()
    await association.receive(requests(3))
    assert len(sent) == 2
    assert association.is_refused(sctp_guard.UNREADABLE)


async def test_a_packet_that_the_library_fails_at_ends_the_call_alone(
    association: Association, caplog: pytest.LogCaptureFixture
) -> None:
    """Text that is no UTF-8: the exception would end the task that reads the connection."""
    chunk = association.data(1)
    chunk.user_data = b"\xff"
    await association.receive(chunk)
    assert association.is_refused(sctp_guard.UNREADABLE)
    await association.receive(chunk, association.data(1))
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert association.messages == []


async def test_a_packet_that_ends_early_ends_the_call(association: Association) -> None:
    tag = association.server._local_verification_tag
    await association.server._handle_data(packet(tag, b"\x03\x00\x00\x08" + bytes(4)))
    assert association.is_refused(sctp_guard.UNREADABLE)


async def test_what_the_library_refuses_ends_no_call(association: Association) -> None:
    whole = association.packet(HeartbeatChunk())
    for data in (b"", whole[:14], whole[:8] + bytes(4) + whole[12:], whole[:14] + b"\xff\xff"):
        await association.server._handle_data(data)
    association.guard.check()


async def test_the_event_that_says_why_is_acknowledged(association: Association) -> None:
    await association.receive(*[HeartbeatChunk()] * 300)
    assert association.is_refused(sctp_guard.UNREADABLE)
    association.opened[0].send("error")
    await association.deliver()
    assert not association.server._sent_queue
    assert not association.server._outbound_queue


def test_a_packet_of_one_chunk_is_what_the_library_makes() -> None:
    """The tests' packets differ from its own in nothing but the number of chunks."""
    assert packet(9, bytes(HeartbeatChunk())) == serialize_packet(5000, 5000, 9, HeartbeatChunk())
