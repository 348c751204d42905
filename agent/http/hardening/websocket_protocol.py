"""WebSocket protocol on uvicorn and `websockets`, with limits of its own.

Theory of operation: some decisions of uvicorn's are replaced here.

*Alive* is a peer that sends something, and one that the server does not read from at the moment.
uvicorn waits for the answer to its ping alone, which stands behind all the audio that a fast sender
has in flight: such a client lost its connection in the middle of its recording. A peer that is gone
sends nothing, so the next ping still finds it.

*Cooperative parsing*: bytes are parsed a slice at a time, with other connections' turns between,
and no faster than `FRAMES_PER_S` once `FRAMES_AT_ONCE` came. A network read brings up to 256 kB.
That is one frame of an honest client, and forty thousand of a client that sends the smallest that
there are: parsing those in one go delayed every call by 0.2 s. Unparsed bytes are kept, one network
read at most, and the socket is not read from meanwhile.

*Messages wait for the session* (`MessageQueue`), and beyond a bound nothing is parsed. A client
that sends a long recording at once has to wait for its session (`agent/realtime/socket.py`). Its
pings stand behind the recording, and it gives the call up when one gets no answer in time: so
frames go on being read while the session takes none.

*Before the handshake is answered* no frame is parsed: `websockets` can't answer a bad one then.

*A fragmented message* grows in one buffer. A list of its fragments had no bound, for empty ones add
nothing to the size that is limited.

*A close amid the fragments of a message* is a close like any other: RFC 6455 lets control frames
stand between fragments (5.4), and asks for a close frame in response (5.5.1). `websockets` fails
the connection instead, with 1002.

*Pings* of a peer that does not read are not answered: each answer would wait for it in memory. The
protocol (RFC 6455, 5.5.3) asks for an answer to the latest only, and that one finds the peer
reading or gone.

*A handshake that fails* is answered. `websockets` reads the head a second time, by stricter rules
than h11, and uvicorn sends nothing where it fails: such connections stayed for as long as the peer
liked, and took the place of others.

*Shutdown in the middle of a close* closes the transport only. uvicorn sends a second close frame,
which `websockets` refuses: its error ended the whole shutdown before the other connections were
closed and their records saved.
"""

import asyncio
import logging
from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from agent.config.access import AccessSettings
from agent.errors import CLOSE_NOT_UTF8, CLOSE_TIMEOUT_S
from agent.http.auth.telephony_credentials import PREFIX
from agent.http.hardening.address_limits import AddressLimits
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.http.peer_address import NOWHERE

FRAMES_PER_S: Final = 4000
"""Frames parsed a second: eighty times as many as a client sends with 20 ms of audio in each."""

FRAMES_AT_ONCE: Final = 120_000
"""Frames before the rate counts: forty minutes of audio in messages of 20 ms. With fewer, pings
wait behind a recording that is sent at once. The smallest ones take half a second, in slices."""

MAX_PHONE_FRAME_BYTES: Final = 64 << 10
"""Largest message on a telephone's stream: carriers send 20 to 100 ms of audio, 1 to 5 kB, and such
a stream is open to every peer until its first message proves the call."""

_REASON: Final = (
    b"This is no WebSocket handshake: it is a GET without a body, with few and short headers.\n"
)
NOT_A_WEBSOCKET: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REASON), _REASON)
)


MAX_WAITING_BYTES: Final = 24 << 20
"""Memory of the messages that wait: six minutes of 24 kHz PCM in pieces of 20 ms or more. With
less, a stock client that sends a long recording at once gives up, for its pings wait behind it."""

KEPT_BYTES: Final = 64 << 10
"""Memory of the oldest messages that are processed although the client has gone: a second of that
audio."""

KEPT_MESSAGES: Final = 50
"""And their number: a second of audio in pieces of 20 ms. With more, a client over its limits,
whose changes of the session are read at ten a second, keeps its line after it has gone: for 20 s
where 64 KiB hold two hundred of them."""


SLICE_BYTES: Final = 4096
"""Bytes parsed in one go: 682 of the smallest WebSocket frames, which take 3 ms."""


class CooperativeParser:
    """Slices of one connection's bytes, parsed in turn with other connections. Belongs to the event
    loop.

    The connection must not be read from while there is a `backlog`, which is then one network read
    at most.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[bytes], float],
        is_held: Callable[[], bool],
        on_parsed: Callable[[], None],
    ) -> None:
        """`parse` takes a slice and returns the seconds to wait before the next. `is_held`: nothing
        may be parsed now; `go_on` is called when that is over. `on_parsed` is called whenever the
        backlog may have changed."""
        self._loop = loop
        self._parse = parse
        self._is_held = is_held
        self._unread = bytearray()
        self._timer: asyncio.Handle | None = None
        self._on_parsed = on_parsed

    @property
    def is_put_off(self) -> bool:
        """True while a timer continues the parsing."""
        return self._timer is not None

    @property
    def backlog(self) -> bool:
        """True while bytes wait to be parsed, or parsing waits: nothing more may be read."""
        return bool(self._unread) or self.is_put_off

    def add(self, data: bytes) -> None:
        self._unread += data
        self.go_on()

    def go_on(self) -> None:
        """Parse one slice, unless parsing is held or waits; the next ones follow."""
        if self._unread and self._timer is None and not self._is_held():
            self._parse_slice()
        self._on_parsed()

    def clear(self) -> None:
        """Discard everything: the connection is over."""
        self._unread.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _parse_slice(self) -> None:
        piece = bytes(self._unread[:SLICE_BYTES])
        del self._unread[:SLICE_BYTES]
        wait_s = self._parse(piece)
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._resume)
        elif self._unread:
            self._timer = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.go_on()


class MessageQueue(asyncio.Queue[Any]):
    """Received ASGI messages of one connection that the session has not read, in order. Belongs to
    the event loop. It takes every message: while it `is_over` its bound, nothing more may be read.

    When the client has gone, only its oldest messages are kept: no peer is left to receive the
    answers to the rest, and other callers want the line. The newest are dropped, so that a client
    that resumes the call can learn how many of its messages were processed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._num_bytes > MAX_WAITING_BYTES

    def put_nowait(self, item: Any) -> None:
        if item["type"] == "websocket.disconnect":
            self._forget_newest()
        super().put_nowait(item)

    def _forget_newest(self) -> None:
        for message in [self.get_nowait() for _ in range(self.qsize())]:
            has_room = self._num_bytes + _size(message) <= KEPT_BYTES
            if has_room and self.qsize() < KEPT_MESSAGES:
                super().put_nowait(message)

    def _put(self, item: Any) -> None:
        self._num_bytes += _size(item)
        super()._put(item)

    def _get(self) -> Any:
        item = super()._get()
        self._num_bytes -= _size(item)
        return item


def _size(message: Any) -> int:
    """Memory of a message's data in bytes; 0 for messages without data of the client."""
    if message["type"] != "websocket.receive":
        return 0
    return getsizeof(message) + getsizeof(message.get("text") or message.get("bytes"))


class FrameProtocol(ServerProtocol):
    """The frames of one connection, sans I/O."""

    def recv_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.cur_size = None  # the message that is not complete is dropped
        super().recv_frame(frame)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection. Belongs to the event loop."""

    def __init__(self, *args: Any, limits: AddressLimits | None = None, **kwargs: Any) -> None:
        """`limits`: the limits of addresses that count this connection."""
        super().__init__(*args, **kwargs)
        self.conn: ServerProtocol = FrameProtocol(
            max_size=self.config.ws_max_size, logger=logging.getLogger("uvicorn.error")
        )
        self.close_timeout = CLOSE_TIMEOUT_S
        self._limits = AddressLimits(AccessSettings()) if limits is None else limits
        self._place: str | None = None
        self._heard_at = 0.0
        """Time of the last received bytes, on the loop's clock in s."""
        self._abort_timer: asyncio.TimerHandle | None = None
        self._message = bytearray()
        """Fragments of the current message."""
        self._wait_s = 0.0
        """Seconds to wait before the next slice."""
        self.queue: MessageQueue = MessageQueue()
        self._input = CooperativeParser(
            self.loop, self._parse, lambda: self.read_paused, self._settle_reading
        )
        self._pace = LeakyBucket(FRAMES_PER_S, FRAMES_AT_ONCE, self.loop.time())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._place = self._limits.place((self.client or (NOWHERE, 0))[0])
        self._limits.opened(self._place)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self.handshake_initiated:
            self._input.add(data)
        else:  # the head, as a whole
            self._parse(data)
            self.read_paused = self.handshake_initiated

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept":
            self.read_paused = False
            if self.scope["path"].startswith(PREFIX):
                self.conn.max_size = MAX_PHONE_FRAME_BYTES
        if message["type"] != "websocket.send":  # accepted, or closed
            self._input.go_on()

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.handshake_complete and not self.queue.is_over:
            self.read_paused = False
            self._input.go_on()
        return message

    def handle_events(self) -> None:
        self._wait_s = self._pace.add(len(self.conn.events), self.loop.time())
        super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        if self.frames:  # the first one; `_message` takes the rest
            self._message = bytearray(self.frames.pop())
        self._message += event.data
        if event.fin:
            self.frames = [bytes(self._message)]
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def send_receive_event_to_app(self) -> None:
        data, self.frames = self.frames[0], []
        if self.close_sent:
            return
        message: Any = {"type": "websocket.receive", "bytes": data}
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self.conn.fail(CLOSE_NOT_UTF8, "text is UTF-8")
                self.handle_parser_exception()
                return
        self.queue.put_nowait(message)
        self.read_paused = self.queue.is_over

    def shutdown(self) -> None:
        if self.conn.state is State.CLOSING and not self.close_sent:  # the client sent its close
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """End a connection without an answer to its ping, unless it is alive otherwise."""
        if self._heard_at > self.ping_sent_at or self.read_paused or self._input.is_put_off:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._abort_later()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        super().on_task_complete(task)
        self._abort_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.closed(self._place)
        self._input.clear()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.handshake_complete and self.conn.close_rcvd is None:
            # uvicorn has one code for a connection that broke and a client that gave no code.
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().connection_lost(exc)

    def _parse(self, piece: bytes) -> float:
        """Parse a slice. Returns the seconds to wait before the next one."""
        if self.transport.is_closing():
            return 0.0
        self._wait_s = 0.0
        super().data_received(piece)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(NOT_A_WEBSOCKET)
            self.transport.close()
        return self._wait_s

    def _settle_reading(self) -> None:
        if self.transport.is_closing():
            return
        if self._input.backlog or self.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _abort_later(self) -> None:
        if self._abort_timer is None and not self.disconnected:
            self._abort_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
