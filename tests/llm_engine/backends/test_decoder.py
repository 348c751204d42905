"""The decoder gives the tokens of transformers, from the same weights in float32."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.backends.base import PageCopy, PageId, Plan, SequenceRows
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.models.tensors import tensor
from tests.support.fakes.llm_decoding import PAGES, greedy
from tests.support.fakes.llm_models import greedy_oracle, save_tiny_model
from tests.support.models import model_path

os.environ["HF_HUB_OFFLINE"] = "1"

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, own head size": ("llama", {"head_dim": 24}),
    "llama 3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, no groups": ("qwen3", {"head_dim": 16, "num_key_value_heads": 4}),
    "llama, sharded": ("llama", {"max_shard_size": "40KB"}),
}
PROMPTS = [[5, 17, 300], list(range(3, 150, 2))]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    oracle = save_tiny_model(tmp_path, model_type, **changes)
    checkpoint = load_checkpoint(tmp_path)
    for prompt in PROMPTS:
        expected = greedy_oracle(oracle, prompt, 40)
        assert len(set(expected)) > 5  # a model stuck on one token would prove nothing
        assert greedy(checkpoint, prompt, 40) == expected


def test_chunks_of_a_prompt_change_nothing(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    checkpoint = load_checkpoint(tmp_path)
    whole = greedy(checkpoint, PROMPTS[1], 20)
    for chunk in (1, 7, 16):
        assert greedy(checkpoint, PROMPTS[1], 20, chunk=chunk) == whole


def test_a_position_is_forgotten_when_it_is_written_again(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3")
    backend = CpuBackend(load_checkpoint(tmp_path), EngineConfig(num_threads=1), context_length=512)

    def logits(slot_tokens: list[tuple[tuple[int, ...], int]]) -> torch.Tensor:
        slot = backend.open_slot()
        for token_ids, first in slot_tokens:
            rows = SequenceRows(slot, token_ids, first, 1, SamplingParams(), 0, pages=PAGES)
            result = backend.logits(rows)
        return result

    with torch.inference_mode():
        detour = logits([((5, 6, 7, 8, 9, 10), 0), ((11, 12), 3)])
        direct = logits([((5, 6, 7, 11, 12), 0)])
    torch.testing.assert_close(detour, direct)


def test_pages_are_counted_and_copied(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    checkpoint = load_checkpoint(tmp_path)
    backend = CpuBackend(checkpoint, EngineConfig(num_threads=1), context_length=512)
    size = backend.layout.page_size
    assert backend.cache_bytes() == 0
    slot, prompt = backend.open_slot(), tuple(range(3, 3 + 2 * size + 5))
    first, second = (0, 1, 2), (0, 1, 7)

    def logits(pages: tuple[int, ...], token_ids: tuple[int, ...], start: int) -> torch.Tensor:
        rows = SequenceRows(
            slot, token_ids, start, 1, SamplingParams(), 0, pages=[PageId(page) for page in pages]
        )
        with torch.inference_mode():
            return backend.logits(rows)

    logits(first, prompt[:-1], 0)
    used = backend.cache_bytes()
    assert used == 3 * size * 2 * 3 * 2 * 16 * 4  # keys and values, layers, heads, size, float32
    copy = PageCopy(PageId(2), PageId(7))
    backend.collect(backend.launch(Plan((), (copy,))))
    expected = logits(first, prompt[-1:], len(prompt) - 1)
    logits(first, (9, 9, 9), len(prompt) - 3)  # overwrites what the copy must have kept
    assert torch.equal(logits(second, prompt[-1:], len(prompt) - 1), expected)
    assert backend.cache_bytes() == used * 4 // 3


@pytest.mark.models
def test_smollm2_equals_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = load_checkpoint(
        model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    )
    config = checkpoint.config
    oracle: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    )
    oracle.eval()
    tensors = {f"model.{name}": tensor(checkpoint.read(name)) for name in checkpoint.names}
    result = oracle.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys == ["lm_head.weight"]
    for question in ("Why is the sky blue?", "Tell me a story about a dog."):
        prompt = checkpoint.tokenizer.encode_template(
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        answer = greedy(checkpoint, prompt, 32)
        # One forward pass over the whole answer: the likeliest token after each prefix is the next.
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + answer])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(dim=1).tolist() == answer
