"""Launch options: launch overlap, blocks in flight, 8-bit formats."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from llm_engine.config import Precision
from llm_engine.cuda.ops.gemm_tiles import SHARED_BYTES, Tiles, product_tiles
from llm_engine.cuda.ops.interface import Weight
from llm_engine.cuda.quantization.quantize import ONE_A_ROW

from .figures import Figure, percentile
from .models import LoadedModel
from .steps import graph_ms, part_ms

_MAX_STEPS: Final = 1000
_PART: Final = 512
_MAX_PARTS: Final = 50


@dataclass(frozen=True, slots=True)
class LaunchVariant:
    """Options to launch a step's kernels with."""

    name: str
    changed: Mapping[str, int] = field(default_factory=dict)
    """Fields of all products' tiles with their changed values."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `TritonOps`."""

    def divide(
        self, weight: Weight, num_sms: int, *, divisible: bool, shared_bytes: int = SHARED_BYTES
    ) -> Tiles:
        """Tiles of `product_tiles` with the changed fields."""
        usual = product_tiles(weight, num_sms, divisible=divisible, shared_bytes=shared_bytes)
        return replace(usual, **self.changed)


LAUNCH_VARIANTS: Final = (
    LaunchVariant("as it is"),
    *(LaunchVariant(f"{number} stages", {"num_stages": number}) for number in (3, 4, 6)),
    LaunchVariant("one kernel after another", options={"dependent": False}),
)
IN_8_BITS: Final = LaunchVariant("8 bits become bfloat16", options={"halves": torch.bfloat16})
PROMPT_VARIANTS: Final = (
    LaunchVariant("by the library"),
    LaunchVariant("by our kernel, and what follows in it", options={"by_library": False}),
)


def choices(loaded: LoadedModel) -> Iterator[Figure]:
    """Time of captured steps of one sequence with each variant, by the device's clock: of a token,
    and where a library may compute it, of a long part of a prompt."""
    weights = loaded.subject.weights
    is_8_bit = weights.body is Precision.FP8
    num_steps = min(loaded.target.num_steps, _MAX_STEPS)
    for variant in (*LAUNCH_VARIANTS, IN_8_BITS) if is_8_bit else LAUNCH_VARIANTS:
        found = graph_ms(_by(variant, loaded), num_steps)
        yield Figure(f"graph alone p50, {variant.name}", percentile(found, 0.5), "ms")
    if is_8_bit and weights.block == ONE_A_ROW:
        for variant in PROMPT_VARIANTS:
            times = part_ms(_by(variant, loaded), _PART, min(num_steps, _MAX_PARTS))
            name = f"{_PART} tokens of a prompt p50, {variant.name}"
            yield Figure(name, percentile(times, 0.5), "ms")


def _by(variant: LaunchVariant, loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, ops=loaded.target.ops(divide=variant.divide, **variant.options))
