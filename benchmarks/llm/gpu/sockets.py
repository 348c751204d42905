"""ITL beside a busy event loop: the engine's thread while callers use sockets.

Python runs one thread at a time. The engine's thread needs the interpreter for every token, and
waits while the event loop holds it. Fifty callers in another process send a frame of speech every
20 ms, as in calls; this process parses each, computes its level, and answers.
"""

import asyncio
import base64
import gc
import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import Backend, StepHandle, StepResult
from llm_engine.backends.wrapper import BackendWrapper
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.engine_thread import EngineThread
from llm_engine.core.request import Request

from .callers import call_all
from .figures import Figure, gaps_ms, percentile
from .models import LoadedModel
from .steps import CONTEXT

NUM_SOCKETS: Final = 50
_WARM_UP: Final = 20
"""Number of first tokens that are not counted."""
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """Number of callers, and settings of threads and of the garbage collector."""

    name: str
    num_sockets: int
    is_pinned: bool
    """True if the engine's thread has a core that no other thread of this process uses."""
    is_frozen: bool
    """True if the garbage collector skips the objects made before the run."""


SETTINGS: Final = (
    LoadSetting("alone", 0, is_pinned=False, is_frozen=False),
    LoadSetting(f"{NUM_SOCKETS} sockets", NUM_SOCKETS, is_pinned=False, is_frozen=False),
    LoadSetting(f"{NUM_SOCKETS} sockets, pinned", NUM_SOCKETS, is_pinned=True, is_frozen=False),
    LoadSetting(f"{NUM_SOCKETS} sockets, frozen", NUM_SOCKETS, is_pinned=False, is_frozen=True),
    LoadSetting(f"{NUM_SOCKETS} sockets, both", NUM_SOCKETS, is_pinned=True, is_frozen=True),
)


def jitter(loaded: LoadedModel) -> Iterator[Figure]:
    """ITL in each setting, on the engine's thread and as received by the event loop."""
    bar = loaded.subject.bars(loaded.target).jitter()
    num_tokens = max(loaded.target.num_steps // 5, 2 * _WARM_UP)
    context_length = loaded.model.rope.cos.shape[0]
    num_tokens = min(num_tokens, context_length - CONTEXT - 1)
    for setting in SETTINGS:
        on_thread, on_loop = _run(loaded, setting, num_tokens)
        half = percentile(on_thread, 0.5)
        yield Figure(f"{setting.name}: ITL p50", half, "ms")
        held = bar if setting.is_pinned and setting.is_frozen else None
        ratio = percentile(on_thread, 0.99) / half
        yield Figure(f"{setting.name}: p99 / p50", ratio, "", bar=held)
        yield Figure(f"{setting.name}: p99.9", percentile(on_thread, 0.999), "ms")
        yield Figure(f"{setting.name}: p99 on the loop", percentile(on_loop, 0.99), "ms")


def _run(
    loaded: LoadedModel, setting: LoadSetting, num_tokens: int
) -> tuple[list[float], list[float]]:
    every_core = _cores()
    if setting.is_frozen:
        gc.collect()
        gc.freeze()
    try:
        return asyncio.run(_measure(loaded, setting, num_tokens))
    finally:
        _pin(every_core)
        gc.unfreeze()


async def _measure(
    loaded: LoadedModel, setting: LoadSetting, num_tokens: int
) -> tuple[list[float], list[float]]:
    stamped = _Stamped(loaded.backend)
    core = EngineCore(
        stamped,
        (b"x",) * loaded.subject.config.vocab_size,
        context_length=loaded.model.rope.cos.shape[0],
        prefill_chunk=512,
        max_sequences=2,
        clock=_CLOCK,
    )
    worker = EngineThread(core)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    callers = multiprocessing.get_context("spawn").Process(
        target=call_all, args=(port, setting.num_sockets), daemon=True
    )
    try:
        if setting.num_sockets:
            await asyncio.to_thread(callers.start)
            await asyncio.wait_for(_all_here(setting.num_sockets), 60)
        if setting.is_pinned:
            cores = sorted(_cores())
            await worker.call(lambda: _pin({cores[-1]}), undo=lambda _: None)
            _pin(set(cores[:-1]) or set(cores))
        arrivals = await _reply(worker, core, num_tokens)
    finally:
        server.close()
        if callers.pid is not None:
            callers.terminate()
            await asyncio.to_thread(callers.join)
        await asyncio.to_thread(worker.close)
        _connected.clear()
    return gaps_ms(stamped.collected_ns[_WARM_UP:]), gaps_ms(arrivals[_WARM_UP:])


async def _reply(worker: EngineThread, core: EngineCore, num_tokens: int) -> list[int]:
    """Generate a reply. Returns the time in ns at which each token arrived on this loop."""
    sequence = await worker.call(core.open_sequence, undo=core.close_sequence)
    request = Request(
        prompt=(1,) * CONTEXT,
        sampling=SamplingParams(),
        end_ids=frozenset(),
        max_tokens=num_tokens,
        sequence=sequence,
    )
    stream = worker.submit(request)
    arrivals = []
    while True:
        output = await stream.next()
        arrivals.append(_CLOCK.now_ns())
        if output.is_last:
            return arrivals


class _Stamped(BackendWrapper):
    """Backend that records the time at which each step was collected."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.collected_ns: list[int] = []

    def collect(self, handle: StepHandle) -> StepResult:
        result = super().collect(handle)
        self.collected_ns.append(_CLOCK.now_ns())
        return result


_connected: set[asyncio.StreamWriter] = set()
"""Callers that have sent a frame. Only one event loop runs at a time."""


async def _all_here(number: int) -> None:
    while len(_connected) < number:  # noqa: ASYNC110  # a minute at most, and nothing is timed yet
        await asyncio.sleep(0.01)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Parse and answer the frames of one caller."""
    try:
        while line := await reader.readline():
            message: dict[str, Any] = json.loads(line)
            samples = np.frombuffer(base64.b64decode(message["audio"]), dtype=np.int16)
            loudness = float(np.sqrt(np.mean(np.square(samples, dtype=np.float32))))
            answer = {"type": "level", "sequence": message["sequence"], "level": loudness}
            writer.write(json.dumps(answer).encode() + b"\n")
            _connected.add(writer)
    except ConnectionError:
        pass
    finally:
        writer.close()


def _cores() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else {0}


def _pin(cores: set[int]) -> None:
    """Pin the calling thread to these cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
