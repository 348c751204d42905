"""What the servers of a fleet know together about access: client secrets, and revoked keys.

A client secret that one server made opens calls at all of them; a key that `halfsec keys revoke`
takes away on one machine is taken away on all. Both are in the state store. Where that fails, each
server knows its own secrets and its own file of keys, and the keys that were revoked by then.
"""

import json
import logging
from collections.abc import Set
from typing import Final

from agent.calls.state_store.store import StateStore, StateStoreError

from .client_secrets import SECRET_PREFIX
from .principal import Principal, principal_from, principal_json
from .token_format import digest_of, id_in, is_token

REVOKED: Final = "revoked"
"""Name of the set of revoked keys' ids."""

_log = logging.getLogger(__name__)


class FleetAccess:
    """Shared part of an authenticator. Belongs to the event loop. Methods raise nothing, but for
    `revoke`."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.revoked: Set[str] = frozenset()
        """Ids of keys that were revoked on any machine."""

    async def publish(self, text: str, holder: Principal, life_s: int) -> None:
        """Let other servers know a client secret that this one made."""
        fields = {"sha256": digest_of(text).hex(), "holder": principal_json(holder)}
        try:
            await self._store.put(_name(text), json.dumps(fields).encode(), life_s)
        except StateStoreError as error:
            _log.warning("a client secret is known to this server only: %s", error)

    async def find(self, text: str) -> Principal | None:
        """Principal of a client secret of any server; None if it is unknown or has expired."""
        token_id = id_in(SECRET_PREFIX, text)
        if not (token_id.isascii() and token_id.isalnum()):
            return None
        try:
            found = await self._store.get(_name(text))
        except StateStoreError as error:
            _log.warning("client secrets of other servers are not known: %s", error)
            return None
        if found is None:
            return None
        try:
            fields = json.loads(found)
            digest = bytes.fromhex(fields["sha256"])
            holder = principal_from(fields["holder"])
        except (ValueError, KeyError, TypeError):
            _log.warning("the state store has an entry that is no client secret of this version")
            return None
        return holder if is_token(text, digest) else None

    async def refresh(self) -> bool:
        """Look which keys are revoked. Returns True where that has changed."""
        try:
            revoked = await self._store.members(REVOKED)
        except StateStoreError:
            return False  # the store says so itself
        added = revoked - self.revoked
        self.revoked = revoked | self.revoked  # a store that forgets gives no key back
        return bool(added)

    async def revoke(self, key_id: str) -> None:
        """Take a key away on all servers. Raises StateStoreError."""
        await self._store.add_member(REVOKED, key_id)


def _name(text: str) -> str:
    return f"secret:{id_in(SECRET_PREFIX, text)}"
