"""Threads that sleep in a job, as Linux counts it; and what is taken for that."""

import sys
import threading
from collections.abc import Iterator

import pytest

from agent.stages.idle_threads import (
    LEAST_RUN_S,
    NUM_CHECKS,
    Activity,
    IdleCheck,
    SlowCheck,
    ThreadGroup,
    name_thread,
)

ASLEEP: dict[str, Activity] = {"1": ("S", 100), "2": ("S", 50)}

linux = pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux")


class SeenThreads(ThreadGroup):
    """Threads that do what the test says."""

    def __init__(self) -> None:
        super().__init__("asr.1")
        self.found: dict[str, Activity] = {}
        self.known: set[str] = set(ASLEEP)

    def sample(self, *, finds_new: bool = False) -> dict[str, Activity]:
        self.known |= set(self.found) if finds_new else set()
        return {each: did for each, did in self.found.items() if each in self.known}


def looks(seen: list[dict[str, Activity]]) -> list[bool]:
    """What the check says at each look after the first."""
    threads = SeenThreads()
    threads.found = seen[0]
    check = IdleCheck(threads)
    answers: list[bool] = []
    for threads.found in seen[1:]:
        answers.append(check.look())
    return answers


def test_threads_that_sleep_from_check_to_check_hang() -> None:
    found = looks([ASLEEP] * (NUM_CHECKS + 2))
    assert found == [False] * (NUM_CHECKS - 1) + [True, True]


def slow_looks(ran_s: list[float], max_looks: int = 9) -> list[bool]:
    """What the check says of threads of which the second has run so long at each look."""
    threads = SeenThreads()
    threads.found = ASLEEP
    check = SlowCheck(threads, seconds=5.0, max_looks=max_looks)
    answers: list[bool] = []
    for each in ran_s:
        threads.found = {"1": ("R", 100), "2": ("R", 50 + round(each * 1e9))}
        answers.append(check.look())
    return answers


def test_threads_that_get_little_of_the_processor_are_slow() -> None:
    assert slow_looks([0.5, 1.0, 4.9, 5.1]) == [True, True, True, False]


def test_threads_that_wait_or_poll_are_not_slow() -> None:
    assert slow_looks([0.0]) == [False]
    assert slow_looks([0.5, 0.5]) == [True, False]
    assert slow_looks([LEAST_RUN_S / 2]) == [False]


def test_threads_are_not_slow_for_ever() -> None:
    assert slow_looks([0.1, 0.2, 0.3], max_looks=2) == [True, True, False]


def test_threads_that_nothing_counts_are_not_slow() -> None:
    threads = SeenThreads()
    assert not SlowCheck(threads, seconds=5.0, max_looks=9).look()


@pytest.mark.parametrize(
    "alive",
    [
        {"1": ("S", 100), "2": ("S", 51)},  # a helper has run
        {"1": ("S", 100), "2": ("R", 50)},  # it would like to
        {"1": ("D", 100), "2": ("S", 50)},  # it waits for the disk
        {"1": ("S", 100), "2": ("S", 50), "3": ("S", 9)},  # another was started
        {},  # nothing counts them
    ],
)
def test_one_sign_of_life_begins_the_count_anew(
    alive: dict[str, Activity],
) -> None:
    before, after = [ASLEEP] * NUM_CHECKS, [ASLEEP] * NUM_CHECKS
    assert not any(looks([*before, alive, *after]))


def test_where_nothing_is_counted_nothing_hangs() -> None:
    assert not any(looks([{}] * (3 * NUM_CHECKS)))


class Named:
    """A named thread with a helper, both asleep until the end of the test."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.native_name = ""
        self.ids: set[str] = set()
        ready = threading.Barrier(3)

        def help_it() -> None:
            self.ids.add(str(threading.get_native_id()))
            ready.wait(30)
            self.end.wait(30)

        def run() -> None:
            self.native_name = name_thread("a name that is long")
            self.ids.add(str(threading.get_native_id()))
            helper = threading.Thread(target=help_it, name=None)
            helper.start()
            ready.wait(30)
            self.end.wait(30)
            helper.join(30)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        ready.wait(30)


@pytest.fixture
def named() -> Iterator[Named]:
    named = Named()
    yield named
    named.end.set()
    named.thread.join(30)


@linux
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python names its own threads")
def test_what_a_named_thread_starts_is_counted_with_it(named: Named) -> None:
    found = ThreadGroup(named.native_name).sample()
    assert set(found) == named.ids
    assert len(found) == 2


@linux
def test_no_two_threads_share_a_name(named: Named) -> None:
    other = Named()
    names = {named.native_name, other.native_name}
    found = set(ThreadGroup(named.native_name).sample()) & set(
        ThreadGroup(other.native_name).sample()
    )
    other.end.set()
    other.thread.join(30)
    assert len(names) == 2
    assert all(0 < len(name) <= 15 for name in names)
    assert not found


@linux
def test_a_thread_without_a_name_is_in_nobodys_count() -> None:
    assert ThreadGroup().sample() == {}
