"""One-time tokens of telephone streams, on all servers of a fleet.

A carrier's webhook and the stream that follows it may come to different servers. So a token that
one issues is published in the state store, and the server that gets the stream claims it there,
which only one can. The line stays reserved where the token was issued, until it expires.

Where the store fails, a token works at the server that issued it, as without a store. A stream may
bring a token while it is being published, because a carrier got the answer to a repeated request
sooner: it is redeemed here then, and deleted from the store once that has it.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from weakref import WeakValueDictionary

from agent.http.auth.principal import principal_from, principal_json
from agent.http.auth.token_format import digest_of

from .state_store.store import StateStore, StateStoreError
from .stream_tokens import TOKEN_S, CallTokens, ExpectedCall

_log = logging.getLogger(__name__)


class FleetTokens:
    """Tokens of all servers. Does nothing where the store is not shared."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._claims: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Tokens that are being claimed. Of two streams with one token the second must not take the
        first one's claim for another server's: both would be refused."""

    async def publish(self, tokens: CallTokens, named: Iterable[str]) -> None:
        """Let other servers find those of the named tokens that can be used and that they can't
        find yet. Ends with the first failure of the store. Raises nothing."""
        if not self._store.is_shared:
            return
        for token in named:
            begun = tokens.begin_publication(token)
            if begun is None:
                continue
            call, life_s = begun
            is_there = False
            try:
                await self._store.put(_name(token), _written(call), life_s)
                is_there = True
                if not tokens.holds(token):  # redeemed meanwhile
                    await self._store.delete(_name(token))
            except StateStoreError as error:
                _log.warning("a telephone call can come to this server only: %s", error)
                return
            finally:
                if is_there:
                    tokens.published(token)
                else:
                    tokens.claimed(token)

    async def claim(self, tokens: CallTokens, offered: Iterable[str]) -> None:
        """Before a stream's tokens are redeemed: make sure that no other server redeems them, and
        get those that others issued. Raises nothing."""
        if not self._store.is_shared:
            return
        try:
            for token in offered:
                async with self._claims.setdefault(token, asyncio.Lock()):
                    await self._claim(tokens, token)
        except StateStoreError as error:
            _log.warning("telephone calls of other servers are not known: %s", error)

    async def _claim(self, tokens: CallTokens, token: str) -> None:
        """Claim one token. Raises StateStoreError."""
        is_own = tokens.holds(token)
        if is_own and not tokens.is_published(token):
            return
        found = await self._store.take(_name(token))
        if is_own and found is None:  # redeemed elsewhere
            tokens.drop(token)
        elif is_own:
            tokens.claimed(token)
        elif found is not None and (call := _read(found)) is not None:
            tokens.adopt(token, call, TOKEN_S)


def _name(token: str) -> str:
    return f"stream:{digest_of(token).hex()}"


def _written(call: ExpectedCall) -> bytes:
    fields = {**asdict(call), "principal": principal_json(call.principal)}
    return json.dumps(fields).encode()


def _read(text: bytes) -> ExpectedCall | None:
    """None for what is no call."""
    try:
        fields = json.loads(text)
        agent = fields["agent"]
        return ExpectedCall(
            principal_from(fields["principal"]),
            None if agent is None else str(agent),
            str(fields["caller"]),
            str(fields["called"]),
            {str(name): str(value) for name, value in fields["told"].items()},
            str(fields["carrier"]),
            str(fields["call_id"]),
            fields["is_named_by_stream"] is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        _log.warning("the state store has an entry that is no telephone call of this version")
        return None
