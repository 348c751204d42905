"""HTTP protocol of the server's connections: timeouts, and eviction of idle peers.

Theory of operation: uvicorn's protocols do the work; some of its decisions are replaced, those
about WebSockets in `websocket_protocol.py`.

*Closed* means that the connection is gone some seconds later. A transport that is closed first
sends what it has buffered, and to a peer that does not read it never comes to an end.

*A reader* that takes nothing of a response for half a minute is a dead one: whatever it has set to
work waits for it.

*A request that stops being HTTP* amid its body is refused with 400 where no response has begun.

*A request* must come within seconds, and the number of connections is limited: otherwise a peer
that opens sockets and sends nothing takes all file descriptors. At the limit, the connection that
has waited longest for its own request makes room, so that such a flood keeps no client out. An
address has a limit of its own, where it makes room for itself, and a pace (`address_limits.py`):
connections that come too fast are closed before a byte is read, and requests on an open connection
are answered later. What such a connection sends meanwhile is not parsed: a request whose body came
late, after its response, would let the next one through at once.

*Parsing* takes turns with the other connections (`http_parser.py`): while bytes wait for their
turn, the socket is not read from.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, cast

from h11 import LocalProtocolError
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from agent.config.access import AccessSettings
from agent.errors import CLOSE_TIMEOUT_S
from agent.http.peer_address import NOWHERE

from .address_limits import AddressLimits
from .header_limits import MAX_HEAD_BYTES
from .http_parser import HttpParser
from .websocket_protocol import WebSocketProtocol

REQUEST_TIMEOUT_S: Final = 10.0
"""From the connection (or the first byte of a later request) to the end of the headers. Browsers
open connections ahead of need; they open another where one was closed."""

STALL_TIMEOUT_S: Final = 30.0
"""Time in s for the peer to read on once 64 kB wait for it. It has to take 48 kB of these then."""

SPARE_CONNECTIONS: Final = 256
"""Besides those of the calls. Pages, metrics and probes need a dozen; together with the models'
files this stays below the usual limit of 1024 descriptors."""

UNLIMITED: Final = AccessSettings(connections_per_address=0, connections_per_s=0, requests_per_s=0)

_log = logging.getLogger(__name__)


class HeldFlow(FlowControl):
    """Flow control of one connection. Reading is paused as long as uvicorn wants it (the body that
    the application has not taken is large, or another request waits), or bytes wait for their turn
    to be parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self, is_held: bool) -> None:
        """Say whether bytes wait to be parsed, and pause or resume reading. uvicorn resumes in one
        place past its own flow control."""
        self._is_held = is_held
        if is_held or self.read_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if self._is_held:
            self.read_paused = False
        else:
            super().resume_reading()


class HttpConnection(H11Protocol):
    """A connection before it becomes a WebSocket, if it does. Belongs to the event loop."""

    num_refused: ClassVar[int] = 0
    """Connections closed because of the limit, since the process began."""

    def __init__(self, *args: Any, limits: AddressLimits | None = None, **kwargs: Any) -> None:
        """`limits`: of addresses; None: there are none but the total."""
        super().__init__(*args, **kwargs)
        max_head_bytes = self.config.h11_max_incomplete_event_size or MAX_HEAD_BYTES
        self.conn = self._parser = HttpParser(max_head_bytes)
        self._limits = AddressLimits(UNLIMITED) if limits is None else limits
        self._place: str | None = None
        self._is_refused = False
        self._upgraded = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._next_timer: asyncio.TimerHandle | None = None
        self._parsing: asyncio.Handle | None = None
        """Continues the parsing at the next turn of the loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast(asyncio.Transport, transport)
        self._place = self._limits.place((get_remote_addr(connected) or (NOWHERE, 0))[0])
        if not self._limits.may_connect(self._place, self.loop.time()):
            self._refuse(connected)
            return
        if self._limits.is_full(self._place) and not self._make_room(self._place):
            self._refuse(connected)
            return
        self._limits.opened(self._place)
        super().connection_made(connected)
        self.flow: FlowControl = HeldFlow(connected)
        self._watch()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """Handle a bounded number of events; the rest have their turn after other connections."""
        self._end_parsing()
        if self.transport.is_closing():
            return
        if self._next_timer is not None:
            self._hold(True)
            return
        self._parser.begin_turn()
        super().handle_events()
        if self._upgraded or self.transport.is_closing():
            return
        self._hold(self._parser.has_more)
        if self._parser.has_more:
            self._parsing = self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.handle_events()
        self._watch()

    def _hold(self, is_held: bool) -> None:
        cast(HeldFlow, self.flow).hold(is_held)

    def _end_parsing(self) -> None:
        if self._parsing is not None:
            self._parsing.cancel()
            self._parsing = None

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._upgraded = True
        self._limits.closed(self._place)  # it counts itself from here on
        super().handle_websocket_upgrade(event)
        if ahead := self.conn.trailing_data[0]:  # which uvicorn would drop
            cast(asyncio.Protocol, self.transport.get_protocol()).data_received(ahead)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. Where a response has begun, or has no body, it is left as it is;
        the application's own is dropped. uvicorn lets h11's error end both in a traceback."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(self._parser.refusal or msg)
        except LocalProtocolError:
            self.transport.close()

    def on_response_complete(self) -> None:
        """The next request is read now, or once its address is not too fast any more."""
        wait_s = self._limits.wait_s(self._place, self.loop.time())
        if wait_s > 0 and not self.transport.is_closing():
            self._next_timer = self.loop.call_later(wait_s, self._take_next)
        else:
            super().on_response_complete()

    def _take_next(self) -> None:
        self._next_timer = None
        self._hold(False)
        super().on_response_complete()
        self.handle_events()  # the rest of the request's body, where that was not complete

    def pause_writing(self) -> None:
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_stall()
        self._stall_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_refused:
            return  # it never was
        if not self._upgraded:
            self._limits.closed(self._place)
        self._unwatch()
        self._end_stall()
        self._end_parsing()
        self._parser.discard()
        if self._next_timer is not None:
            self._next_timer.cancel()
        super().connection_lost(exc)

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _refuse(self, transport: asyncio.Transport) -> None:
        self._is_refused = True
        transport.abort()
        _tell_of_one_more()

    def _make_room(self, place: str | None = None) -> bool:
        """Close the connection (of this place) that has waited longest for a request; this one, if
        no other. Whether one was closed."""
        waiting = [
            (other._request_timer.when(), id(other), other)
            for other in self.connections
            if isinstance(other, HttpConnection) and other._request_timer is not None
            if place is None or other._place == place
        ]
        if not waiting:
            return False
        _tell_of_one_more()
        _, _, oldest = min(waiting)
        oldest._unwatch()
        oldest.transport.abort()
        return True

    def _watch(self) -> None:
        """Wait for a request, but not for ever."""
        if self._upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._unwatch()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_TIMEOUT_S, self._give_up)

    def _unwatch(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _give_up(self) -> None:
        self._request_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            return
        _log.debug("a connection brought no request within %g s: closed", REQUEST_TIMEOUT_S)
        self.transport.abort()


def connection_types(
    settings: AccessSettings,
) -> tuple[Callable[..., HttpConnection], Callable[..., WebSocketProtocol]]:
    """Connection classes of one server with these limits. Raises ConfigError."""
    limits = AddressLimits(settings)
    return partial(HttpConnection, limits=limits), partial(WebSocketProtocol, limits=limits)


def _tell_of_one_more() -> None:
    """A connection was closed because of a limit."""
    number = HttpConnection.num_refused = HttpConnection.num_refused + 1
    if number & (number - 1) == 0:  # a flood must not fill the log as well
        _log.warning("too many connections: closed one without a request (%d so far)", number)
