"""Connection set-up of the Python client: address, key, handshake and first frames."""

import asyncio
import inspect
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidURI
from websockets.typing import Subprotocol

from agent.config.local_urls import VOICE_PATH
from agent.errors import CLOSE_NOT_RESUMED
from latency_budget.account.clock import Clock

from .errors import ConnectError, NothingToResumeError, handshake_error
from .events import EventReader, Resumed, ServerError, SessionUpdated

EXTENSIONS: Final = "halfsec.v1"
MAX_FRAME_BYTES: Final = 4 << 20
"""Largest frame of the server; 200 ms of audio have 13 kB, the first frames of a resumed call at
most 1 MiB."""
MAX_WAITING: Final = 64
"""Frames received but not read: 10 s of audio. More would only hide a program that has stalled."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
MAX_KEYS: Final = 4
"""Keys that are tried in one attempt: a function that mints keys never runs out of them."""

ApiKey = str | Callable[[], str | Awaitable[str | None] | None] | None
"""A key, or a function that returns one, or mints an `ek_` secret: called before each attempt."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Result of a handshake."""

    socket: websockets_client.ClientConnection
    session: SessionUpdated
    resumed: Resumed | None = None
    """The resumed call, if it is one."""

    @property
    def extensions(self) -> bool:
        return self.socket.subprotocol == EXTENSIONS


@dataclass(frozen=True, slots=True)
class Dial:
    """Address and credentials of a call."""

    address: str
    api_key: ApiKey
    extensions: bool
    tls: ssl.SSLContext | None
    clock: Clock

    async def open(self, token: str | None = None) -> Connection:
        """Open a connection; with a token, resume its call. A key that has changed since it was
        refused is tried at once. Raises ConnectError, also for a key that is none, and
        NothingToResumeError."""
        key = await self._key()
        for is_last in [False] * (MAX_KEYS - 1) + [True]:
            try:
                return await self._open(key, token)
            except ConnectError as error:
                if is_last or error.status != 401 or not callable(self.api_key):
                    raise
                another = await self._key()
                if another == key:
                    raise
                key = another  # the server has just started, and has written another
        raise AssertionError

    async def _key(self) -> str | None:
        found = self.api_key() if callable(self.api_key) else self.api_key
        key = await found if inspect.isawaitable(found) else found
        if key and not re.fullmatch(r"[!-~]+", key):  # it would end its header, and begin others
            raise ConnectError("The API key has a blank, a line break or a letter that no key has.")
        return key

    async def _open(self, key: str | None, token: str | None) -> Connection:
        offered = [Subprotocol("realtime")]
        if self.extensions:
            offered.insert(0, Subprotocol(EXTENSIONS))
        parts = urlsplit(self.address)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        try:
            socket = await websockets_client.connect(
                self.address if token is None else _with(parts, "resume", token),
                subprotocols=offered,
                additional_headers={"Authorization": f"Bearer {key}"} if key else {},
                compression=None,
                max_size=MAX_FRAME_BYTES,
                max_queue=MAX_WAITING,
                open_timeout=HANDSHAKE_TIMEOUT_S,
                ssl=(self.tls or True) if parts.scheme == "wss" else None,
                proxy=None if local else True,
            )
        except (OSError, InvalidHandshake, InvalidURI, InvalidProxy) as error:
            raise handshake_error(self.address, error) from None
        try:
            return await self._greeting(socket, resumes=token is not None)
        except BaseException:
            await socket.close()
            raise

    async def _greeting(
        self, socket: websockets_client.ClientConnection, *, resumes: bool
    ) -> Connection:
        """Read the first frames: `session.created`; of a resumed call `session.updated` and
        `halfsec.resumed`. Raises ConnectError, NothingToResumeError."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                frames = [await socket.recv() for _ in range(2 if resumes else 1)]
        except TimeoutError:
            raise ConnectError(f"{self.address} accepted the call but sends nothing.") from None
        except ConnectionClosed as closed:
            close = closed.rcvd
            why = f"{close.code} {close.reason}".strip() if close else "connection lost"
            if close is not None and close.code == CLOSE_NOT_RESUMED:
                raise NothingToResumeError(why) from None
            raise ConnectError(f"{self.address} accepted the call and hung up: {why}.") from None
        first, *more = (EventReader().read(frame, self.clock.now_ns()) for frame in frames)
        if isinstance(first, ServerError):
            raise ConnectError(f"{self.address} answers: {first.message}")
        if not isinstance(first, SessionUpdated):
            raise ConnectError(f"{self.address} does not speak the Realtime protocol.")
        if not resumes:
            return Connection(socket, first)
        if not isinstance(more[0], Resumed):
            raise NothingToResumeError(f"{self.address} began another call.")
        return Connection(socket, first, more[0])


def parse(url: str) -> SplitResult:
    """Split the address of a server. Raises ConnectError for any other text."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port that is no number
    except ValueError as error:
        raise ConnectError(f"{url!r} is no address: {error}.") from None
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise ConnectError(f"{url!r} is no address of a server: use ws://HOST:PORT.")
    return parts


def socket_url(url: str, model: str | None) -> str:
    """Address of the voice socket. Raises ConnectError."""
    parts = parse(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path if parts.path not in ("", "/") else VOICE_PATH
    parts = parts._replace(scheme=scheme, path=path, fragment="")
    return urlunsplit(parts) if model is None else _with(parts, "model", model)


def _with(parts: SplitResult, name: str, value: str) -> str:
    query = [each for each in parse_qsl(parts.query, keep_blank_values=True) if each[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*query, (name, value)])))
