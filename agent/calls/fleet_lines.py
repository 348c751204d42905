"""Calls at once of a key, on all servers of a fleet.

Each server counts the calls of a key by itself (`CallService.refusal`). Where the store is shared,
a call of a key with a limit takes one of as many slots there too, and holds it while it goes on;
that of a server that died is free again after `HELD_S`, unless the call goes on elsewhere. A server
that takes a call over takes its slot over as well, and the one that had it, and may not know yet,
neither renews nor frees it. Where the store fails, each server's own count is what is left.
"""

import asyncio
import logging
import secrets
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


class FleetLine:
    """Slot of one call at one server. Does nothing where calls are not counted."""

    def __init__(self, store: StateStore, principal: Principal, session_id: SessionId) -> None:
        self._store = store
        self._limit = principal.limits.max_calls if store.is_shared else None
        self._name = f"lines:{digest_of(principal.key_id).hex()[:32]}"
        self._session_id = session_id
        self._holder = secrets.token_hex(8)

    @property
    def counts(self) -> bool:
        """True if the call is counted on all servers."""
        return self._limit is not None

    async def take(self) -> bool:
        """Take a slot, or take the call's over. Returns False where all of the key's are held.
        Raises nothing."""
        return await self._take(renews=False)

    async def hold(self) -> NoReturn:
        """Hold on to the slot until cancelled. No effect on one that was taken over."""
        while True:
            await asyncio.sleep(HOLD_ON_EVERY_S)
            await self._take(renews=True)

    async def release(self) -> None:
        """The call is over here. No effect on a slot that was taken over. Raises nothing."""
        if self._limit is None:
            return
        try:
            await self._store.release_slot(self._name, self._session_id, self._holder)
        except StateStoreError as error:
            _log.info("a line of a key is free again in %g s: %s", HELD_S, error)

    async def _take(self, *, renews: bool) -> bool:
        if self._limit is None:
            return True
        try:
            return await self._store.take_slot(
                self._name, self._session_id, self._holder, self._limit, HELD_S, renews=renews
            )
        except StateStoreError as error:
            _log.warning("calls of a key are counted here only: %s", error)
            return True
