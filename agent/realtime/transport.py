"""Transport of one call over its client's sockets, from the first to the last.

Theory of operation: a session is independent of its connection. A call that can be resumed (the
client offered `halfsec.v1`) sends its client a token at the beginning. When a socket breaks, or
stops being read, the call goes on without one: audio for the client is dropped, no reply begins
(`agent/turn_taking/connection_handlers.py`), model and conversation stay. A client that presents
the token within `resume_s` gets the call, with what it had used of its limits. Its old socket may
still be open on the server's side, because the network lost it silently: it is released then, and
frames for it are dropped.

A new socket receives first: `session.updated` with the whole session; `halfsec.resumed` with the
newest items, and how many of the client's frames were processed, so that the client knows which of
them were lost; `halfsec.session` with the next token. There is no response in progress then, and no
frame of the old socket is sent again: the items show the result.

In a fleet (`agent.state_store`) a call may also go on at another server, from the state that
`agent/calls/state_writer.py` records: there it begins without a client, whose socket is the first
one. A server that stops leaves the record to others, so that its clients resume elsewhere.

A call that a client ends (any close code of its own), and one that is ended by the server, is over:
only a connection that breaks leaves a call that waits.

Ownership: everything of a call runs in the task of the handler that accepted its first socket,
which goes on when that socket is gone. Handlers of later ones hand theirs over (`come_back`) and
wait.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from agent import errors
from agent.calls.call import ActiveCall
from agent.calls.registry import CallRegistry
from agent.calls.service import CLIENT_LEFT, CLIENT_LOST, CallOver, LineReservation
from agent.errors import SlowReader
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import AppendAudio, Request
from agent.session.api.server_events import Extension, Notice, Problem, Resumed, SessionCreated
from agent.session.session import Session
from agent.tools.server_tool import ServerTool
from latency_budget.account.clock import Clock

from .resume_tokens import ResumeTokens
from .socket import CallSocket, SocketEnd

if TYPE_CHECKING:
    from agent.calls.state_writer import CallStateWriter, Snapshot, TakenOverCall

TAKEN_OVER: Final = "the call goes on at another connection"
NOTHING_TO_RESUME: Final = "there is no call to come back to; open a new one"
LEFT: Final = "the call goes on at another server; try again"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resuming:
    """Resumption of calls by clients that reconnect."""

    tokens: "ResumeTokens[RealtimeTransport]"
    wait_s: int
    """Time in s that a call waits for its client."""
    writer: "CallStateWriter | None" = None
    """Records the call's state for other servers; None: there are none."""


class RealtimeTransport:
    """A `CallTransport` over WebSockets. Belongs to the event loop."""

    def __init__(
        self,
        call: ActiveCall,
        reservation: LineReservation,
        calls: CallRegistry,
        protocol: RealtimeProtocol,
        resuming: "Resuming | None",
        socket: CallSocket,
        clock: Clock,
        taken_over: "TakenOverCall | None" = None,
    ) -> None:
        """`resuming`: None where the client can't resume. `socket`: the first one. `taken_over`:
        the call as another server left it."""
        self._call = call
        self._reservation = reservation
        self.is_extended: Final = socket.is_extended
        self.tools: Final[Mapping[str, ServerTool]] = {}
        self._first = socket
        self._pace: Final = socket.pace
        """Pace of the client, on each of its sockets. A call of another server begins with a new
        one."""
        self._calls = calls
        self._protocol = protocol
        self._resuming = resuming
        self._clock = clock
        self._socket: CallSocket | None = socket
        """The connected socket; None while the client is lost."""
        self._next: CallSocket | None = None
        """The socket that replaces it."""
        self._news = asyncio.Event()
        """Set when there is a next socket, or the call is given up."""
        self._given_up: str | None = None
        self._is_left = False
        """The call may go on at another server, where there are any."""
        self._is_over = False
        self._received = 0
        """Frames of the client that were processed."""
        self._token_arrived = True
        self._last_tokens: list[tuple[str, bytes]] = []
        """Tokens at the end of `serve`: they open the call elsewhere."""
        self._hung_up = False
        """The client ended the call."""
        self._writer: Final = None if resuming is None else resuming.writer
        if taken_over is not None and resuming is not None:
            head = taken_over.state.head
            self._socket, self._next = None, socket
            self._received = head.received
            protocol.resume(head.session_id, head.expires_at_unix_s)
            for token in head.tokens:
                if token.token_id == taken_over.token_id:
                    digest = bytes.fromhex(token.sha256)
                    resuming.tokens.adopt(self, reservation.key_id, token.token_id, digest)

    def notify(self, notice: Notice) -> None:
        """Send a notice to the client, if it is connected."""
        for frame in self._protocol.send(notice):
            if self._socket is not None:
                self._socket.put(frame)
        if isinstance(notice, SessionCreated):
            self._tell_token()
        if self._writer is not None and not isinstance(notice, Extension):
            self._writer.changed()

    async def serve(self, session: Session) -> NoReturn:
        """Carry the call from socket to socket. Raises CallOver where the client is gone for good,
        SlowReader where it does not read, IdleClientError where it sends nothing,
        CallTakenOverError where another server goes on with the call; in groups, perhaps."""
        if self._writer is None:
            await self._carry(session)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(lambda: self._snapshot(session)))
            await self._carry(session)

    async def _carry(self, session: Session) -> NoReturn:
        socket = self._socket or self._connect(session)
        try:
            while True:
                parting = await socket.carry(lambda frame: self._take(session, frame))
                self._hung_up = parting in (SocketEnd.HUNG_UP, SocketEnd.IDLE)
                if self._next is None or parting is SocketEnd.HUNG_UP:
                    wait_s = self._wait_s(parting)
                    session.client_lost()
                    await self._wait(socket, wait_s)
                else:
                    socket.release(errors.CLOSE_TAKEN_OVER, TAKEN_OVER)
                    session.client_lost()
                socket = self._connect(session)
        finally:
            self._is_over = True
            if self._resuming is not None:
                self._last_tokens = self._resuming.tokens.known(self)
                self._resuming.tokens.forget(self)

    async def holds(self) -> bool:
        """True unless another server has gone on with the call. The store is asked."""
        return self._writer is None or await self._writer.holds()

    def come_back(self, socket: CallSocket) -> None:
        """Continue the call on another socket of the client."""
        if self._is_over or self._given_up is not None:
            self._release_late(socket)
            return
        if self._next is not None:
            self._next.release(errors.CLOSE_TAKEN_OVER, TAKEN_OVER)
        self._next = socket
        self._calls.waiting.end(self)
        if self._socket is not None:
            self._socket.stop()
        self._news.set()

    def give_up(self, why: str) -> None:
        """Stop waiting for the client."""
        if self._next is None:
            self._given_up = why
            self._is_left = True
            self._news.set()
            self._reservation.leave()

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        """Once `serve` has ended: send the last notices and release the sockets. A call that the
        client may resume at another server is left to that."""
        self._is_over = True  # also of a call that never came to `serve`
        if self._resuming is not None:
            self._resuming.tokens.forget(self)
        is_stopped = code in (errors.CLOSE_DRAINING, errors.CLOSE_OVERLOADED)
        if is_stopped or (self._calls.draining and not self._hung_up):
            self._is_left = True
        if self._writer is not None and self._is_left:
            await self._writer.close(keeps=True)  # before its client looks for it elsewhere
        if self._next is not None:
            self._release_late(self._next)
        if self._socket is not None:
            frames = [frame for notice in last for frame in self._protocol.send(notice)]
            await self._socket.send_last(frames)
            self._socket.release(code, reason)
        self._first.release(code, reason)  # unless it has been, for another one
        if self._writer is not None:
            await self._writer.close(keeps=False)

    def _release_late(self, socket: CallSocket) -> None:
        """Release a socket that has come when the call was over here."""
        if self._is_left and self._writer is not None:
            socket.release(errors.CLOSE_OVERLOADED, LEFT)
        else:
            socket.release(errors.CLOSE_NOT_RESUMED, NOTHING_TO_RESUME)

    async def _take(self, session: Session, frame: str | bytes) -> Sequence[Request]:
        """Parse one frame. Returns its requests."""
        if not self._token_arrived and self._resuming is not None:
            self._token_arrived = True
            self._resuming.tokens.arrived(self)
        handled: list[Request] = []
        for request in self._protocol.receive(frame):
            if isinstance(request, Problem):
                self.notify(request)
            else:
                await session.handle(request, self._received)
                handled.append(request)
        self._received += 1
        if self._writer is not None and not all(
            isinstance(request, AppendAudio) for request in handled
        ):
            self._writer.changed()
        return handled

    def _wait_s(self, parting: SocketEnd) -> int:
        """Seconds to wait after a socket ended so. Raises where the call ends with it."""
        is_lost = parting in (SocketEnd.BROKE, SocketEnd.TOO_SLOW) and not self._calls.draining
        if is_lost and self._resuming is not None:
            return self._resuming.wait_s
        if parting is SocketEnd.TOO_SLOW:
            raise SlowReader
        if parting is SocketEnd.IDLE:
            raise errors.IdleClientError
        raise CallOver(CLIENT_LEFT)

    async def _wait(self, socket: CallSocket, wait_s: int) -> None:
        """Wait for the next socket. Raises CallOver where none comes."""
        self._socket = None
        socket.release(errors.CLOSE_OVERLOADED, "the connection is too slow")
        self._state("lost")
        _log.info("call %s lost its client, and waits for it", self._call.session_id)
        self._calls.waiting.begin(self, self._reservation.key_id)
        lost_ns = self._clock.now_ns()
        try:
            async with asyncio.timeout(wait_s):
                while self._next is None and self._given_up is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            if self._next is None:  # it may come back in the very pass of the loop
                self._given_up = "it did not come back"
        finally:
            self._calls.waiting.end(self)
        if self._next is None:
            raise CallOver(f"{CLIENT_LOST}, and {self._given_up}")
        away_s = (self._clock.now_ns() - lost_ns) / 1e9
        _log.info("call %s has its client back after %.1f s", self._call.session_id, away_s)

    def _connect(self, session: Session) -> CallSocket:
        """Continue with the next socket."""
        socket, self._next = self._next, None
        assert socket is not None
        socket.go_on(self._pace)
        self._socket = socket
        will_answer = session.will_answer
        items = tuple(session.conversation)
        self.notify(Resumed(session.settings, items, self._received, will_answer))
        self._tell_token()
        self._calls.waiting.num_back += 1
        self._state("back")
        session.client_back()
        return socket

    def _tell_token(self) -> None:
        if self._resuming is None:
            return
        self._token_arrived = False
        told = {
            "session": self._call.session_id,
            "resume_token": self._resuming.tokens.issue(self, self._reservation.key_id),
            "resume_s": self._resuming.wait_s,
        }
        self.notify(Extension("halfsec.session", told))
        if self._writer is not None:
            self._writer.changed()

    def _snapshot(self, session: Session) -> "Snapshot":
        """State of the call at this moment. Requests that the session has deferred are not in it:
        it counts the frames before the first of these, and another server gets the others from the
        client again."""
        assert self._resuming is not None
        tokens = self._resuming.tokens.known(self) or self._last_tokens
        deferred = session.first_deferred
        received = self._received if deferred is None else deferred
        return session.state(), received, tokens

    def _state(self, state: str) -> None:
        self._call.is_waiting = state == "lost"
        self._calls.events.publish("session", self._call.session_id, lambda: {"state": state})
        self._calls.tell_state(self._call)
