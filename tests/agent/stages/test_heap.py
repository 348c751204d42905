"""Loaded models are frozen for the garbage collector until a stage is rebuilt; freed memory goes
back to the system."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from agent.calls.registry import CallRegistry
from agent.errors import StageError
from agent.server import service
from agent.stages import heap
from agent.stages.heap import GROWTH_BYTES, HeapTrims, freeze_heap, own_bytes, trim_heap
from agent.stages.model_thread import ModelThread


class Model:
    """Refers to itself, as large models do: only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _thawed() -> object:
    gc.unfreeze()  # what the collection of the tests has frozen
    yield
    gc.unfreeze()


def test_a_collection_finds_nothing_to_look_at() -> None:
    kept = [Model()]
    freeze_heap()
    assert gc.get_freeze_count() > 10_000
    assert not any(each is kept[0] for each in gc.get_objects())


async def test_a_model_that_is_replaced_is_freed() -> None:
    stage: ModelThread[Model] = ModelThread("llm", Model)
    await stage.start()
    freeze_heap()
    assert stage.model is not None
    old = weakref.ref(stage.model)

    def fail(model: Model) -> None:
        raise RuntimeError("out of order")

    with pytest.raises(StageError):
        await stage.call(fail, timeout_s=5)
    await stage.call(lambda model: model.me is model, timeout_s=5)
    async with asyncio.timeout(PATIENCE_S):
        # Its thread ends with the next job that it takes from the queue; Python collects in its
        # own time.
        while gc.collect() < 0 or old() is not None:
            await stage.call(lambda model: None, timeout_s=5)
    await stage.close()


def anonymous_mb() -> float:
    """Memory of the process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def test_freed_memory_goes_back_to_the_system() -> None:
    blocks = [np.ones(8_000) for _ in range(2_000)]  # 128 MB, each less than glibc maps by itself
    del blocks[:-1]  # the last one keeps the heap's end from moving
    before = anonymous_mb()
    trim_heap()
    assert before - anonymous_mb() > 80
    assert blocks


async def test_the_heap_is_trimmed_once_when_the_last_call_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, trims = Calls(), 0
    looked = asyncio.Semaphore(0)

    async def look(_: float) -> None:
        looked.release()
        await asyncio.sleep(0)

    def trim() -> None:
        nonlocal trims
        trims += 1

    async def after_looks(number: int = 3) -> int:
        for _ in range(number):
            await looked.acquire()
        return trims

    monkeypatch.setattr(service, "trim_heap", trim)
    monkeypatch.setattr(service, "asyncio", Looks(look))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(service._trim(cast(CallRegistry, calls)))
        assert await after_looks() == 0
        calls.admitted, calls.number = 1, 1
        assert await after_looks() == 0
        calls.number = 0
        assert await after_looks() == 1
        assert await after_looks() == 1
        watching.cancel()


def test_beside_calls_the_heap_is_trimmed_when_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = iter([100, 90, 90 + GROWTH_BYTES - 1, 90 + GROWTH_BYTES, 70, 70 + GROWTH_BYTES])
    monkeypatch.setattr(heap, "own_bytes", lambda: next(sizes))
    trims = HeapTrims()
    assert [trims.is_due(4, 9) for _ in range(6)] == [False, False, False, True, False, True]


def test_what_a_trim_does_not_give_back_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([0, GROWTH_BYTES, GROWTH_BYTES, GROWTH_BYTES + 1])
    monkeypatch.setattr(heap, "own_bytes", lambda: next(sizes))
    trims = HeapTrims()
    assert [trims.is_due(1, 1) for _ in range(4)] == [False, True, False, False]


def test_where_the_system_does_not_say_the_size_only_the_last_call_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(heap, "_STATUS", tmp_path / "none")
    trims = HeapTrims()
    assert own_bytes() is None
    assert [trims.is_due(*each) for each in [(1, 1), (0, 1), (0, 1)]] == [False, True, False]


def test_the_size_of_the_process_is_that_of_its_own_memory() -> None:
    before = own_bytes()
    block = np.ones(4_000_000)
    after = own_bytes()
    assert before is not None
    assert after is not None
    assert after - before > 0.9 * block.nbytes


class Looks:
    """asyncio with another `sleep`."""

    def __init__(self, look: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = look
        self.to_thread = asyncio.to_thread


class Calls:
    """Registry as far as it is looked at."""

    admitted = 0
    number = 0

    def __len__(self) -> int:
        return self.number
