"""State store in the memory of one process: the default, and the reference for others."""

from collections.abc import Mapping, Set
from typing import Final

from latency_budget.account.clock import Clock

from .store import ForeignDataError, Lease, LeaseLostError, Record

MAX_ENTRIES: Final = 65_536
"""Most entries. One more replaces the one that was written first. The owners of tokens, secrets and
calls have lower limits of their own."""

_Entry = bytes | Record | dict[str, tuple[str, float]] | set[str]
"""Value, record, slots by members with their holders and the times at which they expire, or set."""


class MemoryStateStore:
    """A `StateStore` that ends with the process. Belongs to one event loop."""

    problem: Final = None

    def __init__(self, clock: Clock, *, is_shared: bool = False) -> None:
        """`is_shared`: several servers of this process use it."""
        self.is_shared: Final = is_shared
        self._clock = clock
        self._entries: dict[str, tuple[_Entry, float]] = {}
        """Entries with the times at which they expire, in s of the clock."""

    def __len__(self) -> int:
        return len(self._entries)

    async def check(self) -> None:
        """Always usable."""

    async def get(self, name: str) -> bytes | None:
        found = self._find(name)
        if found is not None and not isinstance(found, bytes):
            raise ForeignDataError(f"{name} is no value")
        return found

    async def put(self, name: str, value: bytes, ttl_s: float) -> None:
        self._set(name, value, ttl_s)

    async def put_if_absent(self, name: str, value: bytes, ttl_s: float) -> bool:
        if self._find(name) is not None:
            return False
        self._set(name, value, ttl_s)
        return True

    async def take(self, name: str) -> bytes | None:
        found = await self.get(name)
        self._entries.pop(name, None)
        return found

    async def delete(self, name: str) -> None:
        self._entries.pop(name, None)

    async def read_record(self, name: str) -> Record | None:
        return self._record(name)

    async def write_record(
        self,
        lease: Lease,
        changes: Mapping[str, bytes | None],
        ttl_s: float,
        *,
        whole: bool = False,
    ) -> bool:
        record = self._record(lease.record)
        if record is not None and record.lease_token != lease.token:
            raise LeaseLostError
        if record is None and not whole:
            return False
        before = {} if record is None or whole else dict(record.fields)
        after = {**before, **changes}
        fields = {name: value for name, value in after.items() if value is not None}
        self._set(lease.record, Record(lease.token, fields), ttl_s)
        return True

    async def take_over(self, lease: Lease, from_token: str, ttl_s: float) -> bool:
        record = self._record(lease.record)
        if record is None or record.is_over or record.lease_token != from_token:
            return False
        self._set(lease.record, Record(lease.token, record.fields), ttl_s)
        return True

    async def end_record(self, lease: Lease, keep_s: float) -> None:
        record = self._record(lease.record)
        if record is None or record.lease_token != lease.token:
            return
        if keep_s > 0:
            self._set(lease.record, Record("", {}), keep_s)
        else:
            del self._entries[lease.record]

    async def take_slot(
        self, name: str, member: str, holder: str, limit: int, ttl_s: float, *, renews: bool = False
    ) -> bool:
        held = self._slots(name)
        if member not in held and len(held) >= limit:
            return False
        if renews and member in held and held[member][0] != holder:
            return True
        held[member] = holder, self._now_s() + ttl_s
        self._entries[name] = held, max(until_s for _, until_s in held.values())
        return True

    async def release_slot(self, name: str, member: str, holder: str) -> None:
        held = self._slots(name)
        if held.get(member, ("", 0.0))[0] != holder:
            return
        del held[member]
        self._entries.pop(name, None)
        if held:
            self._entries[name] = held, max(until_s for _, until_s in held.values())

    async def add_member(self, name: str, member: str) -> None:
        self._entries[name] = {*await self.members(name), member}, float("inf")

    async def members(self, name: str) -> Set[str]:
        found = self._find(name)
        if found is None:
            return frozenset()
        if not isinstance(found, set):
            raise ForeignDataError(f"{name} is no set")
        return frozenset(found)

    async def close(self) -> None:
        self._entries.clear()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _find(self, name: str) -> _Entry | None:
        found = self._entries.get(name)
        if found is None:
            return None
        if found[1] <= self._now_s():
            del self._entries[name]
            return None
        return found[0]

    def _set(self, name: str, entry: _Entry, ttl_s: float) -> None:
        self._entries.pop(name, None)
        if len(self._entries) >= MAX_ENTRIES:
            self._drop()
        self._entries[name] = entry, self._now_s() + ttl_s

    def _drop(self) -> None:
        """Make room: entries that have expired, or the one that was written first."""
        now_s = self._now_s()
        expired = [name for name, (_, until_s) in self._entries.items() if until_s <= now_s]
        for name in expired or [next(iter(self._entries))]:
            del self._entries[name]

    def _record(self, name: str) -> Record | None:
        found = self._find(name)
        if found is not None and not isinstance(found, Record):
            raise ForeignDataError(f"{name} is no record")
        return found

    def _slots(self, name: str) -> dict[str, tuple[str, float]]:
        found = self._find(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise ForeignDataError(f"{name} has no slots")
        now_s = self._now_s()
        return {member: slot for member, slot in found.items() if slot[1] > now_s}
