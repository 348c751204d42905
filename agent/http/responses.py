"""HTTP responses: refusals in OpenAI's shape, and streams of server-sent events.

A stream's work is a generator that holds something: a turn at the language model, an uploaded file.
It is closed in every case, also when the client disconnects.
"""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agent.errors import StageError
from llm_engine.errors import RequestError

from .json_body import RefusedError
from .refusal import error_body

CLIENT_GONE: Final = 499
"""nginx's status for a client that disconnected. It is never received; it keeps logs apart from
failures."""

EVENT_STREAM: Final = "text/event-stream"

_HEADERS: Final = {"x-accel-buffering": "no"}
"""Proxies that collect a response would turn a stream into one piece."""

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """A generator, or an exit stack."""

    async def aclose(self) -> None: ...


class WorkStream(StreamingResponse):
    """A streaming response that closes its source at the end."""

    def __init__(
        self,
        content: AsyncIterator[str] | AsyncIterator[bytes],
        work: Closable,
        media_type: str = EVENT_STREAM,
    ) -> None:
        """`work` is the source of `content`; it is closed at the end, however the response ends."""
        super().__init__(content, media_type=media_type, headers=_HEADERS)
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._work):
            try:
                await super().__call__(scope, receive, send)
            except (RequestError, StageError) as error:
                # Too late to send an error. The server closes the connection of a response
                # that has no end, so that no client takes it for complete.
                _log.error("a response broke off: %s", error)


def event(body: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def guarded(answer: Awaitable[Response]) -> Response:
    """Await the response, and turn an error into a refusal in OpenAI's shape."""
    try:
        return await answer
    except RefusedError as error:
        return refused(error)
    except RequestError as error:
        return JSONResponse(error_body(error, is_clients=True), 400)
    except StageError as error:
        return refused(RefusedError(503, error.stage, error.message))
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)


def client_error(status: int, message: str, code: str, param: str | None = None) -> JSONResponse:
    """Build the response of a client's error, with OpenAI's code and field of it."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status)


def refused(error: RefusedError) -> JSONResponse:
    """Build the response of a refusal, with `Retry-After` for a 503."""
    headers = {"retry-after": "2"} if error.status == 503 else None
    body = error_body(error, is_clients=error.status < 500)
    return JSONResponse(body, error.status, headers=headers)
