"""Throttle of failed authentication by address: each wrong key delays the next answer.

Guessing 256 bits is hopeless at any speed; the throttle keeps guesses from costing the server
anything, and a partly leaked key from being completed by trial. Only wrong keys wait: a right one
is answered at once, even if another client at the same address guesses.
"""

from collections import OrderedDict
from typing import Final

from agent.http.peer_address import place_of

FREE_TRIES: Final = 10
"""Wrong keys that are answered at once: a person, or some pages that were open when a key was
revoked."""
FORGET_S: Final = 6.0
"""One wrong key is forgotten in so long: ten a minute stay free."""
MAX_ADDRESSES: Final = 4096
"""Remembered. At more, who was wrong longest ago is forgotten."""


class AuthThrottle:
    """Throttle of failed authentication, by address. One thread."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Wrong keys by address: how many are not forgotten, and the time of that count in ns."""

    def __len__(self) -> int:
        return len(self._levels)

    def add(self, address: str, now_ns: int) -> bool:
        """Count a wrong key. Whether there have been too many from there lately."""
        place = place_of(address)
        level, then_ns = self._levels.pop(place, (0.0, now_ns))
        level = max(0.0, level - (now_ns - then_ns) / 1e9 / FORGET_S)
        # Capped: who guessed for a day is not kept waiting for days.
        self._levels[place] = min(level + 1, 2.0 * FREE_TRIES), now_ns
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return level + 1 > FREE_TRIES
