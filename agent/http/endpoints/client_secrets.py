"""`POST /v1/realtime/client_secrets`: a short-lived key for a browser, bound to a session.

As OpenAI has it: {"expires_after": {"anchor": "created_at", "seconds": 600}, "session": {...}}
gives {"value": "ek_...", "expires_at", "session"} with the whole session as it will be.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from agent.calls.session_start import SessionStart, session_start
from agent.codec.json_frame import read_frame
from agent.config.schema import Config
from agent.errors import ClientError
from agent.http.auth.client_secrets import ClientSecrets
from agent.http.auth.principal import Principal, principal_of
from agent.http.json_body import JsonBodies, RefusedError
from agent.http.refusal import HttpRefusal
from agent.http.responses import CLIENT_GONE, client_error
from agent.realtime.protocol.fields import Fields, wrong_type
from agent.realtime.protocol.session_json import session_json
from agent.session.api.ids import new_session_id
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import Clock, unix_ns
from llm_engine.errors import RequestError

DEFAULT_LIFETIME_S: Final = 600
MIN_LIFETIME_S: Final = 10
MAX_LIFETIME_S: Final = 7200
"""The dialect's own bounds."""
MAX_MODEL_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class _Wish:
    lifetime_s: int
    session: dict[str, Any]


class SecretEndpoint:
    """One instance for all requests. `check` raises ClientError for a session that could have no
    reply: its voice is not there, or the model can't take its instructions or tools. `publish` lets
    other servers know a secret, with its holder and life in s."""

    def __init__(
        self,
        config: Config,
        secrets: ClientSecrets,
        clock: Clock,
        check: Callable[[SessionSettings], Awaitable[None]],
        publish: Callable[[str, Principal, int], Awaitable[None]],
        bodies: JsonBodies,
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._clock = clock
        self._check = check
        self._publish = publish
        self._bodies = bodies

    def use(self, config: Config) -> None:
        """Make secrets for calls by these settings."""
        self._config = config

    async def serve(self, request: Request) -> Response:
        try:
            async with self._bodies.read(request) as body:
                # On a thread: four megabytes are looked through.
                wish = await asyncio.to_thread(_wish, body)
            answer = await self._mint(principal_of(request.scope), wish)
        except RefusedError as error:
            return client_error(error.status, str(error), "invalid_request")
        except RequestError as error:
            return client_error(400, str(error), "invalid_request")
        except ClientError as error:
            status = 429 if error.code == "rate_limit_exceeded" else error.http_status
            return client_error(status, error.message, error.code, error.param)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        if isinstance(answer, HttpRefusal):
            return answer.response()
        return JSONResponse(answer, headers={"cache-control": "no-store"})

    async def _mint(self, maker: Principal, wish: _Wish) -> dict[str, Any] | HttpRefusal:
        """Raises ClientError."""
        holder = Principal(maker.name, "ephemeral", maker.limits, wish.session, maker.key_id)
        start = session_start(self._config, holder, None)
        if isinstance(start, HttpRefusal):
            return start
        await self._check(start.settings)
        value = self._secrets.mint(holder, wish.lifetime_s, self._clock.now_ns())
        await self._publish(value, holder, wish.lifetime_s)
        return {
            "value": value,
            "expires_at": unix_ns() // 10**9 + wish.lifetime_s,
            "session": _shown(start),
        }


def _shown(start: SessionStart) -> dict[str, Any]:
    """The session as it will be. It has an id like any other, though each call gets its own."""
    return session_json(
        start.settings, session_id=new_session_id(), model=start.model, expires_at_unix_s=0
    )


def _wish(body: object) -> _Wish:
    """Parse a request's body. Raises RequestError and ClientError."""
    if not isinstance(body, dict):
        raise RequestError("body", "must be a JSON object")
    try:
        # Through the reader of frames: it refuses what JSON allows and nothing behind can take.
        fields = Fields(read_frame(json.dumps(body)))
    except RecursionError:
        raise ClientError("The body is nested too deeply.", code="invalid_value") from None
    lifetime_s = DEFAULT_LIFETIME_S
    if fields.raw("expires_after") is not None and (after := fields.inside("expires_after")):
        if after.raw("anchor") is not None:
            after.choice("anchor", ("created_at",))
        if after.raw("seconds") is not None:
            lifetime_s = after.integer("seconds", MIN_LIFETIME_S, MAX_LIFETIME_S)
        after.finish()
    session: dict[str, Any] = {"type": "realtime"}
    if fields.raw("session") is not None:
        session = fields.required("session")
        if not isinstance(session, dict):
            raise wrong_type("session", "an object", session)
        if session.get("model") is not None:
            Fields(session, "session").text("model", max_chars=MAX_MODEL_CHARS)
    fields.finish()
    return _Wish(lifetime_s, session)
