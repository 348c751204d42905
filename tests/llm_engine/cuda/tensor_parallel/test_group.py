"""Tensor parallelism over processes: the same tokens as one process; death, hangs and errors."""

import asyncio
import itertools
import multiprocessing as mp
import os
import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import PageId, Plan, SequenceRows, Slot, StepHandle, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.huggingface_tokenizer import load_tokenizer
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops.interface import Weight
from llm_engine.cuda.tensor_parallel.follower_watchdog import Follower, HangTimeout, received
from llm_engine.cuda.tensor_parallel.group import ParallelBackend, ProcessGroup, lead
from llm_engine.cuda.weights import WeightFormat
from llm_engine.engine import Engine, read_vocabulary
from llm_engine.errors import DeviceLostError
from tests.support.fakes.int4_models import save_int4_model
from tests.support.fakes.llm_cuda import one_of_several
from tests.support.fakes.llm_models import save_tiny_model

pytestmark = pytest.mark.slow

PAGES = [PageId(page) for page in range(40)]


GREEDY = SamplingParams()
QUICK = HangTimeout(poll_s=0.05, num_polls=20)
"""Still long for a follower that waits for a processor."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen2", num_hidden_layers=2)  # with biases
    return path


@pytest.fixture
def pair(model: Path) -> Iterator[ParallelBackend]:
    backend = lead(2, "gloo", partial(one_of_several, model))
    yield backend
    backend.close()


def only(backend: ParallelBackend) -> Follower:
    (follower,) = backend._followers
    return follower


def send(follower: Follower, number: signal.Signals) -> None:
    assert follower.process.pid is not None
    os.kill(follower.process.pid, number)


def engine_on(backend: ParallelBackend, model: Path) -> Engine:
    return Engine(
        backend,
        read_vocabulary(load_tokenizer(model, {}), model),
        context_length=640,
        config=EngineConfig(),
        clock=SystemClock(),
    )


async def drained(reply: AsyncIterator[object]) -> None:
    async for _ in reply:
        pass


def told(
    backend: ParallelBackend | CpuBackend, length: int, count: int, sampling: SamplingParams
) -> list[int]:
    slot = backend.open_slot()
    tokens = [3 + index * index % 290 for index in range(length)]
    num_cached = 0
    for _ in range(count):
        rows = SequenceRows(
            slot, tuple(tokens[num_cached:]), num_cached, 1, sampling, 5, pages=PAGES
        )
        chosen = backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]
        num_cached = len(tokens)
        tokens += chosen
    return tokens[length:]


def test_two_processes_say_what_one_says(pair: ParallelBackend, model: Path) -> None:
    """Prompts of a step and of parts, greedy and sampled, with the next step launched ahead."""
    reference = CpuBackend(load_checkpoint(model), EngineConfig(), 640)
    for length, sampling in (
        (5, SamplingParams()),
        (70, SamplingParams()),
        (5, SamplingParams(temperature=0.8, top_p=0.9)),
        (12, SamplingParams(repetition_penalty=1.3)),
    ):
        assert told(pair, length, 20, sampling) == told(reference, length, 20, sampling)
    prompt = SequenceRows(Slot(9), (4, 5, 6), 0, 3, SamplingParams(), 0, pages=PAGES)
    with torch.inference_mode():
        both = [each.logits(prompt) for each in (pair, reference)]
    torch.testing.assert_close(*both, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("layout", "group"), [("gptq, zero points", 32), ("awq", 64)])
def test_two_processes_with_4_bits_say_what_one_says_in_float32(
    tmp_path: Path, layout: str, group: int
) -> None:
    save_int4_model(tmp_path, layout, group, head_dim=64)
    four_bits = WeightFormat(Precision.INT4, dtype=torch.float32)
    backend = lead(2, "gloo", partial(one_of_several, tmp_path, weight_format=four_bits))
    reference = CpuBackend(load_checkpoint(tmp_path), EngineConfig(), 640)
    try:
        for length in (5, 70):
            assert told(backend, length, 12, GREEDY) == told(reference, length, 12, GREEDY)
    finally:
        backend.close()


def test_the_leader_may_load_by_what_can_not_be_sent(model: Path) -> None:
    asked: list[int] = []

    def make_own(team: ProcessGroup) -> Callable[[], CudaBackend]:
        asked.append(team.rank)
        return one_of_several(model, team)

    make = partial(one_of_several, model)
    backend = lead(2, "gloo", make, make_own=make_own)
    told(backend, 5, 2, SamplingParams())
    backend.close()
    assert asked == [0]


def test_close_does_not_wait_for_a_hung_follower(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = lead(2, "gloo", partial(one_of_several, model))
    monkeypatch.setattr("llm_engine.cuda.tensor_parallel.group._JOIN_S", 0.1)
    release = threading.Event()
    monkeypatch.setattr(backend._own, "close", release.wait)  # a step that the other is to join
    send(only(backend), signal.SIGSTOP)
    try:
        backend.close()
        assert only(backend).process.exitcode == -signal.SIGKILL
        assert dist.is_initialized()  # the leader still waits
    finally:
        release.set()
        for left in threading.enumerate():
            if left.name == "halfsec-leaving":
                left.join()
        backend._store_directory.cleanup()


def test_closing_a_device_that_fails_is_a_line_in_the_log(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    backend = lead(2, "gloo", partial(one_of_several, model))
    monkeypatch.setattr(backend._own, "close", fail)
    backend.close()
    assert "unspecified launch failure" in caplog.text
    dist.destroy_process_group()
    backend._store_directory.cleanup()


def test_a_follower_that_dies_is_noticed(pair: ParallelBackend) -> None:
    told(pair, 5, 2, SamplingParams())
    follower = only(pair)
    send(follower, signal.SIGKILL)
    wait([follower.process.sentinel])  # no `join`: two at once do not both get the exit code
    for _ in range(2):
        with pytest.raises(DeviceLostError, match=r"GPU 1 is gone \(exit -9\)"):
            told(pair, 5, 2, SamplingParams())


def test_a_follower_that_dies_in_mid_step_is_to_blame_for_what_the_leader_met(model: Path) -> None:
    """The leader's error is about a connection; what it comes to is about the process."""
    make = partial(_stopping_as_follower, model, signal.SIGKILL)
    backend = lead(2, "gloo", make)
    with pytest.raises(DeviceLostError, match=r"GPU 1 is gone \(exit -9\)") as caught:
        told(backend, 5, 9, SamplingParams())
    assert isinstance(caught.value.__cause__, RuntimeError)
    backend.close()


def test_a_follower_that_hangs_in_mid_step_is_killed(model: Path) -> None:
    """The leader waits for it inside a collective, where nothing can reach it."""
    make = partial(_stopping_as_follower, model, signal.SIGSTOP)
    backend = lead(2, "gloo", make, QUICK)
    with pytest.raises(DeviceLostError, match="GPU 1 has not moved for 1 s"):
        told(backend, 5, 9, SamplingParams())
    follower = only(backend)
    follower.process.join()
    assert follower.process.exitcode == -signal.SIGKILL
    backend.close()


def test_a_follower_that_hangs_is_noticed_before_it_is_needed(model: Path) -> None:
    backend = lead(2, "gloo", partial(one_of_several, model), QUICK)
    told(backend, 5, 2, SamplingParams())
    losses: queue.Queue[DeviceLostError] = queue.Queue()
    backend.when_lost(losses.put)
    send(only(backend), signal.SIGSTOP)
    assert "has not moved" in str(losses.get())
    with pytest.raises(DeviceLostError, match="has not moved"):
        told(backend, 5, 2, SamplingParams())
    backend.when_lost(losses.put)
    assert "has not moved" in str(losses.get_nowait()), "who asks too late hears it as well"
    backend.close()
    assert losses.empty()


def test_a_step_that_fails_in_the_leader_alone_is_the_end_of_all(pair: ParallelBackend) -> None:
    """The follower has done it, or waits inside it: the next step would not be the same one."""
    told(pair, 5, 2, SamplingParams())
    with pytest.raises(DeviceLostError, match="out of step: AssertionError"):
        pair.collect(object())  # type: ignore[arg-type]
    only(pair).process.join()
    with pytest.raises(DeviceLostError, match="out of step"):
        pair.launch(Plan(()))


def test_a_follower_ends_with_its_leader_even_in_mid_step(model: Path) -> None:
    ours, theirs = mp.Pipe()
    context = mp.get_context("spawn")
    leader = context.Process(target=_lead_one_that_is_stuck, args=(model, theirs))
    leader.start()
    theirs.close()
    assert ours.recv() == "stuck"
    leader.kill()
    with pytest.raises(EOFError):  # nobody holds the other end any more
        ours.recv()
    leader.join()


async def test_requests_fail_once_and_the_engine_ends(model: Path) -> None:
    backend = lead(2, "gloo", partial(one_of_several, model), QUICK)
    engine = engine_on(backend, model)
    sampling = SamplingParams(max_tokens=600)
    replies = [engine.generate((1, 2, each), sampling) for each in range(3, 6)]
    for reply in replies:
        await anext(reply)
    send(only(backend), signal.SIGSTOP)
    for reply in replies:
        with pytest.raises(DeviceLostError, match="has not moved"):
            await drained(reply)
    assert "has not moved" in str(engine.health.lost)
    with pytest.raises(DeviceLostError, match="has not moved"):
        await anext(engine.generate((1, 2, 3), sampling))
    await asyncio.to_thread(engine.close)
    assert only(backend).process.exitcode == -signal.SIGKILL


def test_two_at_once_are_one_too_many(pair: ParallelBackend, model: Path) -> None:
    with pytest.raises(DeviceLostError, match="has not ended in this process"):
        lead(2, "gloo", partial(one_of_several, model))
    told(pair, 5, 2, SamplingParams())


def test_libraries_take_leave_when_nothing_is_recorded_any_more_and_the_others_are_there(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL waits for graphs that hold work of its own, and for the others to leave as well."""
    backend = lead(2, "gloo", partial(one_of_several, model))
    done: list[tuple[str, bool]] = []
    close, leave = backend._own.close, dist.destroy_process_group

    def note_close() -> None:
        done.append(("graphs", only(backend).process.is_alive()))
        close()

    def note_leave() -> None:
        done.append(("leave", only(backend).process.is_alive()))
        send(only(backend), signal.SIGCONT)
        leave()

    monkeypatch.setattr(backend._own, "close", note_close)
    monkeypatch.setattr(dist, "destroy_process_group", note_leave)
    store = Path(backend._store_directory.name)
    assert store.exists()
    send(only(backend), signal.SIGSTOP)  # whoever waits for it now waits for ever
    backend.close()
    assert done == [("graphs", True), ("leave", True)]
    assert not store.exists()


def _stopping_as_follower(
    model: Path, number: signal.Signals, team: ProcessGroup
) -> Callable[[], CudaBackend]:
    """Gets a signal in its fifth step, behind the first layer."""
    finish = one_of_several(model, team)
    return (lambda: _stopping(finish(), number)) if team.rank == 1 else finish


def _stopping(backend: CudaBackend, number: signal.Signals) -> CudaBackend:
    context = backend._runner._context
    ops = context.ops
    num_products = itertools.count()

    def add_product(x: Tensor, weight: Weight, residual: Tensor) -> None:
        if next(num_products) == 4 * 4 + 2:  # two layers, two of them in each
            os.kill(os.getpid(), number)
        type(ops).add_product(ops, x, weight, residual)

    ops.add_product = add_product  # type: ignore[method-assign]
    return backend


def _lead_one_that_is_stuck(model: Path, held: Connection) -> None:
    """A leader's life."""
    endless = HangTimeout(num_polls=1 << 30)
    told(lead(2, "gloo", partial(_stuck_as_follower, model, held), endless), 5, 2, GREEDY)


def _stuck_as_follower(
    model: Path, held: Connection, team: ProcessGroup
) -> Callable[[], CudaBackend]:
    finish = one_of_several(model, team)
    return (lambda: _stuck(finish(), held)) if team.rank == 1 else finish


def _stuck(backend: CudaBackend, held: Connection) -> CudaBackend:
    def launch(plan: Plan) -> StepHandle:
        held.send("stuck")
        threading.Event().wait()
        raise AssertionError

    backend.launch = launch  # type: ignore[method-assign]
    return backend


def test_an_engine_takes_its_followers_along(model: Path) -> None:
    backend = lead(2, "gloo", partial(one_of_several, model))
    engine = engine_on(backend, model)
    process = only(backend).process
    assert process.is_alive()
    engine.close()
    assert process.exitcode == 0
    assert engine.health.lost is None


def test_a_follower_beats_while_it_waits_and_after_each_order() -> None:
    ours, theirs = mp.Pipe()
    beats = mp.RawValue("Q")
    orders = received(theirs, beats, HangTimeout(poll_s=60))
    for order in range(3):
        ours.send(order)
    assert [(next(orders), beats.value) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    idle = received(theirs, beats, HangTimeout(poll_s=0))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, idle)
        while beats.value < 10:
            pass
        ours.send("order")
        assert waiting.result() == "order"
        ours.close()
        assert pool.submit(next, idle, "gone").result() == "gone"
