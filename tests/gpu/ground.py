"""Fixtures of the GPU tests: the device or its stand-in, models, and rows with their pages."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from benchmarks.llm.gpu.random_weights import SHAPES, random_model
from llm_engine.config import ModelConfig, Precision
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.device import Device, require_device
from llm_engine.cuda.megakernel.kernel import Launcher
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import LayerPages, Ops, Rows
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.steps.graph_runner import CudaGraphs, EagerGraphs, Graphs
from llm_engine.cuda.weights import WeightFormat
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import DraftHeads

MODE = os.environ.get("HALFSEC_GPU_TESTS", "")
PAGE_SIZE = 16
BLOCKS = (128, 128)

FORMATS = {
    "bfloat16": WeightFormat(Precision.BFLOAT16),
    "fp8 by row": WeightFormat(Precision.FP8),
    "fp8 by block": WeightFormat(Precision.FP8, block=BLOCKS),
    "int4": WeightFormat(Precision.INT4, rest=Precision.FP8),
}


@dataclass(frozen=True, slots=True)
class Ground:
    """Where tests run."""

    found: Device | None
    """None in a rehearsal."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.found.index) if self.found else torch.device("cpu")

    @property
    def is_rehearsal(self) -> bool:
        return self.found is None

    def ops(self, *, flashinfer: bool = True) -> Ops:
        """As a service has them; without FlashInfer, kernels of our own attend."""
        if self.is_rehearsal:
            return ReferenceOps()
        from llm_engine.cuda.ops.flashinfer_attention import xqa_or_none
        from llm_engine.cuda.ops.triton_ops import TritonOps

        return TritonOps(self.device, attention=xqa_or_none(self.device) if flashinfer else None)

    def launcher(self, device_model: DeviceModel) -> Launcher:
        """Of the kernel for all layers. On a GPU only."""
        from llm_engine.cuda.megakernel.compiled import MIN_CAPABILITY, launcher_or_none

        if torch.cuda.get_device_capability(self.device) < MIN_CAPABILITY:
            pytest.skip("the kernel for all layers needs compute capability 9.0")
        found = launcher_or_none(device_model, self.device)
        assert found is not None
        return found

    def graphs(self) -> Graphs:
        return EagerGraphs() if self.is_rehearsal else CudaGraphs(self.device)

    def count(self, number: int) -> int:
        """How often something is done; a rehearsal does less of it, and a first look."""
        if self.is_rehearsal:
            return max(number // 100, 3)
        return max(number // 10, 3) if MODE == "brief" else number

    def config(self, shape: str, num_layers: int) -> ModelConfig:
        """A shape with fewer layers; a rehearsal has smaller ones of the same proportions."""
        config = replace(SHAPES[shape], num_layers=num_layers)
        if not self.is_rehearsal:
            return config
        return replace(
            config,
            hidden_size=config.hidden_size // 32,
            intermediate_size=config.intermediate_size // 32,
            head_dim=config.head_dim // 4,
            num_heads=config.num_heads // 8 * 2,
            num_kv_heads=2,
            vocab_size=640,
        )


@cache
def ground() -> Ground:
    """Raises ModelError where there is none."""
    return Ground(None) if MODE == "rehearse" else Ground(require_device(needs_fp8=True))


def _why_not() -> str:
    try:
        ground()
    except ModelError as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
if WHY_NOT and MODE in ("need", "brief"):
    raise RuntimeError(f"the GPU's tests were asked for: {WHY_NOT}")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"NOT TESTED ON A GPU: {WHY_NOT}"),
]
"""Every file of tests here takes these over."""


def model(
    shape: str, weights: str, num_layers: int, context_length: int, seed: int = 1
) -> DeviceModel:
    """Random weights of a known shape."""
    here = ground()
    return random_model(
        here.config(shape, num_layers),
        FORMATS[weights],
        here.device,
        seed=seed,
        context_length=context_length,
    )


def backend(
    device_model: DeviceModel,
    *,
    ops: Ops | None = None,
    graphs: Graphs | None = None,
    num_pages: int = 512,
    cache_dtype: torch.dtype | None = None,
    heads: DraftHeads | None = None,
    has_megakernel: bool = False,
) -> CudaBackend:
    """`cache_dtype`: of keys and values; None: the activations'. `has_megakernel`: all layers of a
    decode step in one kernel, if there is a GPU."""
    here = ground()
    return CudaBackend(
        device_model,
        ops or here.ops(),
        graphs or here.graphs(),
        num_pages=num_pages,
        cache_dtype=cache_dtype or device_model.embedding.dtype,
        heads=heads,
        launcher=None if here.is_rehearsal or not has_megakernel else here.launcher(device_model),
    )


class Draw:
    """Random operands on the device; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.device = ground().device
        self._generator = torch.Generator(self.device)
        self._generator.manual_seed(seed)
        self._host = torch.Generator()
        self._host.manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=self._generator, device=self.device).to(dtype)

    def rows(self, lanes: Sequence[Sequence[int]], num_pages: int, width: int) -> Rows:
        """These positions, -1 for rows that fill up; pages in no order, none twice."""
        order = torch.randperm(num_pages, generator=self._host).tolist()
        tables = torch.zeros(len(lanes), width, dtype=torch.int32)
        for table, positions in zip(tables, lanes, strict=True):
            for index in range(max(positions) // PAGE_SIZE + 1):
                table[index] = order.pop()
        flat = torch.tensor([each for lane in lanes for each in lane], dtype=torch.int32)
        return Rows(flat.to(self.device), tables.to(self.device))

    def pages(
        self,
        config: ModelConfig,
        num_pages: int,
        rows: Rows | None = None,
        poison: float = math.nan,
    ) -> LayerPages:
        """Poison, but for the positions up to the rows' last."""
        shape = num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim
        keys, values = self.normal(*shape), self.normal(*shape)
        used = torch.zeros(num_pages, PAGE_SIZE, dtype=torch.bool)
        if rows is not None:
            ends = rows.positions.cpu().view(rows.num_seqs, -1).amax(dim=1) + 1
            for table, end in zip(rows.tables.cpu(), ends.tolist(), strict=True):
                at = torch.arange(end)
                used[table[at // PAGE_SIZE].long(), at % PAGE_SIZE] = True
        unused = ~used.to(self.device)[:, None, :, None]
        for part in (keys, values):
            part.masked_fill_(unused, poison)
        return LayerPages(keys, values)


def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=ground().device)


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest of the rows' ||found - expected|| / ||expected||; NaN where one is not finite."""
    difference = (found.double() - expected.double()).flatten(1).norm(dim=1)
    ratio = difference / expected.double().flatten(1).norm(dim=1)
    return float(ratio.max()) if bool(ratio.isfinite().all()) else math.nan
