"""Owner threads: order, faults, hangs and recovery."""

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from agent.errors import ClientError, StageError
from agent.stages import model_thread
from agent.stages.idle_threads import Activity, ThreadGroup
from agent.stages.model_thread import (
    BACKGROUND,
    MAX_WAITING,
    NORMAL,
    NUM_UNDUE_CHECKS,
    OFFLINE,
    URGENT,
    ModelThread,
    StageLostError,
    retry_s,
)
from agent.stages.stall_timeout import NUM_TICKS


class Model:
    built = 0

    def __init__(self) -> None:
        type(self).built += 1
        self.number = type(self).built


@pytest.fixture
async def stage() -> AsyncIterator[ModelThread[Model]]:
    Model.built = 0
    thread: ModelThread[Model] = ModelThread("test", Model)
    await thread.start()
    yield thread
    await thread.close()


async def hold(
    stage: ModelThread[Model], priority: int = NORMAL, caller: str | None = None
) -> tuple[threading.Event, "asyncio.Task[None]"]:
    """Keep the thread busy until the event is set."""
    begun, release = threading.Event(), threading.Event()

    def job(_: Model) -> None:
        begun.set()
        release.wait(30)

    task = asyncio.get_running_loop().create_task(
        stage.call(job, timeout_s=30, priority=priority, caller=caller)
    )
    await asyncio.to_thread(begun.wait, 30)
    return release, task


async def test_answers_come_from_the_one_model(stage: ModelThread[Model]) -> None:
    assert await stage.call(lambda model: model.number, timeout_s=30) == 1
    names = {
        await stage.call(lambda _: threading.current_thread().name, timeout_s=30) for _ in range(3)
    }
    assert names == {"stage-test"}


async def test_urgent_jobs_go_first(stage: ModelThread[Model]) -> None:
    done: list[str] = []
    release, busy = await hold(stage)
    async with asyncio.TaskGroup() as group:
        group.create_task(
            stage.call(lambda _: done.append("partial"), timeout_s=30, priority=BACKGROUND)
        )
        await asyncio.sleep(0)
        group.create_task(stage.call(lambda _: done.append("final"), timeout_s=30, priority=URGENT))
        await asyncio.sleep(0)
        release.set()
    await busy
    assert done == ["final", "partial"]


async def test_one_callers_jobs_delay_anothers_by_one_at_most(stage: ModelThread[Model]) -> None:
    """It speaks so fast that ten finals of it wait; then another caller's turn ends."""
    done: list[str] = []
    release, busy = await hold(stage)

    async def final(caller: str, number: int) -> None:
        name = f"{caller} {number}"
        await stage.call(lambda _: done.append(name), timeout_s=30, priority=URGENT, caller=caller)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(final("fast", number))
        await asyncio.sleep(0)
        for number in range(2):
            group.create_task(final("good", number))
        await asyncio.sleep(0)
        release.set()
    await busy
    assert done[:4] == ["fast 0", "good 0", "fast 1", "good 1"]
    assert [name for name in done if name.startswith("fast")] == [f"fast {n}" for n in range(10)]


async def test_a_stage_that_raises_is_rebuilt(stage: ModelThread[Model]) -> None:
    def fail(_: Model) -> None:
        raise RuntimeError("weights are gone")

    with pytest.raises(StageError, match="weights are gone"):
        await stage.call(fail, timeout_s=30)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 2
    assert stage.restarts == 1


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), asyncio.CancelledError()])
async def test_what_would_end_a_thread_or_the_loop_fails_the_job_only(
    stage: ModelThread[Model], error: BaseException
) -> None:
    def job(_: Model) -> None:
        raise error

    with pytest.raises(StageError, match=type(error).__name__):
        await stage.call(job, timeout_s=30)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 2
    assert stage.restarts == 1


async def test_a_build_that_exits_is_an_error_and_tried_again(impatient: None) -> None:
    built = 0
    rebuilt = threading.Event()

    def build() -> Model:
        nonlocal built
        built += 1
        if built in (2, 3):
            raise SystemExit("the library gives up")
        if built == 4:
            rebuilt.set()
        return Model()

    def job(_: Model) -> None:
        raise SystemExit(3)

    stage: ModelThread[Model] = ModelThread("test", build)
    await stage.start()
    with pytest.raises(StageError):
        await stage.call(job, timeout_s=30)
    assert await asyncio.to_thread(rebuilt.wait, 30)
    assert await stage.call(lambda _: built, timeout_s=30) == 4
    await stage.close()


async def test_the_askers_own_fault_restarts_nothing(stage: ModelThread[Model]) -> None:
    def refuse(_: Model) -> None:
        raise ClientError("no such voice")

    with pytest.raises(ClientError):
        await stage.call(refuse, timeout_s=30)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 1


async def test_a_stage_that_hangs_is_replaced_and_its_queue_goes_on(
    stage: ModelThread[Model],
) -> None:
    begun, release = threading.Event(), threading.Event()

    def hang(_: Model) -> None:
        begun.set()
        release.wait(30)

    loop = asyncio.get_running_loop()
    hanging = loop.create_task(stage.call(hang, timeout_s=0.2))
    await asyncio.to_thread(begun.wait, 30)
    behind = loop.create_task(stage.call(lambda model: model.number, timeout_s=30))
    with pytest.raises(StageError, match="too long"):
        await hanging
    assert await behind == 2
    release.set()


async def test_a_job_that_waits_too_long_ends_no_job_of_anothers(stage: ModelThread[Model]) -> None:
    """As a detector's of 5 s behind a piece of a file, which may take a minute."""
    release, busy = await hold(stage, OFFLINE)
    with pytest.raises(StageError, match="too long"):
        await stage.call(lambda model: model.number, timeout_s=0.01)
    release.set()
    await busy
    assert await stage.call(lambda model: model.number, timeout_s=30) == 1
    assert stage.restarts == 0


async def test_a_job_that_hangs_is_given_up_without_its_caller(
    monkeypatch: pytest.MonkeyPatch, stage: ModelThread[Model]
) -> None:
    monkeypatch.setattr(model_thread, "CHECK_S", 0.01)
    begun, release = threading.Event(), threading.Event()

    def hang(_: Model) -> None:
        begun.set()
        release.wait(30)

    hanging = asyncio.get_running_loop().create_task(stage.call(hang, timeout_s=0.2))
    await asyncio.to_thread(begun.wait, 30)
    hanging.cancel()
    assert await stage.call(lambda model: model.number, timeout_s=3600) == 2
    release.set()


async def test_a_job_that_hangs_is_not_waited_for_in_the_fair_order(
    stage: ModelThread[Model],
) -> None:
    """It would be debt for ever: what a caller used is forgotten when no job is left."""
    release, hanging = await hold(stage, caller="a")
    thread = stage._thread
    assert stage._running is not None
    assert thread is not None
    order = stage._fair_orders[NORMAL]
    assert len(order) == 1
    stage._hangs(stage._running)
    with pytest.raises(StageError, match="too long"):
        await hanging
    assert len(order) == 0
    held, busy = await hold(stage, caller="b")
    release.set()
    await asyncio.to_thread(thread.join, 30)
    assert len(order) == 1, "the job that came back is not over a second time"
    held.set()
    await busy


async def hang_once(stage: ModelThread[Model]) -> tuple[threading.Event, threading.Thread | None]:
    """Have the stage abandon its thread in a job, which ends when the event is set."""
    release, hanging = await hold(stage)
    thread = stage._thread
    assert stage._running is not None
    stage._hangs(stage._running)
    with pytest.raises(StageError, match="too long"):
        await hanging
    return release, thread


async def test_the_third_thread_that_hangs_is_one_too_many(stage: ModelThread[Model]) -> None:
    held = [await hang_once(stage) for _ in range(3)]
    assert isinstance(stage.broken, StageLostError)
    with pytest.raises(StageError, match="3 of its threads hang; only a new process"):
        await stage.call(lambda model: model.number, timeout_s=30)
    assert (Model.built, stage.restarts, stage.model) == (3, 2, None)
    for release, _ in held:
        release.set()


async def test_threads_that_came_back_are_not_counted(stage: ModelThread[Model]) -> None:
    for number in range(1, 6):
        release, thread = await hang_once(stage)
        assert thread is not None
        release.set()
        await asyncio.to_thread(thread.join, 30)
        assert await stage.call(lambda model: model.number, timeout_s=30) == number + 1
    assert (stage.broken, stage.restarts) == (None, 5)


async def test_a_model_with_a_thread_of_its_own_is_gone_when_that_ends() -> None:
    ends = [threading.Event() for _ in range(5)]
    workers: dict[Model, threading.Thread] = {}

    def build() -> Model:
        model = Model()
        workers[model] = threading.Thread(target=ends[len(workers)].wait, args=(30,), daemon=True)
        workers[model].start()
        return model

    stage: ModelThread[Model] = ModelThread("llm", build, worker=workers.__getitem__)
    await stage.start()

    async def give_up() -> None:
        stage.restart(await stage.call(lambda model: model, timeout_s=30), "hangs")

    await give_up()
    await give_up()
    ends[0].set()
    await asyncio.to_thread(next(iter(workers.values())).join, 30)
    await give_up()
    assert (stage.restarts, stage.broken) == (3, None)
    await give_up()
    assert isinstance(stage.broken, StageLostError)
    assert (stage.restarts, len(workers)) == (3, 4)
    for each in ends:
        each.set()
    await stage.close()


linux = pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux")


class Computing:
    """A stage that only computes, checked as often as a test is patient."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, only_computes: bool = True) -> None:
        self.num_checks = 0
        self.checked = asyncio.Event()
        """20 checks have been made: four times as many as a hang takes."""
        monkeypatch.setattr(model_thread, "CHECK_S", 0.01)
        Model.built = 0
        self.stage: ModelThread[Model] = ModelThread("test", Model, only_computes=only_computes)
        check = self.stage._check

        def counted() -> None:
            check()
            self.num_checks += 1
            if self.num_checks == 20:
                self.checked.set()

        monkeypatch.setattr(self.stage, "_check", counted)


@linux
async def test_a_job_that_sleeps_is_given_up_long_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Computing(monkeypatch).stage
    await stage.start()
    release, hanging = await hold(stage)
    behind = asyncio.get_running_loop().create_task(
        stage.call(lambda model: model.number, timeout_s=3600)
    )
    with pytest.raises(StageError, match="too long"):
        await hanging
    assert await behind == 2
    assert stage.restarts == 1
    release.set()
    await stage.close()


@linux
async def test_the_hang_of_a_job_whose_caller_is_gone_is_found_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Computing(monkeypatch).stage
    await stage.start()
    release, hanging = await hold(stage)
    hanging.cancel()
    assert await stage.call(lambda model: model.number, timeout_s=3600) == 2
    release.set()
    await stage.close()


async def test_a_job_that_computes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    computing = Computing(monkeypatch)
    end = threading.Event()

    def compute(model: Model) -> int:
        while not end.is_set():
            sum(range(1000))
        return model.number

    await computing.stage.start()
    job = asyncio.get_running_loop().create_task(computing.stage.call(compute, timeout_s=3600))
    await computing.checked.wait()
    end.set()
    assert await job == 1
    await computing.stage.close()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python names its own threads")
async def test_a_job_that_other_threads_compute_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing = Computing(monkeypatch)
    end = threading.Event()

    def compute() -> None:
        while not end.is_set():
            sum(range(1000))

    def wait(model: Model) -> int:
        helper = threading.Thread(target=compute)
        helper.start()
        helper.join()
        return model.number

    await computing.stage.start()
    job = asyncio.get_running_loop().create_task(computing.stage.call(wait, timeout_s=3600))
    await computing.checked.wait()
    end.set()
    assert await job == 1
    await computing.stage.close()


async def test_a_job_that_may_sleep_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    computing = Computing(monkeypatch, only_computes=False)
    await computing.stage.start()
    release, job = await hold(computing.stage)
    await computing.checked.wait()
    assert computing.stage.restarts == 0
    release.set()
    await job
    assert await computing.stage.call(lambda model: model.number, timeout_s=30) == 1
    await computing.stage.close()


class ScriptedThreads(ThreadGroup):
    """Threads of a model that do what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Activity] = {"1": ("S", 100)}

    def sample(self, *, finds_new: bool = False) -> dict[str, Activity]:
        return self.found


async def troubles(
    monkeypatch: pytest.MonkeyPatch,
    runs_ns: Sequence[int | None],
    *,
    only_computes: bool = True,
    priority: int = NORMAL,
) -> list[bool]:
    """Whether the model is in trouble after each check of a long job, whose thread has run for so
    long by then; None: the system does not say."""
    monkeypatch.setattr(model_thread, "CHECK_S", 3600.0)  # the test makes the checks
    stage: ModelThread[Model] = ModelThread("asr", Model, only_computes=only_computes)
    await stage.start()
    threads = stage._threads = ScriptedThreads()
    release, job = await hold(stage, priority)
    found: list[bool] = []
    for run_ns in runs_ns:
        threads.found = {} if run_ns is None else {"1": ("S", run_ns)}
        stage._check()
        found.append(stage.is_troubled)
    assert stage.restarts == 0
    release.set()
    await job
    await stage.close()
    return found


async def test_a_slow_job_that_computes_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phrase in front of the reply would only delay it: the machine is busy, or another caller
    has spoken for long. Before, any job of 0.75 s was taken for trouble."""
    for priority in (URGENT, BACKGROUND, OFFLINE):
        assert not any(await troubles(monkeypatch, range(100, 150), priority=priority))


async def test_a_job_that_falls_asleep_is_trouble_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await troubles(monkeypatch, [1, 2, 3, 4, 5, 6, 6, 6, 7, 7])
    assert found == [*(False,) * 6, True, True, False, True]


@pytest.mark.parametrize("only_computes", [True, False], ids=["not_counted", "may_sleep"])
async def test_where_sleep_says_nothing_a_job_of_seconds_is_trouble(
    monkeypatch: pytest.MonkeyPatch, *, only_computes: bool
) -> None:
    seen = [None] * (NUM_UNDUE_CHECKS + 2)
    for priority in (URGENT, NORMAL):
        found = await troubles(monkeypatch, seen, only_computes=only_computes, priority=priority)
        assert found == [False] * NUM_UNDUE_CHECKS + [True, True]
    for priority in (BACKGROUND, OFFLINE):  # nobody waits for it: files, partial transcripts
        found = await troubles(monkeypatch, seen, only_computes=only_computes, priority=priority)
        assert not any(found)


async def test_too_many_jobs_are_refused(stage: ModelThread[Model]) -> None:
    release, busy = await hold(stage)
    loop = asyncio.get_running_loop()
    waiting = [
        loop.create_task(stage.call(lambda _: None, timeout_s=30)) for _ in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(StageError, match="overloaded"):
        await stage.call(lambda _: None, timeout_s=30)
    release.set()
    await asyncio.gather(busy, *waiting)
    assert stage.peak_waiting == MAX_WAITING


async def test_a_cancelled_job_that_has_not_begun_is_dropped(stage: ModelThread[Model]) -> None:
    done: list[str] = []
    release, busy = await hold(stage)
    task = asyncio.get_running_loop().create_task(
        stage.call(lambda _: done.append("cancelled"), timeout_s=30)
    )
    await asyncio.sleep(0)
    task.cancel()
    release.set()
    await busy
    await stage.call(lambda _: done.append("next"), timeout_s=30)
    assert done == ["next"]


async def test_others_get_their_turn_between_the_items_of_a_generator(
    stage: ModelThread[Model],
) -> None:
    done: list[str] = []

    def count(_: Model) -> Iterator[int]:
        for number in range(3):
            done.append(str(number))
            yield number

    async for number in stage.iterate(count, timeout_s=30):
        await stage.call(lambda _, n=number: done.append(f"after {n}"), timeout_s=30)  # type: ignore[misc]
    assert done == ["0", "after 0", "1", "after 1", "2", "after 2"]


async def test_generators_of_an_abandoned_model_end_without_another_restart(
    stage: ModelThread[Model],
) -> None:
    asked: list[int] = []

    def numbers(model: Model) -> Iterator[int]:
        for number in range(3):
            asked.append(model.number)
            yield number

    def fail(model: Model) -> None:
        raise RuntimeError("broken")

    async with (
        contextlib.aclosing(stage.iterate(numbers, timeout_s=30)) as first,
        contextlib.aclosing(stage.iterate(numbers, timeout_s=30)) as second,
    ):
        assert [await anext(first), await anext(second)] == [0, 0]
        with pytest.raises(StageError):
            await stage.call(fail, timeout_s=30)
        for items in (first, second):
            with pytest.raises(StageError, match="restarted"):
                await anext(items)
    assert stage.restarts == 1
    assert asked == [1, 1]


class Generator:
    """A generator that notes the threads on which it is made and closed."""

    def __init__(self) -> None:
        self.begun, self.closed = threading.Event(), threading.Event()
        self.release = threading.Event()
        self.release.set()
        self.made_on = self.closed_on = ""

    def start(self, model: Model) -> Iterator[int]:
        self.made_on = self._thread()
        try:
            for number in range(3):
                self.begun.set()
                self.release.wait(30)
                yield number
        finally:
            self.closed_on = self._thread()
            self.closed.set()

    @staticmethod
    def _thread() -> str:
        return f"{threading.current_thread().name} {threading.get_ident()}"

    async def check(self) -> None:
        assert await asyncio.to_thread(self.closed.wait, 30)
        assert self.closed_on == self.made_on
        assert self.made_on.startswith("stage-")


async def test_a_generator_that_is_broken_off_is_closed_on_the_owner_thread(
    stage: ModelThread[Model],
) -> None:
    made = Generator()
    async with contextlib.aclosing(stage.iterate(made.start, timeout_s=30)) as items:
        assert await anext(items) == 0
        release, busy = await hold(stage, NORMAL)
    assert not made.closed.is_set()  # breaking off waits for no job
    release.set()
    await busy
    await made.check()
    assert not stage._open


async def test_a_generator_that_works_when_it_is_broken_off_is_closed_after_that(
    stage: ModelThread[Model],
) -> None:
    made = Generator()
    made.release.clear()
    items = stage.iterate(made.start, timeout_s=30)
    first = asyncio.get_running_loop().create_task(anext(items))
    assert await asyncio.to_thread(made.begun.wait, 30)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not made.closed.is_set()
    made.release.set()
    await made.check()
    assert stage.restarts == 0


async def test_a_generator_that_starts_when_it_is_broken_off_stays_nowhere(
    stage: ModelThread[Model],
) -> None:
    begun, release = threading.Event(), threading.Event()

    def start(_: Model) -> Iterator[int]:
        begun.set()
        release.wait(30)
        return (number for number in range(3))

    first = asyncio.get_running_loop().create_task(anext(stage.iterate(start, timeout_s=30)))
    assert await asyncio.to_thread(begun.wait, 30)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    release.set()
    await stage.call(lambda _: None, timeout_s=30)
    assert not stage._open


async def test_a_generator_of_an_abandoned_model_is_closed_on_its_own_thread(
    stage: ModelThread[Model],
) -> None:
    made = Generator()

    def fail(_: Model) -> None:
        raise RuntimeError("broken")

    async with contextlib.aclosing(stage.iterate(made.start, timeout_s=30)) as items:
        assert await anext(items) == 0
        with pytest.raises(StageError):
            await stage.call(fail, timeout_s=30)
        assert await stage.call(lambda model: model.number, timeout_s=30) == 2
    await made.check()


async def test_an_idle_thread_that_is_abandoned_ends_with_its_generators(
    stage: ModelThread[Model],
) -> None:
    """Though no job comes that would wake it."""
    made = Generator()
    async with contextlib.aclosing(stage.iterate(made.start, timeout_s=30)) as items:
        assert await anext(items) == 0
        assert stage.model is not None
        stage.restart(stage.model, "is said to hang")
        await made.check()
    assert await stage.call(lambda model: model.number, timeout_s=30) == 2


async def test_a_generator_of_a_closed_stage_is_closed_before_its_model() -> None:
    done: list[bool] = []
    made = Generator()
    stage = ModelThread("test", Model, lambda model: done.append(made.closed.is_set()))
    await stage.start()
    async with contextlib.aclosing(stage.iterate(made.start, timeout_s=30)) as items:
        assert await anext(items) == 0
        await stage.close()
    await made.check()
    assert done == [True]


async def test_a_generator_that_raises_when_it_is_closed_ends_no_stage(
    stage: ModelThread[Model], caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: Model) -> Iterator[int]:
        try:
            yield 0
        finally:
            raise RuntimeError("the device is gone")

    async with contextlib.aclosing(stage.iterate(start, timeout_s=30)) as items:
        await anext(items)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 1
    assert "the device is gone" in caplog.text


async def test_a_generator_that_hangs_when_it_is_closed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, stage: ModelThread[Model]
) -> None:
    monkeypatch.setattr(model_thread, "CHECK_S", 0.01)
    release = threading.Event()

    def start(_: Model) -> Iterator[int]:
        try:
            yield 0
        finally:
            release.wait(30)

    async with contextlib.aclosing(stage.iterate(start, timeout_s=0.2)) as items:
        await anext(items)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 2
    release.set()


async def test_a_model_that_cannot_be_built_says_why() -> None:
    def build() -> Model:
        raise ValueError("model.bin is truncated")

    stage: ModelThread[Model] = ModelThread("asr", build)
    with pytest.raises(ValueError, match=r"model\.bin is truncated"):
        await stage.start()
    assert "truncated" in str(stage.broken)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_thread, "RETRY_S", (0.0,))


async def test_a_model_that_cannot_be_rebuilt_is_tried_again_without_being_asked(
    impatient: None,
) -> None:
    faults = [OSError("no such file"), OSError("no such file")]
    allowed, refused = threading.Event(), threading.Event()

    def build() -> Model:
        model = Model()
        if Model.built > 1 and faults:
            if len(faults) == 1:
                refused.set()
                allowed.wait(30)
            raise faults.pop()
        return model

    Model.built = 0
    stage: ModelThread[Model] = ModelThread("llm", build)
    await stage.start()

    def fail(_: Model) -> None:
        raise RuntimeError("weights are gone")

    with pytest.raises(StageError, match="weights are gone"):
        await stage.call(fail, timeout_s=30)
    await asyncio.to_thread(refused.wait, 30)
    assert "no such file" in str(stage.broken)  # also while it is being tried again
    behind = asyncio.get_running_loop().create_task(stage.call(lambda _: None, timeout_s=30))
    await asyncio.sleep(0)
    allowed.set()
    with pytest.raises(StageError, match="no such file"):
        await behind
    for _ in range(3000):
        if stage.broken is None:
            break
        await asyncio.sleep(0.01)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 4
    await stage.close()


async def test_a_rebuild_that_failed_leaves_no_model_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CHEAP_RETRY_S", "RETRY_S"):  # no other try
        monkeypatch.setattr(model_thread, name, 3600.0 if name == "CHEAP_RETRY_S" else (3600.0,))
    monkeypatch.setattr(model_thread._log, "disabled", True)  # pytest keeps what is logged
    half_built: list[weakref.ref[Model]] = []

    def build() -> Model:
        model = Model()
        if Model.built == 1:
            return model
        half_built.append(weakref.ref(model))
        try:
            raise ValueError("weights.bin is truncated")
        except ValueError as error:
            raise OSError("no such file") from error

    Model.built = 0
    stage: ModelThread[Model] = ModelThread("llm", build)
    await stage.start()
    stage.restart(await stage.call(lambda model: model, timeout_s=30), "hangs")
    assert stage._thread is not None
    await asyncio.to_thread(stage._thread.join, 30)
    assert "no such file" in str(stage.broken)
    gc.collect()
    assert [model() for model in half_built] == [None]
    await stage.close()


def test_cheap_tries_are_made_soon_and_expensive_ones_seldom() -> None:
    waits = [retry_s(number, 0.01) for number in range(100)]
    assert waits == [1.0] + [2.0] * 99
    assert [retry_s(number, 20.0) for number in range(8)] == [1, 2, 4, 8, 15, 30, 30, 30]
    assert [retry_s(number, 2.0) for number in range(8)] == [1, 2, 4, 8, 10, 10, 10, 10]


async def test_many_failed_tries_leave_few_lines_in_the_log(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    Model.built = 0
    working = threading.Event()

    def build() -> Model:
        model = Model()
        if 1 < Model.built < 40:
            raise OSError("no such file")
        if Model.built == 40:
            working.set()
        return model

    stage: ModelThread[Model] = ModelThread("asr", build)
    await stage.start()
    stage.restart(await stage.call(lambda model: model, timeout_s=30), "hangs")
    await asyncio.to_thread(working.wait, 30)
    assert await stage.call(lambda model: model.number, timeout_s=30) == 40
    await stage.close()
    tries = [each for each in caplog.messages if "can't be built" in each]
    assert [text.partition("try ")[2].partition(")")[0] for text in tries] == [
        *("1", "2", "4", "8", "16", "32")
    ]


async def test_a_broken_stage_that_is_closed_is_not_built_again(impatient: None) -> None:
    Model.built = 0

    def build() -> Model:
        model = Model()
        if Model.built == 2:
            closing.wait(30)
        if Model.built > 1:
            raise OSError("no such file")
        return model

    closing = threading.Event()
    stage: ModelThread[Model] = ModelThread("llm", build)
    await stage.start()
    stage.restart(await stage.call(lambda model: model, timeout_s=30), "hangs")
    closed = asyncio.get_running_loop().create_task(stage.close(30))
    await asyncio.sleep(0)
    closing.set()
    await closed
    for _ in range(10):
        await asyncio.sleep(0)
    assert Model.built == 2


async def test_a_rebuild_that_hangs_is_given_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the abandoned thread holds a lock of the library that every build takes."""
    monkeypatch.setattr(model_thread, "MIN_REBUILD_S", 0.0)
    monkeypatch.setattr(model_thread, "REBUILD_FACTOR", 0.0)
    release, built = threading.Event(), []

    def build() -> Model:
        model = Model()
        built.append(model)
        if len(built) > 1:
            release.wait(30)
        return model

    stage: ModelThread[Model] = ModelThread("asr", build)
    await stage.start()
    stage.restart(await stage.call(lambda model: model, timeout_s=30), "hangs")
    with pytest.raises(StageError, match="only a new process"):
        await stage.call(lambda model: model, timeout_s=30)
    hung = stage._thread
    assert isinstance(stage.broken, StageLostError)
    release.set()
    assert hung is not None
    await asyncio.to_thread(hung.join, 30)
    with pytest.raises(StageError, match="lost"):  # nor is it tried again, or taken up
        await stage.call(lambda model: model, timeout_s=30)
    assert (len(built), stage.model) == (2, None)
    await stage.close()


async def test_a_rebuild_has_its_time_in_which_the_loop_turned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    release, built = threading.Event(), []
    ticks: list[tuple[float, Callable[[], object]]] = []

    def build() -> Model:
        model = Model()
        built.append(model)
        if len(built) > 1:
            release.wait(30)
        return model

    def call_later(delay_s: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        if callback == stage._watch_build:
            ticks.append((delay_s, partial(callback, *args)))
            return later(3600, int)
        return later(delay_s, callback, *args)

    later = loop.call_later
    monkeypatch.setattr(loop, "call_later", call_later)
    stage: ModelThread[Model] = ModelThread("asr", build)
    await stage.start()
    assert not ticks  # the first build takes as long as it does
    for first_s in (1.0, 12.0):
        stage._first_build_s = first_s
        ticks.clear()
        stage._broken = None
        stage._spawn(None)
        for number in range(NUM_TICKS):
            assert (len(ticks), stage.broken) == (number + 1, None)
            ticks[-1][1]()
        assert [delay_s for delay_s, _ in ticks] == [max(60.0, 10 * first_s) / NUM_TICKS] * 10
        assert isinstance(stage.broken, StageLostError)
    release.set()
    await stage.close()
