"""First event of a resumed connection: the state that the client needs to continue."""

import json
from collections.abc import Sequence
from typing import Any, Final

from agent.session.api.conversation import Item
from agent.session.api.server_events import Resumed

from .items import item_json

MAX_ITEMS: Final = 64
"""The newest: what a client can have missed is younger than the gap in its connection."""

MAX_CHARS: Final = 1 << 18
"""Largest length of the items' JSON, in characters; a character has four bytes at most, and clients
read 1 MiB in a frame."""


def resumed_event(notice: Resumed, session_id: str) -> dict[str, Any]:
    items = _newest(notice.items)
    left_out = len(notice.items) - len(items)
    return {
        "type": "halfsec.resumed",
        "session": session_id,
        "items": items,
        "previous_item_id": notice.items[left_out - 1].id if left_out else None,
        "num_items": len(notice.items),
        "received": notice.received,
        "will_answer": notice.will_answer,
    }


def _newest(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Newest items in order, as many as fit."""
    shown: list[dict[str, Any]] = []
    num_chars = 0
    for item in reversed(items[-MAX_ITEMS:]):
        as_json = item_json(item)
        num_chars += len(json.dumps(as_json, ensure_ascii=False))
        if num_chars > MAX_CHARS:
            break
        shown.insert(0, as_json)
    return shown
