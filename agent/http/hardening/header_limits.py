"""Limits of request heads: their size, and headers that could be read in two ways.

Size is the parser's business (h11 refuses with 400 heads longer than `MAX_HEAD_BYTES`, two hosts,
two lengths that differ, and whatever is not HTTP). Left for this module is what one parser accepts
and two may read differently: a body that has a length and comes in chunks (RFC 9112, 6.3, calls
that an attempt at smuggling), more headers than any client sends, and targets that name a host as
well.
"""

from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.http.refusal import HttpRefusal, turn_away

MAX_HEAD_BYTES: Final = 16 << 10
MAX_HEADERS: Final = 100
"""Browsers and proxies send 15 to 40."""
MAX_TARGET_BYTES: Final = 4096
"""Path and query. The longest of ours name a session and some dates."""

TOO_MANY_HEADERS: Final = HttpRefusal(
    431, f"A request has at most {MAX_HEADERS} headers.", "headers_too_many"
)
TARGET_TOO_LONG: Final = HttpRefusal(
    414, f"Path and query have at most {MAX_TARGET_BYTES} bytes together.", "target_too_long"
)
TWO_LENGTHS: Final = HttpRefusal(
    400, "A body has a Content-Length or comes in chunks, not both.", "ambiguous_body"
)
TWO_CREDENTIALS: Final = HttpRefusal(
    400, "A request has one Authorization and one Origin header at most.", "ambiguous_header"
)

_SINGLE: Final = (b"authorization", b"origin")
"""Headers that decide who is let in. A proxy might read the first of two, and the server the
last."""


class HeadCheck:
    """Middleware in front of everything that reads a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refusal = refuse_head(scope)
            if refusal is not None:
                return await turn_away(scope, receive, _closing(send), refusal)
            scope = with_path(scope)
        return await self._app(scope, receive, send)


def _closing(send: Send) -> Send:
    """Whatever stands behind such a head is not read as another request."""

    async def closing(message: Message) -> None:
        if message["type"].endswith("response.start"):
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    return closing


def refuse_head(scope: Scope) -> HttpRefusal | None:
    """None where this head can be read on."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        return TOO_MANY_HEADERS
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        return TARGET_TOO_LONG
    names = {name for name, _ in headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        return TWO_LENGTHS
    if any(sum(name == each for name, _ in headers) > 1 for each in _SINGLE):
        return TWO_CREDENTIALS
    return None


def with_path(scope: Scope) -> Scope:
    """Replace a request's target that is a whole address by its path.

    Servers have to take `GET http://host/path`, as proxies are sent it, and to go by that host and
    not by the header's (RFC 9112, section 3.2.2).
    """
    scheme, mark, rest = scope["raw_path"].partition(b"://")
    if not mark or scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        **scope,
        "raw_path": b"/" + path,
        "path": unquote("/" + path.decode("ascii")),
        "headers": [(b"host", host), *others],
    }
