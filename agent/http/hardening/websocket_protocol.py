"""WebSocket protocol on uvicorn and `websockets`, with limits of its own.

Theory of operation: some decisions of uvicorn's are replaced here.

*Alive* is who sends something, and who we do not read from at the moment. uvicorn waits for the
answer to its ping alone, which stands behind all the audio that a fast sender has in flight: such a
client was hung up on in the middle of its recording. A peer that is gone sends nothing, so the next
ping still finds it.

*Bytes are parsed a slice at a time*, with other connections' turns between, and no faster than
`FRAMES_PER_S` once `FRAMES_AT_ONCE` came. A network read brings up to 256 kB. That is one frame
of an honest client, and forty thousand of somebody who sends the smallest that there are: parsing
those in one go kept every call waiting for 0.2 s. What is not parsed is kept, a network read of it
at most, and the socket is not read from.

*Messages wait for the session* (`message_queue.py`), and beyond a bound nothing is parsed. A
client that sends a long recording at once is made to wait by its session
(`agent/realtime/receive_limiter.py`). Its pings
stand behind the recording, and it gives the call up when one gets no answer in time: so frames go
on being read while the session takes none.

*Before the handshake is answered* no frame is parsed: `websockets` can't answer a bad one then.

*A fragmented message* grows in one buffer. A list of its fragments had no bound, for empty ones add
nothing to the size that is limited.

*Pings* of a peer that does not read are not answered: each answer would wait for it in memory. The
protocol (RFC 6455, 5.5.3) asks for an answer to the latest only, and that one finds the peer
reading or gone.

*A handshake that fails* is answered. `websockets` reads the head a second time, by stricter rules
than h11, and uvicorn says nothing where it fails: such connections stayed for as long as the peer
liked, and took the place of others.

*Shutdown in the middle of a close* closes the transport only. uvicorn sends a second close frame,
which `websockets` refuses: its error ended the whole shutdown before the other connections, and
what is saved after it, had their turn.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from agent.config.access import AccessSettings
from agent.errors import CLOSE_NOT_UTF8, CLOSE_TIMEOUT_S
from agent.http.auth.telephony_credentials import PREFIX
from agent.http.peer_address import NOWHERE

from .address_limits import AddressLimits
from .cooperative_parser import CooperativeParser
from .leaky_bucket import LeakyBucket
from .message_queue import MessageQueue

FRAMES_PER_S: Final = 4000
"""Eighty times as many as of a client that sends 20 ms of audio in each."""

FRAMES_AT_ONCE: Final = 120_000
"""Forty minutes of audio in messages of 20 ms. Fewer: pings wait behind a recording that is sent at
once. The smallest ones take half a second, in slices."""

MAX_PHONE_FRAME_BYTES: Final = 64 << 10
"""Of a message on the stream of a telephone: carriers send 20 to 100 ms of audio, 1 to 5 kB, and
anybody may open such a stream before it shows whose it is."""

_REASON: Final = (
    b"This is no WebSocket handshake: it is a GET without a body, with few and short headers.\n"
)
NOT_A_WEBSOCKET: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REASON), _REASON)
)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket. Belongs to the event loop."""

    def __init__(self, *args: Any, limits: AddressLimits | None = None, **kwargs: Any) -> None:
        """`limits`: in which this connection is counted."""
        super().__init__(*args, **kwargs)
        self.close_timeout = CLOSE_TIMEOUT_S
        self._limits = AddressLimits(AccessSettings()) if limits is None else limits
        self._place: str | None = None
        self._heard_at = 0.0
        """Of the loop's time."""
        self._abort_timer: asyncio.TimerHandle | None = None
        self._message = bytearray()
        """The fragments of a message so far."""
        self.queue: MessageQueue = MessageQueue()
        self._input = CooperativeParser(self.loop, self._parse, lambda: self.read_paused)
        self._input.on_parsed = self._settle_reading
        self._wait_s = 0.0
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
        """No answer to the ping: the end, unless there are other signs of life."""
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
        """Seconds to wait before the next one."""
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
