"""All layers in one kernel against a kernel for each operation, and row by row.

Both round activations to bfloat16 at the same places; what lies between differs in the order of
sums, and in when activations are normalized.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.megakernel.kernel import Launcher, Megakernel, megakernel_or_none
from llm_engine.cuda.model import DeviceModel, Scratch, hidden_states
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Ops, Rows
from tests.gpu import ground
from tests.gpu.ground import Draw, distance

pytestmark = ground.pytestmark

NUM_LAYERS = 4
NUM_PAGES = 1024
WIDTH = 128
CLOSE = 1e-2

STEPS: dict[str, list[list[int]]] = {
    "one row": [[700]],
    "the first position": [[0]],
    "a long context": [[2040]],
    "a draft of 1": [[15, 16]],
    "a draft of 3": [list(range(1021, 1025))],
    "a draft of 7": [list(range(13, 21))],
    "a part of a step": [[5, 6, -1, -1]],
    "8 sequences": [[0], [15], [16], [17], [333], [1023], [1500], [64]],
    "3 of 4 sequences": [[700], [1], [-1], [90]],
}

SHAPES = [
    ("1b", "fp8 by row"),
    ("8b", "fp8 by row"),
    ("8b", "bfloat16"),
    ("qwen2-7b", "fp8 by row"),
]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with both ways to run it."""

    model: DeviceModel
    ops: Ops
    launcher: Launcher

    def kernel(self, cache: Sequence[LayerPages], scratch: Scratch, logits: Tensor) -> Megakernel:
        found = megakernel_or_none(self.model, cache, scratch, logits, self.launcher)
        assert found is not None
        assert found.scores
        return found

    def empty_logits(self) -> Tensor:
        return ground.poisoned(MAX_ROWS, self.model.config.vocab_size, dtype=torch.float32)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda each: " ".join(each))
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    here = ground.ground()
    if here.is_rehearsal:
        pytest.skip("the emulated kernel has tests of its own")
    shape, weights = request.param
    made = ground.model(shape, weights, NUM_LAYERS, 4096)
    launcher = here.launcher(made)
    with torch.inference_mode():
        yield Subject(made, here.ops(flashinfer=False), launcher)
    torch.cuda.empty_cache()


def _cache(subject: Subject, rows: Rows, seed: int) -> list[LayerPages]:
    draw = Draw(seed)
    return [draw.pages(subject.model.config, NUM_PAGES, rows) for _ in range(NUM_LAYERS)]


def _run(subject: Subject, rows: Rows, x: Tensor, cache: list[LayerPages]) -> tuple[Tensor, Tensor]:
    """The residual stream, and the logits."""
    scratch, logits = Scratch(subject.model, MAX_ROWS), subject.empty_logits()
    scratch.hidden[: len(x)] = x
    subject.kernel(cache, scratch, logits).run(rows)
    return scratch.hidden[: len(x)], logits[: len(x)]


@pytest.mark.parametrize("step", STEPS)
def test_all_layers_are_those_of_the_operations(subject: Subject, step: str) -> None:
    draw = Draw(7)
    rows = draw.rows(STEPS[step], NUM_PAGES, WIDTH)
    x = draw.normal(len(rows.positions), subject.model.config.hidden_size)
    cache = _cache(subject, rows, 8)
    expected_cache = [LayerPages(each.keys.clone(), each.values.clone()) for each in cache]
    scratch = Scratch(subject.model, MAX_ROWS)
    scratch.hidden[: len(x)] = x

    found, logits = _run(subject, rows, x, cache)
    expected = hidden_states(subject.model, subject.ops, expected_cache, rows, scratch)
    expected_logits = subject.empty_logits()[: len(x)]
    subject.ops.logits(expected, subject.model.norm, subject.model.head, expected_logits)

    used = rows.positions >= 0
    assert distance(found[used], expected[used]) < CLOSE
    assert distance(logits[used], expected_logits[used]) < CLOSE
    for one, other in zip(cache, expected_cache, strict=True):
        for a, b in ((one.keys, other.keys), (one.values, other.values)):
            assert torch.equal(a.isnan(), b.isnan())
            assert (
                distance(a.nan_to_num()[None].flatten(1), b.nan_to_num()[None].flatten(1)) < CLOSE
            )


@pytest.mark.parametrize(
    ("num_seqs", "num_queries"), [(1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (8, 1)]
)
def test_a_rows_bits_do_not_depend_on_its_company(
    subject: Subject, num_seqs: int, num_queries: int
) -> None:
    draw = Draw(9)
    ends = [700, 33, 1023, 16, 1, 0, 1500, 64][:num_seqs]
    lanes = [list(range(end, end + num_queries)) for end in ends]
    rows = draw.rows(lanes, NUM_PAGES, WIDTH)
    x = draw.normal(len(rows.positions), subject.model.config.hidden_size)
    cache = _cache(subject, rows, 10)
    together, logits = _run(subject, rows, x, cache)

    for index in range(len(x)):
        seq = index // num_queries
        alone = Rows(rows.positions[index : index + 1].clone(), rows.tables[seq : seq + 1].clone())
        again, logits_alone = _run(subject, alone, x[index : index + 1], cache)
        assert torch.equal(again[0], together[index])
        assert torch.equal(logits_alone[0], logits[index])


def test_a_hundred_launches_give_the_same_bits(subject: Subject) -> None:
    draw = Draw(11)
    rows = draw.rows([[1000, 1001, 1002, 1003]], NUM_PAGES, WIDTH)
    x = draw.normal(4, subject.model.config.hidden_size)
    cache = _cache(subject, rows, 12)
    first, first_logits = _run(subject, rows, x, cache)
    scratch, logits = Scratch(subject.model, MAX_ROWS), subject.empty_logits()
    kernel = subject.kernel(cache, scratch, logits)
    for _ in range(100):
        scratch.hidden[:4] = x
        kernel.run(rows)
        assert torch.equal(scratch.hidden[:4], first)
        assert torch.equal(logits[:4], first_logits)
