"""State store: what the servers of a fleet know together. The interface, and its errors.

Theory of operation. A server may die at any moment, and a call is to go on at another one. So what
must outlive a server, or must hold on all of them at once, is kept in a store: the state of calls,
one-time tokens, answers to webhooks, client secrets, the calls of a key, revoked keys. There are
four kinds of entries, and nothing else:

- *values*: bytes that expire. `take` reads and deletes in one step, so that a token works once on
  all servers together; `put_if_absent` writes unless there is one, so that one of two servers wins.
- *records*: named fields under the *lease* of one holder. Only the holder of its lease writes a
  record: each write compares the lease in the same step. `take_over` gives the record to another
  holder, and the old one gets `LeaseLostError` with its next write. The lease has no time of its
  own: it expires with the record, which its holder keeps alive.
- *slots*: places of which a name has a limited number, each held by a member until it expires.
- *sets*: members that are added and never removed.

Nothing here waits for long: an operation fails with `StoreUnavailableError` after some seconds at
most, and at once where another one has just waited in vain (`circuit_breaker.py`). Whoever uses the
store decides what a failure means; a call never ends because of one.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol


class StateStoreError(Exception):
    """The store did not do it. The message is a clause with the reason, without addresses of
    clients, without passwords."""


class StoreUnavailableError(StateStoreError):
    """The store can't be reached, or does not answer in time. Later it may."""


class ForeignDataError(StateStoreError):
    """The store has something else under this name, or refuses the operation."""


class UnreadableStateError(Exception):
    """A call's record that can't be read: it is damaged, or another version's. The message is a
    clause with the reason."""


class LeaseLostError(Exception):
    """Another holder has taken the record over, or its end was recorded."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Right to write one record."""

    record: str
    """Name of the record."""
    token: str
    """Random text; nobody else has it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read."""

    lease_token: str
    """Token of its holder; empty where its end was recorded."""
    fields: Mapping[str, bytes]

    @property
    def is_over(self) -> bool:
        """True where its end was recorded."""
        return not self.lease_token


class StateStore(Protocol):
    """A store. All methods may be called at the same time; names are ASCII without spaces. Each
    raises StateStoreError."""

    @property
    def is_shared(self) -> bool:
        """True if other servers see the same."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the last operation failed, or which ones the store refuses, without an address; None
        where it is as it should be."""
        ...

    async def check(self) -> None:
        """Look whether the store can be used. ForeignDataError: not by this version of halfsec."""
        ...

    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, value: bytes, ttl_s: float) -> None: ...

    async def put_if_absent(self, name: str, value: bytes, ttl_s: float) -> bool:
        """Returns False, having changed nothing, where there is a value."""
        ...

    async def take(self, name: str) -> bytes | None:
        """Read and delete a value. Of several that take it at once, one gets it."""
        ...

    async def delete(self, name: str) -> None: ...

    async def read_record(self, name: str) -> Record | None: ...

    async def write_record(
        self,
        lease: Lease,
        changes: Mapping[str, bytes | None],
        ttl_s: float,
        *,
        whole: bool = False,
    ) -> bool:
        """Set fields (None: remove them) and let the record live for `ttl_s` from now. `whole`: the
        changes are the record; what it had besides is removed, and one that is not there is made.
        Returns False, having changed nothing, where there is no record and `whole` is not set.

        Raises LeaseLostError.
        """
        ...

    async def take_over(self, lease: Lease, from_token: str, ttl_s: float) -> bool:
        """Make `lease` the record's, if `from_token` is still its holder's. Returns False, having
        changed nothing, where it is not."""
        ...

    async def end_record(self, lease: Lease, keep_s: float) -> None:
        """Delete a record, if it is this holder's, and remember its end for `keep_s`: a holder that
        was suspended meanwhile makes no new one. 0: nothing is remembered."""
        ...

    async def take_slot(
        self, name: str, member: str, holder: str, limit: int, ttl_s: float, *, renews: bool = False
    ) -> bool:
        """Hold one of `limit` slots for `ttl_s`: the member's own, of any holder, or a free one.
        Returns False where all are other members'. `renews`: the member's slot is left to the
        holder that has taken it since. Neither id has a blank."""
        ...

    async def release_slot(self, name: str, member: str, holder: str) -> None:
        """Free the member's slot, if it is this holder's."""
        ...

    async def add_member(self, name: str, member: str) -> None: ...

    async def members(self, name: str) -> Set[str]: ...

    async def close(self) -> None: ...
