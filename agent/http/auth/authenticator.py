"""Authenticator: resolves keys, client secrets and JSON web tokens to a `Principal`.

The key file is looked at once a second, on a thread; what `halfsec keys` changes counts from then
on. A revoked key also ends its calls, and those of the client secrets that it made: it is revoked
because it is in the wrong hands. An expired one opens nothing new.

In a fleet (`agent.state_store`) client secrets and revoked keys are those of all its servers:
`fleet_access.py`.

A server that was open while it had no key closes with the first; it never opens while it runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.calls.state_store.store import StateStore
from agent.config.schema import Config
from latency_budget.account.clock import Clock, unix_ns

from .client_secrets import SECRET_PREFIX, ClientSecrets
from .fleet_access import FleetAccess
from .key_needed import needs_key
from .keys import KEY_PREFIX, KeyFile, KeyFileError, KeyRing, with_default
from .local_key import LOCAL_PREFIX
from .principal import ANYONE, FILE_KEY, Principal
from .token_format import digest_of, is_token

if TYPE_CHECKING:
    from .jwt import JwtTokens

LOOK_EVERY_S: Final = 1.0

_log = logging.getLogger(__name__)


class Authenticator:
    """Authenticator of requests: keys, client secrets and web tokens. Used on the server's event
    loop only. `local_key` is the text that commands on this machine send; empty: there is none."""

    def __init__(
        self,
        config: Config,
        keys: KeyFile,
        clock: Clock,
        *,
        local_key: str = "",
        state_store: StateStore | None = None,
    ) -> None:
        """Reads the key file. `state_store`: None where nothing is shared with other servers.
        Raises KeyFileError."""
        self.secrets: Final = ClientSecrets()
        is_shared = state_store is not None and state_store.is_shared
        self._fleet = FleetAccess(state_store) if state_store is not None and is_shared else None
        self._settings = config.access
        self._file = keys
        self._clock = clock
        self._local_digest = digest_of(local_key) if local_key else None
        self._jwt = _jwt_tokens(config, clock)
        self._stamp = keys.stamp()
        """Stamp of the file whose keys are in `_ring`."""
        self._failed_stamp: object = self._stamp
        """Stamp of the file that could not be read last, which is logged once."""
        self._ring = KeyRing(keys.read())
        self.closed = needs_key(config, has_keys=keys.exists())
        """True if a key is needed."""
        self._news = asyncio.Event()
        """Set, and replaced, when the keys have changed."""
        self.on_news: Callable[[], None] = lambda: None
        """Called then."""

    async def identify(self, credential: str | None) -> Principal | None:
        """Principal of a credential; None if it is not valid. An open server accepts a missing
        credential, and one that it does not know: SDKs always send one.

        Raises IssuerUnreachableError.
        """
        stranger = None if self.closed else ANYONE
        if credential is None:
            return stranger
        if credential.startswith(SECRET_PREFIX):
            # Also where the server is open: it would be a call without what the secret stands for.
            holder = self.secrets.find(credential, self._clock.now_ns())
            if holder is None and self._fleet is not None:
                holder = await self._fleet.find(credential)
            return holder if holder is not None and self.holds(holder) else None
        if credential.startswith(KEY_PREFIX):
            return self._by_key(credential) or stranger
        if credential.startswith(LOCAL_PREFIX):
            known = is_token(credential, self._local_digest)
            return Principal("this machine", "local", key_id="local") if known else stranger
        if self._jwt is not None and credential.count(".") == 2:
            bearer = await self._jwt.read(credential)
            return stranger if bearer is None else self._limited(bearer)
        return stranger

    def holds(self, principal: Principal) -> bool:
        """True while the key behind a principal is not revoked."""
        if self._fleet is not None and principal.key_id in self._fleet.revoked:
            return False
        return not principal.key_id.startswith(FILE_KEY) or principal.key_id in self._ring

    async def until_revoked(self, principal: Principal) -> None:
        """Returns when the principal's key is revoked; of those without one, never."""
        while self.holds(principal):
            await self._news.wait()

    async def refresh(self) -> None:
        """Take in what has become of the key file, and which keys were revoked on other machines. A
        file that can't be read changes nothing, and is read again the next time."""
        if self._fleet is not None and await self._fleet.refresh():
            self._tell()
        stamp = await asyncio.to_thread(self._file.stamp)
        if stamp == self._stamp:
            return
        try:
            keys = await asyncio.to_thread(self._file.read)
        except KeyFileError as error:
            if stamp != self._failed_stamp:
                self._failed_stamp = stamp
                _log.error("the keys stay as they were: %s", error.message)
            return
        self._stamp = self._failed_stamp = stamp
        self._ring = KeyRing(keys)
        if self._settings.require_key == "auto":
            self.closed = True
        _log.info("there are %d keys now", len(keys))
        self._tell()

    async def publish_secret(self, text: str, holder: Principal, life_s: int) -> None:
        """Let the other servers of the fleet know a client secret. Raises nothing."""
        if self._fleet is not None:
            await self._fleet.publish(text, holder, life_s)

    def _tell(self) -> None:
        """Wake those who wait for a change of the keys."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        self.on_news()

    async def watch(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look after the key file, and the keys of the issuer of web tokens, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._jwt is not None:
                group.create_task(self._jwt.keep_fresh(pause))
            while True:
                await pause(LOOK_EVERY_S)
                await self.refresh()

    def _by_key(self, text: str) -> Principal | None:
        key = self._ring.find(text, unix_ns() / 1e9)
        if key is None:
            return None
        found = Principal(key.name, "key", key.limits, key_id=key.key_id)
        return self._limited(found) if self.holds(found) else None

    def _limited(self, principal: Principal) -> Principal:
        """The principal, with the common limit of calls where its key has none of its own."""
        limits = with_default(principal.limits, self._settings.calls_per_key)
        return replace(principal, limits=limits)


def _jwt_tokens(config: Config, clock: Clock) -> "JwtTokens | None":
    if not config.access.has_jwt:
        return None
    from .jwt import JwtTokens  # only here: PyJWT is an extra

    return JwtTokens(config.access, clock)
