"""HTTP client of one MCP server, with bounded answers.

The library reads an answer whole, and decompresses it: half a megabyte of gzip took 3 GB of memory,
again at each attempt to connect. So no compression is asked for, a compressed answer is refused
before it is read, and a body ends with an error at MAX_ANSWER_BYTES. The body of an event stream
may last for days and has no bound; there the library bounds each event.

These are hooks of the client, not a transport: a client with a transport of its own ignores the
environment's proxies.

Cookies are sent back, because a load balancer may find the server of a session by one; a few only.
"""

from collections.abc import AsyncIterator, Mapping
from http.cookiejar import Cookie, CookieJar
from typing import Final

import httpx2

from .api import ToolError
from .server_tool import one_line

MAX_ANSWER_BYTES: Final = 4 << 20
"""Longest answer, and longest event of a stream. Lower: a result of
`mcp_sanitize.MAX_RESULT_CHARS` does not fit, which servers send twice, as text and structured.
Higher: JSON takes up to 28 times its length in memory (empty lists; measured with mcp 2.3)."""


MAX_COOKIES: Final = 8
MAX_COOKIE_CHARS: Final = 4096
"""Cookies of a connection, and the longest name and value of one. Load balancers set one or two.
Higher: each request takes up to so much more, and servers refuse long heads."""


class AnswerTooLongError(httpx2.StreamError):
    """An answer has more than MAX_ANSWER_BYTES. The library fails the request that it answers, and
    the connection stays."""


def bounded_client(headers: Mapping[str, str], timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """An HTTP client whose requests raise ToolError for a compressed answer, and whose answers
    raise AnswerTooLongError where they are too long."""
    sent = httpx2.Headers(headers)
    sent["accept-encoding"] = "identity"
    return httpx2.AsyncClient(
        headers=sent,
        cookies=_FewCookies(),
        timeout=timeout,
        event_hooks={"response": [_bound]},
    )


class _FewCookies(CookieJar):
    """The first cookies of a server, and their newer values. What is more, or long, is dropped."""

    def set_cookie(self, cookie: Cookie) -> None:
        if len(cookie.name) + len(cookie.value or "") > MAX_COOKIE_CHARS:
            return
        super().set_cookie(cookie)
        if len(self) > MAX_COOKIES:
            self.clear(cookie.domain, cookie.path, cookie.name)


async def _bound(response: httpx2.Response) -> None:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        shown = one_line(encoding, 40)
        raise ToolError(f"it compresses its answers ({shown}), which it was asked not to do")
    if not _is_read_as_events(response):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)


def _is_read_as_events(response: httpx2.Response) -> bool:
    """False where the library reads the body whole, whatever its type: of errors and redirects, and
    of the DELETE that ends a session."""
    kind = response.headers.get("content-type", "").lower()
    is_stream = response.is_success and response.request.method in ("GET", "POST")
    return is_stream and kind.startswith("text/event-stream")


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of an answer, up to MAX_ANSWER_BYTES."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._inner:
            num_bytes += len(piece)
            if num_bytes > MAX_ANSWER_BYTES:
                raise AnswerTooLongError(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
