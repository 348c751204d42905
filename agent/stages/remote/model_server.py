"""A server of language models with OpenAI's HTTP API: replies, and prompts sent ahead.

Theory of operation. After a request that failed, the probe is a request of one token, the very
request that calls make; while all is well it only asks for the list of models, so that a server
that is gone is noticed before a caller notices (`api_server.py`).

Fields that a server refuses are left out of the request, where a reply can do without them, and of
later ones once it was accepted like that (`optional_fields.py`).

Sending a caller's words ahead pays off only where the server keeps what it has computed of a
prompt. So it is measured: two requests of one token with the same long prompt, which no one sent
before. Where the second does not come sooner, and the server counts no cached tokens either,
nothing is sent ahead.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final

import httpx

from agent.config.remote_models import RemoteModel
from agent.stages.stall_timeout import stall_timeout
from latency_budget.account.clock import Clock

from .api_server import (
    MAX_SAID_CHARS,
    PIECES_PER_TURN,
    ApiServer,
    ServerOptions,
    kind_of_status,
    pieces_of,
    read_body,
)
from .completion_chunks import (
    END_OF_STREAM,
    Chunk,
    ReplyLimit,
    ReportedError,
    parse_chunk,
    read_object,
    usage_of,
)
from .event_stream import MAX_EVENT_BYTES, SseReader
from .optional_fields import OptionalFields
from .remote_error import RemoteError

REQUESTS_PER_CALL: Final = 3
"""A reply, a preview and a summary."""

CHAT_PATH: Final = "/chat/completions"

BROKEN_OFF: Final = frozenset(("abort", "error"))
"""Finish reasons of replies that are not whole: of vLLM and SGLang when a request is aborted, of
OpenRouter when the provider behind it fails."""

USAGE_WAIT_S: Final = 0.5
"""Wait for the usage, which comes behind the end of a reply."""

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

_CUT_SHORT: Final = re.compile(
    "could not finish the message"
    "|(max_tokens|max_completion_tokens|output limit)[^.]{0,80}was reached",
    re.IGNORECASE,
)
"""What OpenAI says, with status 400, where the limit ends the thoughts of a reasoning model: it has
computed the prompt and generated as much as it was allowed."""

_log = logging.getLogger(__name__)


class ModelServer:
    """A `ReplySource`: one model of a server. Belongs to one event loop; shared by all calls."""

    subject = "The model server"

    def __init__(self, model: RemoteModel, options: ServerOptions, clock: Clock) -> None:
        self.timeout_s = options.timeout_s
        self.caches_prefix = False
        """The server keeps what it has computed of a prompt, as far as known."""
        self._is_measured = False
        self._model = model
        self._extra = dict(options.extra_body)
        self._one = {"max_tokens": 1}
        if "max_completion_tokens" in self._extra:  # which wins where both are sent
            self._one["max_completion_tokens"] = 1
        self._clock = clock
        self._fields = OptionalFields()
        self._api = ApiServer("model server", model, options, REQUESTS_PER_CALL)

    @property
    def refused_fields(self) -> tuple[str, ...]:
        """Fields that the server has refused, which requests do without."""
        return self._fields.refused

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present; None: it can."""
        return self._api.problem

    async def start(self) -> None:
        """Make the first requests, which find out whether the server keeps prompts. One that does
        not answer is no failure of this service: `problem` says so."""
        await self._api.probed(self._probe)

    async def watch(self) -> None:
        """Check the server until cancelled."""
        await self._api.watch(self._probe)

    async def close(self) -> None:
        await self._api.close()

    async def reply(
        self, body: Mapping[str, Any], *, first_token_s: float, is_last_resort: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a reply; its first chunk is one that the model has generated.

        Raises RemoteError. `is_last_resort` False: something else can answer instead, so there is
        no waiting for a server that is full.
        """
        try:
            stream, first = await self._opened(body, first_token_s, is_last_resort)
        except RemoteError as error:
            self._api.failed(error)
            raise
        self._api.works()
        try:
            async with aclosing(stream):
                yield first
                has_ended = first.finish_reason is not None
                while True:
                    try:
                        wait_s = min(USAGE_WAIT_S, self.timeout_s) if has_ended else self.timeout_s
                        async with stall_timeout(wait_s):
                            chunk = await anext(stream, None)
                    except (TimeoutError, RemoteError):
                        if has_ended:  # the words are all there, only their count is not
                            return
                        raise
                    if chunk is None:
                        return
                    has_ended = has_ended or chunk.finish_reason is not None
                    yield chunk
        except TimeoutError:
            silent = RemoteError(f"sent nothing for {self.timeout_s:g} s in the middle of a reply")
            self._api.failed(silent)
            raise silent from None
        except RemoteError as error:
            broken = RemoteError(error.reason)  # a request whose reply has begun was no bad one
            self._api.failed(broken)
            raise broken from None

    async def complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> str:
        """A whole reply, outside of a turn. Raises RemoteError."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0}
        chunks = self.reply(body, first_token_s=self.timeout_s, is_last_resort=True)
        async with aclosing(chunks):
            return "".join([chunk.text async for chunk in chunks])

    async def read_ahead(self, body: Mapping[str, Any]) -> None:
        """Have the server compute a prompt, by a request of one token. Raises RemoteError."""
        try:
            async with stall_timeout(self.timeout_s):
                await self._one_token(body)
        except TimeoutError:  # it is busy, which says nothing about a reply
            raise RemoteError(f"did not answer within {self.timeout_s:g} s") from None
        except RemoteError as error:
            self._api.failed(error)
            raise
        self._api.works()

    # --- requests ---

    async def _opened(
        self, body: Mapping[str, Any], first_token_s: float, is_last_resort: bool
    ) -> tuple[AsyncGenerator[Chunk, None], Chunk]:
        """A stream, and its first chunk with progress. Raises RemoteError."""

        async def attempt() -> tuple[AsyncGenerator[Chunk, None], Chunk]:
            stream = self._stream(body)
            return stream, await _first_progress(stream)

        return await self._api.opened(
            attempt, first_token_s, "first token", is_last_resort=is_last_resort
        )

    async def _stream(self, body: Mapping[str, Any], **fixed: Any) -> AsyncGenerator[Chunk, None]:
        """One try. Ends behind the reply's end; raises RemoteError where it ends before. `fixed`:
        fields that the settings do not change."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}, **fixed}
        limit = ReplyLimit({**body, **self._extra, **fixed})
        has_begun = has_ended = is_over = False
        async with (
            self._answer(body, streamed, ("text/event-stream",)) as (response, accepted),
            aclosing(_events(response)) as events,
        ):
            async for data in events:
                if is_over:  # read to its end, so that the connection can be kept
                    continue
                is_over = data.strip() == END_OF_STREAM
                if is_over and (has_ended or not has_begun):
                    continue
                chunk = Chunk(finish_reason="stop") if is_over else limit.cut(self._chunk(data))
                if chunk.finish_reason in BROKEN_OFF:
                    raise _broken_off()
                if chunk.is_progress and not has_begun:
                    has_begun = True
                    accepted()
                has_ended = has_ended or chunk.finish_reason is not None
                yield chunk
                if limit.is_over:
                    _log.warning(
                        "the model server of %s takes no notice of the limit of tokens: a reply "
                        "was cut",
                        self._model,
                    )
                    return
        if has_begun and not has_ended:
            raise _broken_off()

    @asynccontextmanager
    async def _answer(
        self, body: Mapping[str, Any], fixed: Mapping[str, Any], kinds: Collection[str]
    ) -> AsyncIterator[tuple[httpx.Response, Callable[[], None]]]:
        """Send a request, again without each field that the server refuses and that a reply can do
        without. `fixed`: fields that the settings do not change. Yields the answer, and what is to
        be called when it holds what was asked for. Raises RemoteError."""
        request = self._fields.request({**body, **self._extra, **fixed, "model": self._model.name})
        statuses: dict[str, int] = {}

        def accepted() -> None:
            for name in request.accepted():
                _log.warning(
                    "the model server of %s gets no %s from now on: it answers with status %d",
                    *(self._model, name, statuses[name]),
                )

        async with AsyncExitStack() as stack:
            while True:
                try:
                    response = await stack.enter_async_context(
                        self._api.answer(CHAT_PATH, kinds, json=request.body)
                    )
                    break
                except RemoteError as error:
                    if _is_cut_short(error):
                        accepted()
                        raise
                    name = request.give_up(error.said) if error.kind == "rejected" else None
                    if name is None:
                        raise
                    statuses[name] = error.status
                    _log.info(
                        "the model server of %s is asked again without %s: it answers with "
                        "status %d",
                        *(self._model, name, error.status),
                    )
            yield response, accepted

    def _chunk(self, data: str) -> Chunk:
        try:
            return parse_chunk(data)
        except ReportedError as error:
            said = str(error)[:MAX_SAID_CHARS]
            kind = kind_of_status(error.status)
            reason = f"reports: {self._api.shown(str(error))}"
            raise RemoteError(reason, kind, status=error.status, said=said) from None

    async def _one_token(self, body: Mapping[str, Any]) -> int:
        """A request of one token. Returns how many of the prompt's were cached, as the server
        counts. Raises RemoteError."""
        try:
            async with self._answer(body, self._one, ("application/json",)) as (response, accepted):
                answer = read_object(await read_body(response, MAX_EVENT_BYTES))
                accepted()
        except RemoteError as error:
            if not _is_cut_short(error):
                raise
            return 0
        usage = usage_of(answer.get("usage"))
        return 0 if usage is None else usage.cached_tokens

    # --- health ---

    async def _probe(self) -> bool:
        """Ask for the list of models where all is well; else, and where the list fails, for a token
        with the very request that calls make. Raises RemoteError."""
        if self._api.problem is None and self._is_measured:
            try:
                await self._api.list_models()
            except RemoteError:  # `transformers serve` has none where nothing was ever downloaded
                pass
            else:
                return False
        if not self._is_measured:
            self.caches_prefix = await self._measured()
            self._is_measured = True
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        try:
            async with aclosing(self._stream(body, **self._one)) as stream:
                await _first_progress(stream)
                async for _ in stream:  # to its end, so that the connection can be kept
                    pass
        except RemoteError as error:
            if not _is_cut_short(error):
                raise
        return True

    async def _measured(self) -> bool:
        """Find out whether the server keeps what it has computed of a prompt."""
        first_ms, second_ms, num_cached = await self._twice(SHORT_WORDS)
        if not num_cached and first_ms < QUICK_MS:
            try:
                first_ms, second_ms, num_cached = await self._twice(LONG_WORDS)
            except RemoteError as error:
                if error.kind != "rejected":  # longer than its context
                    raise
        caches = num_cached > 0 or second_ms < CACHED_SHARE * first_ms
        _log.info(
            "the model server of %s %s prompts: %.0f ms for a new one, %.0f ms for the same again",
            *(self._model, "keeps" if caches else "does not keep", first_ms, second_ms),
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


def _broken_off() -> RemoteError:
    return RemoteError("broke off before the end of the reply", "passing")


def _is_cut_short(error: RemoteError) -> bool:
    """True if the limit of a request ended it before its first word: the server works."""
    return error.kind == "rejected" and _CUT_SHORT.search(error.said) is not None


async def _first_progress(stream: AsyncGenerator[Chunk, None]) -> Chunk:
    """The first chunk that the model has generated. Raises RemoteError, having closed the stream,
    where there is none."""
    async for chunk in stream:
        if chunk.is_progress:
            return chunk
    raise RemoteError("sent an empty reply", "passing")


async def _events(response: httpx.Response) -> AsyncGenerator[str, None]:
    reader = SseReader()
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            for number, data in enumerate(reader.push(piece), 1):
                yield data
                if number % PIECES_PER_TURN == 0:
                    await asyncio.sleep(0)
    for data in reader.flush():
        yield data
