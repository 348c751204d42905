"""The GPU's backend without a GPU: plain torch for kernels, the work itself for graphs."""

import torch

from llm_engine.checkpoint import Checkpoint
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.graphs import Replay
from llm_engine.cuda.oracle import OracleOps
from llm_engine.cuda.weights import WeightFormat, load_model


class CountingGraphs:
    """Runs the work itself, and counts."""

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, work: Replay) -> Replay:
        work()

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay


def on_cpu(
    checkpoint: Checkpoint,
    graphs: CountingGraphs | None = None,
    *,
    context_length: int = 640,
    num_pages: int = 400,
) -> CudaBackend:
    """In float32 throughout, so that only the order of sums differs from the reference."""
    model = load_model(
        checkpoint, WeightFormat(dtype=torch.float32), "cpu", context_length=context_length
    )
    return CudaBackend(
        model,
        OracleOps(),
        graphs or CountingGraphs(),
        num_pages=num_pages,
        cache_dtype=torch.float32,
    )
