"""Tiny models saved as the common tools save FP8 checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.support.fakes.llm_models import save_tiny_model

LARGEST = 448.0
"""Largest E4M3 number."""
BLOCK = 128

SHAPE: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 200,
    "head_dim": 40,
    "tie_word_embeddings": False,
}
"""No size is a multiple of a block's."""

Scales = Callable[[torch.Tensor], torch.Tensor]


def one(weight: torch.Tensor) -> torch.Tensor:
    return (weight.abs().amax() / LARGEST).reshape(1)


def bare(weight: torch.Tensor) -> torch.Tensor:
    return one(weight).reshape(())


def by_row(weight: torch.Tensor) -> torch.Tensor:
    return weight.abs().amax(dim=1, keepdim=True) / LARGEST


def by_flat_row(weight: torch.Tensor) -> torch.Tensor:
    return by_row(weight).flatten()


def by_block(weight: torch.Tensor) -> torch.Tensor:
    rows, columns = (range(0, size, BLOCK) for size in weight.shape)
    largest = [[weight[r : r + BLOCK, c : c + BLOCK].abs().max() for c in columns] for r in rows]
    return torch.tensor(largest) / LARGEST


def by_block_as_powers(weight: torch.Tensor) -> torch.Tensor:
    return by_block(weight).log2().ceil().exp2().to(torch.float8_e8m0fnu)


def compressed(strategy: str, **weights: Any) -> dict[str, Any]:
    """A `quantization_config` as llm-compressor writes it."""
    described = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, **weights}
    group = {"targets": ["Linear"], "weights": described, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
LAYOUTS: dict[str, tuple[Scales, str, dict[str, Any]]] = {
    "compressed, tensor": (one, "weight_scale", compressed("tensor")),
    "compressed, channel": (by_row, "weight_scale", compressed("channel")),
    "compressed, block": (
        by_block,
        "weight_scale",
        compressed("block", block_structure=[BLOCK, BLOCK]),
    ),
    "fbgemm": (
        by_row,
        "weight_scale",
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    ),
    "fbgemm, flat": (by_flat_row, "weight_scale", {"quant_method": "fbgemm_fp8"}),
    "fp8, block": (by_block, "weight_scale_inv", {**BLOCKS, "fmt": "e4m3"}),
    "fp8, powers of two": (
        by_block_as_powers,
        "weight_scale_inv",
        {**BLOCKS, "scale_fmt": "ue8m0"},
    ),
    "fp8, tensor": (
        bare,
        "weight_scale_inv",
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    ),
}
"""Scales of a matrix, what their tensors are called, and the `quantization_config`."""


def save_fp8_model(path: Path, layout: str, **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A Llama with FP8 weights, except the head and the first layer's o_proj.

    Returns the transformers model with the weights that the file stands for, and those weights by
    name without `model.`, worked out element by element.
    """
    oracle = save_tiny_model(path, "llama", **{**SHAPE, **changes})
    make_scales, suffix, quantization = LAYOUTS[layout]
    ignored = ("lm_head", "model.layers.0.self_attn.o_proj")
    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in load_file(path / "model.safetensors").items():
        tensors[name] = expected[name] = values
        module = name.removesuffix(".weight")
        if module.endswith("_proj") and module not in ignored:
            scales = make_scales(values)
            spread = spread_out(scales, values)
            tensors[name] = (values / spread).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
            tensors[f"{module}.{suffix}"] = scales
            tensors[f"{module}.input_scale"] = torch.tensor(0.5)  # for engines that use it
            expected[name] = torch.from_numpy(tensors[name].float().numpy() * spread.numpy())
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    listed = "ignore" if quantization["quant_method"] == "compressed-tensors" else None
    quantization = {**quantization, listed or "modules_to_not_convert": list(ignored)}
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config))
    oracle.load_state_dict(expected)
    return oracle, {name.removeprefix("model."): values for name, values in expected.items()}


def spread_out(scales: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A scale for each element of the weight."""
    plain = scales.float().numpy()
    rows, columns = weight.shape
    grid = -(-rows // BLOCK), -(-columns // BLOCK)
    if plain.shape == grid:
        spread = np.kron(plain, np.ones((BLOCK, BLOCK), np.float32))[:rows, :columns]
    else:
        spread = np.broadcast_to(plain.reshape(-1, 1), weight.shape)
    return torch.from_numpy(np.ascontiguousarray(spread))
