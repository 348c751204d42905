"""AudioSocket listener: Asterisk's calls over plain TCP, on a port of its own.

Theory of operation: a connection is presented to the endpoint as a WebSocket (ASGI). Its binary
messages are pieces of the TCP stream; its text messages are commands and marks between the protocol
(`agent/telephony/carriers/audiosocket.py`) and the queue here, which sends audio in real time
(`agent/telephony/media/paced_sender.py`). So admission, the description of calls, slow readers and
floods are handled as for all carriers: `endpoint.py`, `agent/realtime/socket.py`.

AudioSocket has neither keys nor encryption, and its UUID is chosen by the dialplan. Instead, the
listener binds only to the configured address, and closes connections from outside
`telephony.audiosocket_allow` before it reads a byte. An allowed peer brings many calls from one
address, so limits per address do not apply; the number of sessions does.

A peer that sends nothing may have a silent caller (see the protocol). TCP keep-alive probes detect
a dead peer.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.types import Message, Scope
from starlette.websockets import WebSocket

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.calls.stream_tokens import CallTokens
from agent.config.schema import Config
from agent.errors import CLOSE_NORMAL, CLOSE_TIMEOUT_S, ConfigError
from agent.http.auth.principal import SCOPE_KEY, Principal
from agent.http.peer_address import AUDIOSOCKET_ALLOW, asterisk_networks, is_within
from agent.telephony.carriers.audiosocket import (
    CARRIER,
    CLEAR,
    END,
    HANG_UP,
    AudioSocket,
    message,
)
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.media.paced_sender import PacedSender
from latency_budget.account.clock import Clock

from .endpoint import PhoneSocket
from .signatures import PhoneSignatures

READ_BYTES: Final = 4096
"""Largest read: a quarter of a second at 8 kHz."""

MAX_QUEUED_MS: Final = 10_000
"""Most audio in the queue. Sessions are `telephony.lead_ms` ahead, at most 5 s. If the peer does
not read, the queue grows to this limit; then sending blocks, and the peer is ended as a slow
reader."""

MAX_MARKS: Final = 256
"""Reached marks that are not delivered yet. Ten seconds have a hundred."""

PROBE_AFTER_S: Final = 10
PROBE_EVERY_S: Final = 5
MAX_PROBES: Final = 3
"""Keep-alive probes of an idle connection: after 25 s without an answer it is broken."""

BROKE: Final = 1006
"""Close code of a connection that broke."""

SPARE: Final = 16
"""Connections allowed beyond one for each session: some are opening or closing."""

ACCEPT_AGAIN_S: Final = 1.0
"""Pause after a failed accept: the system had no descriptor left."""

LEAST_PAUSE_S: Final = 0.001
"""Resolution of the event loop's timers."""

PEER: Final = Principal("an AudioSocket", "carrier")
"""Principal of every peer with an allowed address."""

_log = logging.getLogger(__name__)


class AudioSockets:
    """One listener. Belongs to the event loop."""

    def __init__(
        self, config: Config, calls: CallRegistry, clock: Clock, service: CallService
    ) -> None:
        """Raises ConfigError."""
        settings = config.telephony
        self._allowed = asterisk_networks(settings.audiosocket_allow)
        agent = settings.audiosocket_agent
        if agent and agent not in config.agents:
            raise ConfigError(
                f"telephony.audiosocket_agent: there is no agent {agent!r}; there are "
                f"{', '.join(config.agents)}.",
                key="telephony.audiosocket_agent",
            )
        self._carrier = replace(CARRIER, media_stream=partial(AudioSocket, agent))
        signatures = PhoneSignatures(settings)
        self._phones = PhoneSocket(config, calls, clock, service, CallTokens(clock), signatures)
        self._clock = clock
        self._most = config.agent.max_sessions + SPARE
        self._num_open = 0
        self._num_refused = 0

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until this is cancelled, which ends the calls as well."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    connection, (host, port, *_) = await loop.sock_accept(listener)
                except OSError as error:  # no descriptors are left, or the peer has gone
                    _log.warning("AudioSocket: can't accept a connection: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                if (why := self._refusal(host)) is not None:
                    connection.close()
                    self._log_refusal(host, why)
                    continue
                self._num_open += 1
                group.create_task(self._hold(connection, (host, port)))

    def _refusal(self, host: str) -> str | None:
        if not is_within(host, self._allowed):
            return f"it is not in {AUDIOSOCKET_ALLOW}"
        return "too many connections" if self._num_open >= self._most else None

    def _log_refusal(self, host: str, why: str) -> None:
        """Log closed connections, at powers of two of their number."""
        self._num_refused += 1
        if self._num_refused & (self._num_refused - 1) == 0:
            _log.warning(
                "AudioSocket: closed a connection from %s: %s (%d so far)",
                host, why, self._num_refused,
            )  # fmt: skip

    async def _hold(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        stream: AudioStream | None = None
        try:
            _probe(connection)  # some systems refuse options of a connection that is gone
            reader, writer = await asyncio.open_connection(sock=connection)
            stream = AudioStream(reader, writer, self._clock)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(each) for each in (stream.play(), stream.read())]
                websocket = WebSocket(_scope(peer), stream.receive, stream.send)
                await self._phones.serve(websocket, self._carrier)
                for task in running:
                    task.cancel()
        except Exception:
            _log.exception("AudioSocket: a connection from %s failed", peer[0])
        finally:
            self._num_open -= 1
            if stream is None:
                connection.close()
            else:
                await stream.close()


class AudioStream:
    """One connection as an ASGI WebSocket: `receive` and `send`, while `play` and `read` run."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._pause = pause
        self._queue = PacedSender()
        self._changed = asyncio.Event()
        """The queue was filled or emptied."""
        self._marks: deque[str] = deque(maxlen=MAX_MARKS)
        """Reached marks, not delivered yet."""
        self._pieces = asyncio.Queue[Message](maxsize=1)
        """What the peer sent, not delivered yet: nothing more is read until it is."""
        self._arrived = asyncio.Event()
        """A mark or a piece was added."""
        self._is_connected = False

    async def receive(self) -> Message:
        """Next message of the peer, or its disconnect; reached marks come first, also while the
        peer sends nothing."""
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        while not self._marks and self._pieces.empty():
            self._arrived.clear()
            await self._arrived.wait()
        if self._marks:
            return {"type": "websocket.receive", "text": self._marks.popleft()}
        return self._pieces.get_nowait()

    async def read(self) -> None:
        """Read what the peer sends, up to its disconnect."""
        is_connected = True
        while is_connected:
            piece = await self._piece()
            is_connected = piece["type"] != "websocket.disconnect"
            await self._pieces.put(piece)
            self._arrived.set()

    async def send(self, answer: Message) -> None:
        """Send to the peer. Raises OSError once it is gone."""
        if answer["type"] == "websocket.send":
            await self._put(answer.get("text") or answer["bytes"])
        elif answer["type"] != "websocket.accept":
            self._writer.close()  # refused, or over

    async def play(self) -> None:
        """Send queued audio in real time until this is cancelled or the peer is gone."""
        with contextlib.suppress(OSError):
            while True:
                due_ns = self._queue.next_due_ns()
                if due_ns is None:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                now_ns = self._clock.now_ns()
                for frame in self._queue.take(now_ns):
                    if isinstance(frame, str):
                        self._marks.append(frame)
                        self._arrived.set()
                    else:
                        self._writer.write(frame)
                self._changed.set()
                await self._writer.drain()
                if due_ns > now_ns:
                    await self._pause(max(LEAST_PAUSE_S, (due_ns - now_ns) / 1e9))

    async def close(self) -> None:
        """Close the connection, even if the peer does not read."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _piece(self) -> Message:
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError:
            return {"type": "websocket.disconnect", "code": BROKE}
        if not data:
            return {"type": "websocket.disconnect", "code": CLOSE_NORMAL}
        return {"type": "websocket.receive", "bytes": data}

    async def _put(self, frame: Frame) -> None:
        if frame == END:
            self._queue.put(CLEAR, self._clock.now_ns())
            self._writer.write(message(HANG_UP))
            return
        if frame == CLEAR:
            self._queue.put(frame, self._clock.now_ns())
            self._changed.set()
            return
        while self._queue.queued_ms > MAX_QUEUED_MS:
            self._changed.clear()
            await self._changed.wait()
        if self._writer.is_closing():
            raise ConnectionResetError
        self._queue.put(frame, self._clock.now_ns())
        self._changed.set()


def _probe(connection: socket.socket) -> None:
    """Enable TCP keep-alive."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    gone_after_ms = 1000 * (PROBE_AFTER_S + MAX_PROBES * PROBE_EVERY_S)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_S),
        ("TCP_KEEPINTVL", PROBE_EVERY_S),
        ("TCP_KEEPCNT", MAX_PROBES),
        ("TCP_USER_TIMEOUT", gone_after_ms),  # for unacknowledged data
    ):
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _scope(peer: tuple[str, int]) -> Scope:
    scope: dict[str, Any] = {
        "type": "websocket",
        "path": "AudioSocket",
        "headers": [],
        "subprotocols": [],
        "client": peer,
        "extensions": {"websocket.http.response": {}},  # refusals come before the handshake
        SCOPE_KEY: PEER,
    }
    return scope
