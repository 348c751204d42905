"""The GPU's backend without a GPU: plain torch for kernels, the work itself for graphs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.device import Device
from llm_engine.cuda.ops.interface import Ops, StepOps
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.steps.batching import PROMPT_ROWS
from llm_engine.cuda.steps.graph_runner import EagerGraphs, Replay
from llm_engine.cuda.tensor_parallel.group import ProcessGroup
from llm_engine.cuda.tensor_parallel.ops import ParallelOps
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.models.medusa_heads import DraftHeads
from tests.support.fakes.pretend_cuda import PretendCuda
from tests.support.fakes.pretend_tensors import unwrapped

H200 = Device(
    index=0,
    name="NVIDIA H200",
    capability=(9, 0),
    num_sms=132,
    l2_bytes=60 << 20,
    free_bytes=139 << 30,
    total_bytes=140 << 30,
    driver="580.159.04",
    cuda="13.0",
    torch="2.11.0+cu130",
    triton="3.6.0",
)
"""A GPU that is not there; `dataclasses.replace` makes others of it."""


FLOAT32 = WeightFormat(dtype=torch.float32)


class CountingGraphs:
    """Runs the work itself, and counts."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replays = 0
        self.is_released = False

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def capture(self, work: Replay) -> Replay:
        work()
        self.num_captured += 1

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay

    def release(self) -> None:
        self.is_released = True


class LaunchedOps:
    """`Ops` of plain torch on a device that is none: each is launched as a kernel is."""

    def __init__(self, ops: Ops, cuda: PretendCuda) -> None:
        self.step = LaunchedStepOps(ops.step, cuda)
        self.queries = _launched(ops.queries, cuda)
        self.attend = _launched(ops.attend, cuda)
        self.add_product = _launched(ops.add_product, cuda)
        self.gate_up = _launched(ops.gate_up, cuda)
        self.logits = _launched(ops.logits, cuda)


class LaunchedStepOps:
    """`StepOps` likewise."""

    def __init__(self, ops: StepOps, cuda: PretendCuda) -> None:
        self.embed = _launched(ops.embed, cuda)
        self.likeliest = _launched(ops.likeliest, cuda)
        self.mask = _launched(ops.mask, cuda)
        self.sample = _launched(ops.sample, cuda)
        self.advance = _launched(ops.advance, cuda)


def _launched(operation: Callable[..., None], cuda: PretendCuda) -> Callable[..., None]:
    def launch(*operands: object) -> None:
        raw = unwrapped(operands)
        cuda.launch(lambda: operation(*raw))

    return launch


def on_cpu(
    checkpoint: Checkpoint,
    graphs: CountingGraphs | None = None,
    *,
    context_length: int = 640,
    num_pages: int = 400,
    heads: DraftHeads | None = None,
    cache_dtype: torch.dtype = torch.float32,
    weight_format: WeightFormat = FLOAT32,
) -> CudaBackend:
    """In float32 throughout, so that only the order of sums differs from the reference."""
    model = load_model(checkpoint, weight_format, "cpu", context_length=context_length)
    return CudaBackend(
        model,
        ReferenceOps(),
        graphs or CountingGraphs(),
        num_pages=num_pages,
        cache_dtype=cache_dtype,
        heads=heads,
    )


def one_of_several(
    path: Path, team: ProcessGroup, weight_format: WeightFormat = FLOAT32
) -> Callable[[], CudaBackend]:
    """Load one of several GPUs, as `llm_engine.cuda.loading` does."""
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(path)
    shard = Shard(team.rank, team.count)
    model = load_model(checkpoint, weight_format, "cpu", context_length=640, shard=shard)
    hidden = torch.zeros(PROMPT_ROWS[-1], checkpoint.config.hidden_size)
    vocab_rows = shard.vocab_rows(checkpoint.config)
    return lambda: CudaBackend(
        model,
        ParallelOps(ReferenceOps(), vocab_rows, hidden),
        EagerGraphs(),
        num_pages=400,
        cache_dtype=torch.float32,
    )
