"""Owner thread of a model: jobs are queued to it, and it is rebuilt when it fails or hangs.

Theory of operation: a model's calls block and must not run on the event loop, nor twice at once. So
each model lives on one thread that alone builds, calls and touches it. Jobs wait in a bounded queue
ordered by priority (a final transcript goes before a partial one), then fairly by caller
(`fair_order.py`), then by arrival. A full queue
means that the machine is overloaded; the job is refused at once, since a late answer is worth
nothing to a caller.

Supervision: a job that raises, or that outlasts its deadline, fails with `StageError` and the stage
is rebuilt. A thread that hangs inside native code can't be killed; it is abandoned (and ends if it
ever returns), a new thread builds the model anew and goes on with the queue. A job's deadline runs
from when it begins, so that a long queue restarts nothing, and it is the job's own: one that may
take a minute is not ended by the deadline of another that waits for it. Where its caller was
cancelled, the checks of the thread see to it.

A generator of a model (`iterate`) lives on the owner thread as well: one that is broken off is
closed there by a job that nobody waits for, and what is open when the thread ends, by the thread
itself. Where the thread hangs for good, its generators stay open with it.

Where a model only computes, a hang is seen long before the deadline: its threads sleep in the
middle of a job (`idle_threads.py`). Callers then wait for one second and not for ten.

A model that can't be built anew (its file is being replaced, memory is short) is tried again by a
timer, less and less often where a try is expensive, and at once where a call that goes on asks for
it. The timer is needed because no new call is admitted while a stage is broken, so there may be no
job left to trigger it.

A build may hang too, as where the abandoned thread holds a lock that the library needs for it. No
further thread would do better: the stage is lost, and the server ends for its supervisor to start
another. So it does at the third hang while two threads of earlier ones still have not returned:
each keeps its model, and memory must not grow with every hang.
"""

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from agent.errors import ClientError, HalfsecError, StageError
from latency_budget.account.clock import SystemClock

from .fair_order import FairOrder, Ticket
from .heap import unfreeze_heap
from .idle_threads import CHECK_S, NUM_CHECKS, IdleCheck, SlowCheck, ThreadGroup, name_thread
from .stall_timeout import NUM_TICKS

Model = TypeVar("Model")
Answer = TypeVar("Answer")

URGENT: Final = 0
NORMAL: Final = 1
BACKGROUND: Final = 2
OFFLINE: Final = 3
"""Work outside of calls: files, texts to be read out. After every job of the calls."""

MAX_WAITING: Final = 64
"""Jobs per stage. 64 voice-activity frames are 2 s of one call's audio; with more waiting, answers
come too late to be of use."""

RETRY_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Waits before a build is tried again; the last one repeats. Shorter ones would spend the machine
that the other stages need on a model that takes seconds to load and fails again."""

CHEAP_RETRY_S: Final = 2.0
"""Longest wait after a build that failed at once, as where a file is missing: calls are refused
until it succeeds."""

RETRY_SHARE: Final = 5.0
"""A wait is no longer than this times the build that failed: the tries take a fifth of a core."""

MIN_REBUILD_S: Final = 60.0
"""Shortest deadline of a build after the first. Lower ends a server whose disk or processor is busy
for a while; higher leaves calls with apologies for longer."""

REBUILD_FACTOR: Final = 10.0
"""The same as a multiple of the first build, for models that take minutes to load."""

MAX_HUNG: Final = 2
"""Threads that may hang at once, each with a model in memory. Lower ends all calls for hangs that
may never come again; higher needs room for more models beside the one that works."""

NUM_UNDUE_CHECKS: Final = 20
"""Checks, 3 s, after which a job of a call is taken for trouble where sleep is no sign of it. Lower
takes a pass over a long utterance for a hang; higher is a longer silence where a GPU or a plug-in
hangs."""

THREAD_PREFIX: Final = "stage-"
"""Prefix of the owner threads' names."""

_Inbox = queue.PriorityQueue[tuple[int, float, int, Any]]
"""Jobs, or marks, behind their priority, their tag and their number."""

_STOP: Final = object()
_WAKE: Final = object()
"""For a thread that was abandoned while it waited for a job."""
_DONE: Final = object()
"""In place of an item: there are no more."""

_log = logging.getLogger(__name__)


def retry_s(num_failed: int, took_s: float) -> float:
    """Wait before the next build, after `num_failed` earlier failures in a row and one more that
    took `took_s`."""
    longest = RETRY_S[min(num_failed, len(RETRY_S) - 1)]
    return min(longest, max(CHEAP_RETRY_S, RETRY_SHARE * took_s))


def as_exception(error: BaseException) -> Exception:
    """The error of a model as one that only fails its job. A library that calls `sys.exit` raises
    SystemExit, which a future would carry to the event loop and end the service; StopIteration
    can't be set on a future at all."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


class StageLostError(HalfsecError):
    """A stage that can't be rebuilt in this process: threads that hang stand in the way."""


class _Job(Generic[Model, Answer]):
    __slots__ = (
        "answer",
        "call",
        "due_s",
        "generation",
        "is_awaited",
        "on_begun",
        "order",
        "ticket",
        "timeout_s",
    )

    def __init__(
        self,
        call: Callable[[Model], Answer],
        answer: "asyncio.Future[Answer]",
        order: FairOrder,
        ticket: Ticket | None,
        *,
        timeout_s: float,
        is_awaited: bool,
    ) -> None:
        """`timeout_s`: how long it may take. `is_awaited`: a caller waits for its answer."""
        self.call = call
        self.timeout_s = timeout_s
        self.due_s: float | None = None
        """Deadline of the job that runs, in the loop's time; None while it waits."""
        self.is_awaited = is_awaited
        self.answer = answer
        self.order = order
        self.ticket = ticket
        self.generation: int | None = None
        """Generation of the thread that runs the job; None while it waits."""
        self.on_begun: Callable[[float], None] = lambda due_s: None
        """Called with the deadline on the loop when the job begins, unless its caller was
        cancelled."""

    @property
    def is_overdue(self) -> bool:
        """True if the job has run for longer than it may. On the loop."""
        return self.due_s is not None and self.answer.get_loop().time() >= self.due_s

    def over(self, took_s: float | None) -> None:
        """Note that the job took so long; None: it did not run, or is given up. Does nothing the
        second time."""
        if self.ticket is not None:
            self.order.done(self.ticket, took_s)

    def begin(self, generation: int) -> None:
        """Mark the job as running. On the owner thread."""
        self.generation = generation
        loop = self.answer.get_loop()

        def notify() -> None:
            self.due_s = loop.time() + self.timeout_s
            if not self.answer.done():
                self.on_begun(self.due_s)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(notify)


class _Items(Generic[Model, Answer]):
    """A generator of a model. Its methods belong to the owner thread."""

    __slots__ = ("_items", "_start", "is_over", "owner")

    def __init__(self, start: Callable[[Model], Iterator[Answer]]) -> None:
        self.owner: threading.Thread | None = None
        """The thread that it runs on; None before that."""
        self.is_over = False
        """It has no more items, raised, or was closed."""
        self._start = start
        self._items: Iterator[Answer] = iter(())

    def begin(self, model: Model) -> None:
        self.owner, self._items = threading.current_thread(), self._start(model)

    def following(self) -> Answer | object:
        """Next item, or `_DONE`."""
        item: Answer | object = _DONE
        try:
            item = next(self._items, _DONE)
        finally:
            self.is_over = item is _DONE
        return item

    def close(self) -> None:
        """Close the generator. Logs what that raises: there is no caller any more."""
        self.is_over = True
        close = getattr(self._items, "close", None)
        if close is None:  # an iterator without an end of its own
            return
        try:
            close()
        except BaseException as error:
            _log.warning("a generator of a model can't be closed: %s", as_exception(error))


@dataclass(slots=True)
class _Watched:
    """A job that runs for longer than from one check to the next."""

    job: _Job[Any, Any]
    idle: IdleCheck | None
    """None where the model's threads may sleep by right."""
    num_checks: int = 0
    """Checks since the first that found it running."""

    @property
    def is_undue(self) -> bool:
        """True if the job seems to hang. One that is only slow, as on a busy machine, does not."""
        if self.idle is not None and self.idle.counts:
            return self.num_checks >= NUM_CHECKS and self.idle.has_slept
        return self.job.is_awaited and self.num_checks >= NUM_UNDUE_CHECKS


class ModelThread(Generic[Model]):
    """One model and its owner thread. `start`, `call` and `close` belong to one event loop."""

    def __init__(
        self,
        name: str,
        build: Callable[[], Model],
        dispose: Callable[[Model], None] = lambda model: None,
        *,
        only_computes: bool = False,
        worker: Callable[[Model], threading.Thread] | None = None,
    ) -> None:
        """`build` makes the model, on the owner thread; it may raise. `dispose` ends it there.
        `only_computes`: no job ever sleeps, so threads that do hang. `worker`: the thread that
        hangs where `restart` abandons a model; None: the owner thread."""
        self.name = name
        self.restarts = 0
        self.peak_waiting = 0
        self._build = build
        self._dispose = dispose
        self._worker = worker
        self._hung: list[threading.Thread] = []
        """Threads abandoned in a hang that had not ended at the last one."""
        self.only_computes = only_computes
        self._watched: _Watched | None = None
        """The job that ran at the last check of the thread."""
        self._next_check: asyncio.TimerHandle | None = None
        """None while there is no job."""
        self._threads = ThreadGroup()
        """The newest thread, and those that its model has started."""
        self._order = itertools.count()
        self._inbox = _Inbox()
        """Jobs for the newest thread."""
        self._fair_orders: defaultdict[int, FairOrder] = defaultdict(FairOrder)
        """Order of the jobs of each priority."""
        self._generation = 0
        self._running: _Job[Model, Any] | None = None
        self._open: list[_Items[Model, Any]] = []
        """Generators that have begun and are not over, those of abandoned threads included. Each is
        added and removed on its own thread."""
        self.model: Model | None = None
        """The model of the newest thread; None while it is built. Only for thread-safe queries and
        comparisons: all else goes through `call`."""
        self._broken: Exception | None = None
        self._building = False
        self._failed_builds = 0
        """Failed builds in a row, after the first model worked."""
        self._retry: asyncio.TimerHandle | None = None
        self._first_build_s: float | None = None
        """Time that the first build took; None before that."""
        self._build_tick: asyncio.TimerHandle | None = None
        """Next tick of the deadline of a build."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Build the model and wait for it. Raises what building raised."""
        self._loop = asyncio.get_running_loop()
        built = self._loop.create_future()
        self._spawn(built)
        await built

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._inbox.qsize()

    @property
    def num_hung(self) -> int:
        """Threads that were abandoned in a hang and have not ended."""
        return sum(each.is_alive() for each in self._hung)

    @property
    def may_retry(self) -> bool:
        """True where a job that failed may be tried once more: one more hang loses nothing."""
        return self.num_hung < MAX_HUNG

    @property
    def broken(self) -> Exception | None:
        """Error of the last attempt to build the model; None once it is built. A StageLostError
        stays."""
        return self._broken

    async def call(
        self,
        job: Callable[[Model], Answer],
        *,
        timeout_s: float,
        priority: int = NORMAL,
        caller: Hashable | None = None,
    ) -> Answer:
        """Run `job(model)` on the owner thread. `caller`: whose job it is, a token that is
        kept for a while; the jobs of one delay those of another by one at most, within a priority.
        None, for jobs that are short: before those of all callers.

        Raises StageError when it raises, waits for longer than `timeout_s`, then takes longer than
        that, or the queue is full. A ClientError of the job passes through and the stage stays.
        Cancelling drops the job if it has not begun.
        """
        if self._loop is None:
            raise StageError(self.name, f"The {self.name} stage is not running.")
        if isinstance(self._broken, StageLostError):
            raise StageError(self.name, f"The {self.name} stage is lost: {self._broken}")
        if self._broken is not None and not self._building:
            self._spawn(None)  # a job waits: do not wait for the timer
        if self.waiting >= MAX_WAITING:
            raise StageError(self.name, f"The {self.name} stage is overloaded; try again.")
        waiting = self._enqueue(
            self._loop,
            job,
            timeout_s=timeout_s,
            priority=priority,
            caller=caller,
            is_awaited=priority < BACKGROUND,
        )
        try:
            async with asyncio.timeout(timeout_s) as limit:
                waiting.on_begun = limit.reschedule
                return await waiting.answer
        except TimeoutError:
            has_begun = waiting.due_s is not None and limit.when() == waiting.due_s
            if has_begun and self._running is waiting:
                self._abandon(waiting.generation, f"did not answer within {timeout_s:g} s")
            raise StageError(self.name, f"The {self.name} stage took too long.") from None
        except (ClientError, StageError):
            raise
        except Exception as error:
            self._restart(waiting.generation, f"raised {type(error).__name__}: {error}")
            raise StageError(self.name, f"The {self.name} stage failed: {error}") from error

    async def iterate(
        self,
        start: Callable[[Model], Iterator[Answer]],
        *,
        timeout_s: float,
        priority: int = NORMAL,
    ) -> AsyncGenerator[Answer, None]:
        """Run a generator on the owner thread, one item a job: other jobs run in between.

        Raises StageError as `call` does, and where the model was abandoned between two items: the
        next item would come from the abandoned one, which may hang in another thread, and its
        failure would restart the new one.
        """
        items = _Items(start)

        def begin(model: Model) -> None:
            items.begin(model)
            self._open.append(items)

        def following(model: Model) -> Answer | object:
            if threading.current_thread() is not items.owner:
                raise StageError(self.name, f"The {self.name} stage was restarted; try again.")
            try:
                return items.following()
            finally:
                if items.is_over:
                    self._open.remove(items)

        try:
            await self.call(begin, timeout_s=timeout_s, priority=priority)
            while True:
                item = await self.call(following, timeout_s=timeout_s, priority=priority)
                if item is _DONE:
                    return
                yield item  # type: ignore[misc]  # not `_DONE`, so an Answer
        finally:
            if not items.is_over:
                self._break_off(items, timeout_s=timeout_s, priority=priority)

    def _break_off(self, items: _Items[Model, Any], *, timeout_s: float, priority: int) -> None:
        """Have the owner thread close a generator, and don't wait for it."""
        if self._loop is None:
            return  # the thread closes it before it ends

        def end(model: Model) -> None:
            if threading.current_thread() is items.owner and not items.is_over:
                self._open.remove(items)
                items.close()
            # Else it is over, or its own thread was abandoned, and closes it.

        ending = self._enqueue(
            self._loop, end, timeout_s=timeout_s, priority=priority, caller=None, is_awaited=False
        )

        def begun(due_s: float) -> None:
            ending.answer.cancel()  # from here on the checks of the thread see to it

        ending.on_begun = begun
        ending.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def _enqueue(
        self,
        loop: asyncio.AbstractEventLoop,
        job: Callable[[Model], Answer],
        *,
        timeout_s: float,
        priority: int,
        caller: Hashable | None,
        is_awaited: bool,
    ) -> _Job[Model, Answer]:
        """Put a job into the queue, and check the thread while it is there. On the loop."""
        order = self._fair_orders[priority]
        ticket = None if caller is None else order.queued(caller)
        waiting: _Job[Model, Answer] = _Job(
            job, loop.create_future(), order, ticket, timeout_s=timeout_s, is_awaited=is_awaited
        )
        tag = 0.0 if ticket is None else ticket.tag
        self._inbox.put((priority, tag, next(self._order), waiting))
        self.peak_waiting = max(self.peak_waiting, self.waiting)
        if self._next_check is None:
            self._next_check = loop.call_later(CHECK_S, self._check)
        return waiting

    async def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after its queued jobs, and wait for that: native libraries do not survive
        an interpreter that ends under them. A thread that hangs, or still builds a large model, is
        left running."""
        self._inbox.put((OFFLINE + 1, 0.0, next(self._order), _STOP))
        self._loop = None
        for timer in (self._retry, self._next_check, self._build_tick):
            if timer is not None:
                timer.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout_s)

    def restart(self, model: Model, why: str) -> None:
        """Abandon this model, found to hang, and build it anew.

        Does nothing where it has been abandoned already.
        """
        if model is self.model:
            self._abandon(self._generation, why, model)

    def idle_check(self, num_checks: int) -> IdleCheck:
        """A check of the threads of a model that only computes, and also between its jobs."""
        return IdleCheck(self._threads, num_checks)

    def slow_check(self, seconds: float, max_looks: int) -> SlowCheck:
        """A check of the threads of a model that only computes: do others use the processor?"""
        return SlowCheck(self._threads, seconds, max_looks)

    @property
    def is_troubled(self) -> bool:
        """True while the model is being rebuilt, or seems to hang in its present job."""
        is_missing = self._generation > 1 and self.model is None
        return is_missing or (self._watched is not None and self._watched.is_undue)

    def _check(self) -> None:
        """Look whether the thread hangs in its job, and look again while there are jobs."""
        job, loop = self._running, self._loop
        if job is None or job.generation != self._generation:
            job = None  # the model is being built, or the thread was abandoned in that job
        watched, self._watched = self._watched, None
        if job is None and not self.waiting:
            self._next_check = None
            return
        if loop is not None:
            self._next_check = loop.call_later(CHECK_S, self._check)
        if job is None:
            return
        if job.answer.cancelled() and job.is_overdue:  # else its caller sees to it
            self._abandon(job.generation, f"did not answer within {job.timeout_s:g} s")
            return
        if watched is None or watched.job is not job:
            watched = _Watched(job, IdleCheck(self._threads) if self.only_computes else None)
        else:
            watched.num_checks += 1
            if watched.idle is not None and watched.idle.look():
                self._hangs(job)
                return
        self._watched = watched

    def _hangs(self, job: _Job[Model, Any]) -> None:
        """Abandon the thread, which sleeps in this job."""
        self._abandon(job.generation, f"slept for {NUM_CHECKS * CHECK_S:g} s in a job")
        if not job.answer.done():
            error = StageError(self.name, f"The {self.name} stage took too long.")
            job.answer.set_exception(error)

    def _abandon(self, generation: int | None, why: str, model: Model | None = None) -> None:
        """Rebuild the stage without its thread, which hangs, or the worker of `model`. Lose it
        where too many hang."""
        if generation != self._generation or self._loop is None:
            return  # another job saw the same hang first
        running = self._running
        if running is not None:
            running.over(None)  # it may never return
        hung = self._thread
        if model is not None and self._worker is not None:
            hung = self._worker(model)
        self._hung = [each for each in (*self._hung, hung) if each is not None and each.is_alive()]
        if len(self._hung) > MAX_HUNG:
            self._lose(f"{len(self._hung)} of its threads hang")
        else:
            self._restart(generation, why)

    def _restart(self, generation: int | None, why: str) -> None:
        if generation != self._generation or self._loop is None:
            return  # another job saw the same failure first
        self.restarts += 1
        unfreeze_heap()
        _log.error("stage %s %s; restarting it", self.name, why)
        self._spawn(None)

    def _spawn(self, built: "asyncio.Future[None] | None") -> None:
        self._generation += 1
        self.model = None
        self._building = True
        self._renew_inbox()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._generation, self._inbox, built),
            name=f"{THREAD_PREFIX}{self.name}",
            daemon=True,
        )
        self._thread.start()
        if self._build_tick is not None:
            self._build_tick.cancel()
        if built is None and self._first_build_s is not None:
            limit_s = max(MIN_REBUILD_S, REBUILD_FACTOR * self._first_build_s)
            self._watch_build(self._generation, limit_s, NUM_TICKS)

    def _renew_inbox(self) -> None:
        """Give the jobs to the next thread, and wake the one before, which may wait for one: it
        sees that it was abandoned, and ends with what it holds."""
        before, self._inbox = self._inbox, _Inbox()
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.put(before.get_nowait())
        before.put((OFFLINE + 1, 0.0, next(self._order), _WAKE))

    def _watch_build(self, generation: int, limit_s: float, num_ticks: int) -> None:
        """Give the stage up if this build is not over after so many ticks. Ticks, because a stall
        of the whole process must not end it (`stall_timeout.py`)."""
        self._build_tick = None
        if self._loop is None or generation != self._generation or not self._building:
            return
        if num_ticks == 0:
            self._lose(f"its model is not rebuilt after {limit_s:.0f} s")
            return
        self._build_tick = self._loop.call_later(
            limit_s / NUM_TICKS, self._watch_build, generation, limit_s, num_ticks - 1
        )

    def _lose(self, why: str) -> None:
        """Give the stage up for good: `broken` says so, and what waits fails."""
        self._generation += 1  # abandons the newest thread, too
        self.model, self._building = None, False
        error = StageLostError(f"{why}; only a new process can load it")
        self._broken = error
        _log.error("stage %s is lost: %s", self.name, error)
        self._fail_waiting(error)

    def _run(self, generation: int, inbox: _Inbox, built: "asyncio.Future[None] | None") -> None:
        began_ns = SystemClock().now_ns()
        threads = ThreadGroup(name_thread(self.name))
        if generation == self._generation:
            self._threads = threads
        try:
            model = self._build()
        except BaseException as raised:
            error = as_exception(raised)
            if generation == self._generation:
                self._broken, self._building = error, False
                self._resolve(built, error=error)
                self._fail_waiting(error)
                if built is None:  # at the start, the caller reports the error
                    self._try_again(generation, error, (SystemClock().now_ns() - began_ns) / 1e9)
                    # The frames hold the model as far as it was built.
                    error.__traceback__ = error.__context__ = error.__cause__ = None
            return
        if generation == self._generation:
            if self._first_build_s is None:
                self._first_build_s = (SystemClock().now_ns() - began_ns) / 1e9
            if self._failed_builds:
                _log.warning("stage %s works again", self.name)
            self._failed_builds = 0
            self.model, self._broken, self._building = model, None, False
        self._resolve(built, answer=None)
        is_stopped = self._work(model, generation, inbox)
        for items in list(self._open):
            if items.owner is threading.current_thread():
                self._open.remove(items)
                items.close()
        if is_stopped:
            self._dispose(model)

    def _work(self, model: Model, generation: int, inbox: _Inbox) -> bool:
        """Do the jobs of the queue. Returns True at its end, False where the thread was abandoned.
        On the owner thread."""
        while generation == self._generation:
            entry = inbox.get()
            if generation != self._generation:
                if entry[3] is not _WAKE:
                    self._inbox.put(entry)  # abandoned meanwhile: the new thread does it
                return False
            if entry[3] is _STOP:
                return True
            self._do(entry[3], model, generation)
            del entry  # while the thread waits, it must not keep a call alive that is over
        return False

    def _try_again(self, generation: int, error: Exception, took_s: float) -> None:
        """Have the loop start another thread after a wait. On the owner thread, which ends."""
        wait_s = retry_s(self._failed_builds, took_s)
        self._failed_builds += 1
        reason = f"{type(error).__name__}: {error}"
        number = self._failed_builds
        if number & (number - 1) == 0:  # cheap tries must not fill the log
            _log.error(
                "stage %s can't be built (%s; try %d); next one in %g s",
                self.name, reason, number, round(wait_s, 1),
                exc_info=error if number == 1 else None,
            )  # fmt: skip

        def spawn() -> None:
            if generation == self._generation and self._loop is not None:
                self._spawn(None)

        def arm() -> None:
            if self._loop is not None:
                self._retry = self._loop.call_later(wait_s, spawn)

        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(arm)

    def _do(self, job: _Job[Model, Any], model: Model, generation: int) -> None:
        if job.answer.cancelled():
            job.over(None)
            return
        job.begin(generation)
        self._running = job
        if job.ticket is not None:
            job.order.begun(job.ticket)
        began_ns = SystemClock().now_ns()
        try:
            answer = job.call(model)
        except BaseException as error:
            self._resolve(job.answer, error=as_exception(error))
        else:
            self._resolve(job.answer, answer=answer)
        took_s = (SystemClock().now_ns() - began_ns) / 1e9
        # That a stage hung is not its caller's doing.
        job.over(took_s if generation == self._generation else None)
        if self._running is job:  # else this thread was abandoned, and another works
            self._running = None

    def _fail_waiting(self, error: Exception) -> None:
        """Fail the waiting jobs rather than let them time out."""
        with contextlib.suppress(queue.Empty):
            while True:
                _, _, _, job = self._inbox.get_nowait()
                if job is not _STOP:
                    job.over(None)
                    self._resolve(job.answer, error=StageError(self.name, f"{self.name}: {error}"))

    @staticmethod
    def _resolve(
        future: "asyncio.Future[Any] | None",
        *,
        answer: Any = None,
        error: BaseException | None = None,
    ) -> None:
        def settle() -> None:
            if future is None or future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

        if future is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(settle)
