"""On what the GPU's operations are tested: a GPU, or Triton's interpreter. Skips, and says so,
where there is neither."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: the GPU's kernels are NOT tested")

from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.ops.interface import PartOps
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.ops.triton_ops import TritonOps
from tests.support.llm import triton_interpreter

DEVICE = torch.device("cpu" if EMULATED else "cuda")
if EMULATED:
    triton_interpreter.mend()

LARGE_VOCABULARY = 9 * 1024 + 1 if EMULATED else 70_001
"""Tokens of ten blocks, of which the last has one, for sixteen programs, of which six have none; on
a GPU of 69 blocks for 128. More is more of the same: each program reads its own block."""


def kernels(num_floats: int = 1 << 18) -> TritonOps:
    """Divided for a device with few multiprocessors: small operands like large ones elsewhere."""
    ops = TritonOps(DEVICE, num_sms=8, num_floats=num_floats)
    ops._workspace.floats.fill_(torch.nan)  # whatever was not written there must not count
    return ops


IMPLEMENTATIONS: dict[str, Callable[[], PartOps]] = {"oracle": ReferenceOps, "kernels": kernels}
