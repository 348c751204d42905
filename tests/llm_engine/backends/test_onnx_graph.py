"""The ONNX graph gives the torch decoder's result, from the same weights."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from llm_engine.backends import onnx_graph
from llm_engine.backends.base import SequenceRows
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.backends.onnx_weights import BLOCK, dequantize, quantize
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.models.decoder import Decoder, LayerCache, Linear
from llm_engine.models.tensors import tensor
from tests.llm_engine.backends.test_decoder import LLAMA3_ROPE
from tests.llm_engine.checkpoints.test_families import ALTERNATING, WINDOWED, YARN
from tests.support.fakes.llm_decoding import PAGES
from tests.support.fakes.llm_models import save_tiny_model

INT8 = EngineConfig(precision=Precision.INT8)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, own head size": ("llama", {"head_dim": 48}),
    "llama 3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, sizes that fill no block": ("llama", {"hidden_size": 72, "head_dim": 16}),
    "llama, odd vocabulary": ("llama", {"vocab_size": 333}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral, window": ("mistral", {"sliding_window": 24}),
    "mistral, window of one": ("mistral", {"sliding_window": 1}),
    "qwen2, window from a layer on": ("qwen2", {**WINDOWED, "max_window_layers": 1}),
    "qwen3, alternating windows": (
        "qwen3",
        {**WINDOWED, "head_dim": 16, "layer_types": ALTERNATING},
    ),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, heads of 20": ("llama", {"head_dim": 20, "attention_bias": True}),
    "qwen3, heads of 6": ("qwen3", {"head_dim": 6}),
    "llama, heads of 144": ("llama", {"head_dim": 144}),
    "mistral, heads of 130 and a window": ("mistral", {"head_dim": 130, "sliding_window": 24}),
    "qwen3, heads of 256": ("qwen3", {"head_dim": 256, "num_attention_heads": 2}),
    "qwen3, no groups": ("qwen3", {"head_dim": 16, "num_key_value_heads": 4}),
}
PADDED = ("llama, heads of 20", "mistral, heads of 130 and a window", "qwen3, heads of 6")
"""Zeros between heads shift the blocks of what the output matrix takes."""
PROMPT = tuple((7 * index + 3) % 300 + 3 for index in range(150))


def tiny(path: Path, family: str) -> Checkpoint:
    """A random model whose embedding is what the backend stores of it, in float16.

    Where heads are padded, output matrices have weights of one size, which all blocks hold exactly.
    """
    model_type, changes = FAMILIES[family]
    save_tiny_model(path, model_type, **changes)
    checkpoint = load_checkpoint(path)

    def read(name: str) -> Array:
        values = checkpoint.read(name)
        if family in PADDED and "o_proj.weight" in name:
            return np.sign(values) * np.float32(0.2)
        if name == "embed_tokens.weight":
            return values.astype(np.float16).astype(np.float32)
        return values

    return dataclasses.replace(checkpoint, read=read)


def blocked_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product in float32 with the weights that the blocks stand for."""
    stored = tensor(dequantize(*quantize(weight.numpy()), weight.shape[1]))
    return lambda rows: torch.nn.functional.linear(rows, stored, bias)


def rounded_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The same with activations in 8-bit blocks."""
    multiply = blocked_linear(weight, bias)

    def round_and_multiply(rows: Tensor) -> Tensor:
        num_rows, width = rows.shape
        blocks = torch.nn.functional.pad(rows, (0, -width % BLOCK)).view(num_rows, -1, BLOCK)
        scales = blocks.abs().amax(dim=2, keepdim=True).clamp(min=1e-12) / 127
        return multiply(((blocks / scales).round() * scales).flatten(1)[:, :width])

    return round_and_multiply


class NoCache:
    """A layer's cache of a sequence that is read in one go."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


def oracle_logits(decoder: Decoder, token_ids: tuple[int, ...]) -> Tensor:
    caches: list[LayerCache] = [NoCache() for _ in range(decoder.config.num_layers)]
    return decoder.logits(decoder.hidden(torch.tensor(token_ids), 0, caches))


def logits(backend: OnnxBackend | CpuBackend, token_ids: tuple[int, ...]) -> Tensor:
    slot = backend.open_slot()
    rows = SequenceRows(slot, token_ids, 0, len(token_ids), SamplingParams(), 0, pages=PAGES)
    result = torch.as_tensor(backend.logits(rows)).clone()
    backend.close_slot(slot)
    return result


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_with_float_activations_it_equals_the_torch_decoder(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "INT8_ACTIVATIONS", 1)
    checkpoint = tiny(tmp_path, family)
    expected = oracle_logits(Decoder(checkpoint, blocked_linear, 512), PROMPT)
    got = logits(OnnxBackend(checkpoint, INT8, 512), PROMPT)
    assert expected.std() > 0.5  # logits that are all alike would prove nothing
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in PADDED])
@torch.inference_mode()
def test_activations_are_rounded_in_blocks(family: str, tmp_path: Path) -> None:
    """Short prompts, one by one: a value that lies just between two codes may be rounded either
    way, and what follows in the same sequence is then another number altogether."""
    checkpoint = tiny(tmp_path, family)
    decoder = Decoder(checkpoint, rounded_linear, 512)
    backend = OnnxBackend(checkpoint, INT8, 512)
    prompts = [PROMPT[first : first + 2] for first in range(0, 80, 2)]
    num_equal = sum(
        torch.allclose(logits(backend, prompt), oracle_logits(decoder, prompt), atol=1e-4)
        for prompt in prompts
    )
    assert num_equal > 0.7 * len(prompts)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_it_stays_near_float32(family: str, tmp_path: Path) -> None:
    """Within 12 % of the logits' norm: random weights are the worst case, for nothing in them is
    smooth; real models are compared by perplexity."""
    checkpoint = tiny(tmp_path, family)
    exact = logits(CpuBackend(checkpoint, EngineConfig(), 512), PROMPT)
    got = logits(OnnxBackend(checkpoint, INT8, 512), PROMPT)
    assert (got - exact).norm() < 0.12 * exact.norm()


def test_blocks_keep_what_they_can_hold() -> None:
    random = np.random.default_rng(1)
    codes = random.integers(-127, 128, (5, 3, BLOCK)).astype(np.float32)
    codes[..., 0] = 127
    scales = random.random((5, 3), np.float32) + np.float32(0.1)
    weight = (codes * scales[..., None]).reshape(5, -1)
    np.testing.assert_allclose(dequantize(*quantize(weight), weight.shape[1]), weight, rtol=1e-6)
    nothing = np.zeros((3, 70), np.float32)
    assert np.array_equal(dequantize(*quantize(nothing), 70), nothing)
