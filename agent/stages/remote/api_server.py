"""A server with OpenAI's HTTP API: connections, requests, tries, failures, health.

Theory of operation. One pool of connections is kept for all calls; a request that is given up
closes its connection, which every known server takes for a cancellation. A request is tried again
only before its first byte of an answer that counts, and only where another try can help: a kept
connection that the server had closed, a server that is full and says for how long. Everything else
ends as `RemoteError` with a reason that can be shown to anybody: it holds no address, no header and
no key.

Health follows from the requests themselves: `failed` and `works` note how they ended. `watch` runs
the owner's probe: seldom while all is well, soon after a failure.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeVar

import httpx

from agent.config.remote_models import RemoteModel, RemoteSection, setting_of
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.stages.stall_timeout import stall_timeout

from .completion_chunks import error_text, read_object
from .event_stream import MAX_EVENT_BYTES, MalformedStreamError
from .recovery import recovery_wait_s
from .remote_error import ErrorKind, RemoteError

CONNECT_TIMEOUT_S: Final = 2.0
"""Time for a connection. In a network it takes a millisecond, around the world 0.3 s with TLS.
Longer: a caller waits for a machine that is off."""

IDLE_S: Final = 60.0
"""Time for which an idle connection is kept. Most servers close it sooner, which is noticed."""

MAX_TRIES: Final = 3

RETRY_S: Final = 0.1
"""Wait before another try after a failure that may be over at once."""

MAX_RETRY_AFTER_S: Final = 1.0
"""Longest wait that a full server may ask for. Longer: the caller hears an apology sooner."""

PROBE_S: Final = 15.0
"""Interval between requests that check a server which works, and the longest wait (`recovery.py`)
between those that check one which does not."""

PROBE_TIMEOUT_S: Final = 20.0
"""Time for a check of the server. llama.cpp took 8 s for the short prompt that is measured, on two
busy cores. Longer: a server that hangs is noticed later."""

PIECES_PER_TURN: Final = 32
"""Pieces of an answer, or events in them, behind which other tasks get a turn. One read of the
network may hold ten thousand, of a few bytes each, which take 50 us and more. Servers that work
send a piece at a time."""

MAX_ERROR_BYTES: Final = 1 << 16
MAX_ERROR_CHARS: Final = 200
MAX_SAID_CHARS: Final = 8192
"""Of an error: what is read, what is shown, and what is searched for its cause."""

FULL: Final = frozenset((429, 503))
PASSING: Final = frozenset((500, 502, 504))
REJECTED: Final = frozenset((400, 413, 422))
"""Statuses that blame the request, not the server."""

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is asked."""

    timeout_s: float = 8.0
    """Longest wait for the first part of an answer, and between two."""
    key: str = field(default="", repr=False)
    """API key; empty: none."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are added to every request."""
    max_calls: int = 4
    section: RemoteSection = "llm_engine"
    """Section of the settings that names the server, for messages."""


def server_options(
    config: Config, env: Mapping[str, str], section: RemoteSection = "llm_engine"
) -> ServerOptions:
    """The options of the server that a section names, with the secrets from the environment.

    Raises ConfigError where a variable is not set, or a value can't be sent.
    """
    settings = getattr(config, section)
    key_env: str = settings.remote_key_env
    headers: Mapping[str, str] = settings.remote_headers
    extra_body: Mapping[str, Any] = getattr(settings, "remote_extra_body", {})
    for setting, variables in (("remote_key_env", [key_env]), ("remote_headers", headers.values())):
        for variable in filter(None, variables):
            _check_secret(f"{section}.{setting}", variable, env.get(variable))
    try:
        json.dumps(extra_body)
    except (TypeError, ValueError):  # TOML has dates
        key = f"{section}.remote_extra_body"
        raise ConfigError(f"{key} has a value that JSON does not know.", key=key) from None
    return ServerOptions(
        settings.remote_timeout_s,
        env[key_env] if key_env else "",
        {name: env[variable] for name, variable in headers.items()},
        extra_body,
        config.agent.max_sessions,
        section,
    )


def _check_secret(setting: str, variable: str, value: str | None) -> None:
    if not value:
        problem = "which is not set"
    elif not (value.isascii() and value.isprintable()):
        problem = "whose value can't be sent as a header: it has a line break, or is not ASCII"
    else:
        return
    raise ConfigError(
        f"{setting} names the environment variable {variable}, {problem}.", key=setting
    )


class ApiServer:
    """One model of a server. Belongs to one event loop; shared by all calls."""

    def __init__(
        self, kind: str, model: RemoteModel, options: ServerOptions, requests_per_call: int
    ) -> None:
        """`kind`: what the server is in sentences, like "model server". `requests_per_call`: most
        requests that a call makes at once."""
        self.model = model
        self.timeout_s = options.timeout_s
        self._kind = kind
        self._section = options.section
        self._problem: str | None = None
        self._secrets = [each for each in (options.key, *options.headers.values()) if each]
        self.headers: Mapping[str, str] = {
            **options.headers,
            **({"authorization": f"Bearer {options.key}"} if options.key else {}),
        }
        """Headers of every request. They hold secrets."""
        self._http = httpx.AsyncClient(
            headers={"accept-encoding": "identity", **self.headers},
            timeout=httpx.Timeout(options.timeout_s, connect=CONNECT_TIMEOUT_S, read=None),
            limits=httpx.Limits(
                # And two that check the server.
                max_connections=requests_per_call * options.max_calls + 2,
                max_keepalive_connections=2 * options.max_calls + 2,
                keepalive_expiry=IDLE_S,
            ),
            follow_redirects=False,
            # None is kept: they would be those of all calls, without a limit.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            event_hooks={"response": [_refuse_compressed, _drop_location]},
        )

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present; None: it can."""
        return None if self._problem is None else f"the {self._kind} {self._problem}"

    async def close(self) -> None:
        await self._http.aclose()

    # --- requests ---

    @asynccontextmanager
    async def answer(
        self, path: str, kinds: Collection[str], **request: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send a POST request; the answer, of one of these media types, is read in the body of the
        context. Raises RemoteError, also for what goes wrong in the body."""
        with _as_remote_errors():
            async with self._http.stream("POST", f"{self.model.url}{path}", **request) as response:
                await self._check(response, kinds)
                yield response

    async def opened(
        self,
        attempt: Callable[[], Awaitable[Result]],
        timeout_s: float,
        awaited: str,
        *,
        is_last_resort: bool,
    ) -> Result:
        """The result of the first attempt that succeeds, `MAX_TRIES` at most, within this time.

        Raises RemoteError. `awaited`: what should have come, for the message. `is_last_resort`
        False: something else can answer instead, so there is no waiting for a server that is full.
        """
        try:
            async with stall_timeout(timeout_s):
                for number in range(1, MAX_TRIES + 1):
                    try:
                        return await attempt()
                    except RemoteError as error:
                        wait_s = _wait_s(error, is_last_resort)
                        if wait_s is None or number == MAX_TRIES:
                            raise
                        await asyncio.sleep(wait_s)
        except TimeoutError:
            kind: ErrorKind = "late" if timeout_s < self.timeout_s else "broken"
            raise RemoteError(f"sent no {awaited} within {timeout_s:.1f} s", kind) from None
        raise AssertionError("the last try returns or raises")

    async def list_models(self) -> None:
        """Raises RemoteError where the server can't be reached or rejects the key. A server without
        a list is none the worse for it."""
        with _as_remote_errors():
            async with self._http.stream("GET", f"{self.model.url}/models") as response:
                if response.status_code in (401, 403) or response.status_code >= 500:
                    raise self._refusal(response, await read_body(response, MAX_ERROR_BYTES))
                await read_body(response, MAX_EVENT_BYTES)

    async def _check(self, response: httpx.Response, kinds: Collection[str]) -> None:
        """Raise RemoteError for an answer that is not the one that was asked for."""
        if response.status_code != 200:
            raise self._refusal(response, await read_body(response, MAX_ERROR_BYTES))
        found = media_type(response)
        if found not in kinds:
            shown = self.shown(found) or "something without a type"
            due = next(iter(kinds))
            raise RemoteError(f"answers with {shown} where {due} is due: is the address right?")

    def _refusal(self, response: httpx.Response, content: bytes) -> RemoteError:
        try:
            text = error_text(read_object(content))
        except MalformedStreamError:  # a page of some proxy
            text = ""
        return self.refusal(response.status_code, text, _retry_after_s(response))

    def refusal(self, status: int, text: str = "", retry_after_s: float = 0.0) -> RemoteError:
        """The error for an HTTP status, with the text that the server sent."""
        if 300 <= status < 400:  # followed, it would take the key to another server
            setting = setting_of(self._section)
            return RemoteError(f"answers with a redirect: set {setting} to where it leads")
        if status in (401, 403):  # some servers repeat a part of the key
            setting = f"{self._section}.remote_key_env"
            return RemoteError(f"rejects the key of {setting} (status {status})")
        said = f": {self.shown(text)}" if text else ""
        if status == 404:
            what = "voice" if self._section == "tts" else "model"
            return RemoteError(f"has no {what} {self.model.name!r} at this address (404){said}")
        return RemoteError(
            f"answers with status {status}{said}",
            kind_of_status(status),
            retry_after_s,
            status=status,
            said=text[:MAX_SAID_CHARS],
        )

    def shown(self, text: str) -> str:
        """A text of the server for people: one line, short, without our secrets."""
        text = text[:MAX_SAID_CHARS]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 3]}..."

    # --- health ---

    def failed(self, error: RemoteError) -> None:
        """Note that a request failed, unless the error blames the request."""
        if error.kind in ("late", "rejected"):
            return
        if self._problem != error.reason:
            _log.warning("the %s of %s %s", self._kind, self.model, error.reason)
        self._problem = error.reason

    def works(self) -> None:
        """Note that a request succeeded."""
        if self._problem is not None:
            _log.warning("the %s of %s works again", self._kind, self.model)
        self._problem = None

    async def probed(self, probe: Callable[[], Awaitable[bool]]) -> None:
        """Check the server. `probe` raises RemoteError, or returns whether it has proved that the
        server works."""
        try:
            async with stall_timeout(PROBE_TIMEOUT_S):
                if await probe():
                    self.works()
        except TimeoutError:
            self.failed(RemoteError(f"did not answer within {PROBE_TIMEOUT_S:g} s"))
        except RemoteError as error:
            self.failed(RemoteError(error.reason))

    async def watch(self, probe: Callable[[], Awaitable[bool]]) -> None:
        """Check the server until cancelled."""
        num_failed = 0
        while True:
            wait_s = PROBE_S if self._problem is None else recovery_wait_s(num_failed)
            await asyncio.sleep(min(wait_s, PROBE_S))
            await self.probed(probe)
            num_failed = 0 if self._problem is None else num_failed + 1


def kind_of_status(status: int) -> ErrorKind:
    """What an HTTP status, or one that is reported within a stream, says of a failure."""
    if status in FULL:
        return "full"
    if status in PASSING:
        return "passing"
    return "rejected" if status in REJECTED else "broken"


async def pieces_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Stream the body as it comes, with turns for other tasks."""
    num_pieces = 0
    async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            yield piece
            num_pieces += 1
            if num_pieces % PIECES_PER_TURN == 0:
                await asyncio.sleep(0)


async def read_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body, up to a limit; what is longer is cut off and is no JSON then."""
    content = bytearray()
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > max_bytes:
                break
    return bytes(content[:max_bytes])


async def _refuse_compressed(response: httpx.Response) -> None:
    """Raise RemoteError for a compressed answer, before it is read: none was asked for, and a piece
    of 64 kB that was compressed twice takes gigabytes."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise RemoteError("compresses its answers, though it was asked not to")


async def _drop_location(response: httpx.Response) -> None:
    """Drop the address of a redirect: httpx reads it, though it is not followed, and raises errors
    of other classes for one that is none."""
    response.headers.pop("location", None)


def media_type(response: httpx.Response) -> str:
    """Media type of an answer without its parameters, in lower case."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _wait_s(error: RemoteError, is_last_resort: bool) -> float | None:
    """Wait before another try; None: another one can't help in time."""
    if error.kind == "passing":
        return RETRY_S
    if error.kind == "full" and is_last_resort and error.retry_after_s <= MAX_RETRY_AFTER_S:
        return max(error.retry_after_s, RETRY_S)
    return None


def _retry_after_s(response: httpx.Response) -> float:
    """Seconds that a full server asks to wait. A date, or nothing, counts as soon."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return MAX_RETRY_AFTER_S


@contextmanager
def _as_remote_errors() -> Iterator[None]:
    """Raise httpx's errors and broken streams as RemoteError."""
    try:
        yield
    except MalformedStreamError as error:
        raise RemoteError(str(error)) from None
    except httpx.ConnectError:
        raise RemoteError("can't be reached", "passing") from None
    except (httpx.ConnectTimeout, httpx.PoolTimeout):
        raise RemoteError("can't be reached") from None  # it took long enough
    except (httpx.HTTPError, ssl.SSLError):  # httpx has no name for records that can't be decrypted
        raise RemoteError("broke the connection off", "passing") from None
