"""The server's connections: which peers count as alive, and how the others are got rid of.

Theory of operation: uvicorn's protocols do the work; three of its decisions are replaced here.

*Alive* is who sends something, and who we do not read from at the moment. uvicorn waits for the
answer to its ping alone, which stands behind all the audio that a fast sender has in flight: such a
client was hung up on in the middle of its recording. A peer that is gone sends nothing, so the next
ping still finds it.

*Closed* means that the connection is gone some seconds later. A transport that is closed first
sends what it has buffered, and to a peer that does not read it never comes to an end.

*A reader* that takes nothing of a response for half a minute is a dead one: whatever it has set to
work waits for it.

*A request* must come within seconds, and there are only so many connections: otherwise whoever
opens sockets and says nothing takes all file descriptors. At the limit, who has waited longest for
his own request makes room, so that such a flood keeps nobody out.
"""

import asyncio
import logging
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CLOSE_TIMEOUT_S: Final = 5.0
"""For the peer to take the end of what it was sent, and to answer the close. On a slow link 64 kB
take two seconds."""

REQUEST_TIMEOUT_S: Final = 10.0
"""From the connection (or the first byte of a later request) to the end of the headers. Browsers
open connections ahead of need; they open another where one was closed."""

STALL_TIMEOUT_S: Final = 30.0
"""For the peer to read on once 64 kB wait for it. Of these it has to take 48 then."""

SPARE_CONNECTIONS: Final = 256
"""Besides those of the calls. Pages, metrics and probes need a dozen; together with the models'
files this stays below the usual limit of 1024 descriptors."""

_log = logging.getLogger(__name__)


class VoiceConnection(WebSocketsSansIOProtocol):
    """A WebSocket. Belongs to the event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = CLOSE_TIMEOUT_S
        self._heard = False
        """Something came since the last ping."""
        self._abort_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        self._heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """No answer to the ping: the end, unless there are other signs of life."""
        if self._heard or self.read_paused:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._abort_later()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        super().on_task_complete(task)
        self._abort_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.handshake_complete and self.conn.close_rcvd is None:
            # uvicorn has one code for a connection that broke and a client that gave no code.
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().connection_lost(exc)

    def _abort_later(self) -> None:
        if self._abort_timer is None and not self.disconnected:
            self._abort_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


class HttpConnection(H11Protocol):
    """A connection before it becomes a WebSocket, if it does. Belongs to the event loop."""

    turned_away: ClassVar[int] = 0
    """Connections closed because of the limit, since the process began."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._upgraded = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._watch()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade(event)

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
        self._unwatch()
        self._end_stall()
        super().connection_lost(exc)

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request; this one, if no other."""
        waiting = [
            (other._request_timer.when(), id(other), other)
            for other in self.connections
            if isinstance(other, HttpConnection) and other._request_timer is not None
        ]
        number = HttpConnection.turned_away = HttpConnection.turned_away + 1
        if number & (number - 1) == 0:  # a flood must not fill the log as well
            _log.warning("too many connections: closed one without a request (%d so far)", number)
        _, _, oldest = min(waiting)
        oldest._unwatch()
        oldest.transport.abort()

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
