"""Priority of the language model's threads: behind those of the other stages."""

import os
import sys
import threading
from pathlib import Path

import pytest

from agent.stages.thread_priority import NICENESS, yield_to_other_stages
from llm_engine.config import EngineConfig, Precision
from llm_engine.engine import Engine
from tests.support.fakes.llm_models import save_tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads share a priority")


def threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_an_engine_s_threads_yield_and_no_others(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    own, before = niceness(os.getpid()), threads()
    engines: list[Engine] = []
    found: list[int] = []

    def load() -> None:
        yield_to_other_stages()
        yield_to_other_stages()
        config = EngineConfig(precision=Precision.INT8, num_threads=2)
        engines.append(Engine.load(tmp_path, config))
        found.extend(niceness(each) for each in threads() - before)

    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
    try:
        assert len(found) >= 3  # the loader, the engine's, and one of ONNX Runtime's
        assert set(found) == {own + NICENESS}
        assert niceness(os.getpid()) == own
    finally:
        engines[0].close()


def test_a_sandbox_may_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a system call filter does (`deploy/systemd`): the model is loaded all the same."""
    failed: list[BaseException] = []
    asked: list[int] = []

    def refuse(which: int, who: int, priority: int) -> None:
        asked.append(priority)
        raise PermissionError(1, "Operation not permitted")

    def load() -> None:
        try:
            yield_to_other_stages()
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr(os, "setpriority", refuse)
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert len(asked) == 1
    assert failed == []


def test_the_main_thread_keeps_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    own = niceness(os.getpid())
    yield_to_other_stages()
    assert niceness(os.getpid()) == own
    monkeypatch.setattr("agent.stages.thread_priority.sys.platform", "darwin")
    elsewhere = threading.Thread(target=yield_to_other_stages)
    elsewhere.start()
    elsewhere.join()
    assert niceness(os.getpid()) == own
