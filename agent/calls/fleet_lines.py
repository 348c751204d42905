"""Calls at once of a key, on all servers of a fleet.

Each server counts the calls of a key by itself (`CallService.refusal`). Where the store is shared,
a call of a key with a limit takes one of as many slots there too, and holds it while it goes on;
that of a server that died is free again after `HELD_S`, unless the call goes on elsewhere. Where
the store fails, each server's own count is what is left.
"""

import asyncio
import logging
from typing import Final, NoReturn

from agent.http.auth.principal import Principal
from agent.http.auth.token_format import digest_of
from latency_budget.account.turn import SessionId

from .state_store.store import StateStore, StateStoreError

HELD_S: Final = 30.0
"""Time after which a slot is free that is not held on. Shorter: a store that is away for some
seconds frees slots of calls in progress. Longer: a server that dies keeps callers out for
longer."""

HOLD_ON_EVERY_S: Final = 8.0
"""Interval in which a call holds on to its slot: three tries before it is lost."""

_log = logging.getLogger(__name__)


class FleetLines:
    """Slots of the keys. Does nothing where the store is not shared."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def counts(self, principal: Principal) -> bool:
        """True if the principal's calls are counted on all servers."""
        return self._store.is_shared and principal.limits.max_calls is not None

    async def take(self, principal: Principal, session_id: SessionId) -> bool:
        """Take a slot for a call, or hold on to it. Returns False where all of the key's are held.
        Raises nothing."""
        limit = principal.limits.max_calls
        if limit is None or not self.counts(principal):
            return True
        try:
            return await self._store.take_slot(_name(principal), session_id, limit, HELD_S)
        except StateStoreError as error:
            _log.warning("calls of a key are counted here only: %s", error)
            return True

    async def hold(self, principal: Principal, session_id: SessionId) -> NoReturn:
        """Hold on to a call's slot until cancelled."""
        while True:
            await asyncio.sleep(HOLD_ON_EVERY_S)
            await self.take(principal, session_id)

    async def release(self, principal: Principal, session_id: SessionId) -> None:
        """The call is over. Raises nothing."""
        if not self.counts(principal):
            return
        try:
            await self._store.release_slot(_name(principal), session_id)
        except StateStoreError as error:
            _log.info("a line of a key is free again in %g s: %s", HELD_S, error)


def _name(principal: Principal) -> str:
    return f"lines:{digest_of(principal.key_id).hex()[:32]}"
