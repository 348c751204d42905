"""Background steps that are broken off: what comes meanwhile does not wait for their end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import Plan, SequenceRows, Slot, StepHandle, SubBatch
from llm_engine.backends.interruption import Interruption
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.engine_thread import EngineThread, OutputStream
from llm_engine.core.request import Request
from llm_engine.errors import StepInterruptedError
from tests.support.fakes.llm_core import END, LETTERS, next_letter
from tests.support.fakes.llm_decoding import PAGES
from tests.support.fakes.llm_models import ScriptedBackend, save_tiny_model


class StuckOnce(ScriptedBackend):
    """A backend whose first interruptible step lasts until it is interrupted."""

    def __init__(self) -> None:
        super().__init__(next_letter)
        self.is_running, self._is_stopped = threading.Event(), threading.Event()

    def launch_interruptible(self, plan: Plan, interruption: Interruption) -> StepHandle:
        with interruption.watched(self._is_stopped.set):
            if not self.is_running.is_set():
                self.is_running.set()
                self._is_stopped.wait()
                raise RuntimeError("stopped")
            return self.launch(plan)


def request(thread: EngineThread, prompt: str, *, is_background: bool = False) -> Request:
    return Request(
        tuple(prompt.encode()),
        SamplingParams(),
        frozenset([END]),
        max_tokens=3,
        sequence=thread._core.open_sequence(),
        is_background=is_background,
    )


async def text_of(stream: OutputStream) -> str:
    text = ""
    while True:
        output = await stream.next()
        text += output.text
        if output.is_last:
            return text


@pytest.mark.parametrize("command", ["turn", "abort"])
async def test_a_command_breaks_off_a_background_step(command: str) -> None:
    backend = StuckOnce()
    core = EngineCore(
        backend,
        LETTERS,
        context_length=200,
        prefill_chunk=8,
        max_sequences=4,
        clock=SystemClock(),
    )
    thread = EngineThread(core)
    try:
        ahead = request(thread, "in the background", is_background=True)
        alone, turn = request(thread, "in the background"), request(thread, "a turn")
        stream = thread.submit(ahead)
        await asyncio.to_thread(backend.is_running.wait)
        if command == "turn":
            assert len(await text_of(thread.submit(turn))) == 3
            text = await text_of(stream)
        else:
            thread.abort(stream)
            text = await text_of(thread.submit(ahead))
        assert text == await text_of(thread.submit(alone)), "what was broken off counts for nothing"
    finally:
        await asyncio.to_thread(thread.close)


def test_a_step_that_is_interrupted_before_it_begins_is_not_run() -> None:
    interruption = Interruption()
    interruption.set()
    with pytest.raises(StepInterruptedError), interruption.watched(lambda: None):
        raise AssertionError("was run")
    interruption.clear()
    with pytest.raises(ZeroDivisionError), interruption.watched(lambda: None):
        raise ZeroDivisionError


class AtOnce(Interruption):
    """Is set as soon as a run is watched."""

    @contextmanager
    def watched(self, stop: Callable[[], None]) -> Iterator[None]:
        with super().watched(stop):
            self.set()
            yield


def test_onnx_runtime_ends_a_run_and_the_rows_are_computed_anew(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3", head_dim=16)
    backend = OnnxBackend(
        load_checkpoint(tmp_path), EngineConfig(precision=Precision.INT8, num_threads=1), 100
    )

    def plan(slot: Slot) -> Plan:
        rows = SequenceRows(slot, tuple(range(5, 25)), 0, 1, SamplingParams(), 0, pages=PAGES)
        return Plan((SubBatch((rows,)),))

    broken_off, fresh = backend.open_slot(), backend.open_slot()
    with pytest.raises(StepInterruptedError):
        backend.launch_interruptible(plan(broken_off), AtOnce())
    again = backend.collect(backend.launch_interruptible(plan(broken_off), Interruption()))
    first = backend.collect(backend.launch(plan(fresh)))
    assert again.tokens[broken_off] == first.tokens[fresh]
