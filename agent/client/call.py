"""The Python client: a call as an async context manager.

    async with connect("ws://127.0.0.1:8080/v1/realtime") as call:
        await call.send_text("Hello!")
        async for event in call.events():
            ...

It speaks the same dialect as every other client, so it also calls other servers that do; what
`halfsec.v1` adds (partial transcripts, ducking, turn reports, playback reports, coming back) is
offered, and used only if taken.

Backpressure: nothing runs in the background but tools. Frames wait in the socket, which stops
reading from the network when `MAX_WAITING` of them have not been taken, and sending waits while the
network is full. A caller that takes no events for 40 s loses the connection to the keepalive.

A connection that breaks is replaced (`connection.py`), unless `reconnect` is off: `Reconnecting`
is told, then `Resumed`, `Restarted` or `Closed`. Meanwhile audio and reports of playback are
dropped, and everything else waits.
"""

import asyncio
import contextlib
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
"""Between attempts at a server that does not listen yet, or does not say when to come back."""


class Call:
    """One call. Any task may send; one at a time may iterate `events`."""

    def __init__(self, line: ClientLine, group: asyncio.TaskGroup, clock: Clock) -> None:
        """`connect` makes these. `group` is for the tools' tasks."""
        self.tools = ClientTools(self, group)
        """What this client can do for the agent."""
        self.extensions = line.extensions
        """Whether the server took up `halfsec.v1`."""
        self._line = line
        self._clock = clock
        self._reader = EventReader()
        self._audio = AudioSender(line)

    @property
    def session(self) -> dict[str, Any]:
        """The full effective session, as the server said last."""
        return self._line.session

    @property
    def session_id(self) -> str:
        return str(self.session.get("id", ""))

    @property
    def input_rate_hz(self) -> int:
        """Audio at this rate is sent as it is."""
        return self._audio.rate_hz

    async def events(self) -> AsyncIterator[ClientEvent]:
        """Everything that happens, in order; the last one is `Closed`. Raises nothing. Taking
        events is also what brings a broken call back."""
        line, socket = self._line, self._line.socket

        def told() -> list[ClientEvent]:
            """What has become of the line."""
            news = list(line.told)
            line.told.clear()
            self.extensions = line.extensions
            for event in news:
                self.tools.take(event)
            return news

        while True:
            try:
                frame = await socket.recv()
            except ConnectionClosed as closed:
                line.note_loss(socket, closed)
                for event in told():
                    yield event
                with contextlib.suppress(CallEndedError):
                    await line.restore(socket)
                for event in told():
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
        """Speech of the caller: int16 [n], mono. Another rate than the session's is resampled as
        one stream, 5..30 ms late. False where there is no connection now, and it was dropped.
        Raises ValueError for another shape, CallEndedError."""
        return await self._audio.send(pcm, rate_hz)

    async def commit_audio(self) -> None:
        """End of the caller's turn, where the session has no turn detection."""
        await self._audio.finish()
        await self.send({"type": "input_audio_buffer.commit"})

    async def send_text(self, text: str, *, reply: bool = True) -> None:
        """A typed message, and by default the request to answer it."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send({"type": "conversation.item.create", "item": item})
        if reply:
            await self.create_reply()

    async def create_reply(self, **options: Any) -> None:
        """`options` are fields of `response.create`: instructions, output_modalities, ..."""
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
        """Tell how much of a reply was heard; its rest is forgotten."""
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": audio_end_ms,
            }
        )

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        """How much of a reply has come out of the loudspeaker. Only with `extensions`."""
        report = {"type": "halfsec.playback", "item_id": item_id, "played_ms": played_ms}
        await self._line.send_now(report)

    async def send(self, event: Mapping[str, Any]) -> None:
        """Any client event, as JSON. Waits while there is no connection. Raises CallEndedError."""
        await self._line.send(event)

    async def close(self) -> None:
        """Hang up. `events` ends with `Closed`."""
        await self._line.hang_up()


class ConnectOptions(TypedDict, total=False):
    """How `connect` opens a call."""

    model: str | None
    """Which agent answers."""
    api_key: ApiKey
    """A function that finds the key, or mints a client secret, is asked before each attempt."""
    extensions: bool
    """Offer `halfsec.v1`. Without it a call can't be resumed."""
    reconnect: bool
    """Come back to the call when the connection breaks, or to another one. The default."""
    wait_s: float
    """For so long a server that does not listen yet, warms up or is full is asked again."""
    on_wait: Callable[[ConnectError], None] | None
    """Is told why, before each pause."""
    tls: ssl.SSLContext | None
    clock: Clock | None
    sleep: Sleep
    """Between attempts; tests have their own."""


@asynccontextmanager
async def connect(
    url: str = "ws://127.0.0.1:8080/v1/realtime", **options: Unpack[ConnectOptions]
) -> AsyncIterator[Call]:
    """Open a call; it is hung up at the end of the block. `url` may be http(s) too, and without a
    path it means `/v1/realtime`. Raises ConnectError."""
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
    """Ask `/readyz` until it says yes. Returns its JSON. Raises ConnectError with its last word."""
    clock = SystemClock() if clock is None else clock
    deadline_ns = clock.now_ns() + round(timeout_s * 1e9)
    parts = parse(base_url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    url = urlunsplit((scheme, parts.netloc, "/readyz", "", ""))
    async with httpx.AsyncClient(transport=transport, timeout=5.0, trust_env=False) as http:
        while True:
            try:
                answer = await http.get(url)
                if answer.status_code == 200:
                    return dict(answer.json())
                last = f"HTTP {answer.status_code}: {answer.text[:300]}"
            except (httpx.TransportError, ValueError, TypeError) as error:
                last = f"{type(error).__name__}: {error}"
            if clock.now_ns() >= deadline_ns:
                raise ConnectError(f"{url} was not ready within {timeout_s:g} s. It said: {last}")
            await asyncio.sleep(poll_s)
