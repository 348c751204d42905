"""Signs of life of something that takes long."""

from collections.abc import Callable
from typing import Final

from latency_budget.account.clock import Clock

CONTINUED_NS: Final = 5_000_000_000
"""Between signs that the reply goes on: a twelfth of what the turn-taking machine waits for one."""


class Pulse:
    """Tells that something goes on, but not every time."""

    def __init__(self, clock: Clock) -> None:
        self.on_beat: Callable[[], None] = lambda: None
        self._clock = clock
        self._beat_ns = 0

    def touch(self) -> None:
        """It goes on."""
        now_ns = self._clock.now_ns()
        if now_ns - self._beat_ns >= CONTINUED_NS:
            self._beat_ns = now_ns
            self.on_beat()
