"""Ids of sessions, items, replies and calls, and which item ids a client may not use.

They are unique in the session, hard to guess across sessions, and easy to read.

Clients may name items themselves, and within a session the next id is easy to guess. An id that was
announced before its item is there (while the caller speaks), or that is yet to come, is therefore
refused to them. One that has been used and given up they may use again: some clients replace an
item by deleting it and creating another under its name.
"""

import secrets

from latency_budget.account.turn import SessionId

from .conversation import ItemId


def new_session_id() -> SessionId:
    return SessionId(f"sess_{secrets.token_hex(10)}")


class Identifiers:
    """Counts items and replies of one session."""

    def __init__(self, session_id: SessionId) -> None:
        self._stem = session_id.rpartition("_")[2][:10]
        self._num_items = 0
        self._num_replies = 0
        self._num_calls = 0
        self._held: set[ItemId] = set()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Ids given out so far: of items, replies and function calls."""
        return self._num_items, self._num_replies, self._num_calls

    def skip(self, num_items: int, num_replies: int, num_calls: int) -> None:
        """Skip so many ids of each kind: another server has given them out."""
        self._num_items += num_items
        self._num_replies += num_replies
        self._num_calls += num_calls

    def item(self) -> ItemId:
        """The next item id, held until it is released."""
        self._num_items += 1
        item_id = ItemId(f"item_{self._stem}{self._num_items:05d}")
        self._held.add(item_id)
        return item_id

    def release(self, item_id: ItemId) -> None:
        """Release an id: the server changes nothing under it any more."""
        self._held.discard(item_id)

    def is_reserved(self, item_id: ItemId) -> bool:
        """True if this id belongs to the server, so that a client can't use it."""
        number = item_id.removeprefix(f"item_{self._stem}")
        is_ours = number != item_id and number.isascii() and number.isdecimal()
        is_to_come = is_ours and int(number) > self._num_items
        return is_to_come or item_id in self._held

    def call(self) -> str:
        """The next id of a function call."""
        self._num_calls += 1
        return f"call_{self._stem}{self._num_calls:05d}"

    def reply(self) -> str:
        self._num_replies += 1
        return f"resp_{self._stem}{self._num_replies:05d}"
