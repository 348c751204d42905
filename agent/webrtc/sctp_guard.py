"""Bounds on what one client makes aiortc's SCTP do, for each byte that it sends.

The client of a call may send any packet on its data channel, and one event loop carries all calls.
aiortc follows the protocol and trusts the other end. What is done here instead, on the object of
one association (`private_names.py` looks for the names):

- *packets*: a parameter of length 0 is read again and again, for ever. A packet is looked through
  before, and what raises in the library ends this call rather than its DTLS task.
- *control chunks*: each one in a packet is answered with a packet; a HEARTBEAT has four bytes. A
  datagram of 1458 bytes has 18 records of DTLS with eight of them each: 144 answers, at some 0.1 ms
  each. So they are counted over time as well, and DATA too, of which 70 fit in a packet (0.3 ms). A
  packet beyond that is dropped, as if it were lost: what is in it is sent again.
- *missing chunks*: what is behind a gap is kept until it is closed, and all of it is sorted at each
  chunk (2.1 ms with 10,000 numbers, 11.7 ms with 60,000, and 70 chunks fit in a datagram). Their
  number is bounded, and a chunk costs what leaves the set by it.
- *acknowledgements*: one is carried out for each number in it, sent or not; those of the library
  have an entry for each gap, also where they get too long for a datagram.
- *streams*: each chunk may make another, and a FORWARD-TSN of eight bytes looks at all (49 ms with
  65,535).
- *fragments*: reassembly has no bound but a window that a client may ignore, and is searched from
  the beginning at each fragment.
- *channels*: each one that a client opens is kept with a label of up to 64 KiB until the client
  agrees to close it.
- *messages* on other channels, or on none: they pass no limit of a rate.

Where a bound is passed, `check` raises, which ends the call; until then no chunk counts but the
acknowledgements of the event that says so. Belongs to the event loop.
"""

import logging
import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from agent.errors import ClientError
from agent.http.hardening.leaky_bucket import LeakyBucket

from .jitter_buffer import signed

MAX_OVERRUN_BYTES: Final = 1 << 20
"""Fragments beyond the window of the data channel (1 MiB) after which all datagrams are dropped.
`check` ends the call before, unless the event loop stands still."""

MAX_FRAGMENTS: Final = 1000
"""Fragments that wait for the rest of their messages; more end the call. The longest message that
is taken has 230 of those that browsers send."""

MAX_MISORDERED: Final = 1000
"""Chunks behind one that is missing. The window has room for 895 as long as browsers send them:
with fewer a client is disconnected that fills it and loses the first packet. With more the
acknowledgement of each datagram, which sorts them, takes longer than the datagram itself."""

MAX_TSN_AHEAD: Final = (1 << 16) - 1
"""Distance of a chunk from the last one in order, for which a SACK has 16 bits. What is further
ahead is dropped, as if it were lost."""

MAX_GAPS: Final = 250
"""Gaps in one acknowledgement of ours. More, with `MAX_DUPLICATES`, do not fit in a packet of
1200 bytes, and the rest of it would precede each later packet. With fewer more is sent again."""

MAX_DUPLICATES: Final = 30
"""Numbers in an acknowledgement of ours that came twice. Nothing depends on them."""

MAX_CHANNELS: Final = 16
"""Data channels and streams at once. One is used; a client that opens more for purposes of its own
would be disconnected with a lower number. With a higher one a FORWARD-TSN looks at more."""

MAX_OPEN_BYTES: Final = 1 << 10
"""Longest message that opens a channel: label, subprotocol and 12 bytes. `oai-events` needs 22.
Times `MAX_CHANNELS`, this is the memory that it takes."""

MAX_IGNORED: Final = 1000
"""Messages of a call on channels that are closed as soon as they are opened. A client sends some
until it learns of that; with a higher number it may have more of the work above done."""

MAX_CONTROL_CHUNKS: Final = 8
"""Chunks of one packet that are not DATA. Browsers put at most one of a kind in it: SACK,
FORWARD-TSN, RE-CONFIG, HEARTBEAT. More are answered with more packets, at some 0.1 ms each."""

MAX_CONTROL_HZ: Final = 200
"""Chunks a second that are not DATA, for one call. Browsers send a SACK for each second packet of
ours: this many are 480 kB of events a second. With a lower rate long events come late; with a
higher one a client has more answers made, 2% of a processor at this one."""

MAX_CONTROL_AT_ONCE: Final = 500
"""Chunks that are not DATA before their rate counts: the SACKs for 1.2 MB of events at once, half
of that where a client sends one for each packet. With more, as many answers come at once."""

MAX_DATA_HZ: Final = 2000
"""DATA chunks a second, and at once, for one call: twice as many as datagrams are taken. With fewer
a client that puts many short events in a packet has them delayed; with more, packets of 70 that the
server has already cost other calls a third of a processor."""

MAX_RECONFIG_PARAMETERS: Final = 2
"""Requests and answers in one RE-CONFIG (RFC 6525, section 3.1); each request is answered."""

TOO_LONG: Final = "A message is too long for the data channel."
UNREADABLE: Final = "A packet of the data channel can't be read."
TOO_MANY_MISSING: Final = "Too many packets of the data channel are missing."
TOO_MANY_CHANNELS: Final = f"A call has at most {MAX_CHANNELS} data channels."
LONG_LABEL: Final = f"Opening a data channel takes at most {MAX_OPEN_BYTES} bytes."
IGNORED: Final = 'Too many messages are on data channels other than "oai-events".'

_COMMON_HEADER: Final = 12
_DATA: Final = 0
_RECONFIG: Final = 130
_FIRST_PARAMETER: Final = {1: 20, 2: 20, 4: 4, 5: 4, 6: 4, 9: 4, _RECONFIG: 4}
"""Chunks that aiortc reads parameters of (RFC 9260, section 3.3), and where those begin: INIT,
INIT ACK, HEARTBEAT, its answer, ABORT, ERROR, RE-CONFIG."""

_DCEP: Final = 50
_MESSAGES: Final = frozenset({51, 53, 56, 57})
"""Payload protocols of text and binary messages, and of empty ones (RFC 8831, section 8)."""
_OPEN: Final = 3

_log = logging.getLogger(__name__)


class SctpGuard:
    """Guard of one association. Takes the place of the library's methods when it is made."""

    def __init__(
        self, sctp: Any, is_heard: Callable[[int], bool], time_s: Callable[[], float]
    ) -> None:
        """`sctp`: an aiortc.RTCSctpTransport that has not started. `is_heard`: True for the stream
        whose messages are taken, and counted where they are. `time_s`: seconds on a clock that
        never goes back."""
        self._sctp = sctp
        self._is_heard = is_heard
        self._time_s = time_s
        self._control = LeakyBucket(MAX_CONTROL_HZ, MAX_CONTROL_AT_ONCE, time_s())
        self._data = LeakyBucket(MAX_DATA_HZ, MAX_DATA_HZ, time_s())
        self.num_dropped = 0
        """Packets dropped because there were too many chunks."""
        self._failure = ""
        """The bound that was passed first."""
        self._num_fragments = 0
        """Fragments of messages that wait for the rest; those that the client gave up may count."""
        self._num_ignored = 0
        self._hook_packets()
        self._hook_data()
        self._hook_forward_tsn()
        self._hook_numbers()
        self._hook_acknowledgements()
        self._hook_channels()

    @property
    def window(self) -> int:
        """Bytes that the client may send on the data channel now; negative: it sent more."""
        return int(self._sctp._advertised_rwnd)

    def check(self) -> None:
        """Raise ClientError where a bound was passed."""
        if self._failure:
            raise ClientError(self._failure, code="invalid_event")
        if self.window <= 0 or self._num_fragments > MAX_FRAGMENTS:
            raise ClientError(TOO_LONG, code="invalid_event")

    def _fail(self, problem: str) -> None:
        self._failure = self._failure or problem

    def _takes(self, chunks: "ChunkCounts") -> bool:
        """Count the chunks of a packet. False: there were too many."""
        now_s = self._time_s()
        if not self._data.fits(chunks.num_data, now_s):
            return False
        return self._control.take(chunks.num_control, now_s) and self._data.take(
            chunks.num_data, now_s
        )

    def _hook_packets(self) -> None:
        from aiortc.rtcsctptransport import SackChunk

        sctp = self._sctp
        handle, receive = sctp._handle_data, sctp._receive_chunk

        async def handled(data: bytes) -> None:
            chunks = counted_chunks(data)
            if chunks is None:
                self._fail(UNREADABLE)
                return
            if not self._takes(chunks):
                self.num_dropped += 1
                return
            try:
                await handle(data)
            except ConnectionError:
                raise
            except Exception:  # the library asserts what it expects, and unpacks what is too short
                _log.warning("a packet of a data channel can't be processed", exc_info=True)
                self._fail(UNREADABLE)

        async def received(chunk: Any) -> None:
            if not self._failure or isinstance(chunk, SackChunk):
                await receive(chunk)

        sctp._handle_data = handled
        sctp._receive_chunk = received

    def _hook_data(self) -> None:
        sctp = self._sctp
        receive = sctp._receive_data_chunk

        async def received(chunk: Any) -> None:
            if self._num_fragments > MAX_FRAGMENTS:
                return
            if signed(chunk.tsn - sctp._last_received_tsn, 32) > MAX_TSN_AHEAD:
                return
            if not self._may_have({chunk.stream_id}):
                self._fail(TOO_MANY_CHANNELS)
                return
            before = self._num_waiting(chunk.stream_id)
            await receive(chunk)
            self._num_fragments += self._num_waiting(chunk.stream_id) - before
            if self._num_fragments > MAX_FRAGMENTS:  # some were given up, or went with a stream
                self._num_fragments = sum(map(self._num_waiting, sctp._inbound_streams))
            if len(sctp._sack_misordered) > MAX_MISORDERED:
                self._fail(TOO_MANY_MISSING)

        sctp._receive_data_chunk = received

    def _hook_forward_tsn(self) -> None:
        sctp = self._sctp
        forward = sctp._receive_forward_tsn_chunk

        async def forwarded(chunk: Any) -> None:
            last = dict(chunk.streams)  # one entry a stream: what waits in it is searched for each
            if not self._may_have(last.keys()):
                self._fail(TOO_MANY_CHANNELS)
                return
            chunk.streams = [*last.items()]
            await forward(chunk)

        sctp._receive_forward_tsn_chunk = forwarded

    def _hook_numbers(self) -> None:
        sctp = self._sctp

        def marked(tsn: int) -> bool:
            """Note a number as received. True: it was before. As in the library, without a sort,
            which is wrong where the numbers begin again at zero."""
            waiting, last = sctp._sack_misordered, sctp._last_received_tsn
            if signed(tsn - last, 32) <= 0 or tsn in waiting:
                sctp._sack_duplicates.append(tsn)
                return True
            waiting.add(tsn)
            while (following := (last + 1) & 0xFFFFFFFF) in waiting:
                waiting.remove(following)
                last = following
            sctp._last_received_tsn = last
            return False

        sctp._mark_received = marked

    def _hook_acknowledgements(self) -> None:
        from aiortc.rtcsctptransport import SackChunk

        sctp = self._sctp
        acknowledge, send = sctp._receive_sack_chunk, sctp._send_chunk

        async def acknowledged(chunk: Any) -> None:
            if _clip_gaps(chunk, sctp):
                await acknowledge(chunk)

        async def sent(chunk: Any) -> None:
            if isinstance(chunk, SackChunk):
                chunk.gaps = chunk.gaps[:MAX_GAPS]
                chunk.duplicates = chunk.duplicates[:MAX_DUPLICATES]
            await send(chunk)

        sctp._receive_sack_chunk = acknowledged
        sctp._send_chunk = sent

    def _hook_channels(self) -> None:
        sctp = self._sctp
        take = sctp._data_channel_receive

        async def taken(stream_id: int, kind: int, data: bytes) -> None:
            if self._failure:
                return
            if kind == _DCEP and data[:1] == bytes([_OPEN]):
                if len(data) > MAX_OPEN_BYTES:
                    self._fail(LONG_LABEL)
                    return
                if len(sctp._data_channels) >= MAX_CHANNELS:
                    self._fail(TOO_MANY_CHANNELS)
                    return
            elif kind not in _MESSAGES or not self._is_heard(stream_id):
                self._num_ignored += 1
                if self._num_ignored > MAX_IGNORED:
                    self._fail(IGNORED)
                    return
            await take(stream_id, kind, data)

        sctp._data_channel_receive = taken

    def _num_waiting(self, stream_id: int) -> int:
        stream = self._sctp._inbound_streams.get(stream_id)
        return 0 if stream is None else len(stream.reassembly)

    def _may_have(self, stream_ids: Collection[int]) -> bool:
        """True unless these would make one stream too many."""
        streams = self._sctp._inbound_streams
        num_new = sum(each not in streams for each in stream_ids)
        return not num_new or len(streams) + num_new <= MAX_CHANNELS


class ChunkCounts(NamedTuple):
    """Numbers of chunks in one packet."""

    num_control: int
    num_data: int


def counted_chunks(packet: bytes) -> ChunkCounts | None:
    """Chunks of an SCTP packet; None for one with more control chunks than belong in one, or with
    parameters that have no length. Of one that the library refuses by itself, those before the one
    that it refuses. Pure."""
    begin, num_control, num_data = _COMMON_HEADER, 0, 0
    while begin + 4 <= len(packet):
        kind, _, length = struct.unpack_from("!BBH", packet, begin)
        end = begin + length
        if length < 4 or end > len(packet):
            break
        if kind == _DATA:
            num_data += 1
        else:
            num_control += 1
            if num_control > MAX_CONTROL_CHUNKS:
                return None
            if kind in _FIRST_PARAMETER:
                num = _num_parameters(packet, begin + _FIRST_PARAMETER[kind], end)
                if num is None or (kind == _RECONFIG and num > MAX_RECONFIG_PARAMETERS):
                    return None
        begin = end + -length % 4
    return ChunkCounts(num_control, num_data)


def _num_parameters(packet: bytes, begin: int, end: int) -> int | None:
    """Number of parameters from `begin` to `end`; None where one is shorter than its header."""
    num = 0
    while begin + 4 <= end:
        (length,) = struct.unpack_from("!H", packet, begin + 2)
        if length < 4:
            return None
        begin += length + -length % 4
        num += 1
    return num


def _clip_gaps(chunk: Any, sctp: Any) -> bool:
    """Cut the gap blocks of a SACK to what was sent. False: they overlap, which none may."""
    if not chunk.gaps:
        return True
    num_sent = 0
    if sctp._sent_queue:
        num_sent = max(0, signed(sctp._sent_queue[-1].tsn - chunk.cumulative_tsn, 32))
    gaps = [(first, min(last, num_sent)) for first, last in chunk.gaps]
    chunk.gaps = [(first, last) for first, last in gaps if first <= last]
    num_acknowledged: int = sum(last - first + 1 for first, last in chunk.gaps)
    return num_acknowledged <= num_sent
