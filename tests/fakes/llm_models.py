"""Tiny random language models on disk, and a scripted backend."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Bpe
from tokenizers import decoders, models, pre_tokenizers, trainers

from llm_engine.backends.base import Plan, SequenceRows, Slot, StepHandle, StepResult

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_tokenizer() -> Bpe:
    """A byte-level BPE of 320 tokens, the first three of them control tokens."""
    tokenizer = Bpe(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["system user assistant the cat sat on the mat and said hello there what time is it"] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def save_tiny_model(path: Path, model_type: str, **changes: Any) -> Any:
    """Save a random model of a family as a Hugging Face directory; the transformers model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "eos_token_id": 2,
        "bos_token_id": 0,
        "pad_token_id": 0,
        **changes,
    }
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for name, values in model.named_parameters():
        if name.endswith("bias"):  # they start as zeros, which would test nothing
            torch.nn.init.normal_(values, std=0.2)
    model.save_pretrained(path, max_shard_size=changes.pop("max_shard_size", "5GB"))
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML})
    )
    return model


def greedy_oracle(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers generates from token ids, never stopping early."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


class ScriptedBackend:
    """Answers from a function of each sequence's tokens so far, and notes what it was asked.

    Checks what every backend may rely on: a slot is open, and rows follow what it holds.
    """

    def __init__(self, next_token: Callable[[list[int]], int]) -> None:
        self._next_token = next_token
        self.slots: dict[Slot, list[int]] = {}
        self.steps: list[list[SequenceRows]] = []
        self._num_opened = 0

    def open_slot(self) -> Slot:
        slot = Slot(self._num_opened)
        self._num_opened += 1
        self.slots[slot] = []
        return slot

    def close_slot(self, slot: Slot) -> None:
        del self.slots[slot]

    def launch(self, plan: Plan) -> StepHandle:
        rows = [rows for batch in plan.sub_batches for rows in batch.sequences]
        self.steps.append(rows)
        tokens: dict[Slot, tuple[int, ...]] = {}
        for sequence in rows:
            held = self.slots[sequence.slot]
            assert sequence.token_ids
            assert sequence.first_position <= len(held)
            held[sequence.first_position :] = sequence.token_ids
            tokens[sequence.slot] = tuple(
                self._next_token(list(held)) for _ in range(sequence.num_sampled)
            )
        return ScriptedStep(plan, StepResult(tokens))

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, ScriptedStep)
        return handle.result

    def cache_bytes(self) -> int:
        return sum(map(len, self.slots.values()))


class ScriptedStep:
    """A step that is done."""

    def __init__(self, plan: Plan, result: StepResult) -> None:
        self.plan = plan
        self.result = result
