"""Ids that clients see: unique in the session, hard to guess across sessions, easy to read."""

import itertools
import secrets

from latency_budget.turn import SessionId

from .conversation import ItemId


def new_session_id() -> SessionId:
    return SessionId(f"sess_{secrets.token_hex(10)}")


class Identifiers:
    """Counts items and replies of one session."""

    def __init__(self, session_id: SessionId) -> None:
        self._stem = session_id.rpartition("_")[2][:10]
        self._items = itertools.count(1)
        self._replies = itertools.count(1)

    def item(self) -> ItemId:
        return ItemId(f"item_{self._stem}{next(self._items):05d}")

    def reply(self) -> str:
        return f"resp_{self._stem}{next(self._replies):05d}"
