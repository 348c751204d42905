"""A server of language models with OpenAI's HTTP API: requests, failures, health.

Theory of operation. One pool of connections is kept for all calls; a request that is given up
closes its connection, which every known server takes for a cancellation. A request is tried again
only before its first token, and only where another try can help: a kept connection that the server
had closed, a server that is full and says for how long. Everything else ends as `ServerError` with
a reason that can be shown to anybody: it holds no address, no header and no key.

Health follows from the requests themselves. After one that failed, `watch` tries requests of one
token until one works again; while all is well it only asks for the list of models, so that a server
that is gone is noticed before a caller notices.

Sending a caller's words ahead pays off only where the server keeps what it has computed of a
prompt. So it is measured: two requests of one token with the same long prompt, which no one sent
before. Where the second does not come sooner, and the server counts no cached tokens either,
nothing is sent ahead.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

from agent.config.remote_models import RemoteModel
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.stages.stall_timeout import stall_timeout
from latency_budget.account.clock import Clock

from .completion_chunks import (
    END_OF_STREAM,
    Chunk,
    ReportedError,
    error_text,
    parse_chunk,
    read_object,
    usage_of,
)
from .event_stream import MAX_EVENT_BYTES, MalformedStreamError, SseReader
from .reply_source import ServerError

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

USAGE_WAIT_S: Final = 0.5
"""Wait for the usage, which comes behind the end of a reply."""

PROBE_S: Final = 15.0
"""Interval between requests that check a server which works."""

RECOVERY_S: Final = 2.0
"""Wait before the first request to a server that does not; each later one is twice as long, up to
`PROBE_S`. Shorter: a provider that rejects a key is asked too often."""

MAX_DOUBLINGS: Final = 3

PROBE_TIMEOUT_S: Final = 20.0
"""Time for a check of the server. llama.cpp took 8 s for the short prompt that is measured, on two
busy cores. Longer: a server that hangs is noticed later."""

CACHED_SHARE: Final = 0.7
"""Share of the first request's time within which the second one of the same prompt has to come, if
the server keeps prompts. Measured with SmolLM2 135M on two busy cores, 2026-11-26: 27 of 565 ms
with this service's endpoint, 6 of 7586 ms with llama.cpp's Python server. Without a cache both take
the same time."""

SHORT_WORDS: Final = 200
LONG_WORDS: Final = 1600
"""Words of the prompt that is measured: the long one where the short one takes less than
`QUICK_MS`, because the time of its computation is lost in that of the network."""

QUICK_MS: Final = 300.0

MAX_ERROR_BYTES: Final = 1 << 16
MAX_ERROR_CHARS: Final = 200

FULL: Final = frozenset((429, 503))
PASSING: Final = frozenset((500, 502, 504))
REJECTED: Final = frozenset((400, 413, 422))
"""Statuses that blame the request, not the server."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is asked."""

    timeout_s: float = 8.0
    """Longest wait for the first token, and between two."""
    key: str = field(default="", repr=False)
    """API key; empty: none."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are added to every request."""
    max_calls: int = 4


def server_options(config: Config, env: Mapping[str, str]) -> ServerOptions:
    """The options of the language model's server, with the secrets from the environment.

    Raises ConfigError where a variable is not set, or a value can't be sent.
    """
    settings = config.llm_engine
    key_env, headers = settings.remote_key_env, settings.remote_headers
    for setting, variables in (("remote_key_env", [key_env]), ("remote_headers", headers.values())):
        for variable in filter(None, variables):
            _check_secret(f"llm_engine.{setting}", variable, env.get(variable))
    try:
        json.dumps(settings.remote_extra_body)
    except (TypeError, ValueError):  # TOML has dates
        key = "llm_engine.remote_extra_body"
        raise ConfigError(f"{key} has a value that JSON does not know.", key=key) from None
    return ServerOptions(
        settings.remote_timeout_s,
        env[key_env] if key_env else "",
        {name: env[variable] for name, variable in headers.items()},
        settings.remote_extra_body,
        config.agent.max_sessions,
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


class ModelServer:
    """A `ReplySource`: one model of a server. Belongs to one event loop; shared by all calls."""

    subject = "The model server"

    def __init__(self, model: RemoteModel, options: ServerOptions, clock: Clock) -> None:
        self.model = model
        self.timeout_s = options.timeout_s
        self.caches_prefix = False
        """The server keeps what it has computed of a prompt, as far as known."""
        self._is_measured = False
        self._problem: str | None = None
        self._extra = dict(options.extra_body)
        self._clock = clock
        self._secrets = [each for each in (options.key, *options.headers.values()) if each]
        headers = {"accept-encoding": "identity", **options.headers}
        if options.key:
            headers["authorization"] = f"Bearer {options.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(options.timeout_s, connect=CONNECT_TIMEOUT_S, read=None),
            limits=httpx.Limits(
                # A reply, a preview and a summary of each call; and what checks the server.
                max_connections=3 * options.max_calls + 2,
                max_keepalive_connections=2 * options.max_calls + 2,
                keepalive_expiry=IDLE_S,
            ),
            follow_redirects=False,
        )

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present; None: it can."""
        return None if self._problem is None else f"the model server {self._problem}"

    async def start(self) -> None:
        """Make the first requests, which find out whether the server keeps prompts. One that does
        not answer is no failure of this service: `problem` says so."""
        await self._probe()

    async def watch(self) -> None:
        """Check the server until cancelled."""
        num_failed = 0
        while True:
            wait_s = PROBE_S if self._problem is None else RECOVERY_S * 2**num_failed
            await asyncio.sleep(min(wait_s, PROBE_S))
            await self._probe()
            num_failed = 0 if self._problem is None else min(num_failed + 1, MAX_DOUBLINGS)

    async def close(self) -> None:
        await self._http.aclose()

    async def reply(
        self, body: Mapping[str, Any], *, first_token_s: float, is_last_resort: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a reply; its first chunk is one that the model has generated.

        Raises ServerError. `is_last_resort` False: something else can answer instead, so there is
        no waiting for a server that is full.
        """
        try:
            stream, first = await self._opened(body, first_token_s, is_last_resort)
        except ServerError as error:
            self._failed(error)
            raise
        self._works()
        try:
            async with aclosing(stream):
                yield first
                has_ended = first.finish_reason is not None
                while True:
                    try:
                        wait_s = min(USAGE_WAIT_S, self.timeout_s) if has_ended else self.timeout_s
                        async with stall_timeout(wait_s):
                            chunk = await anext(stream, None)
                    except (TimeoutError, ServerError):
                        if has_ended:  # the words are all there, only their count is not
                            return
                        raise
                    if chunk is None:
                        return
                    has_ended = has_ended or chunk.finish_reason is not None
                    yield chunk
        except TimeoutError:
            silent = ServerError(f"sent nothing for {self.timeout_s:g} s in the middle of a reply")
            self._failed(silent)
            raise silent from None
        except ServerError as error:
            self._failed(error)
            raise

    async def complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> str:
        """A whole reply, outside of a turn. Raises ServerError."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0}
        chunks = self.reply(body, first_token_s=self.timeout_s, is_last_resort=True)
        async with aclosing(chunks):
            return "".join([chunk.text async for chunk in chunks])

    async def read_ahead(self, body: Mapping[str, Any]) -> None:
        """Have the server compute a prompt, by a request of one token. Raises ServerError."""
        try:
            async with stall_timeout(self.timeout_s):
                await self._one_token(body)
        except TimeoutError:  # it is busy, which says nothing about a reply
            raise ServerError(f"did not answer within {self.timeout_s:g} s") from None
        except ServerError as error:
            self._failed(error)
            raise
        self._works()

    # --- requests ---

    async def _opened(
        self, body: Mapping[str, Any], first_token_s: float, is_last_resort: bool
    ) -> tuple[AsyncGenerator[Chunk, None], Chunk]:
        """A stream, and its first chunk with progress. Raises ServerError."""
        try:
            async with stall_timeout(first_token_s):
                for number in range(1, MAX_TRIES + 1):
                    stream = self._stream(body)
                    try:
                        return stream, await _first_progress(stream)
                    except ServerError as error:
                        wait_s = _wait_s(error, is_last_resort)
                        if wait_s is None or number == MAX_TRIES:
                            raise
                        await asyncio.sleep(wait_s)
        except TimeoutError:
            kind: Literal["broken", "late"] = "late" if first_token_s < self.timeout_s else "broken"
            reason = f"sent no first token within {first_token_s:.1f} s"
            raise ServerError(reason, kind) from None
        raise AssertionError("the last try returns or raises")

    async def _stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Chunk, None]:
        """One try. Ends behind the reply's end; raises ServerError where it ends before."""
        fields = {**body, **self._extra, "model": self.model.name, "stream": True}
        fields["stream_options"] = {"include_usage": True}
        has_begun = has_ended = is_over = False
        with _as_server_errors():
            async with self._http.stream(
                "POST", f"{self.model.url}/chat/completions", json=fields
            ) as response:
                await self._check(response, "text/event-stream")
                async with aclosing(_events(response)) as events:
                    async for data in events:
                        if is_over:  # read to its end, so that the connection can be kept
                            continue
                        is_over = data.strip() == END_OF_STREAM
                        if is_over and (has_ended or not has_begun):
                            continue
                        chunk = Chunk(finish_reason="stop") if is_over else self._chunk(data)
                        has_begun = has_begun or chunk.is_progress
                        has_ended = has_ended or chunk.finish_reason is not None
                        yield chunk
        if has_begun and not has_ended:
            raise ServerError("broke off before the end of the reply", "passing")

    def _chunk(self, data: str) -> Chunk:
        try:
            return parse_chunk(data)
        except ReportedError as error:
            raise ServerError(f"reports: {self._shown(str(error))}") from None

    async def _one_token(self, body: Mapping[str, Any]) -> int:
        """A request of one token. Returns how many of the prompt's were cached, as the server
        counts. Raises ServerError."""
        fields = {**body, **self._extra, "model": self.model.name, "max_tokens": 1}
        with _as_server_errors():
            async with self._http.stream(
                "POST", f"{self.model.url}/chat/completions", json=fields
            ) as response:
                await self._check(response, "application/json")
                answer = read_object(await _read(response, MAX_EVENT_BYTES))
        usage = usage_of(answer.get("usage"))
        return 0 if usage is None else usage.cached_tokens

    async def _check(self, response: httpx.Response, kind: str) -> None:
        """Raise ServerError for an answer that is no reply."""
        status = response.status_code
        if 300 <= status < 400:
            raise ServerError("answers with a redirect: set llm_engine.model to where it leads")
        if status != 200:
            raise self._refusal(response, await _read(response, MAX_ERROR_BYTES))
        found = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != kind:
            shown = self._shown(found) or "something without a type"
            raise ServerError(f"answers with {shown} where {kind} is due: is the address right?")

    def _refusal(self, response: httpx.Response, content: bytes) -> ServerError:
        status = response.status_code
        if status in (401, 403):  # some servers repeat a part of the key
            return ServerError(f"rejects the key of llm_engine.remote_key_env (status {status})")
        try:
            text = error_text(read_object(content))
        except MalformedStreamError:  # a page of some proxy
            text = ""
        said = f": {self._shown(text)}" if text else ""
        if status == 404:
            return ServerError(f"has no model {self.model.name!r} at this address (404){said}")
        reason = f"answers with status {status}{said}"
        if status in FULL:
            return ServerError(reason, "full", _retry_after_s(response))
        if status in PASSING:
            return ServerError(reason, "passing")
        return ServerError(reason, "rejected" if status in REJECTED else "broken")

    def _shown(self, text: str) -> str:
        """A text of the server for people: one line, short, without our secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 3]}..."

    # --- health ---

    def _failed(self, error: ServerError) -> None:
        if error.kind in ("late", "rejected"):
            return
        if self._problem != error.reason:
            _log.warning("the model server of %s %s", self.model, error.reason)
        self._problem = error.reason

    def _works(self) -> None:
        if self._problem is not None:
            _log.warning("the model server of %s works again", self.model)
        self._problem = None

    async def _probe(self) -> None:
        """Ask for the list of models where all is well; else for a token, with the very request
        that calls make."""
        try:
            async with stall_timeout(PROBE_TIMEOUT_S):
                if self._problem is None and self._is_measured:
                    await self._list_models()
                    return
                if not self._is_measured:
                    self.caches_prefix = await self._measured()
                    self._is_measured = True
                body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
                async with aclosing(self._stream(body)) as stream:
                    await _first_progress(stream)
                    async for _ in stream:  # to its end, so that the connection can be kept
                        pass
            self._works()
        except TimeoutError:
            self._failed(ServerError(f"did not answer within {PROBE_TIMEOUT_S:g} s"))
        except ServerError as error:
            self._failed(ServerError(error.reason))

    async def _list_models(self) -> None:
        """Raises ServerError where the server can't be reached or rejects the key. A server without
        a list is none the worse for it."""
        with _as_server_errors():
            async with self._http.stream("GET", f"{self.model.url}/models") as response:
                if response.status_code in (401, 403) or response.status_code >= 500:
                    raise self._refusal(response, await _read(response, MAX_ERROR_BYTES))
                await _read(response, MAX_EVENT_BYTES)

    async def _measured(self) -> bool:
        """Find out whether the server keeps what it has computed of a prompt."""
        first_ms, second_ms, num_cached = await self._twice(SHORT_WORDS)
        if not num_cached and first_ms < QUICK_MS:
            try:
                first_ms, second_ms, num_cached = await self._twice(LONG_WORDS)
            except ServerError as error:
                if error.kind != "rejected":  # longer than its context
                    raise
        caches = num_cached > 0 or second_ms < CACHED_SHARE * first_ms
        _log.info(
            "the model server of %s %s prompts: %.0f ms for a new one, %.0f ms for the same again",
            *(self.model, "keeps" if caches else "does not keep", first_ms, second_ms),
        )
        return caches

    async def _twice(self, num_words: int) -> tuple[float, float, int]:
        """Times of two requests with the same new prompt, in ms, and the second one's cached
        tokens."""
        new = secrets.token_hex(8)  # in front: nothing of the prompt was ever computed
        text = f"{new}: " + "one two three four five six seven eight " * (num_words // 8)
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0.0}
        times_ms, num_cached = [], 0
        for _ in range(2):
            began_ns = self._clock.now_ns()
            num_cached = await self._one_token(body)
            times_ms.append((self._clock.now_ns() - began_ns) / 1e6)
        # A few are those of the chat template, which any server may have kept.
        return times_ms[0], times_ms[1], num_cached if num_cached > num_words // 2 else 0


async def _first_progress(stream: AsyncGenerator[Chunk, None]) -> Chunk:
    """The first chunk that the model has generated. Raises ServerError, having closed the stream,
    where there is none."""
    async for chunk in stream:
        if chunk.is_progress:
            return chunk
    raise ServerError("sent an empty reply", "passing")


async def _events(response: httpx.Response) -> AsyncGenerator[str, None]:
    reader = SseReader()
    async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            for data in reader.push(piece):
                yield data
    for data in reader.flush():
        yield data


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    """The body, up to a limit; what is longer is cut off and is no JSON then."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > max_bytes:
            break
    return bytes(content[:max_bytes])


def _wait_s(error: ServerError, is_last_resort: bool) -> float | None:
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
def _as_server_errors() -> Iterator[None]:
    """Raise httpx's errors and broken streams as ServerError."""
    try:
        yield
    except MalformedStreamError as error:
        raise ServerError(str(error)) from None
    except httpx.ConnectError:
        raise ServerError("can't be reached", "passing") from None
    except (httpx.ConnectTimeout, httpx.PoolTimeout):
        raise ServerError("can't be reached") from None  # it took long enough
    except httpx.HTTPError:
        raise ServerError("broke the connection off", "passing") from None
