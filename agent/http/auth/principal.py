"""Principal: the authenticated client of a request, as endpoints and sockets read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agent.config.schema import Config

SCOPE_KEY: Final = "halfsec.principal"
"""Where the door puts it into the ASGI scope."""

FILE_KEY: Final = "key:"
"""Begins the `key_id` of a key that `halfsec keys` made: those can be revoked."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may not go beyond."""

    max_calls: int | None = None
    """At once. None: as `access.calls_per_key` says."""
    agents: tuple[str, ...] = ()
    """Names of `[agents.NAME]`; empty: all. A key with such a list opens voice sockets, makes
    client secrets, lists models, calls others where it `dials`, and nothing else: other answers
    tell of everybody's calls."""
    dials: bool = False
    """It may have telephone numbers called, which costs money."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who was let in."""

    name: str
    """For people: the key's name, the token's subject. Never the key."""
    kind: Literal["open", "key", "local", "jwt", "ephemeral", "carrier"]
    """open: nobody in particular, at a server that asks for no key. local: a command on this
    machine. ephemeral: with a client secret (`ek_`), which opens voice sockets only. carrier: of
    telephone calls."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    session: Mapping[str, Any] | None = None
    """The session that a client secret is bound to, as in `session.update`."""
    key_id: str = ""
    """Whose calls are counted together; "": of nobody in particular. Of a client secret: of the key
    that made it."""


ANYONE: Final = Principal("anyone", "open")

UNPROVEN: Final = Principal("a carrier without a key", "carrier")
"""Whoever calls at a path for carriers. What proves that it is one comes later: a signature that
the endpoint checks, a token in the stream."""


def principal_of(scope: Mapping[str, Any]) -> Principal:
    """Of a request that came through the door."""
    principal: Principal = scope[SCOPE_KEY]
    return principal


def agent_for(principal: Principal, wanted: str | None, config: Config) -> str | None:
    """Which agent answers who asks for `wanted`; None where his key allows none that there is.

    A client secret's own model counts before what its holder asks for. Unknown names are served by
    the default agent, or by the first that the key allows.
    """
    bound = (principal.session or {}).get("model")
    name, _ = config.profile(bound if isinstance(bound, str) else wanted)
    allowed = principal.limits.agents
    if not allowed or name in allowed:
        return name
    return next((each for each in allowed if each in config.agents), None)
