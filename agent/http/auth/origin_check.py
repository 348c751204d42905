"""Origin check: `Host` and `Origin` of a request against the names of this server.

Theory of operation: a server on a private address is reached by every web page that its owner
looks at. Two headers that a page can't forge tell them apart.

*Host*. A page of evil.example may let its own name point at 127.0.0.1 (DNS rebinding); from then on
the browser takes this server for evil.example and lets the page read the answers. But the browser
says which name it believes to be talking to. So only names that are ours are answered to: those of
the loopback, the address bound, `agent.allowed_hosts`. Where every address is bound, any address
is ours: a name can be pointed somewhere else, an address can't.

*Origin*. Any page may open a WebSocket to anywhere. Our own page comes from the host it calls;
others are in `agent.allowed_origins`. The middleware (`middleware.py`) checks this for every
WebSocket, and for every request that may change something.
"""

import ipaddress
import logging
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from agent.config.schema import ServiceSettings
from agent.http.refusal import MAX_SHOWN_CHARS, HttpRefusal, shown, turn_away

_NOT_IN_A_HOST: Final = frozenset("@/\\?#")
"""Parts of an address that stand around a host (RFC 3986, section 3). A browser sends none of them;
a proxy that parses `user@localhost` in another way than this server sees another host."""

_WILDCARDS: Final = ("0.0.0.0", "::", "")
_log = logging.getLogger(__name__)


class OriginCheck:
    """The rules. Immutable."""

    def __init__(self, settings: ServiceSettings, *others: str) -> None:
        """`others`: names by which the server is reached as well; empty ones don't count."""
        self._any_host = "*" in settings.allowed_hosts
        self._any_address = settings.host in _WILDCARDS
        self._names = {name for host in settings.allowed_hosts if (name := name_of(host))}
        self._names |= {settings.host.lower(), "localhost", *filter(None, others)}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    def refuse_host(self, host: str | None) -> HttpRefusal | None:
        """None where we answer to this Host header. What sends none is not a browser."""
        if host is None or self._any_host:
            return None
        name = name_of(host)
        if name is not None and (name in self._names or self._is_ours(name)):
            return None
        return HttpRefusal(
            403,
            f"This server does not answer to the name {shown(name or host)}. If that is one of its "
            "names, say so with the setting agent.allowed_hosts, for instance "
            f"HALFSEC_AGENT__ALLOWED_HOSTS={(name or 'voice.example.com')[:MAX_SHOWN_CHARS]}",
            "host_not_allowed",
        )

    def refuse_origin(self, origin: str | None, host: str | None) -> HttpRefusal | None:
        """None where a page of this origin may call. What sends none is not a page."""
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return None
        try:
            netloc = urlsplit(origin.lower()).netloc
        except ValueError:
            netloc = ""
        if host is not None and netloc == host.lower():
            return None
        return HttpRefusal(
            403,
            f"Pages of {shown(origin)} may not call this server. If they should, add that origin "
            "to the setting agent.allowed_origins.",
            "origin_not_allowed",
        )

    def _is_ours(self, name: str) -> bool:
        if name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


class HostCheck:
    """Middleware that answers no request for a name that is not ours."""

    def __init__(self, app: ASGIApp, visitors: OriginCheck) -> None:
        self._app = app
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refusal = self._visitors.refuse_host(_header(scope, b"host"))
            if refusal is not None:
                return await turn_away(scope, receive, send, refusal)
        return await self._app(scope, receive, send)


def name_of(host: str) -> str | None:
    """The name or address in a Host header, without the port. None where there is none."""
    if not _NOT_IN_A_HOST.isdisjoint(host):
        return None
    try:
        name = urlsplit(f"//{host.strip().lower()}").hostname
    except ValueError:
        return None
    return name.removesuffix(".") if name else None


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return None
