"""Writer of one call's state into the state store, and the resumption of another server's call.

Theory of operation. The writer works beside the call and is never waited for: `changed` sets a
flag, and a task of its own takes the state as it is by then and writes what differs from what it
wrote last. One write is on its way at a time, so that changes which come meanwhile are one write,
and nothing is queued. While a reply is played, the position is written ten times a second.

A store that fails costs the call nothing but its being resumable: the writer tries again, and
writes everything when the store is back. A lease that was lost ends the call here, unless it is
over: its client is at another server.

Order. A token is findable before the record names it, and a client acts on what it was sent after
that was written, by more than the time of a write: so another server finds at least what the client
has reacted to. What the client sent and this server did not record it sends again
(`CallHead.received`), and its effect is not in the record either: both are of one moment.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from agent.errors import CLOSE_TIMEOUT_S, CallTakenOverError
from agent.http.auth.token_format import RESUME_PREFIX, id_in, is_token
from agent.session.api.session_state import SessionState
from latency_budget.account.clock import unix_ns
from latency_budget.account.turn import SessionId

from .call_state import CallHead, CallState, CallStateEncoder, SavedToken, read_state
from .session_start import SessionStart
from .state_store.store import (
    ForeignDataError,
    Lease,
    LeaseLostError,
    StateStore,
    StateStoreError,
    StoreUnavailableError,
    UnreadableStateError,
)

MIN_INTERVAL_S: Final = 0.05
"""Shortest time between two writes of a call. Shorter: more writes while a client sends a burst of
items. Longer: more is lost with a server."""

PLAYED_EVERY_S: Final = 0.1
"""Interval of writes while a reply is played: the frame of playback. A word has 0.3 s."""

RENEW_EVERY_S: Final = 2.0
"""Interval of writes that renew the lease, and notice that it was lost."""

CLOSE_S: Final = 2.0
"""Longest time that the end of a call waits for the store."""

RETRY_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Pauses after failures in a row; the last one goes on."""

MIN_TTL_S: Final = 10
"""Least life of a record: five renewals."""

_log = logging.getLogger(__name__)

Snapshot = tuple[SessionState, int, Sequence[tuple[str, bytes]]]
"""State of the session, frames of the client that were processed, and ids and SHA-256 digests of
the tokens that resume the call: all of one moment."""


class CallStateWriter:
    """Writer of one call's state. Belongs to the event loop."""

    def __init__(
        self,
        store: StateStore,
        lease: Lease,
        ttl_s: int,
        head: CallHead,
        *,
        taken_over: bool = False,
    ) -> None:
        """`ttl_s`: life of the record after the last write. `head`: what the call is; its frames
        and tokens are those of each snapshot. `taken_over`: the record was another server's."""
        self._store = store
        self._lease = lease
        self._ttl_s = ttl_s
        self._head = head
        self._was_taken_over = taken_over
        self._encoder = CallStateEncoder()
        self._written: dict[str, bytes] | None = None
        """Fields that the record has; None: not known, so the next write is of everything."""
        self._indexed: set[str] = set()
        """Ids of tokens that can be found."""
        self._changed = asyncio.Event()
        self._take: Callable[[], Snapshot] | None = None
        self._is_lost = False
        self.closed: Final = asyncio.Event()
        """Set when nothing is written any more."""

    def changed(self) -> None:
        """Something of the state may have changed. Never waits."""
        self._changed.set()

    async def run(self, take: Callable[[], Snapshot]) -> NoReturn:
        """Write changes until cancelled; `take` takes a snapshot. Raises CallTakenOverError."""
        self._take = take
        num_failed = 0
        while True:
            self._changed.clear()
            state = self._state(take)
            try:
                await self._write(state)
                num_failed = 0
                pause_s = MIN_INTERVAL_S
            except StateStoreError as error:
                if num_failed == 0:
                    _log.info("the state of call %s is not written: %s", self._lease.record, error)
                pause_s = RETRY_S[min(num_failed, len(RETRY_S) - 1)]
                num_failed += 1
            await asyncio.sleep(pause_s)
            is_playing = state.session.is_playing
            wait_s = PLAYED_EVERY_S - MIN_INTERVAL_S if is_playing else RENEW_EVERY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def holds(self) -> bool:
        """Ask the store whether the call is still this server's. True also where it can't say,
        False once nothing is written any more."""
        if self._is_lost or self.closed.is_set():
            return False
        try:
            await self._store.write_record(self._lease, {}, self._ttl_s)
        except LeaseLostError:
            self.lose()
            return False
        except StateStoreError:
            return True
        return True

    def lose(self) -> None:
        """The lease was lost: the call ends here with the next step of `run`."""
        self._is_lost = True
        self._changed.set()

    async def close(self, *, keeps: bool) -> None:
        """Stop writing, once `run` has ended. `keeps`: another server may go on with the call;
        otherwise it is over. Raises nothing."""
        if self.closed.is_set():
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._is_lost:
                    return
                if not keeps:
                    await self._end()
                elif self._take is not None:
                    await self._write(self._state(self._take))
        except (StateStoreError, CallTakenOverError, TimeoutError) as error:
            _log.info("the end of call %s is not recorded: %s", self._lease.record, error)
        finally:
            self.closed.set()

    def _state(self, take: Callable[[], Snapshot]) -> CallState:
        session, received, tokens = take()
        saved = tuple(SavedToken(token_id, digest.hex()) for token_id, digest in tokens)
        return CallState(replace(self._head, received=received, tokens=saved), session)

    async def _write(self, state: CallState) -> None:
        """Raises StateStoreError, CallTakenOverError."""
        if self._is_lost:
            raise CallTakenOverError
        try:
            fields, before = self._encoder.fields(state), self._written
        except ValueError as error:
            raise ForeignDataError(f"it can't be written as JSON ({error})") from None
        changes: dict[str, bytes | None] = {
            name: value
            for name, value in fields.items()
            if before is None or before.get(name) != value
        }
        if before is not None:
            changes |= dict.fromkeys(before.keys() - fields.keys())
        self._written = None  # until it is known
        if before is None:
            self._indexed.clear()
        try:
            await self._index(state)
            is_there = await self._store.write_record(
                self._lease, changes, self._ttl_s, whole=before is None
            )
            if not is_there:  # the store has lost it
                self._indexed.clear()
                await self._index(state)
                await self._store.write_record(self._lease, {**fields}, self._ttl_s, whole=True)
        except LeaseLostError:
            self._is_lost = True
            raise CallTakenOverError from None
        self._written = fields

    async def _index(self, state: CallState) -> None:
        """Let other servers find the record by the tokens' ids."""
        tokens = {token.token_id for token in state.head.tokens}
        for token_id in tokens - self._indexed:
            name = state.head.session_id.encode()
            await self._store.put(_index_of(token_id), name, self._left_s + self._ttl_s)
        self._indexed = tokens

    @property
    def _left_s(self) -> int:
        """Longest time for which the call goes on, in s."""
        return max(0, self._head.expires_at_unix_s - unix_ns() // 10**9)

    async def _end(self) -> None:
        # The first server may be suspended, and must not record the call anew.
        keep_s = self._left_s + self._ttl_s if self._was_taken_over else 0
        await self._store.end_record(self._lease, keep_s)
        for token_id in self._indexed:
            await self._store.delete(_index_of(token_id))


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call that a token resumes, as it is in the store."""

    token: str
    """The token that the client presented."""
    state: CallState
    lease_token: str
    """Whose it is by now."""


@dataclass(frozen=True, slots=True)
class TakenOverCall:
    """A call that this server goes on with."""

    state: CallState
    token_id: str
    """Id of the token that the client presented."""
    writer: CallStateWriter


class FleetCalls:
    """Calls of this server in the store of its fleet. Belongs to the event loop."""

    def __init__(self, store: StateStore, resume_s: int) -> None:
        self._store = store
        self._ttl_s = max(resume_s, MIN_TTL_S)
        self._writers: dict[str, CallStateWriter] = {}
        """By session id; those that are closed are removed now and then."""

    def begin(
        self, session_id: SessionId, start: SessionStart, key_id: str, limit_s: int
    ) -> CallStateWriter:
        """Writer of a call that begins here."""
        until = unix_ns() // 10**9 + limit_s
        fixed = tuple(sorted(start.fixed))
        head = CallHead(session_id, start.agent, start.model, fixed, key_id, until, 0, ())
        writer = CallStateWriter(self._store, _new_lease(session_id), self._ttl_s, head)
        self._add(session_id, writer)
        return writer

    async def find(self, text: str, key_id: str) -> FoundCall | None:
        """The call that this token resumes, for the principal with this `key_id`. None where there
        is none, or it is over, or not this principal's.

        Raises StateStoreError, UnreadableStateError.
        """
        token_id = id_in(RESUME_PREFIX, text)
        if not (text.startswith(RESUME_PREFIX) and token_id.isascii() and token_id.isalnum()):
            return None
        found = await self._store.get(_index_of(token_id))
        if found is None:
            return None
        record = await self._store.read_record(_name(found.decode("utf-8", "replace")))
        if record is None or record.is_over:
            return None
        state = read_state(record.fields)
        opens = _opens(text, token_id, key_id, state)
        return FoundCall(text, state, record.lease_token) if opens else None

    async def take_over(self, found: FoundCall) -> TakenOverCall | None:
        """Go on with a call. From then on its holder writes nothing. None where it was ended, or
        resumed by another connection, meanwhile. Raises StateStoreError, UnreadableStateError."""
        session_id = found.state.head.session_id
        lease = _new_lease(session_id)
        if not await self._store.take_over(lease, found.lease_token, self._ttl_s):
            return None
        await self._leave_to(session_id)
        record = await self._store.read_record(lease.record)  # with what was written meanwhile
        if record is None or record.lease_token != lease.token:
            return None
        state = read_state(record.fields)
        writer = CallStateWriter(self._store, lease, self._ttl_s, state.head, taken_over=True)
        self._add(session_id, writer)
        return TakenOverCall(state, id_in(RESUME_PREFIX, found.token), writer)

    async def _leave_to(self, session_id: str) -> None:
        """End what this server still has of the call, from before it was resumed elsewhere. Raises
        StoreUnavailableError where that takes too long."""
        if (stale := self._writers.get(session_id)) is not None:
            stale.lose()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await stale.closed.wait()
            except TimeoutError:
                raise StoreUnavailableError("this server still ends its part of the call") from None

    def _add(self, session_id: str, writer: CallStateWriter) -> None:
        self._writers = {
            name: each for name, each in self._writers.items() if not each.closed.is_set()
        }
        self._writers[session_id] = writer


def _opens(text: str, token_id: str, key_id: str, state: CallState) -> bool:
    """True if the token is one of the call's, and the call is this principal's. One comparison."""
    known = [each.sha256 for each in state.head.tokens if each.token_id == token_id]
    try:
        digest = bytes.fromhex(known[0]) if known else None
    except ValueError:
        raise UnreadableStateError("its record is damaged (a token)") from None
    return is_token(text, digest) and state.head.key_id == key_id


def _name(session_id: str) -> str:
    return f"call:{session_id}"


def _new_lease(session_id: str) -> Lease:
    return Lease(_name(session_id), secrets.token_hex(16))


def _index_of(token_id: str) -> str:
    return f"resume:{token_id}"
