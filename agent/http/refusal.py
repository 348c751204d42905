"""HTTP refusals: status, code and message of a request or handshake that is not admitted."""

import logging
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from llm_engine.errors import RequestError

_log = logging.getLogger(__name__)

REALM: Final = "halfsec"
"""Realm in the `WWW-Authenticate` header of every 401."""


MAX_SHOWN_CHARS: Final = 80
"""Longest piece of a client's input in messages and logs, in characters."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """Status, message and code of a refusal before any call begins."""

    status: int
    message: str
    code: str
    error_type: str = "invalid_request_error"
    retry_after_s: int | None = None

    def response(self) -> JSONResponse:
        error = {"message": self.message, "type": self.error_type, "code": self.code}
        wait = self.retry_after_s
        headers = {} if wait is None else {"Retry-After": str(wait)}
        if self.status == 401:
            headers["WWW-Authenticate"] = f'Bearer realm="{REALM}"'
        return JSONResponse({"error": error}, self.status, headers)


async def turn_away(scope: Scope, receive: Receive, send: Send, refusal: HttpRefusal) -> None:
    """Answer a request, or a WebSocket's handshake, with the refusal."""
    client = scope.get("client") or ("unknown", 0)
    path = shown(str(scope.get("path", "")))
    _log.info("refused %s %s: %d %s", client[0], path, refusal.status, refusal.code)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(refusal.response())
    else:
        await refusal.response()(scope, receive, send)


def shown(text: str) -> str:
    """Quote a client's input on one line, cut to `MAX_SHOWN_CHARS`."""
    return repr(text[:MAX_SHOWN_CHARS])


def error_body(error: Exception, *, is_clients: bool) -> dict[str, Any]:
    """JSON body of a refusal, or of the error event in a stream that breaks off."""
    return {
        "error": {
            "message": str(error),
            "type": "invalid_request_error" if is_clients else "server_error",
            "param": error.field if isinstance(error, RequestError) else None,
            "code": None,
        }
    }


STOPPING: Final = HttpRefusal(
    503, "The server is stopping; its successor takes calls.", "draining", "server_error", 5
)
