"""Refused calls: the newest, and their number."""

from collections import deque
from typing import Any, Final

from latency_budget.account.clock import iso_of

MAX_KEPT: Final = 200


class Rejections:
    """Log of refused calls. Used on the server's event loop only."""

    def __init__(self) -> None:
        self.total = 0
        """Since the start."""
        self._newest: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)

    def add(self, code: str, num_calls: int, at_unix_ns: int) -> dict[str, Any]:
        """Note a refused call and the number of calls in progress. Returns its live event."""
        self.total += 1
        told = {"code": code, "calls": num_calls, "at": iso_of(at_unix_ns)}
        self._newest.append(told)
        return told

    def listing(self) -> dict[str, Any]:
        """The newest, oldest first, and how many there were."""
        return {"refusals": list(self._newest), "total": self.total}
