"""Patience on a loop whose clock the test moves."""

import asyncio

import pytest

from agent.patience import NUM_TICKS, patience


class Skew:
    """Moves the running loop's clock. Tests need not wait, nor trust the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._passed = 0.0
        monkeypatch.setattr(loop, "time", lambda: started + self._passed)

    async def pass_by(self, seconds: float) -> None:
        self._passed += seconds
        for _ in range(4):
            await asyncio.sleep(0)


async def test_one_stall_of_any_length_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Skew(monkeypatch)
    async with patience(10.0):
        await clock.pass_by(3600.0)
        for _ in range(NUM_TICKS - 2):
            await clock.pass_by(1.0)
    await clock.pass_by(60.0)  # nothing of it is left behind


async def test_patience_runs_out_while_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Skew(monkeypatch)
    passed = 0

    async def wait() -> None:
        nonlocal passed
        async with patience(10.0):
            for _ in range(3 * NUM_TICKS):
                await clock.pass_by(0.5)
                passed += 1

    with pytest.raises(TimeoutError):
        await wait()
    assert passed == 2 * NUM_TICKS - 1  # the last of them was cut short


async def test_cancelling_is_no_timeout() -> None:
    async def wait() -> None:
        async with patience(1e6):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
    assert waiting.cancelled()
