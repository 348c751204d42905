"""The Python client: a call as an async context manager.

    async with connect("ws://127.0.0.1:8080/v1/realtime") as call:
        await call.send_text("Hello!")
        async for event in call.events():
            ...

It speaks the same dialect as every other client, so it also calls other servers that do; what
`halfsec.v1` adds (partial transcripts, ducking, turn reports, playback reports) is offered, and
used only if taken. Nothing runs in the background: frames wait in the socket, which stops reading
from the network when `MAX_WAITING` of them have not been taken, and sending waits while the network
is full.
A caller that takes no events for 40 s is hung up on by the keepalive.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import httpx
import numpy as np
import numpy.typing as npt
import soxr
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidURI
from websockets.typing import Subprotocol

from latency_budget.clock import Clock, SystemClock

from .address import VOICE_PATH
from .client_errors import CallEndedError, ConnectError, handshake_error
from .client_events import ClientEvent, Closed, EventReader, ServerError, SessionUpdated
from .settings import WIRE_RATE_HZ, AudioEncoding
from .wire.encodings import encode_audio
from .wire.realtime.session_json import ENCODINGS

EXTENSIONS: Final = "halfsec.v1"
MAX_FRAME_BYTES: Final = 4 << 20
"""Of one frame of the server; the largest, 200 ms of audio, has 13 kB."""
MAX_WAITING: Final = 64
"""Frames received but not taken: 10 s of audio. More would only hide a caller that has stalled."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
"""Between attempts at a server that does not listen yet, or does not say when to come back."""
AUDIO_CHUNK_S: Final = 1
"""Longer recordings go out in several frames, each well below any server's limit."""


class Call:
    """One call. Any task may send; one at a time may iterate `events`."""

    def __init__(
        self, socket: websockets_client.ClientConnection, first: SessionUpdated, clock: Clock
    ) -> None:
        """`connect` makes these."""
        self.session: dict[str, Any] = first.session
        """The full effective session, as the server said last."""
        self.extensions: bool = socket.subprotocol == EXTENSIONS
        """Whether the server took up `halfsec.v1`."""
        self._socket = socket
        self._clock = clock
        self._reader = EventReader()
        self._encoding = _input_encoding(first.session, "pcm16")
        self._resampler: tuple[int, int, soxr.ResampleStream] | None = None

    @property
    def session_id(self) -> str:
        return str(self.session.get("id", ""))

    @property
    def input_rate_hz(self) -> int:
        """Audio at this rate is sent as it is."""
        return WIRE_RATE_HZ[self._encoding]

    async def events(self) -> AsyncIterator[ClientEvent]:
        """Everything that happens, in order; the last one is `Closed`. Raises nothing."""
        while True:
            try:
                frame = await self._socket.recv()
            except ConnectionClosed as closed:
                told = closed.rcvd or closed.sent
                code, reason = (told.code, told.reason) if told else (None, "connection lost")
                yield Closed(code, reason, self._clock.now_ns())
                return
            event = self._reader.read(frame, self._clock.now_ns())
            if isinstance(event, SessionUpdated):
                self.session = event.session
            if event is not None:
                yield event

    async def send_audio(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        """Speech of the caller: int16 [n], mono. Another rate than the session's is resampled as
        one stream, 5..30 ms late. Raises ValueError for another shape, CallEndedError."""
        if pcm.dtype != np.int16 or pcm.ndim != 1:
            raise ValueError(f"audio is int16 [n], not {pcm.dtype} {list(pcm.shape)}")
        wire_hz = self.input_rate_hz
        if rate_hz != wire_hz:
            if self._resampler is None or self._resampler[:2] != (rate_hz, wire_hz):
                self._resampler = rate_hz, wire_hz, _resample_stream(rate_hz, wire_hz)
            pcm = self._resampler[2].resample_chunk(pcm)
        await self._append(pcm)

    async def _append(self, pcm: npt.NDArray[np.int16]) -> None:
        wire_hz = self.input_rate_hz
        for first in range(0, len(pcm), wire_hz * AUDIO_CHUNK_S):
            data = encode_audio(pcm[first : first + wire_hz * AUDIO_CHUNK_S], self._encoding)
            audio = base64.b64encode(data).decode("ascii")
            await self.send({"type": "input_audio_buffer.append", "audio": audio})

    async def commit_audio(self) -> None:
        """End of the caller's turn, where the session has no turn detection."""
        if self._resampler is not None:
            _, _, stream = self._resampler
            self._resampler = None
            await self._append(stream.resample_chunk(np.zeros(0, np.int16), last=True))
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
        await self.send({"type": "session.update", "session": {"type": "realtime", **session}})
        self._encoding = _input_encoding(session, self._encoding)

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
        await self.send({"type": "halfsec.playback", "item_id": item_id, "played_ms": played_ms})

    async def send(self, event: Mapping[str, Any]) -> None:
        """Any client event, as JSON. Raises CallEndedError."""
        try:
            await self._socket.send(json.dumps(event))
        except ConnectionClosed as closed:
            raise CallEndedError(f"The call has ended: {closed}.") from None

    async def close(self) -> None:
        """Hang up. `events` ends with `Closed`."""
        await self._socket.close()


@asynccontextmanager
async def connect(
    url: str = "ws://127.0.0.1:8080/v1/realtime",
    *,
    model: str | None = None,
    api_key: str | Callable[[], str | None] | None = None,
    extensions: bool = True,
    wait_s: float = 0.0,
    on_wait: Callable[[ConnectError], None] | None = None,
    tls: ssl.SSLContext | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Call]:
    """Open a call; it is hung up at the end of the block.

    `url` may be http(s) too, and without a path it means `/v1/realtime`. For `wait_s` seconds a
    server that does not listen yet, warms up or is full is asked again; before each pause `on_wait`
    is told why. `api_key` may be a function that finds the key, which is asked before each attempt.
    Raises ConnectError.
    """
    clock = SystemClock() if clock is None else clock
    address = _socket_url(url, model)
    deadline_ns = clock.now_ns() + round(wait_s * 1e9)
    while True:
        key = api_key() if callable(api_key) else api_key
        try:
            call = await _open(address, key, extensions, tls, clock)
            break
        except ConnectError as error:
            if error.status == 401 and callable(api_key) and api_key() != key:
                continue  # the server has just started, and left another
            pause_s = RETRY_S if error.retry_after_s is None else error.retry_after_s
            if not error.passes or clock.now_ns() + pause_s * 1e9 > deadline_ns:
                raise
            if on_wait is not None:
                on_wait(error)
            await asyncio.sleep(pause_s)
    try:
        yield call
    finally:
        await call.close()


async def _open(
    address: str, api_key: str | None, extensions: bool, tls: ssl.SSLContext | None, clock: Clock
) -> Call:
    offered = [Subprotocol("realtime")]
    if extensions:
        offered.insert(0, Subprotocol(EXTENSIONS))
    parts = urlsplit(address)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    try:
        socket = await websockets_client.connect(
            address,
            subprotocols=offered,
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            compression=None,
            max_size=MAX_FRAME_BYTES,
            max_queue=MAX_WAITING,
            open_timeout=HANDSHAKE_TIMEOUT_S,
            ssl=(tls or True) if parts.scheme == "wss" else None,
            proxy=None if local else True,
        )
    except (OSError, InvalidHandshake, InvalidURI, InvalidProxy) as error:
        raise handshake_error(address, error) from None
    try:
        first = await _greeting(socket, address, clock)
    except BaseException:
        await socket.close()
        raise
    return Call(socket, first, clock)


async def _greeting(
    socket: websockets_client.ClientConnection, address: str, clock: Clock
) -> SessionUpdated:
    """The `session.created` that comes first. Raises ConnectError."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            frame = await socket.recv()
    except TimeoutError:
        raise ConnectError(f"{address} took the call but says nothing.") from None
    except ConnectionClosed as closed:
        told = closed.rcvd
        why = f"{told.code} {told.reason}".strip() if told else "connection lost"
        raise ConnectError(f"{address} took the call and hung up: {why}.") from None
    first = EventReader().read(frame, clock.now_ns())
    if isinstance(first, ServerError):
        raise ConnectError(f"{address} answers: {first.message}")
    if not isinstance(first, SessionUpdated):
        raise ConnectError(f"{address} does not speak the Realtime dialect.")
    return first


def _resample_stream(rate_hz: int, wire_hz: int) -> soxr.ResampleStream:
    """The variable-rate engine holds back 5..30 ms of 20 ms pieces, the other one 37..157 ms."""
    return soxr.ResampleStream(rate_hz, wire_hz, 1, "int16", quality="HQ", vr=True)


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
    parts = _parse(base_url)
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


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port that is no number
    except ValueError as error:
        raise ConnectError(f"{url!r} is no address: {error}.") from None
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise ConnectError(f"{url!r} is no address of a server: use ws://HOST:PORT.")
    return parts


def _socket_url(url: str, model: str | None) -> str:
    parts = _parse(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path if parts.path not in ("", "/") else VOICE_PATH
    query = parse_qsl(parts.query, keep_blank_values=True)
    if model is not None:
        query = [(name, value) for name, value in query if name != "model"] + [("model", model)]
    return urlunsplit((scheme, parts.netloc, path, urlencode(query), ""))


def _input_encoding(session: Mapping[str, Any], before: AudioEncoding) -> AudioEncoding:
    """The input format that these fields of a session ask for, if they do."""
    wanted = session
    for name in ("audio", "input", "format"):
        wanted = wanted.get(name) or {}
    return ENCODINGS.get(str(wanted.get("type")), before)
