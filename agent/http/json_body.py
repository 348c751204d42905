"""Request bodies: size and time limits; of JSON a memory limit as well, and cancellation when the
client disconnects.

A JSON body is refused before it costs much: it must call itself JSON (a web page elsewhere can make
a browser send anything else without asking), come within seconds, and fit, by itself and with all
others that are being held.

Of those, a client may hold no more bytes than are free (the rule of `openai/concurrency_limit.py`):
alone it has half of them, and another client's body always finds room. Without that, sixteen bodies
that stopped before their last byte had everybody's refused.

Work for a client that has disconnected is cancelled at once, not at its next write.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Never, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from agent.codec.json_frame import MAX_MARKS, num_marks, read_float
from agent.stages.stall_timeout import first_of, stall_timeout
from llm_engine.errors import RequestError

MAX_BODY_BYTES: Final = 4 << 20
"""Largest body, in bytes; beyond any context: a million tokens of text. Parsing as much JSON
takes 0.1 s at worst, in which no call is served, given no more brackets and commas than
a frame may have (`MAX_MARKS`)."""

MAX_HELD_BYTES: Final = 64 << 20
"""Total bytes of the bodies held by all requests, waiting or being read. As many connections as
the server allows, with a whole body each, would be 1 GB."""

BODY_TIMEOUT_S: Final = 30.0
"""Seconds until a body must be complete: 4 MiB at 1.2 Mbit/s. An endless one holds a connection."""

Result = TypeVar("Result")


class RefusedError(RequestError):
    """A request refused with another HTTP status than 400."""

    def __init__(self, status: int, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.status = status


async def read_body(
    request: Request,
    max_bytes: int,
    timeout_s: float,
    on_piece: Callable[[bytes], None] = lambda piece: None,
) -> bytes:
    """Read a request's body. `on_piece`: called with each piece of it.

    Raises RefusedError for one that is too large or late, what `on_piece` raises, and
    ClientDisconnect when the client disconnects while sending.
    """
    received = bytearray()
    try:
        async with stall_timeout(timeout_s):
            async for piece in request.stream():
                received += piece
                if len(received) > max_bytes:
                    raise RefusedError(413, "body", f"is larger than {_size(max_bytes)}")
                on_piece(piece)
    except TimeoutError:
        raise RefusedError(408, "body", f"did not come within {timeout_s:g} s") from None
    return bytes(received)


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


class JsonBodies:
    """Reader of JSON bodies that accounts for the bytes they hold together. One instance for all
    endpoints; for one event loop."""

    def __init__(self, client_of: Callable[[Scope], str]) -> None:
        """`client_of`: the client that a request is counted for."""
        self._client_of = client_of
        self._held_bytes = 0
        self._held_of: Counter[str] = Counter()
        """Bytes by client, for those that hold some."""

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[object]:
        """Read and parse a request's body. It counts as held until the context is left.

        Raises RequestError, and ClientDisconnect when the client disconnects while sending.
        """
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "body", "must have Content-Type: application/json")
        client, num_held = self._client_of(request.scope), 0

        def hold(piece: bytes) -> None:
            nonlocal num_held
            num_held += len(piece)
            self._held_bytes += len(piece)
            self._held_of[client] += len(piece)
            num_free = MAX_HELD_BYTES - self._held_bytes
            if num_free < 0:
                raise RefusedError(503, "body", "has no room beside others; try again shortly")
            if self._held_of[client] > num_free:
                problem = "has no room beside yours; what is free is for others; try again shortly"
                raise RefusedError(503, "body", problem)

        try:
            yield _parsed(await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S, hold))
        finally:
            self._held_bytes -= num_held
            self._held_of -= Counter({client: num_held})  # which forgets those at zero


def _parsed(received: bytes) -> object:
    marks = num_marks(received)
    if marks > MAX_MARKS:
        problem = f"has {marks} brackets and commas; at most {MAX_MARKS} are taken"
        raise RequestError("body", problem)
    try:
        body: object = json.loads(received, parse_float=read_float)
    except RecursionError:
        raise RequestError("body", "is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RequestError("body", f"is not JSON: {error}") from None
    except ValueError as error:  # or an integer of thousands of digits
        raise RequestError("body", f"has a number that can't be read: {error}") from None
    return body


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Return the work's result; cancel it and raise ClientDisconnect when the client disconnects.

    For requests whose body has been read.
    """
    return await first_of(work, _until_gone(request))


async def _until_gone(request: Request) -> Never:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
