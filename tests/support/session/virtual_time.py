"""An event loop on a manual clock: tests wait for nothing and depend on no speed.

An async test marked `virtual_time` runs on one (`tests/agent/session/conftest.py`). Nothing in it
may wait for a thread, a process or the network: the clock runs ahead while these work.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

from latency_budget.account.clock import Clock, ManualClock, SystemClock

MAX_PASSES = 1_000_000
"""Most iterations of a loop at one instant: more means that something spins."""


class _Selector(selectors.DefaultSelector):
    """Turns the clock on in place of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._num_passes = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self._num_passes += 1
        assert self._num_passes < MAX_PASSES
        assert timeout is not None, "everybody waits for ever"
        self._clock.advance_ms(max(0.0, timeout) * 1000)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of `clock`."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(10**12)
        super().__init__(_Selector(self.clock))
        # A timer that is early by rounding would be waited for again, for no time at all.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.clock.now_ns() / 1e9


def clock_of_loop() -> Clock:
    """Clock of the running loop: in virtual time the manual one, else the machine's."""
    loop = asyncio.get_running_loop()
    return loop.clock if isinstance(loop, VirtualLoop) else SystemClock()


def run(test: Callable[[ManualClock], Awaitable[None]]) -> None:
    """Run a test to its end on a loop of its own."""
    clock = ManualClock(1_000_000_000)

    async def main() -> None:
        await test(clock)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())
