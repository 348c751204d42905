"""`POST /v1/chat/completions`: OpenAI's chat endpoint on the engine that also serves the calls.

A stateless client sends everything each time; the engine finds the conversation that it continues
(`llm_engine.chat.conversation_pool`). Callers who wait for their first word take precedence: these
requests carry no deadline. When the client disconnects, its work stops within a step.

As many requests run at once as calls are allowed; further ones wait in the order of their arrival,
so that no number of them takes the engine's sequences from the calls. A long wait is not a fault:
the engine is given up only when it no longer takes steps.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import llm_engine
from agent.config.schema import Config
from agent.errors import StageError
from agent.http.json_body import JsonBodies, RefusedError, unless_gone
from agent.http.refusal import error_body
from agent.http.responses import CLIENT_GONE, WorkStream, event, refused
from agent.stages.llm_chat import LOAD_TIMEOUT_S, unless_hung
from agent.stages.registry import Stages, tool_limits_of
from agent.stages.tool_call_adapter import ToolLimits
from latency_budget.account.clock import unix_ns

from .chat_request import ChatRequest, parse_chat_request
from .chat_response import Completion


class ChatCompletions:
    """One instance for all requests."""

    def __init__(self, config: Config, stages: Stages, bodies: JsonBodies) -> None:
        settings = config.llm_engine
        self._stages = stages
        self._is_remote = settings.remote is not None
        self._limits = tool_limits_of(settings)
        self._bodies = bodies
        self._turns = asyncio.Semaphore(config.agent.max_sessions)
        self._defaults = llm_engine.SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
        )

    async def serve(self, request: Request) -> Response:
        if self._stages.remote_llm is not None:
            where = "on another server, which has this API"
            if not self._is_remote:
                where = "of a plug-in, which this API does not reach"
            return refused(RefusedError(501, "model", f"is {where}"))
        if self._stages.status != "ready":
            return refused(RefusedError(503, "model", "is still loading; try again shortly"))
        try:
            async with self._bodies.read(request) as body:
                # On a thread: large schemas and long conversations take a while to be read.
                asked = await asyncio.to_thread(_parsed, body, self._defaults, self._limits)
                dialect = (await self._engine()).dialect
                chunks = self._chunks(asked)
                # Refusals come before the first token.
                first = await unless_gone(request, anext(chunks))
        except RefusedError as error:
            return refused(error)
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
            asked.reader(dialect),
        )
        if not asked.stream:
            try:
                return await unless_gone(request, _whole(completion, first, chunks))
            except ClientDisconnect:
                return Response(status_code=CLIENT_GONE)
        events = _events(completion, first, chunks, include_usage=asked.include_usage)
        return WorkStream(events, chunks)

    async def _engine(self) -> llm_engine.Engine:
        """The one that is alive. Raises StageError."""
        return await self._stages.llm.call(lambda engine: engine, timeout_s=LOAD_TIMEOUT_S)

    async def _chunks(self, asked: ChatRequest) -> AsyncGenerator[llm_engine.TokenChunk, None]:
        """The reply. Raises what the engine raises, and StageError where it hangs."""
        async with self._turns:
            engine = await self._engine()
            messages, tools, sampling = asked.prompt(engine.dialect)
            chunks = engine.chat(messages, sampling, tools=tools, thinks=asked.thinks)
            async with aclosing(chunks) as reply:
                while True:
                    chunk = await unless_hung(anext(reply, None), self._stages.llm, engine)
                    if chunk is None:
                        return
                    yield chunk


def _parsed(body: object, defaults: llm_engine.SamplingParams, limits: ToolLimits) -> ChatRequest:
    """Raises RequestError."""
    try:
        return parse_chat_request(body, defaults).limited(limits)
    except RecursionError:  # JSON as deep as the reader allows can be too deep for a message
        raise llm_engine.RequestError("body", "is nested too deeply") from None


async def _whole(
    completion: Completion,
    first: llm_engine.TokenChunk,
    chunks: AsyncGenerator[llm_engine.TokenChunk, None],
) -> Response:
    received = [first]
    try:
        async with aclosing(chunks):
            received += [chunk async for chunk in chunks]
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
    """The first with the role and the first token."""
    chunk = first
    try:
        while True:
            for piece in completion.pieces(chunk):
                yield event(piece)
            if chunk.finish_reason is not None:
                if include_usage and chunk.usage is not None:
                    yield event(completion.usage_piece(chunk.usage))
                yield "data: [DONE]\n\n"
                return
            chunk = await anext(chunks)
    except (llm_engine.EngineError, StageError) as error:
        yield event(error_body(error, is_clients=False))
