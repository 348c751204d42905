"""Principal: the authenticated client of a request, as endpoints and sockets read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agent.config.schema import Config
from agent.http.peer_address import NOWHERE, place_of

SCOPE_KEY: Final = "halfsec.principal"
"""Key of the ASGI scope under which the authentication middleware stores the principal."""

FILE_KEY: Final = "key:"
"""Begins the `key_id` of a key that `halfsec keys` made: those can be revoked."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key."""

    max_calls: int | None = None
    """At once. None: as `access.calls_per_key` says."""
    agents: tuple[str, ...] = ()
    """Names of `[agents.NAME]`; empty: all. A key with such a list opens calls, makes client
    secrets, lists models, calls others where it `dials`, and nothing else: other answers tell of
    everybody's calls."""
    dials: bool = False
    """It may have telephone numbers called, which costs money."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Authenticated peer."""

    name: str
    """Name for people: the key's name or the token's subject. Never the key."""
    kind: Literal["open", "key", "local", "jwt", "ephemeral", "carrier"]
    """Kind of credential. open: none, at a server that asks for no key. local: a command on this
    machine. ephemeral: a client secret (`ek_`), which opens calls by WebSocket and WebRTC only.
    carrier: a carrier of telephone calls."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    session: Mapping[str, Any] | None = None
    """The session that a client secret is bound to, as in `session.update`."""
    key_id: str = ""
    """Id under which calls are counted together; "" without a key. For a client secret, that of the
    key that made it."""


ANYONE: Final = Principal("anyone", "open")

UNPROVEN: Final = Principal("a carrier without a key", "carrier")
"""Peer at a path for carriers that has shown no key. Its proof comes later: a signature that the
endpoint checks, or a token in the stream."""


_KINDS: Final = ("open", "key", "local", "jwt", "ephemeral", "carrier")


def principal_json(principal: Principal) -> dict[str, Any]:
    """The principal as a JSON object, for other servers of a fleet."""
    limits = principal.limits
    return {
        "name": principal.name,
        "kind": principal.kind,
        "max_calls": limits.max_calls,
        "agents": list(limits.agents),
        "dials": limits.dials,
        "session": None if principal.session is None else dict(principal.session),
        "key_id": principal.key_id,
    }


def principal_from(fields: Mapping[str, Any]) -> Principal:
    """The principal of such an object. Raises KeyError, TypeError, ValueError."""
    kind, max_calls, session = fields["kind"], fields["max_calls"], fields["session"]
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is no kind of principal")
    limits = KeyLimits(
        None if max_calls is None else int(max_calls),
        tuple(str(name) for name in fields["agents"]),
        fields["dials"] is True,
    )
    bound = None if session is None else dict(session)
    return Principal(str(fields["name"]), kind, limits, bound, str(fields["key_id"]))


def principal_of(scope: Mapping[str, Any]) -> Principal:
    """Principal of a request that passed the authentication middleware."""
    principal: Principal = scope[SCOPE_KEY]
    return principal


def client_of(scope: Mapping[str, Any]) -> str:
    """Client that a request is counted for: its key, else its address."""
    principal: Principal | None = scope.get(SCOPE_KEY)
    if principal is not None and principal.key_id:
        return principal.key_id
    return place_of((scope.get("client") or (NOWHERE, 0))[0])


def agent_for(principal: Principal, wanted: str | None, config: Config) -> str | None:
    """Agent that answers a request for `wanted`; None if the key allows no agent that exists.

    A client secret's own model has precedence over what its holder asks for. Unknown names are
    served by the default agent, or by the first that the key allows.
    """
    bound = (principal.session or {}).get("model")
    name, _ = config.profile(bound if isinstance(bound, str) else wanted)
    allowed = principal.limits.agents
    if not allowed or name in allowed:
        return name
    return next((each for each in allowed if each in config.agents), None)
