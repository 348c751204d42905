"""Connection of the Python client, which reconnects and resumes the call when it breaks.

Theory of operation: nothing runs in the background. The task that finds the connection broken,
while it reads events or sends, opens the next one; others wait for it. With a server that speaks
`halfsec.v1` the call goes on (`Resumed`): the server reports how many of the client's frames it has
processed, and those after them are sent again, except audio and what concerned a moment that is
over. Otherwise it is another call (`Restarted`), which knows nothing of the first; the session is
set as it was.

Audio in between is dropped, not kept: an answer to a question of ten seconds ago comes too late,
and a burst of old audio would be taken for the caller's present voice.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed

from agent.errors import CLOSE_NORMAL, CLOSE_POLICY, CLOSE_TAKEN_OVER

from . import events as ev
from .dial import Connection, Dial
from .errors import CallEndedError, ConnectError, NothingToResumeError

FIRST_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 5.0
"""Longest pause between attempts; the first attempt comes at once. Longer pauses would miss much of
the time for which the server keeps a call."""
GIVE_UP_S: Final = 120.0
"""Time without a connection after which the call is over. A server that is being replaced takes
half of it to drain, and half to load its models."""
MAX_KEPT: Final = 256
KEPT_S: Final = 60.0
"""Greatest number and age of frames that may have to be sent again: those that a broken network
holds are younger."""
MAX_PENDING_EVENTS: Final = 64
"""Events of the connection that wait for `events`; the oldest are dropped."""

SENT_AGAIN: Final = frozenset(
    {
        "session.update",
        "conversation.item.create",
        "conversation.item.delete",
        "conversation.item.retrieve",
        "conversation.item.truncate",
        "input_audio_buffer.commit",
        "response.create",
    }
)

_FINAL: Final = (CLOSE_NORMAL, CLOSE_POLICY, CLOSE_TAKEN_OVER)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Sent:
    number: int
    """Number among all frames of the call, from 1."""
    at_ns: int
    event: Mapping[str, Any]


class ClientLine:
    """Connection of one call, replaced when it breaks."""

    def __init__(
        self, dial: Dial, first: Connection, *, reconnects: bool, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.session: dict[str, Any] = first.session.session
        self.closed: ev.Closed | None = None
        """The end of the call; None before it."""
        self.pending_events: deque[ev.ClientEvent] = deque(maxlen=MAX_PENDING_EVENTS)
        """Events of the connection itself that `Call.events` has not yielded yet."""
        self.extensions = first.extensions
        self.connection = first
        self.reconnects = reconnects
        self.wanted: dict[str, Any] = {}
        """Session fields that the client has set."""
        self._dial = dial
        self._sleep = sleep
        self._clock = dial.clock
        self._lock = asyncio.Lock()
        self.token: str | None = None
        """Token that resumes the call."""
        self._num_sent = 0
        self._num_waiting = 0
        """Senders that wait for a connection. They send in the order in which they came, before
        those that come when there is one."""
        self._kept: deque[_Sent] = deque(maxlen=MAX_KEPT)
        self._lost_ns: int | None = None

    @property
    def socket(self) -> websockets_client.ClientConnection:
        return self.connection.socket

    @property
    def is_up(self) -> bool:
        """False where the connection is known to be broken."""
        return self._lost_ns is None and self.closed is None

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an event. Waits while the network is full, and while there is no connection. Events
        on their way to a call that could not be resumed are lost. Raises CallEndedError."""
        if not self.is_up or self._num_waiting:
            self._num_waiting += 1
            try:
                await self.restore(self.socket)
            finally:
                self._num_waiting -= 1
        socket = self.socket
        try:
            await self._put(event)
        except ConnectionClosed as closed:
            self.note_loss(socket, closed)
            await self.restore(socket)

    async def send_now(self, event: Mapping[str, Any]) -> bool:
        """Send an event, or drop it where there is no connection. Returns True where it was
        sent."""
        if self.closed is not None:
            raise self._ended()
        if not self.is_up or self._num_waiting:
            return False
        socket = self.socket
        try:
            await self._put(event)
        except ConnectionClosed as closed:
            self.note_loss(socket, closed)
            if self.closed is not None:
                raise self._ended() from None
            return False
        return True

    async def restore(self, broken: websockets_client.ClientConnection) -> None:
        """Replace this connection, unless another task has. Tasks return in the order in which they
        called. Raises CallEndedError where the call is over."""
        async with self._lock:
            if self.socket is broken and self._lost_ns is not None and self.closed is None:
                await self._restore()
        if self.closed is not None:
            raise self._ended()

    async def hang_up(self) -> None:
        """Close the connection, and do not reconnect."""
        self.reconnects = False
        await self.socket.close()

    async def _put(self, event: Mapping[str, Any]) -> None:
        self._num_sent += 1
        now_ns = self._clock.now_ns()
        if event.get("type") in SENT_AGAIN:
            self._kept.append(_Sent(self._num_sent, now_ns, event))
        await self.socket.send(json.dumps(event))

    def note_loss(
        self, broken: websockets_client.ClientConnection, closed: ConnectionClosed
    ) -> None:
        """Mark this connection as broken: the call is over, or `restore` replaces it."""
        if broken is not self.socket or not self.is_up:
            return
        close = closed.rcvd or closed.sent
        code, reason = (close.code, close.reason) if close else (None, "connection lost")
        if not self.reconnects or (closed.rcvd is not None and code in _FINAL):
            self._end(code, reason)
            return
        self._lost_ns = now_ns = self._clock.now_ns()
        self.pending_events.append(ev.Reconnecting(reason or f"close code {code}", now_ns))

    async def _restore(self) -> None:
        assert self._lost_ns is not None
        gives_up_ns = self._lost_ns + round(GIVE_UP_S * 1e9)
        pause_s = 0.0
        while True:
            if pause_s:
                await self._sleep(pause_s * random.uniform(0.75, 1.25))
            try:
                connection = await self._dial.open(self.token)
                break
            except NothingToResumeError:
                self.token = None
                continue
            except ConnectError as error:
                after_s = error.retry_after_s or 0.0
                is_late = self._clock.now_ns() + after_s * 1e9 > gives_up_ns
                if is_late or not (self.reconnects and error.may_pass):
                    self._end(None, f"connection lost; {error}")
                    return
            pause_s = max(min(MAX_PAUSE_S, pause_s * 2 or FIRST_PAUSE_S), after_s)
        if not self.reconnects:  # hung up meanwhile
            await connection.socket.close()
            self._end(CLOSE_NORMAL, "")
            return
        self.connection = connection
        self.session = connection.session.session
        self.extensions = connection.extensions
        try:
            await (self._go_on(connection.resumed) if connection.resumed else self._start_anew())
        finally:
            self._lost_ns = None  # only now others may send: both sides count frames in their order

    async def _go_on(self, resumed: ev.Resumed) -> None:
        """Go on with the same call: send the lost frames again."""
        self.pending_events.append(resumed)
        oldest_ns = self._clock.now_ns() - round(KEPT_S * 1e9)
        kept = [each for each in self._kept if each.number > resumed.received]
        self._num_sent = resumed.received
        self._kept.clear()
        await self._resend([each.event for each in kept if each.at_ns >= oldest_ns])

    async def _start_anew(self) -> None:
        """Begin another call, with the session fields of the first."""
        self.token = None
        self._num_sent = 0
        self._kept.clear()
        self.pending_events.append(ev.Restarted(self.session, self._clock.now_ns()))
        if self.wanted:
            session = {"type": "realtime", **self.wanted}
            await self._resend([{"type": "session.update", "session": session}])

    async def _resend(self, events: list[Mapping[str, Any]]) -> None:
        """Send the first frames of a connection. All are kept before the first is sent: those that
        the connection does not take before it breaks are sent on the next one."""
        now_ns = self._clock.now_ns()
        for event in events:
            self._num_sent += 1
            self._kept.append(_Sent(self._num_sent, now_ns, event))
        try:
            for event in events:
                await self.socket.send(json.dumps(event))
        except ConnectionClosed:
            pass  # the next user of the connection finds it broken
        except asyncio.CancelledError:
            self.socket.transport.abort()  # likewise
            raise

    def _end(self, code: int | None, reason: str) -> None:
        self.closed = ev.Closed(code, reason, self._clock.now_ns())

    def _ended(self) -> CallEndedError:
        assert self.closed is not None
        code = "" if self.closed.code is None else f"{self.closed.code} "
        return CallEndedError(f"The call has ended: {code}{self.closed.reason}.")


_MERGED: Final = ("audio", "input", "output", "halfsec")
"""Objects of a session whose fields are changed one by one. Others are replaced as a whole."""


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Session fields after further changes."""
    result = dict(before)
    for name, value in changes.items():
        if name in _MERGED and isinstance(value, Mapping):
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result
