"""Kernel launches on a strict fake device: each runs in Triton's interpreter when due."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from llm_engine.backends.base import PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision, SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops import prefill_gemm, triton_ops, triton_step_inputs
from llm_engine.cuda.quantization.quantize import BLOCK
from llm_engine.cuda.steps import graph_runner
from llm_engine.cuda.steps.graph_runner import Choice, CudaGraphs, Graphs, Replay
from llm_engine.cuda.weights import WeightFormat, load_model
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.fakes.pretend_cuda import PretendCuda
from tests.support.fakes.pretend_tensors import DEVICE, unwrapped
from tests.support.llm import triton_interpreter
from tests.support.llm.replayed_work import ReplayedWork

pytestmark = pytest.mark.slow

NUM_SMS = 4
FORMATS = {
    "bfloat16": (WeightFormat(), 66),
    "fp8": (WeightFormat(Precision.FP8), 16),
    "fp8 by block": (WeightFormat(Precision.FP8, block=BLOCK), 66),
}
"""And a prompt's tokens: for products of a library, for a step's kernels, for a prompt's own."""
ALL_CHOICES = "fp8"
"""Format of the weights with which all choices of tokens are captured. Their kernels read logits
and no weights: with the others the choice that the reply takes is enough."""


class LaunchedKernel:
    """In a kernel's place."""

    def __init__(self, kernel: Any, cuda: PretendCuda) -> None:
        self._kernel, self._cuda = kernel, cuda

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(**arguments: Any) -> None:
            raw = unwrapped(arguments)
            self._cuda.launch(lambda: self._kernel[grid](**raw))

        return launch


def captured_sampled(graphs: Graphs, run: Callable[[Choice], None]) -> dict[Choice, Replay]:
    """In place of `graph_runner._captured`."""
    return {Choice.SAMPLED: graphs.capture(partial(run, Choice.SAMPLED))}


def reply(checkpoint: Checkpoint, name: str, device: torch.device) -> list[int]:
    """To a prompt that is read at once, with a draft on the way."""
    weight_format, length = FORMATS[name]
    model = load_model(checkpoint, weight_format, device, context_length=128)
    graphs: Graphs = CudaGraphs(device) if device.type == "cuda" else ReplayedWork()
    ops = triton_ops.TritonOps(device, num_sms=NUM_SMS, num_floats=1 << 18)
    backend = CudaBackend(
        model, ops, graphs, num_pages=8, cache_dtype=torch.bfloat16, prompt_rows=(length,)
    )
    tokens, num_cached = [3 + index * index % 290 for index in range(length)], 0
    for draft in ((), (5, 6, 7), ()):
        fresh = (*tokens[num_cached:], *draft)
        rows = SequenceRows(
            slot=Slot(1),
            token_ids=fresh,
            first_position=num_cached,
            num_sampled=1 + len(draft),
            sampling=SamplingParams(temperature=0.7, top_p=0.9),
            seed=3,
            pages=[PageId(page) for page in (5, 2, 7, 0, 1, 3)],
        )
        num_cached = len(tokens)
        found = backend.collect(backend.launch(Plan((SubBatch((rows,)),))))
        tokens.append(found.tokens[Slot(1)][0])
    return tokens[length:]


@pytest.mark.parametrize("weights", FORMATS)
def test_kernels_find_their_operands_where_and_when_they_are_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    monkeypatch.setattr("llm_engine.cuda.steps.graph_runner.BATCH_SIZES", (1,))
    monkeypatch.setattr("llm_engine.cuda.steps.graph_runner.DRAFT_SIZES", (1, 8))
    monkeypatch.setattr("llm_engine.cuda.steps.graph_runner._WARM_UPS", 1)
    if weights != ALL_CHOICES:
        monkeypatch.setattr(graph_runner, "_captured", captured_sampled)
    triton_interpreter.mend()
    save_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)
    checkpoint = load_checkpoint(tmp_path)
    expected = reply(checkpoint, weights, torch.device("cpu"))
    cuda = PretendCuda()
    for module in (triton_ops, prefill_gemm, triton_step_inputs):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            kernel = getattr(module, name)
            monkeypatch.setattr(module, name, LaunchedKernel(kernel, cuda))
    with cuda.installed(monkeypatch):
        assert reply(checkpoint, weights, DEVICE) == expected
