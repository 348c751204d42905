"""The Python client: a call as an async context manager.

    async with connect("ws://127.0.0.1:8080/v1/realtime") as call:
        await call.send_text("Hello!")
        async for event in call.events():
            ...

It uses the Realtime protocol, so it also calls other servers of that protocol. The extension
`halfsec.v1` (partial transcripts, ducking, turn reports, playback reports, resumption) is offered,
and used only if the server accepts it.

Backpressure: only tools run in the background. Frames wait in the socket, which stops reading from
the network when `MAX_WAITING` of them have not been read by `events`, and sending waits while the
network is full. A program that reads no events for 40 s loses the connection to the keepalive.

A connection that breaks is replaced (`connection.py`), unless `reconnect` is off: `events` yields
`Reconnecting`, then `Resumed`, `Restarted` or `Closed`. Meanwhile audio and playback reports are
dropped, and everything else waits.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import urlunsplit

import httpx
import numpy as np
import numpy.typing as npt
from websockets.exceptions import ConnectionClosed

from latency_budget.account.clock import Clock, SystemClock

from .audio import AudioSender
from .connection import ClientLine, Sleep, merged
from .dial import ApiKey, Connection, Dial, parse, socket_url
from .errors import CallEndedError, ConnectError
from .events import ClientEvent, EventReader, ResumeToken, SessionUpdated
from .tools import ClientTools

RETRY_S: Final = 1.0
"""Pause between attempts at a server that does not listen yet, or sends no Retry-After."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""Longest answer of `/readyz` that is read. It has some hundred bytes."""


class Call:
    """One call. Any task may send; one at a time may iterate `events`."""

    def __init__(self, line: ClientLine, group: asyncio.TaskGroup, clock: Clock) -> None:
        """Made by `connect`. `group`: for the tools' tasks."""
        self.tools = ClientTools(self, group)
        """Tools that this client runs for the agent."""
        self.extensions = line.extensions
        """True where the server accepted `halfsec.v1`."""
        self._line = line
        self._clock = clock
        self._reader = EventReader()
        self._audio = AudioSender(line)

    @property
    def session(self) -> dict[str, Any]:
        """The full effective session, as the server sent it last."""
        return self._line.session

    @property
    def session_id(self) -> str:
        return str(self.session.get("id", ""))

    @property
    def input_rate_hz(self) -> int:
        """Rate of the input format, in Hz. Audio at this rate is not resampled."""
        return self._audio.rate_hz

    async def events(self) -> AsyncIterator[ClientEvent]:
        """The events of the call, in order; the last one is `Closed`. Raises nothing. A broken
        connection is replaced while this iterator runs, or by a sender."""
        line, socket = self._line, self._line.socket

        def connection_events() -> list[ClientEvent]:
            """Take the events of the connection itself."""
            pending = list(line.pending_events)
            line.pending_events.clear()
            self.extensions = line.extensions
            for event in pending:
                self.tools.take(event)
            return pending

        while True:
            try:
                frame = await socket.recv()
            except ConnectionClosed as closed:
                line.note_loss(socket, closed)
                for event in connection_events():
                    yield event
                with contextlib.suppress(CallEndedError):
                    await line.restore(socket)
                for event in connection_events():
                    yield event
                if line.closed is not None:
                    yield line.closed
                    return
                socket = line.socket
                continue
            read = self._reader.read(frame, self._clock.now_ns())
            if isinstance(read, SessionUpdated):
                line.session = read.session
            if isinstance(read, ResumeToken):
                line.token = read.token
            elif read is not None:
                self.tools.take(read)
                yield read

    async def send_audio(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> bool:
        """Send speech of the caller: int16 [n], mono. Another rate than the session's is resampled
        as one stream, 5..30 ms late. Returns False where there is no connection now, and it was
        dropped. Raises ValueError for another shape, CallEndedError."""
        return await self._audio.send(pcm, rate_hz)

    async def commit_audio(self) -> None:
        """End the caller's turn, where the session has no turn detection."""
        await self._audio.finish()
        await self.send({"type": "input_audio_buffer.commit"})

    async def send_text(self, text: str, *, reply: bool = True) -> None:
        """Send a typed message, and by default the request to answer it."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send({"type": "conversation.item.create", "item": item})
        if reply:
            await self.create_reply()

    async def create_reply(self, **options: Any) -> None:
        """Request a reply. `options`: fields of `response.create` (instructions, ...)."""
        await self.send({"type": "response.create", "response": options})

    async def update(self, **session: Any) -> None:
        """Change fields of the session; `SessionUpdated` or `ServerError` answers. Audio sent after
        this is in the new input format, if there is one."""
        self._line.wanted = merged(self._line.wanted, session)
        await self.send({"type": "session.update", "session": {"type": "realtime", **session}})
        self._audio.follow(session)

    async def cancel(self) -> None:
        """Stop the reply in progress."""
        await self.send({"type": "response.cancel"})

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        """Report how much of a reply was heard; its rest is removed from the conversation."""
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": audio_end_ms,
            }
        )

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        """Report how much of a reply was played. Only with `extensions`."""
        report = {"type": "halfsec.playback", "item_id": item_id, "played_ms": played_ms}
        await self._line.send_now(report)

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send any client event, as JSON. Waits while there is no connection. Raises
        CallEndedError."""
        await self._line.send(event)

    async def close(self) -> None:
        """Hang up. `events` ends with `Closed`."""
        await self._line.hang_up()


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `connect`."""

    model: str | None
    """Name of the agent that answers."""
    api_key: ApiKey
    """A key, or a function that returns one or mints a client secret; called before each
    attempt."""
    extensions: bool
    """Offer `halfsec.v1`. Without it a call can't be resumed."""
    reconnect: bool
    """Resume the call when the connection breaks, or begin another one. The default."""
    wait_s: float
    """Seconds for which attempts are repeated at a server that does not listen yet, warms up or is
    full."""
    on_wait: Callable[[ConnectError], None] | None
    """Called with the reason before each pause."""
    tls: ssl.SSLContext | None
    clock: Clock | None
    sleep: Sleep
    """Used between attempts; tests pass their own."""


@asynccontextmanager
async def connect(
    url: str = "ws://127.0.0.1:8080/v1/realtime", **options: Unpack[ConnectOptions]
) -> AsyncIterator[Call]:
    """Open a call, and hang up at the end of the block. `url` may be http(s) too; without a path it
    means `/v1/realtime`. Raises ConnectError."""
    clock = options.get("clock") or SystemClock()
    address = socket_url(url, options.get("model"))
    extensions = options.get("extensions", True)
    dial = Dial(address, options.get("api_key"), extensions, options.get("tls"), clock)
    first = await _first(dial, options)
    sleep = options.get("sleep", asyncio.sleep)
    line = ClientLine(dial, first, reconnects=options.get("reconnect", True), sleep=sleep)
    group = asyncio.TaskGroup()  # entered by hand: an error in the block is raised as it is
    await group.__aenter__()
    call = Call(line, group, clock)
    try:
        yield call
    finally:
        call.tools.stop()
        try:
            await call.close()
        finally:
            await group.__aexit__(None, None, None)


async def _first(dial: Dial, options: ConnectOptions) -> Connection:
    clock, sleep = dial.clock, options.get("sleep", asyncio.sleep)
    on_wait = options.get("on_wait")
    deadline_ns = clock.now_ns() + round(options.get("wait_s", 0.0) * 1e9)
    while True:
        try:
            return await dial.open()
        except ConnectError as error:
            pause_s = RETRY_S if error.retry_after_s is None else error.retry_after_s
            if not error.passes or clock.now_ns() + pause_s * 1e9 > deadline_ns:
                raise
            if on_wait is not None:
                on_wait(error)
            await sleep(pause_s)


async def wait_ready(
    base_url: str = "http://127.0.0.1:8080",
    timeout_s: float = 60.0,
    *,
    poll_s: float = 0.25,
    clock: Clock | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> dict[str, Any]:
    """Poll `/readyz` until it answers 200. Returns its JSON. Raises ConnectError with the last
    answer."""
    clock = SystemClock() if clock is None else clock
    deadline_ns = clock.now_ns() + round(timeout_s * 1e9)
    parts = parse(base_url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    url = urlunsplit((scheme, parts.netloc, "/readyz", "", ""))
    async with httpx.AsyncClient(transport=transport, timeout=5.0, trust_env=False) as http:
        while True:
            try:
                status, body = await _fetched(http, url)
                if status == 200:
                    return dict(json.loads(body))
                last = f"HTTP {status}: {body.decode(errors='replace')[:300]}"
            except (httpx.HTTPError, ValueError, TypeError, RecursionError) as error:
                last = f"{type(error).__name__}: {error}"
            if clock.now_ns() >= deadline_ns:
                raise ConnectError(
                    f"{url} was not ready within {timeout_s:g} s. Its last answer: {last}"
                )
            await asyncio.sleep(poll_s)


async def _fetched(http: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
    """Status and body of an answer. Raises httpx.HTTPError, and ValueError for one that is too long
    or compressed, which would have any length."""
    async with http.stream("GET", url, headers={"accept-encoding": "identity"}) as answer:
        if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ValueError("the answer is compressed")
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        return answer.status_code, bytes(body)
