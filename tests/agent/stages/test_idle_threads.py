"""Threads that sleep in a job, as Linux counts it; and what is taken for that."""

import sys
import threading
from collections.abc import Iterator

import pytest

from agent.stages import idle_threads
from agent.stages.idle_threads import NUM_CHECKS, Activity, IdleCheck, activities, name_thread

ASLEEP: dict[str, Activity] = {"1": ("S", 100), "2": ("S", 50)}

linux = pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux")


def looks(monkeypatch: pytest.MonkeyPatch, seen: list[dict[str, Activity]]) -> list[bool]:
    """What the check says at each look after the first."""
    samples = iter(seen)
    monkeypatch.setattr(idle_threads, "activities", lambda name: next(samples))
    check = IdleCheck("asr.1")
    return [check.look() for _ in seen[1:]]


def test_threads_that_sleep_from_check_to_check_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looks(monkeypatch, [ASLEEP] * (NUM_CHECKS + 2))
    assert found == [False] * (NUM_CHECKS - 1) + [True, True]


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
    monkeypatch: pytest.MonkeyPatch, alive: dict[str, Activity]
) -> None:
    before, after = [ASLEEP] * NUM_CHECKS, [ASLEEP] * NUM_CHECKS
    assert not any(looks(monkeypatch, [*before, alive, *after]))


def test_where_nothing_is_counted_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(looks(monkeypatch, [{}] * (3 * NUM_CHECKS)))


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
    found = activities(named.native_name)
    assert set(found) == named.ids
    assert len(found) == 2


@linux
def test_no_two_threads_share_a_name(named: Named) -> None:
    other = Named()
    names = {named.native_name, other.native_name}
    found = activities(named.native_name).keys() & activities(other.native_name).keys()
    other.end.set()
    other.thread.join(30)
    assert len(names) == 2
    assert all(0 < len(name) <= 15 for name in names)
    assert not found


@linux
def test_a_thread_without_a_name_is_in_nobodys_count() -> None:
    assert activities("") == {}
