"""Pinning of the engine's thread to a core."""

import os
import threading

import pytest

from llm_engine.backends.cpu_affinity import pin_to_last_core

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system keeps no thread to a core"
)


def asked_for(monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> list[set[int]]:
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, wanted: asked.append(wanted))
    pin_to_last_core()
    return asked


def test_the_last_core_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_for(monkeypatch, {2, 5, 7, 9}) == [{9}]
    assert asked_for(monkeypatch, {0, 1}) == []


def test_a_system_that_refuses_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, wanted: set[int]) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    pin_to_last_core()


def test_only_the_calling_thread_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_engine.backends.cpu_affinity.FEWEST_CORES", 1)
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def run() -> None:
        pin_to_last_core()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [{max(before)}]
    assert os.sched_getaffinity(0) == before
