"""Suspended calls, whose client's connection broke, and which wait for it to come back.

Overflow: a suspended call holds a line, as every call, but gives it up to a new caller who would be
refused for want of one: a caller who is present goes before one who may not come back.
"""

from collections.abc import Callable
from typing import Protocol

GiveWay = Callable[[str | None, int], bool]
"""`WaitingCalls.give_way`, or `can_give_way` for who only wants to know."""


class SuspendedCall(Protocol):
    """A call, as far as its waiting can be ended."""

    def give_up(self, why: str) -> None:
        """End it; its line is free at once."""
        ...


class WaitingCalls:
    """Suspended calls, in the order in which they lost their client. Used on the server's event
    loop only."""

    def __init__(self) -> None:
        self._key_ids: dict[SuspendedCall, str] = {}
        """Key ids of the suspended calls, in the order in which they lost their client."""
        self.num_lost = 0
        """Calls that began to wait, since the start."""
        self.num_back = 0
        """Clients that came back to their calls."""

    def __len__(self) -> int:
        return len(self._key_ids)

    def begin(self, call: SuspendedCall, key_id: str) -> None:
        """`key_id`: whose call it is."""
        self._key_ids[call] = key_id
        self.num_lost += 1

    def end(self, call: SuspendedCall) -> None:
        self._key_ids.pop(call, None)

    def give_way(self, key_id: str | None = None, number: int = 1) -> bool:
        """End so many of the calls that have waited longest; of this key, where one is given. False
        where not so many wait: then all go on waiting."""
        if not self.can_give_way(key_id, number):
            return False
        for call in self._of(key_id)[:number]:
            self.end(call)
            call.give_up("its line was needed")
        return True

    def can_give_way(self, key_id: str | None = None, number: int = 1) -> bool:
        """True if `give_way` would make room."""
        return len(self._of(key_id)) >= number

    def _of(self, key_id: str | None) -> list[SuspendedCall]:
        return [call for call, owner in self._key_ids.items() if key_id in (None, owner)]

    def end_all(self, why: str) -> None:
        while self._key_ids:
            call, _ = self._key_ids.popitem()
            call.give_up(why)
