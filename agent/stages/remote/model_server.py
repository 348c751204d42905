"""Client of a model server that speaks OpenAI's chat completions over HTTP.

Theory of operation: one pool of connections, kept open between the turns, serves all calls. A reply
is one streamed request; closing its generator closes the stream, and so the server stops computing.
A request that fails before its first token is sent again, at most twice and within `timeout_s`;
later it can't be: the caller may have heard the beginning. `timeout_s` bounds the time to the first
chunk, retries and waits included, and then the time from chunk to chunk: comments that keep a
connection open do not count, so that nothing hangs.

`problem` is what `/readyz` shows. A request that works clears it, and `refresh` asks the server
again for the readiness check, so that the service recovers without a call.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx

from agent.config.local_urls import is_loopback
from agent.config.remote_model import RemoteAddress
from agent.config.schema import LlmSettings
from agent.errors import ConfigError
from agent.session.api.server_events import Usage
from latency_budget.account.clock import Clock, SystemClock

from .errors import MalformedStreamError, RemoteError, TransientError
from .event_stream import EventStream
from .reply_reader import ReplyReader, refusal

RETRY_S: Final = (0.1, 0.3)
"""Waits before a request is sent again, unless the server asks for longer ones."""

CONNECT_S: Final = 3.0
"""Longest wait for a connection: a host that is gone does not answer at all."""

KEEP_S: Final = 300.0
"""Time for which an idle connection is kept. A pause of the caller is shorter; servers that close
theirs sooner are found out before a request is sent."""

USAGE_S: Final = 1.0
"""Wait for the usage after the last words: it must not hold up the end of a turn."""

DRAIN_S: Final = 0.1
"""Wait for the end of a stream whose last chunk has come: a connection can be used again only when
its response was read to the end. It usually comes along."""

REFRESH_S: Final = 5.0
"""Shortest time between two questions whether a server works again."""

PROBE_S: Final = 2.0
"""Longest wait for that answer: a readiness check waits for it."""

MAX_ERROR_BYTES: Final = 1 << 16

MEASURED_WORDS: Final = 120
"""Words of the prompt that measures the prefix cache; some 400 tokens."""

MEASURABLE_NS: Final = 50_000_000
"""Prompts that are read faster than this say nothing about a cache beside a network's jitter, and
cost the server next to nothing."""

REUSED_SHARE: Final = 0.8
"""A prompt that takes more of its first time the second time was computed again. One that is cached
takes a tenth to a half."""

_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

_log = logging.getLogger(__name__)


class ModelServer:
    """One remote model. Belongs to one event loop; `problem` may be read anywhere."""

    def __init__(
        self, address: RemoteAddress, clock: Clock, *, api_key: str = "", timeout_s: float = 10.0
    ) -> None:
        self.address = address
        self.problem: str | None = None
        """Why replies fail, as of the newest request; None while they do not."""
        self.has_prefix_cache = True
        """False where the server computes a prompt that it has just seen again."""
        self._clock = clock
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._asked_ns: int | None = None
        headers = {"accept-encoding": "identity"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            # Chunks are timed here: a server that only sends comments would never time out there.
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            limits=httpx.Limits(keepalive_expiry=KEEP_S),
            trust_env=not is_loopback(httpx.URL(address.base_url).host),
        )

    async def start(self) -> None:
        """Open a connection, and find out whether the server works and has a prefix cache. Raises
        nothing: a server that is down may come up later."""
        self._asked_ns = self._clock.now_ns()
        try:
            await self._answer(self._first_token_of("Hello"))
            await self._measure_cache()
        except RemoteError as error:
            self._note(str(error))

    async def refresh(self) -> None:
        """Ask a server that failed for one token, to see whether it works again. At most every
        `REFRESH_S`, and no longer than `PROBE_S`; returns at once otherwise."""
        now_ns = self._clock.now_ns()
        is_early = self._asked_ns is not None and now_ns - self._asked_ns < REFRESH_S * 1e9
        if self.problem is None or is_early:
            return
        self._asked_ns = now_ns
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._answer(self._first_token_of("Hello"))
            except RemoteError as error:
                self._note(str(error))
            else:
                self._note(None)

    async def reply(
        self, request: Mapping[str, Any], *, retries: bool = True
    ) -> AsyncGenerator[tuple[str, ReplyReader], None]:
        """Words of a reply as they come, each with the state of the reply. Raises RemoteError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        waits = iter(RETRY_S if retries else ())
        while True:
            has_begun = False
            try:
                async with aclosing(self._attempt(request, deadline)) as pieces:
                    async for text, reader in pieces:
                        has_begun = has_begun or bool(text) or reader.has_calls
                        yield text, reader
                self._note(None)
                return
            except TransientError as error:
                wait_s = next(waits, None)
                if wait_s is not None and error.retry_after_s is not None:
                    wait_s = max(wait_s, error.retry_after_s)
                if has_begun or wait_s is None or loop.time() + wait_s >= deadline:
                    self._note(str(error))
                    raise
            except RemoteError as error:
                self._note(str(error))
                raise
            await asyncio.sleep(wait_s)

    async def models(self) -> list[str]:
        """Models that the server lists; none where it has no list. Raises RemoteError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._sent("GET", "/models") as response:
                    if response.status_code in (404, 405, 501):
                        return []
                    if response.status_code != httpx.codes.OK:
                        raise await self._failure(response)
                    body = await _beginning(response)
        except TimeoutError:
            raise self._too_slow() from None
        try:
            listed = httpx.Response(200, content=body).json()["data"]
            return [str(each["id"]) for each in listed]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    async def close(self) -> None:
        await self._http.aclose()

    async def _measure_cache(self) -> None:
        """Time two prompts, each sent twice. The quicker of each pair counts: others use the server
        too."""
        firsts: list[int] = []
        seconds: list[int] = []
        num_cached = 0
        for _ in range(2):
            words = " ".join(secrets.token_hex(2) for _ in range(MEASURED_WORDS))
            for times in (firsts, seconds):
                began_ns = self._clock.now_ns()
                usage = await self._answer(self._first_token_of(words))
                num_cached = max(num_cached, usage.cached_tokens)
                times.append(self._clock.now_ns() - began_ns)
        is_reused = reuses_prefix(min(firsts), min(seconds))
        self.has_prefix_cache = num_cached >= MEASURED_WORDS or is_reused
        if not self.has_prefix_cache:
            _log.warning(
                "the language model's server computes a known prompt again: the caller's words are "
                "not sent ahead"
            )

    async def _answer(self, request: Mapping[str, Any]) -> Usage:
        """Wait for the end of one request, which is not sent again."""
        usage = Usage()
        async with aclosing(self._attempt(request, None)) as pieces:
            async for _, reader in pieces:
                usage = reader.usage
        return usage

    def _first_token_of(self, text: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {**self.request(messages), "max_tokens": 1}

    def request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """A streamed request for a reply to these messages."""
        return {
            "model": self.address.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _attempt(
        self, request: Mapping[str, Any], deadline: float | None
    ) -> AsyncGenerator[tuple[str, ReplyReader], None]:
        """One request. `deadline`: of its first chunk, in the loop's time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s if deadline is None else deadline
        reader, events = ReplyReader(), EventStream()
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await stack.enter_async_context(self._stream(request))
            except TimeoutError:
                raise self._too_slow() from None
            chunks = aiter(response.aiter_bytes())
            while not (reader.is_done or reader.is_complete):
                try:
                    async with asyncio.timeout_at(deadline):
                        data = await _next(chunks)
                except (TimeoutError, TransientError) as error:
                    if reader.finish_reason is not None:
                        break  # only the usage is missing
                    raise self._too_slow() if isinstance(error, TimeoutError) else error from None
                if data is None:
                    break
                for text in self._texts(reader, events.push(data)):
                    yield text, reader
                    wait_s = self._timeout_s if reader.finish_reason is None else USAGE_S
                    deadline = loop.time() + wait_s
            if reader.finish_reason is None and not reader.is_done:
                raise TransientError("broke off")
            with contextlib.suppress(TimeoutError, TransientError):
                async with asyncio.timeout(DRAIN_S):
                    while await _next(chunks) is not None:
                        pass

    def _texts(self, reader: ReplyReader, events: list[str]) -> Iterator[str]:
        """Words in each event, perhaps none. Raises RemoteError, without the key."""
        for event in events:
            try:
                text = reader.push(event)
            except RemoteError as error:
                raise type(error)(self._without_key(str(error))) from None
            yield text

    @contextlib.asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> AsyncGenerator[httpx.Response, None]:
        """The response to a request for a reply, once it is known to be a stream."""
        async with self._sent("POST", "/chat/completions", request) as response:
            if response.status_code != httpx.codes.OK:
                raise await self._failure(response)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                raise MalformedStreamError(f"answered with {kind[:40] or 'nothing'}, not a stream")
            yield response

    @contextlib.asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[httpx.Response, None]:
        """A response whose body is still to be read; closed at the end. Raises RemoteError."""
        request = self._http.build_request(method, f"{self.address.base_url}{path}", json=body)
        with _as_remote_errors():
            response = await self._http.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _failure(self, response: httpx.Response) -> RemoteError:
        """The error that a status stands for."""
        status = response.status_code
        if status in (401, 403):  # its text may quote the key
            return RemoteError(f"refuses the API key ({status}): see llm_engine.api_key_env")
        said = self._without_key(refusal(await _beginning(response)))
        said = f": {said}" if said else ""
        if status == 404:
            model = self.address.model
            return RemoteError(f"has no model {model!r} for chat completions there (404{said})")
        if status in _TRANSIENT:
            return TransientError(
                f"is full or broken ({status}{said})", _seconds(response.headers.get("retry-after"))
            )
        return RemoteError(f"refuses the request ({status}{said})")

    def _without_key(self, text: str) -> str:
        return text.replace(self._api_key, "***") if self._api_key else text

    def _too_slow(self) -> RemoteError:
        return RemoteError(f"did not answer within {self._timeout_s:g} s")

    def _note(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem is None:
            _log.warning("the language model's server works again")
        else:
            _log.warning("the language model's server %s", problem)


def reuses_prefix(first_ns: int, again_ns: int) -> bool:
    """True unless a prompt that took a while took about as long when it was sent again."""
    return first_ns < MEASURABLE_NS or again_ns <= REUSED_SHARE * first_ns


def model_server(settings: LlmSettings, clock: Clock) -> ModelServer | None:
    """The server that the settings name; None for a model of this process. Raises ConfigError."""
    address = RemoteAddress.parse(settings.model)
    if address is None:
        return None
    return ModelServer(address, clock, api_key=api_key_of(settings), timeout_s=settings.timeout_s)


def listed_models(settings: LlmSettings) -> tuple[str, list[str]]:
    """URL of the settings' server, and the models that it lists. For commands: blocks.

    Raises ConfigError and RemoteError.
    """

    async def ask() -> tuple[str, list[str]]:
        server = model_server(settings, SystemClock())
        assert server is not None
        try:
            return server.address.base_url, await server.models()
        finally:
            await server.close()

    return asyncio.run(ask())


def api_key_of(settings: LlmSettings) -> str:
    """The key in the variable that `api_key_env` names. Raises ConfigError, without the key."""
    name = settings.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        lack = "holds characters that no key has" if key else "is not set"
        raise ConfigError(
            f"llm_engine.api_key_env names the environment variable {name}, which {lack}.",
            key="llm_engine.api_key_env",
        )
    return key


@contextlib.contextmanager
def _as_remote_errors() -> Iterator[None]:
    """Raise httpx's errors as RemoteError. Their texts are dropped: they may quote headers."""
    try:
        yield
    except httpx.ConnectError:
        raise TransientError("can't be reached") from None
    except httpx.TimeoutException as error:
        is_connecting = isinstance(error, httpx.ConnectTimeout)
        raise RemoteError("can't be reached" if is_connecting else "did not answer") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError):
        raise TransientError("broke off the connection") from None


async def _next(chunks: Any) -> bytes | None:
    with _as_remote_errors():
        data: bytes | None = await anext(chunks, None)
        return data


async def _beginning(response: httpx.Response) -> bytes:
    body = bytearray()
    with _as_remote_errors():
        async for data in response.aiter_bytes():
            body += data
            if len(body) > MAX_ERROR_BYTES:
                break
    return bytes(body)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After in seconds; dates are not read."""
    if retry_after is None or not retry_after.strip().isdecimal():
        return None
    return float(retry_after)
