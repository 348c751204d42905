"""`POST /v1/settings/reload`: has the settings file read anew, for `halfsec reload` on the server's
machine."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent.config.reload import Reload
from agent.errors import ConfigError
from agent.http.auth.principal import principal_of
from agent.http.refusal import HttpRefusal

from .latency import error_response

LOCAL_ONLY: Final = HttpRefusal(
    403, "The settings are reloaded from the server's own machine only: halfsec reload.",
    "insufficient_permissions",
)  # fmt: skip


class ReloadEndpoint:
    """One instance for all requests. `reload` raises ConfigError for wrong settings."""

    def __init__(self, reload: Callable[[], Awaitable[Reload]]) -> None:
        self._reload = reload

    async def serve(self, request: Request) -> Response:
        # Errors of the settings may name what stands in the file: they are for its owner.
        if principal_of(request.scope).kind != "local":
            return LOCAL_ONLY.response()
        try:
            done = await self._reload()
        except ConfigError as error:
            return error_response(400, error.message)
        return JSONResponse(
            {"changed": list(done.changed), "needs_restart": list(done.needs_restart)}
        )
