"""Hangs told from slow work: threads that have a job, and neither run nor wait for a processor.

Theory of operation. A deadline on the clock can't be short: on a busy machine a pass of 150 ms may
take seconds, and a false alarm rebuilds a healthy model, which makes the machine busier still. But
what hangs, hangs as a rule on a lock, a condition or a device, and a thread that waits there is not
given the processor even once, while slow work is, or stands in the queue for it. Linux counts for
how long each thread ran (`schedstat`), and says what it does now (`stat`: R runs or would like to,
D waits for the disk, S sleeps). So where all threads of a model sleep for 0.75 s on end, in the
middle of a job that only computes, it hangs, however busy the machine.

*All threads of a model*: a recognizer's job is computed by threads of its own library, for which
the owner thread waits asleep. A thread inherits its native name from the one that starts it, so the
owner thread takes a name that no other has, before it builds the model (`top -H` shows it).

Checks are made by timers of the event loop: time in which the loop stood still, because it was
blocked or the process was stopped, counts as one check.

Not for jobs that may sleep by right: on a GPU, of plug-ins, slowed on purpose. A loop without end
runs, and is left to the deadlines on the clock.
"""

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Final, NoReturn

CHECK_S: Final = 0.15
"""Time between two checks, which are made while there are jobs only. One costs 0.1 ms of the event
loop, and where all threads sleep 10 us for each thread of the process."""

NUM_CHECKS: Final = 5
"""Checks in a row without a run of any thread. Fewer would do on a machine with time to spare; with
two more, callers of a busy one (load 9 on two cores) had more than 2 s of silence."""

_TASKS: Final = Path("/proc/self/task")
_OWN_NAME: Final = Path("/proc/thread-self/comm")
_MAX_NAME: Final = 15
"""Bytes of a thread's native name."""

SLEEPING: Final = "S"

Activity = tuple[str, int]
"""State of a thread, a letter of Linux, and for how long it has run, ns."""


class IdleThreadsError(Exception):
    """Threads that have work to do have slept from check to check."""


_numbers: Final = itertools.count(1)
"""Ends of the native names, so that no two owner threads share one."""


def name_thread(name: str) -> str:
    """Give the calling thread, and those that it will start, a native name that no other has.
    Returns it; empty where that is not possible, as on other systems than Linux."""
    end = f".{next(_numbers)}"
    native = name.encode("ascii", "replace").decode()[: _MAX_NAME - len(end)] + end
    try:
        _OWN_NAME.write_text(native)
    except OSError:
        return ""
    return native


class ThreadGroup:
    """Threads of this process with one native name. One event loop."""

    def __init__(self, native_name: str = "") -> None:
        """`native_name` empty: no threads."""
        self.native_name = native_name
        self._ids: list[str] | None = None
        """Threads of the group that were found last; None: not looked for yet."""

    def sample(self, *, finds_new: bool = False) -> dict[str, Activity]:
        """What the threads do, by id, those that were started since the last time only where they
        are to be found: that reads a file of every thread of the process. Empty where nothing
        counts it: on other systems than Linux, or without the kernel's statistics."""
        if self._ids is None or finds_new:
            self._ids = _ids_of(self.native_name)
        found: dict[str, Activity] = {}
        for thread_id in self._ids:
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
                path = _TASKS / thread_id
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                run_ns = int((path / "schedstat").read_text().split()[0])
                if run_ns > 0:  # else the kernel does not count
                    found[thread_id] = state, run_ns
        return found


def _ids_of(native_name: str) -> list[str]:
    ids: list[str] = []
    with contextlib.suppress(OSError):
        for path in _TASKS.iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if native_name and (path / "comm").read_text().rstrip("\n") == native_name:
                    ids.append(path.name)
    return ids


class IdleCheck:
    """Watches a group of threads over one job. One event loop."""

    def __init__(self, threads: ThreadGroup, num_checks: int = NUM_CHECKS) -> None:
        self._threads = threads
        self._num_checks = num_checks
        self._last = threads.sample()
        self._num_idle = 0

    @property
    def counts(self) -> bool:
        """True where the system says what the threads do."""
        return bool(self._last)

    @property
    def has_slept(self) -> bool:
        """True if the threads slept from the last look but one to the last."""
        return self._num_idle > 0

    def look(self) -> bool:
        """True if the threads hang. To be called once every `CHECK_S`."""
        last, self._last = self._last, self._threads.sample()
        if self._last == last:
            self._last = self._threads.sample(finds_new=True)
        sleeps = bool(last) and all(state == SLEEPING for state, _ in self._last.values())
        self._num_idle = self._num_idle + 1 if sleeps and self._last == last else 0
        return self._num_idle >= self._num_checks


LEAST_RUN_S: Final = 0.05
"""Processor time from look to look below which a thread polls, or waits."""


class SlowCheck:
    """Tells at each look whether the threads are slow, because others use the processor: they have
    run since the last look, but for less than `seconds` in all. One event loop."""

    def __init__(self, threads: ThreadGroup, seconds: float, max_looks: int) -> None:
        """`max_looks`: so often they may be slow."""
        self._threads = threads
        self._before = threads.sample(finds_new=True)
        self._seconds = seconds
        self._looks_left = max_looks
        self._ran_s = 0.0

    def look(self) -> bool:
        """True if they are slow. Not where nothing counts it."""
        now = self._threads.sample()
        ran = [ns - self._before[each][1] for each, (_, ns) in now.items() if each in self._before]
        before_s, self._ran_s = self._ran_s, max(ran, default=0) / 1e9
        self._looks_left -= 1
        has_run = self._ran_s - before_s >= LEAST_RUN_S
        return has_run and self._ran_s < self._seconds and self._looks_left >= 0


async def until_idle(check: IdleCheck) -> NoReturn:
    """Watch threads that have work to do until they hang; then raise IdleThreadsError."""
    while True:
        await asyncio.sleep(CHECK_S)
        if check.look():
            raise IdleThreadsError
