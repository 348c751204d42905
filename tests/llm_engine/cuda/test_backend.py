"""GPU backend with plain torch in place of kernels and graphs: the same tokens as the reference
backend for any order of plans, with and without the step ahead."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Backend, PageCopy, PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request
from llm_engine.cuda.backend import PAGE_SIZE, CudaBackend
from llm_engine.cuda.memory import MemoryBudget
from llm_engine.cuda.steps.graph_runner import Replay
from llm_engine.errors import DeviceLostError
from llm_engine.speculative.ngram import NgramDrafter
from tests.support.fakes.llm_cuda import CountingGraphs, on_cpu
from tests.support.fakes.llm_models import save_tiny_model

pytestmark = pytest.mark.slow

CONTEXT = 640
GREEDY = SamplingParams()
UNFILTERED = SamplingParams(temperature=0.8)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, top_k=30)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, request.param, num_hidden_layers=2)
    return load_checkpoint(path)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> CpuBackend:
    return CpuBackend(checkpoint, EngineConfig(kv_cache_mb=16), CONTEXT)


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> CudaBackend:
    return on_cpu(checkpoint)


class Talk:
    """One sequence led by hand: its tokens, and the rows that come next."""

    def __init__(self, backend: Backend, first_page: int, sampling: SamplingParams) -> None:
        self.slot = backend.open_slot()
        self.pages = [PageId(first_page + index) for index in range(-(-CONTEXT // PAGE_SIZE))]
        self.sampling = sampling
        self.num_cached = 0
        self.tokens: list[int] = []

    def rows(self, draft: Sequence[int] = (), **more: Any) -> SequenceRows:
        fresh = (*self.tokens[self.num_cached :], *draft)
        values: dict[str, Any] = {"num_sampled": len(draft) + 1, "seed": 7, **more}
        return SequenceRows(
            self.slot, fresh, self.num_cached, sampling=self.sampling, pages=self.pages, **values
        )

    def take(self, tokens: Sequence[int]) -> None:
        self.num_cached = len(self.tokens)
        self.tokens += tokens


def step(backend: Backend, *rows: SequenceRows) -> dict[Slot, tuple[int, ...]]:
    plan = Plan((SubBatch(rows),))
    return dict(backend.collect(backend.launch(plan)).tokens)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [3 + (index * index + 7 * index + salt) % 290 for index in range(length)]


def told(
    backend: Backend, length: int, num_tokens: int, sampling: SamplingParams, first_page: int = 0
) -> list[int]:
    """A reply to a prompt, token by token."""
    talk = Talk(backend, first_page, sampling)
    talk.tokens = prompt(length)
    for _ in range(num_tokens):
        talk.take(step(backend, talk.rows())[talk.slot])
    return talk.tokens[length:]


@pytest.mark.parametrize(
    "sampling", [GREEDY, UNFILTERED, SAMPLED], ids=["greedy", "unfiltered", "sampled"]
)
@pytest.mark.parametrize("length", [1, 8, 9, 200, 530])
def test_replies_are_the_reference_s(
    backend: CudaBackend, reference: CpuBackend, length: int, sampling: SamplingParams
) -> None:
    expected = told(reference, length, 40, sampling)
    assert told(backend, length, 40, sampling) == expected


def test_all_graphs_are_reckoned_with(checkpoint: Checkpoint) -> None:
    graphs = CountingGraphs()
    on_cpu(checkpoint, graphs)
    assert 24 < graphs.num_captured <= MemoryBudget(0, PAGE_SIZE, CONTEXT).num_graphs


@pytest.mark.parametrize(
    "sampling", [GREEDY, UNFILTERED, SAMPLED], ids=["greedy", "unfiltered", "sampled"]
)
def test_the_next_step_is_under_way_before_it_is_asked_for(
    checkpoint: Checkpoint, sampling: SamplingParams
) -> None:
    graphs = CountingGraphs()
    backend = on_cpu(checkpoint, graphs)
    talk = Talk(backend, 0, sampling)
    talk.tokens = prompt(5)
    talk.take(step(backend, talk.rows())[talk.slot])
    assert graphs.num_replays == 1, "what follows a prompt is not known to be a reply"
    for number in range(50):
        talk.take(step(backend, talk.rows())[talk.slot])
        assert graphs.num_replays == number + 3


def test_there_is_no_step_ahead_beyond_the_context_or_the_pages(
    checkpoint: Checkpoint, reference: CpuBackend
) -> None:
    graphs = CountingGraphs()
    backend = on_cpu(checkpoint, graphs)
    expected = told(reference, CONTEXT - 4, 4, GREEDY)
    assert told(backend, CONTEXT - 4, 4, GREEDY) == expected
    talk = Talk(backend, 0, GREEDY)
    talk.tokens = prompt(PAGE_SIZE - 1)
    del talk.pages[1:]
    talk.take(step(backend, talk.rows())[talk.slot])
    before = graphs.num_replays
    step(backend, talk.rows())
    assert graphs.num_replays == before + 1


CHANGES: dict[str, dict[str, Any]] = {
    "another seed": {"seed": 8},
    "a grammar": {"allowed": (bytes([0x10]) + bytes(39),)},
    "forbidden": {"banned": tuple(range(100)), "num_banned": 1},
    "a draft": {"draft": (5, 6)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_computed_ahead_is_not_taken_for_something_else(
    backend: CudaBackend, reference: CpuBackend, name: str
) -> None:
    outcomes = []
    for each in (backend, reference):
        talk = Talk(each, 0, SAMPLED)
        talk.tokens = prompt(20)
        for _ in range(5):
            talk.take(step(each, talk.rows())[talk.slot])
        draft = CHANGES[name].get("draft", ())
        more = {key: value for key, value in CHANGES[name].items() if key != "draft"}
        changed = step(each, talk.rows(draft, **more))[talk.slot]
        talk.tokens[-1] = 11  # the caller heard something else
        outcomes.append((talk.tokens, changed, step(each, talk.rows())[talk.slot]))
    assert outcomes[0] == outcomes[1]


def test_a_step_ahead_writes_nothing_that_others_read(
    checkpoint: Checkpoint, reference: CpuBackend
) -> None:
    """A reply ends; its page goes to another sequence, whose prompt ends in it."""
    backend = on_cpu(checkpoint)
    first = Talk(backend, 0, GREEDY)
    first.tokens = prompt(PAGE_SIZE + 3)
    for _ in range(4):
        first.take(step(backend, first.rows())[first.slot])
    assert told(backend, PAGE_SIZE + 9, 20, GREEDY) == told(reference, PAGE_SIZE + 9, 20, GREEDY)


@pytest.mark.parametrize("count", [2, 3, 8, 11])
def test_together_as_alone(backend: CudaBackend, reference: CpuBackend, count: int) -> None:
    lengths = [3 + 5 * index for index in range(count)]
    params = [GREEDY if index % 3 else SAMPLED for index in range(count)]
    talks = [Talk(backend, 30 * index, each) for index, each in enumerate(params)]
    for talk, length in zip(talks, lengths, strict=True):
        talk.tokens = prompt(length)
        talk.pages = talk.pages[:30]
        talk.take(step(backend, talk.rows())[talk.slot])
    for number in range(12):
        together = [talk for talk in talks if number < 6 or talk is not talks[0]]
        chosen = step(backend, *(talk.rows() for talk in together))
        for talk in together:
            talk.take(chosen[talk.slot])
    for talk, length, each in zip(talks, lengths, params, strict=True):
        assert talk.tokens[length:] == told(reference, length, len(talk.tokens) - length, each)


@pytest.mark.parametrize("right", [0, 1, 3, 7])
def test_a_draft_changes_nothing(backend: CudaBackend, reference: CpuBackend, right: int) -> None:
    expected = told(reference, 30, 60, SAMPLED)
    talk = Talk(backend, 0, SAMPLED)
    talk.tokens = prompt(30)
    talk.take(step(backend, talk.rows())[talk.slot])
    while len(talk.tokens) < 80:
        done = len(talk.tokens) - 30
        draft = [*expected[done : done + right], *[1] * (7 - right)]
        chosen = step(backend, talk.rows(draft))[talk.slot]
        num_taken = next((at for at, each in enumerate(draft) if chosen[at] != each), len(draft))
        talk.take(chosen[: num_taken + 1])
        talk.num_cached = len(talk.tokens) - 1
    assert talk.tokens[30:80] == expected[:50]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.7)])
def test_lanes_that_are_empty_choose_nothing_that_could_fail(
    checkpoint: Checkpoint, reference: CpuBackend, sampling: SamplingParams
) -> None:
    """Three talks where there were four, one of them with a grammar: the fourth lane has no mask of
    its own, and what it was told last."""
    everything = (b"\xff" * 40,)
    outcomes = []
    for each in (on_cpu(checkpoint), reference):
        talks = [Talk(each, 40 * index, sampling) for index in range(4)]
        for index, talk in enumerate(talks):
            talk.tokens = prompt(1, salt=index)
            talk.pages = talk.pages[:40]
        for _ in range(
            9
        ):  # the same again and again: whatever the host has as copies tells of four
            step(each, *(talk.rows() for talk in talks))
        first, *others = talks[:3]
        rows = first.rows(allowed=everything), *(talk.rows() for talk in others)
        outcomes.append(list(step(each, *rows).values()))
    assert outcomes[0] == outcomes[1]


def test_a_copied_page_is_another_page(backend: CudaBackend, reference: CpuBackend) -> None:
    talk = Talk(backend, 0, GREEDY)
    talk.tokens = prompt(20)
    for _ in range(6):
        talk.take(step(backend, talk.rows())[talk.slot])
    talk.pages[1] = PageId(300)
    rows = talk.rows()
    plan = Plan((SubBatch((rows,)),), (PageCopy(PageId(1), PageId(300)),))
    talk.take(backend.collect(backend.launch(plan)).tokens[talk.slot])
    for _ in range(5):
        talk.take(step(backend, talk.rows())[talk.slot])
    assert talk.tokens[20:] == told(reference, 20, 12, GREEDY)


@pytest.mark.parametrize("num_rows", [5, 8, 20])
def test_logits_of_every_row(backend: CudaBackend, reference: CpuBackend, num_rows: int) -> None:
    outcomes = []
    for each in (backend, reference):
        talk = Talk(each, 0, GREEDY)
        talk.tokens = prompt(num_rows)
        with torch.inference_mode():
            outcomes.append(each.logits(talk.rows(num_sampled=num_rows)))
    torch.testing.assert_close(*outcomes, rtol=0, atol=2e-4)


class DyingGraphs(CountingGraphs):
    """Its work fails from some replay on."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message
        self.fails = False

    def capture(self, work: Replay) -> Replay:
        replay = super().capture(work)

        def dying() -> None:
            if self.fails:
                raise RuntimeError(self.message)
            replay()

        return dying


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nCompile with ...", DeviceLostError),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", RuntimeError),
    ],
)
def test_lost_device_and_failed_step_are_distinguished(
    checkpoint: Checkpoint, message: str, kind: type[Exception]
) -> None:
    graphs = DyingGraphs(message)
    backend = on_cpu(checkpoint, graphs)
    talk = Talk(backend, 0, GREEDY)
    talk.tokens = prompt(5)
    talk.take(step(backend, talk.rows())[talk.slot])
    graphs.fails = True
    with pytest.raises(kind, match=message.partition("\n")[0]) as caught:
        step(backend, talk.rows())
    assert type(caught.value) is kind
    graphs.fails = False
    talk.take(step(backend, talk.rows())[talk.slot])  # what failed left nothing behind


def test_keys_and_values_of_8_bits_are_near(checkpoint: Checkpoint, reference: CpuBackend) -> None:
    backend = on_cpu(checkpoint, cache_dtype=torch.float8_e4m3fn)
    assert backend.cache_bytes() * 4 == on_cpu(checkpoint).cache_bytes()
    outcomes = []
    for each in (backend, reference):
        talk = Talk(each, 0, GREEDY)
        talk.tokens = prompt(40)
        with torch.inference_mode():
            outcomes.append(each.logits(talk.rows(num_sampled=40)))
    error = (outcomes[0] - outcomes[1]).norm() / outcomes[1].norm()
    assert 1e-4 < float(error) < 0.2  # random weights make much of little


def test_an_engine_says_the_same(checkpoint: Checkpoint) -> None:
    """Conversations side by side, with drafts, through the scheduler."""
    outcomes = []
    for backend in (on_cpu(checkpoint), CpuBackend(checkpoint, EngineConfig(), CONTEXT)):
        core = EngineCore(
            backend,
            checkpoint.tokenizer.token_bytes,
            context_length=CONTEXT,
            prefill_chunk=64,
            max_sequences=8,
            clock=ManualClock(),
            drafters=[NgramDrafter()],
        )
        texts: dict[Any, list[int]] = {}
        for index in range(5):
            sampling = SamplingParams(
                temperature=0.5 * (index % 2), repetition_penalty=1 + index % 2, seed=index
            )
            request = Request(
                prompt=tuple(prompt(10 + 40 * index)) + (5, 6, 7) * 6,
                sampling=sampling,
                end_ids=frozenset({2}),
                max_tokens=30 + 7 * index,
                sequence=core.open_sequence(),
            )
            texts[core.add(request)] = []
        while core.has_work:
            for output in core.step():
                assert output.error is None
                texts[output.request_id] += output.token_ids
        core.cache.check()
        outcomes.append(list(texts.values()))
    assert outcomes[0] == outcomes[1]
    assert sum(map(len, outcomes[0])) > 100
