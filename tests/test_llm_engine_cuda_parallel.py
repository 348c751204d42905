"""A model divided among processes says what the undivided one says."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from latency_budget.clock import SystemClock
from llm_engine.backends.base import PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops import Matrix
from llm_engine.cuda.oracle import dense
from llm_engine.cuda.parallel import ParallelBackend, Team, lead
from llm_engine.cuda.quantize import BLOCK, ONE_A_ROW, quantize
from llm_engine.cuda.sharding import Shard
from llm_engine.cuda.weights import as_matrix
from llm_engine.engine import Engine, read_vocabulary
from llm_engine.errors import EngineError, ModelError
from llm_engine.huggingface_tokenizer import load_tokenizer
from llm_engine.weights import load_checkpoint
from tests.fakes.llm_cuda import one_of_several
from tests.fakes.llm_models import save_tiny_model

PAGES = [PageId(page) for page in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen2", num_hidden_layers=2)  # with biases
    return path


@pytest.fixture
def pair(model: Path, tmp_path: Path) -> Iterator[ParallelBackend]:
    backend = lead(2, str(tmp_path / "store"), "gloo", partial(one_of_several, model))
    yield backend
    backend.close()


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


def test_a_follower_that_dies_is_noticed(pair: ParallelBackend) -> None:
    told(pair, 5, 2, SamplingParams())
    ((process, _),) = pair._followers
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(EngineError, match="GPU 1 is gone"):
        told(pair, 5, 2, SamplingParams())


def test_what_a_follower_can_t_load_is_the_leader_s_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelError, match="can't be divided among 3 GPUs"):
        Shard(0, 3).check(load_checkpoint(model).config)
    with pytest.raises(ModelError, match="GPU 1: ModelError: out of luck"):
        lead(2, str(tmp_path / "store"), "gloo", partial(_fail_as_follower, model))


def _fail_as_follower(model: Path, team: Team) -> Callable[[], CudaBackend]:
    if team.rank == 1:
        raise ModelError("out of luck")
    return one_of_several(model, team)


@pytest.mark.parametrize("block", [None, ONE_A_ROW, BLOCK])
@pytest.mark.parametrize("name", ["qkv", "gate_up", "out", "down", "head"])
def test_parts_are_the_whole(model: Path, name: str, block: tuple[int, int] | None) -> None:
    """Put together again they give the matrix, bit for bit."""
    config = replace(
        load_checkpoint(model).config,
        num_heads=8, num_kv_heads=4, head_dim=128, intermediate_size=512, vocab_size=700,
    )  # fmt: skip
    rows = {"qkv": 16 * 128, "gate_up": 1024, "head": 700}.get(name, 300)
    columns = {"out": 1024, "down": 512}.get(name, 200)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    whole = Matrix(weight) if block is None else as_matrix(quantize(weight, block))
    whole = replace(whole, bias=torch.arange(float(rows)))
    parts = [Shard(rank, 2).cut(name, whole, config) for rank in range(2)]
    if name in ("out", "down"):
        assert torch.equal(torch.cat([dense(part) for part in parts], dim=1), dense(whole))
        assert parts[0].bias is whole.bias
        assert parts[1].bias is None
        return
    sizes = {"qkv": [1024, 512, 512], "gate_up": [512, 512], "head": [700]}[name]
    cut = [torch.split(dense(part), _shares(sizes, part, len(parts))) for part in parts]
    joined = torch.cat([torch.cat(each) for each in zip(*cut, strict=True)])
    assert torch.equal(joined, dense(whole))


def _shares(sizes: list[int], part: Matrix, count: int) -> list[int]:
    """How many rows of each part of a matrix a device has; of the head, what it has."""
    return [size // count for size in sizes] if len(sizes) > 1 else [len(part.values)]


def test_a_cut_through_a_block_is_refused(model: Path) -> None:
    config = replace(load_checkpoint(model).config, intermediate_size=320)
    matrix = as_matrix(quantize(torch.randn(64, 320), BLOCK))
    with pytest.raises(ModelError, match="can't be cut at 0 to 160"):
        Shard(0, 2).cut("down", matrix, config)


def test_an_engine_takes_its_followers_along(model: Path, tmp_path: Path) -> None:
    backend = lead(2, str(tmp_path / "store"), "gloo", partial(one_of_several, model))
    engine = Engine(
        backend,
        read_vocabulary(load_tokenizer(model, {}), model),
        context_length=640,
        config=EngineConfig(),
        clock=SystemClock(),
    )
    ((process, _),) = backend._followers
    assert process.is_alive()
    engine.close()
    assert process.exitcode == 0
