"""Tiny models whose matrices are packed in 4 bits as GPTQ and AWQ checkpoints have them.

The packers follow the formats' documentation: AutoGPTQ's `QuantLinear.pack`, GPTQModel's v2, and
AutoAWQ's `WQLinear_GEMM.from_linear`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from tests.support.fakes.llm_models import save_tiny_model

Numbers = npt.NDArray[Any]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Made:
    """A matrix before packing; `weight[o, i] = (codes[o, i] - zeros[o, g]) * scales[o, g]`."""

    codes: Numbers
    zeros: Numbers
    scales: Numbers
    groups: Numbers
    """Group of each input."""

    @property
    def weight(self) -> Numbers:
        zeros, scales = self.zeros[:, self.groups], self.scales[:, self.groups]
        return ((self.codes - zeros) * scales.astype(np.float32)).astype(np.float32)


def made(shape: tuple[int, int], group: int, seed: int, *, sym: bool, smallest: int = 0) -> Made:
    rng = np.random.default_rng(seed)
    num_outputs, num_inputs = shape
    num_groups = num_inputs // group
    zeros = rng.integers(smallest, 16, (num_outputs, num_groups))
    return Made(
        rng.integers(0, 16, shape),
        np.full_like(zeros, 8) if sym else zeros,
        rng.uniform(0.005, 0.03, (num_outputs, num_groups)).astype(np.float16),
        np.arange(num_inputs) // group,
    )


def as_int32(columns: list[Numbers]) -> Numbers:
    """Eight arrays of 4-bit numbers in one of int32, the first in the lowest bits."""
    packed = np.zeros(columns[0].shape, np.int64)
    for index, numbers in enumerate(columns):
        packed |= numbers.astype(np.int64) << (4 * index)
    return packed.astype(np.uint32).view(np.int32)


def pack_gptq(matrix: Made, *, is_v2: bool) -> dict[str, Numbers]:
    codes, zeros = matrix.codes.T, matrix.zeros.T if is_v2 else matrix.zeros.T - 1
    return {
        "qweight": as_int32([codes[index::8] for index in range(8)]),
        "qzeros": as_int32([zeros[:, index::8] for index in range(8)]),
        "scales": np.ascontiguousarray(matrix.scales.T),
        "g_idx": matrix.groups.astype(np.int32),
    }


def pack_awq(matrix: Made) -> dict[str, Numbers]:
    codes, zeros = matrix.codes.T, matrix.zeros.T
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": as_int32([codes[:, column::8] for column in order]),
        "qzeros": as_int32([zeros[:, column::8] for column in order]),
        "scales": np.ascontiguousarray(matrix.scales.T),
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
LAYOUTS: dict[str, tuple[dict[str, Any], bool, Callable[[Made], dict[str, Numbers]]]] = {
    "gptq": ({**GPTQ, "sym": True}, True, lambda it: pack_gptq(it, is_v2=False)),
    "gptq, zero points": (GPTQ, False, lambda it: pack_gptq(it, is_v2=False)),
    "gptq_v2": (
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        False,
        lambda it: pack_gptq(it, is_v2=True),
    ),
    "awq": (AWQ, False, pack_awq),
}


def save_int4_model(path: Path, layout: str, group: int, **changes: Any) -> dict[str, Made]:
    """A tiny model whose layers' matrices are packed; the matrices."""
    quantization, sym, pack = LAYOUTS[layout]
    save_tiny_model(path, "qwen2", **{**SIZES, **changes})
    tensors = load_file(path / "model.safetensors")
    matrices: dict[str, Made] = {}
    for seed, name in enumerate(sorted(tensors)):
        if "_proj.weight" not in name:
            continue
        num_outputs, num_inputs = tensors.pop(name).shape
        own = num_inputs if group == -1 else group
        # The first version of GPTQ cannot store a zero point of 0.
        matrix = made((num_outputs, num_inputs), own, seed, sym=sym, smallest=1)
        matrices[name.removeprefix("model.")] = matrix
        for part, values in pack(matrix).items():
            tensors[f"{name.removesuffix('weight')}{part}"] = torch.from_numpy(values.copy())
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    configure(path, {**quantization, "group_size": group})
    return matrices


def configure(path: Path, quantization: dict[str, Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config))
