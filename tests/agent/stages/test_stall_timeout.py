"""Patience on a loop whose clock the test moves."""

import asyncio
import threading

import anyio
import pytest

from agent.stages.stall_timeout import NUM_TICKS, finished_on_thread, first_of, stall_timeout


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
    async with stall_timeout(10.0):
        await clock.pass_by(3600.0)
        for _ in range(NUM_TICKS - 2):
            await clock.pass_by(1.0)
    await clock.pass_by(60.0)  # nothing of it is left behind


async def test_what_goes_on_has_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Skew(monkeypatch)
    answers = [True, True, False]

    async def wait() -> None:
        async with stall_timeout(10.0, lambda: answers.pop(0)):
            for _ in range(2 * NUM_TICKS + 2):
                await clock.pass_by(1.0)
            assert answers == [False]
            for _ in range(NUM_TICKS):
                await clock.pass_by(1.0)

    with pytest.raises(TimeoutError):
        await wait()
    assert answers == []


async def test_patience_runs_out_while_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Skew(monkeypatch)
    passed = 0

    async def wait() -> None:
        nonlocal passed
        async with stall_timeout(10.0):
            for _ in range(3 * NUM_TICKS):
                await clock.pass_by(0.5)
                passed += 1

    with pytest.raises(TimeoutError):
        await wait()
    assert passed == 2 * NUM_TICKS - 1  # the last of them was cut short


async def test_cancelling_is_no_timeout() -> None:
    async def wait() -> None:
        async with stall_timeout(1e6):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
    assert waiting.cancelled()


class Resource:
    """What a thread works on until `let_go`, and its owner then closes."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.is_worked_on = False
        self.was_closed_at_work = False

    def work(self) -> str:
        self.is_worked_on = True
        self.begun.set()
        assert self.let_go.wait(60)
        self.is_worked_on = False
        return "done"

    async def use(self) -> str:
        try:
            return await finished_on_thread(self.work)
        finally:
            self.was_closed_at_work = self.is_worked_on

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 60)


async def turn(passes: int = 20) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)


async def test_work_on_a_thread_outlasts_a_task_group_that_cancels_again_and_again() -> None:
    resource = Resource()
    async with anyio.create_task_group() as group:
        group.start_soon(resource.use)
        await resource.until_begun()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await turn()
            resource.let_go.set()
    assert not resource.is_worked_on
    assert not resource.was_closed_at_work


async def test_work_on_a_thread_outlasts_every_cancellation_of_its_task() -> None:
    resource = Resource()
    async with asyncio.TaskGroup() as group:
        using = group.create_task(resource.use())
        await resource.until_begun()
        for _ in range(3):
            using.cancel()
            await turn()
        assert not using.done()
        resource.let_go.set()
    assert using.cancelled()
    assert not resource.was_closed_at_work


async def test_what_work_on_a_thread_gives_or_raises_comes_back() -> None:
    resource = Resource()
    resource.let_go.set()
    assert await resource.use() == "done"

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await finished_on_thread(fail)


async def test_work_that_is_cancelled_by_itself_is_a_cancellation() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await first_of(waits(), cancelled())
