"""`POST /v1/chat/completions`: OpenAI's text endpoint, on the engine that also serves the calls.

A stateless client sends everything each time; the engine finds the dialogue that it continues
(`llm_engine.chats`). Callers who wait for their first word go before: these requests carry no
deadline. When the client goes, its work stops within a step.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import llm_engine
from latency_budget.clock import unix_ns
from llm_engine.call_reader import CallReader
from llm_engine.openai_answers import Completion, error_body
from llm_engine.openai_api import ChatRequest, parse_chat_request

from .config import Config
from .errors import StageError
from .patience import patience
from .stages import Stages
from .thinking import LOAD_TIMEOUT_S, TOKEN_TIMEOUT_S

MAX_BODY_BYTES: Final = 4 << 20
"""Far beyond any context. The text itself is bounded by the model."""

CLIENT_GONE: Final = 499
"""nginx's status for it. Nobody reads it; it keeps logs apart from failures."""

_HEADERS: Final = {"x-accel-buffering": "no"}
"""Proxies that collect a response would turn a stream into one piece."""


class ChatCompletions:
    """One instance for all requests."""

    def __init__(self, config: Config, stages: Stages) -> None:
        settings = config.llm_engine
        self._stages = stages
        self._defaults = llm_engine.SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
        )

    async def serve(self, request: Request) -> Response:
        if self._stages.status != "ready":
            return _refusal(503, "model", "is still loading; try again shortly", retry_after_s=2)
        try:
            body = await _body(request)
            # On a thread: large schemas take a while to be looked through.
            asked = await asyncio.to_thread(parse_chat_request, body, self._defaults)
            engine = await self._stages.thinker.call(
                lambda engine: engine, timeout_s=LOAD_TIMEOUT_S
            )
            chunks = self._chunks(engine, asked)
            first = await anext(chunks)  # refusals come before the first token
        except llm_engine.RequestError as error:
            return JSONResponse(error_body(error, is_clients=True), 400)
        except (llm_engine.EngineError, StageError) as error:
            return JSONResponse(error_body(error, is_clients=False), 503)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        completion = Completion(
            f"chatcmpl-{secrets.token_hex(12)}",
            unix_ns() // 10**9,
            asked.model or "default",
            CallReader(engine.dialect, asked.tools.callable) if asked.tools else None,
        )
        if not asked.stream:
            return await _whole(request, completion, first, chunks)
        events = _events(completion, first, chunks, include_usage=asked.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    async def _chunks(
        self, engine: llm_engine.Engine, asked: ChatRequest
    ) -> AsyncGenerator[llm_engine.TokenChunk, None]:
        """The reply. Raises what the engine raises, and StageError where it hangs."""
        thinker = self._stages.thinker
        messages, tools, sampling = asked.prompt(engine.dialect)
        reply = engine.chat(messages, sampling, tools=tools)
        async with aclosing(reply):
            while True:
                try:
                    async with patience(TOKEN_TIMEOUT_S):
                        chunk = await anext(reply, None)
                except TimeoutError:
                    engine.stop()  # should it ever come to
                    thinker.restart(engine, f"did not answer within {TOKEN_TIMEOUT_S:g} s")
                    raise StageError("llm", "The language model took too long.") from None
                if chunk is None:
                    return
                yield chunk


async def _body(request: Request) -> object:
    """A request's JSON. Raises RequestError, ClientDisconnect."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MAX_BODY_BYTES:
            raise llm_engine.RequestError("body", f"is larger than {MAX_BODY_BYTES >> 20} MiB")
    try:
        body: object = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise llm_engine.RequestError("body", f"is not JSON: {error}") from None
    return body


async def _whole(
    request: Request,
    completion: Completion,
    first: llm_engine.TokenChunk,
    chunks: AsyncGenerator[llm_engine.TokenChunk, None],
) -> Response:
    received = [first]
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                received.append(chunk)
                if await request.is_disconnected():
                    return Response(status_code=CLIENT_GONE)
    except (llm_engine.EngineError, StageError) as error:
        return JSONResponse(error_body(error, is_clients=False), 503)
    return JSONResponse(completion.whole(received))


async def _events(
    completion: Completion,
    first: llm_engine.TokenChunk,
    chunks: AsyncGenerator[llm_engine.TokenChunk, None],
    *,
    include_usage: bool,
) -> AsyncIterator[str]:
    """Server-sent events, the first with the role and the first token."""
    chunk = first
    async with aclosing(chunks):
        try:
            while True:
                for piece in completion.pieces(chunk):
                    yield _event(piece)
                if chunk.finish_reason is not None:
                    if include_usage and chunk.usage is not None:
                        yield _event(completion.usage_piece(chunk.usage))
                    yield "data: [DONE]\n\n"
                    return
                chunk = await anext(chunks)
        except (llm_engine.EngineError, StageError) as error:
            yield _event(error_body(error, is_clients=False))


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _refusal(status: int, field: str, problem: str, *, retry_after_s: int) -> JSONResponse:
    error = llm_engine.RequestError(field, problem)
    headers = {"retry-after": str(retry_after_s)}
    return JSONResponse(error_body(error, is_clients=False), status, headers=headers)
