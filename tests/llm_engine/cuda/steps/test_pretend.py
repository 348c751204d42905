"""The GPU's backend on a device that is none and forgives nothing: see
`tests/support/fakes/pretend_cuda`.

Whatever is late, in the wrong place or on the wrong stream shows as an error or as another token.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Backend, PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.steps.graph_runner import CudaGraphs
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.models.medusa_heads import DraftHeads
from llm_engine.speculative.head_drafter import BackendDrafter
from llm_engine.speculative.ngram import NgramDrafter
from tests.gpu.schedules import CONTEXT, NUM_PAGES, Schedule
from tests.support.fakes.draft_heads import random_heads, shape_for
from tests.support.fakes.llm_cuda import LaunchedOps, on_cpu
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.fakes.pretend_cuda import PretendCuda
from tests.support.fakes.pretend_tensors import DEVICE, CudaMisuse
from tests.support.llm.int4_cases import not_int4

pytestmark = pytest.mark.slow

FLOATS = WeightFormat(dtype=torch.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen3", num_hidden_layers=2, max_position_embeddings=CONTEXT)
    return load_checkpoint(path)


@pytest.fixture(params=["as late as can be", "at any time"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    made = PretendCuda(random.Random(3) if request.param == "at any time" else None)
    with made.installed(monkeypatch):
        yield made


def on_device(
    cuda: PretendCuda,
    checkpoint: Checkpoint,
    weight_format: WeightFormat = FLOATS,
    heads: DraftHeads | None = None,
) -> CudaBackend:
    """Whose work has to be launched on its own stream from now on."""
    model = load_model(checkpoint, weight_format, DEVICE, context_length=CONTEXT)
    graphs = CudaGraphs(DEVICE)
    backend = CudaBackend(
        model,
        LaunchedOps(ReferenceOps(), cuda),
        graphs,
        num_pages=NUM_PAGES,
        cache_dtype=weight_format.dtype,
        heads=heads,
        prompt_rows=(16, 64, 512),
    )
    cuda.must_launch_on = graphs._stream
    return backend


def run(backend: Backend, plan: Plan) -> dict[Slot, tuple[int, ...]]:
    return dict(backend.collect(backend.launch(plan)).tokens)


def test_whatever_is_asked_for_is_what_a_cpu_says(
    cuda: PretendCuda, checkpoint: Checkpoint
) -> None:
    backend = on_device(cuda, checkpoint)
    expected = on_cpu(checkpoint, context_length=CONTEXT, num_pages=NUM_PAGES)
    num_made = cuda.num_made
    for seed in range(8):
        schedule = Schedule(random.Random(seed), checkpoint.config.vocab_size)
        for number in range(12):
            plan, drafts = schedule.plan()
            found = run(backend, plan)
            assert found == run(expected, plan), f"schedule {seed}, step {number}"
            schedule.take(drafts, found)
    assert cuda.num_made == num_made, "a step took memory"


def test_one_wait_a_token_and_none_before_the_step_is_under_way(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = PretendCuda()
    with cuda.installed(monkeypatch):
        backend = on_device(cuda, checkpoint)
        schedule = Schedule(random.Random(0), checkpoint.config.vocab_size)
        plan, drafts = schedule.plan()
        schedule.take(drafts, run(backend, plan))
        talk = schedule.talks[0]
        talk.sampling = SamplingParams(temperature=0.7, top_p=0.9)
        waits = []
        for _ in range(40):
            rows = replace(schedule._rows(talk, ()), allowed=())
            before = cuda.num_waits
            launched = backend.launch(Plan((replace(plan.sub_batches[0], sequences=(rows,)),)))
            between = cuda.num_waits
            found = backend.collect(launched).tokens
            waits.append((between - before, cuda.num_waits - between))
            schedule.take({talk.slot: (talk, ())}, dict(found))
    assert waits == [(0, 1)] * 40


def test_several_steps_with_masks_in_one_plan(cuda: PretendCuda, checkpoint: Checkpoint) -> None:
    """Each has its masks, though there is one place for them on the host."""
    backend = on_device(cuda, checkpoint)
    expected = on_cpu(checkpoint, context_length=CONTEXT, num_pages=NUM_PAGES)
    rows = tuple(
        SequenceRows(
            slot=Slot(number + 1),
            token_ids=tuple(range(3 + number, 8 + number)),
            first_position=0,
            num_sampled=1,
            sampling=SamplingParams(),
            seed=0,
            banned=tuple(range(number, 320, 3)),
            num_banned=1,
            pages=[PageId(number)],
        )
        for number in range(3)
    )
    plan = Plan((SubBatch(rows),))
    assert run(backend, plan) == run(expected, plan)


def replies(backend: CudaBackend, checkpoint: Checkpoint, drafters: list[Any]) -> list[list[int]]:
    """Of an engine with five calls side by side, some sampled, some with a penalty."""
    core = EngineCore(
        backend,
        checkpoint.tokenizer.token_bytes,
        context_length=CONTEXT,
        prefill_chunk=64,
        max_sequences=8,
        clock=ManualClock(),
        drafters=drafters,
    )
    said: dict[Any, list[int]] = {}
    for index in range(5):
        sampling = SamplingParams(
            temperature=0.5 * (index % 2), repetition_penalty=1 + (index == 3), seed=index
        )
        prompt = tuple(3 + (each * each + index) % 290 for each in range(10 + 40 * index))
        request = Request(
            prompt=prompt + (5, 6, 7) * 6,
            sampling=sampling,
            end_ids=frozenset({2}),
            max_tokens=20 + 7 * index,
            sequence=core.open_sequence(),
        )
        said[core.add(request)] = []
    while core.has_work:
        for output in core.step():
            assert output.error is None
            said[output.request_id] += output.token_ids
    core.cache.check()
    return list(said.values())


def test_an_engine_with_drafts_says_the_same(cuda: PretendCuda, checkpoint: Checkpoint) -> None:
    expected = replies(on_cpu(checkpoint, context_length=CONTEXT), checkpoint, [])
    assert replies(on_device(cuda, checkpoint), checkpoint, [NgramDrafter()]) == expected
    assert sum(map(len, expected)) > 100


def test_heads_that_draft_in_the_graph_change_nothing(
    cuda: PretendCuda, checkpoint: Checkpoint
) -> None:
    expected = replies(on_cpu(checkpoint, context_length=CONTEXT), checkpoint, [])
    backend = on_device(cuda, checkpoint, heads=random_heads(shape_for(checkpoint)))
    assert replies(backend, checkpoint, [BackendDrafter(backend)]) == expected


@pytest.mark.parametrize("block", [(1, 0), (32, 32)], ids=["rows", "blocks"])
@pytest.mark.parametrize("texts", [[], [[3 + each * each % 290 for each in range(40)]]])
def test_weights_quantized_on_the_device_are_those_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    block: tuple[int, int],
    texts: list[list[int]],
) -> None:
    """Where a text decides, its sums have another order there, and what one weight is rounded by is
    passed on to the next: only the scales are the same."""
    weight_format = WeightFormat(body=Precision.FP8, block=block, dtype=torch.float32)

    def load(device: torch.device | str) -> DeviceModel:
        return load_model(checkpoint, weight_format, device, context_length=64, calibration=texts)

    expected = load("cpu")
    with PretendCuda().installed(monkeypatch):
        model = load(DEVICE)
        for layer, there in zip(expected.layers, model.layers, strict=True):
            for pair in ((layer.out, there.out), (layer.gate_up, there.gate_up)):
                ours, theirs = map(not_int4, pair)
                assert theirs.values.device == DEVICE
                same = ours.values.view(torch.uint8) == theirs.values.cpu().view(torch.uint8)
                assert texts or same.all()
                assert ours.scales is not None
                assert theirs.scales is not None
                torch.testing.assert_close(ours.scales, theirs.scales.cpu())


# What the device that is none must not forgive.


def late_write(cuda: PretendCuda) -> None:
    host = torch.zeros(4, pin_memory=True)
    there = torch.zeros(4, device=DEVICE)
    there.copy_(host, non_blocking=True)
    host.fill_(1)
    assert there.tolist() == [0] * 4


def early_read(cuda: PretendCuda) -> None:
    host = torch.zeros(4, pin_memory=True)
    host.copy_(torch.ones(4, device=DEVICE), non_blocking=True)
    assert host.tolist() == [1] * 4


def mixed_places(cuda: PretendCuda) -> None:
    torch.zeros(4, device=DEVICE) + torch.ones(4)


def a_look_in_a_recording(cuda: PretendCuda) -> None:
    there = torch.zeros(4, device=DEVICE)
    CudaGraphs(DEVICE).capture(lambda: print(there.sum().item()))


def a_copy_in_a_recording(cuda: PretendCuda) -> None:
    there = torch.zeros(4, device=DEVICE)

    def copy() -> None:
        there.copy_(torch.ones(4))

    CudaGraphs(DEVICE).capture(copy)


def another_stream(cuda: PretendCuda) -> None:
    graphs = CudaGraphs(DEVICE)
    there = torch.zeros(4, device=DEVICE)
    cuda.must_launch_on = graphs._stream
    there.fill_(1)


def the_pool_of_a_recording(cuda: PretendCuda) -> None:
    there, left = torch.ones(4, device=DEVICE), []
    graphs = CudaGraphs(DEVICE)
    graphs.capture(lambda: left.append(there + 1))

    def add() -> None:
        there.add_(1)

    replay = graphs.capture(add)
    with graphs.running():
        replay()
        assert left[-1].tolist() == [2] * 4


MISUSES = [
    late_write, early_read, mixed_places, a_look_in_a_recording, a_copy_in_a_recording,
    another_stream, the_pool_of_a_recording,
]  # fmt: skip


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda each: each.__name__)
def test_it_forgives_nothing(
    monkeypatch: pytest.MonkeyPatch, misuse: Callable[[PretendCuda], None]
) -> None:
    cuda = PretendCuda()
    with cuda.installed(monkeypatch), pytest.raises(AssertionError):
        misuse(cuda)


def test_recordings_are_released_behind_what_they_were_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with PretendCuda().installed(monkeypatch):
        graphs = CudaGraphs(DEVICE)
        there = torch.zeros(4, device=DEVICE)

        def add() -> None:
            there.add_(1)

        replay = graphs.capture(add)
        with graphs.running():
            replay()
            graphs.release()
            assert there.tolist() == [4] * 4  # two to warm up, one to be ready, one now
            with pytest.raises(CudaMisuse, match="was reset"):
                replay()
