"""Tiny random language models on disk, and a scripted backend."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Bpe
from tokenizers import decoders, models, pre_tokenizers, trainers

from llm_engine.backends.base import (
    CacheLayout,
    PageId,
    Plan,
    SequenceRows,
    Slot,
    StepHandle,
    StepResult,
)
from llm_engine.errors import DeviceLostError
from tests.support.fakes.k_quants import K_QUANTS, pack

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
    build: Any = AutoModelForCausalLM.from_config
    model = build(config).float().eval()
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
    """Tokens that transformers generates from token ids, never stopping early."""
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


def save_tiny_gguf(
    path: Path, source: Path, quantization: str = "F32", *, rope_divisors: Any = None
) -> dict[str, torch.Tensor]:
    """Convert a saved tiny model to GGUF; the tensors as they were quantized.

    An independent reading of the format: the tests compare both loaders through it. Llama 3's
    rotary scaling needs its divisors.
    """
    config = json.loads((source / "config.json").read_text())
    family = config["model_type"]
    interleaves = family in ("llama", "mistral")
    writer = gguf.GGUFWriter(path, "llama" if interleaves else family)
    _write_shape(writer, config)
    _write_rope(writer, config["rope_parameters"])
    _write_windows(writer, config)
    _write_tokenizer(writer, source)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    stored: dict[str, torch.Tensor] = {}
    kind = gguf.GGMLQuantizationType[quantization]
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            values = tensor.float().numpy()
            is_matrix = values.ndim == 2
            raw, plain = quantized(values, kind) if is_matrix else (values, values)
            stored[name.removeprefix("model.")] = torch.from_numpy(plain.copy())
            part = name.split(".")[-2]
            if interleaves and part in heads:
                paired = raw.reshape(heads[part], 2, -1, *raw.shape[1:]).swapaxes(1, 2)
                raw = np.ascontiguousarray(paired.reshape(raw.shape))
            writer.add_tensor(_gguf_name(name), raw, raw_dtype=kind if is_matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def quantized(values: Any, kind: gguf.GGMLQuantizationType) -> tuple[Any, Any]:
    """A matrix as GGUF stores it, each row by itself, and what that stands for."""
    if kind.name in K_QUANTS:
        return pack(values, kind.name)
    raw = gguf.quants.quantize(values, kind)
    return raw, gguf.quants.dequantize(raw, kind)


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def _write_rope(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    kind = rope["rope_type"]
    if kind not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _write_windows(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        if "layer_types" in config:
            slides = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window_pattern(slides)


def _write_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([3 if text in SPECIAL else 1 for text, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)


def _gguf_name(name: str) -> str:
    parts = {
        "model.": "",
        "layers.": "blk.",
        "embed_tokens": "token_embd",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.": "ffn_",
        "self_attn.": "attn_",
        "_proj": "",
    }
    if name == "model.norm.weight":
        return "output_norm.weight"
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name


class ScriptedBackend:
    """Answers from a function of each sequence's tokens so far, and notes what it was asked.

    Checks what every backend may rely on: a slot is open, rows follow what is there, and have room.
    With shared pages it knows only what it reads through the block tables, without only its slots.
    """

    def __init__(
        self,
        next_token: Callable[[list[int]], int],
        *,
        num_pages: int = 1000,
        shares_pages: bool = True,
    ) -> None:
        self._next_token = next_token
        self.layout = CacheLayout(4, num_pages, shares_pages)
        self.slots: dict[Slot, list[int]] = {}
        self.pages: dict[PageId, list[int]] = {}
        self.steps: list[list[SequenceRows]] = []
        self._num_opened = 0

    def open_slot(self) -> Slot:
        slot = Slot(self._num_opened)
        self._num_opened += 1
        self.slots[slot] = []
        return slot

    def close_slot(self, slot: Slot) -> None:
        del self.slots[slot]

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        if not self.layout.shares_pages:
            self.slots[target][:] = self.slots[source][:num_tokens]

    def launch(self, plan: Plan) -> StepHandle:
        assert self.layout.shares_pages or not plan.copies
        for copy in plan.copies:
            self.pages[copy.target] = list(self.pages[copy.source])
        rows = [rows for batch in plan.sub_batches for rows in batch.sequences]
        self.steps.append(rows)
        tokens: dict[Slot, tuple[int, ...]] = {}
        for each in rows:
            held = self._write(each)
            tokens[each.slot] = tuple(
                self._next_token(held[: len(held) - left])
                for left in reversed(range(each.num_sampled))
            )
        return ScriptedStep(plan, StepResult(tokens))

    def _write(self, rows: SequenceRows) -> list[int]:
        """Take the rows in; what the sequence holds then."""
        start, end = rows.first_position, rows.first_position + len(rows.token_ids)
        assert rows.token_ids
        assert len(rows.pages) * self.layout.page_size >= end
        held = self.slots[rows.slot]
        if self.layout.shares_pages:
            held = [
                self.pages[rows.pages[place // self.layout.page_size]][
                    place % self.layout.page_size
                ]
                for place in range(start)
            ]
        assert start <= len(held)
        held[start:] = rows.token_ids
        if self.layout.shares_pages:
            for place in range(start, end):
                page = self.pages.setdefault(
                    rows.pages[place // self.layout.page_size], [-1] * self.layout.page_size
                )
                page[place % self.layout.page_size] = held[place]
        return list(held)

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, ScriptedStep)
        return handle.result

    def cache_bytes(self) -> int:
        return sum(map(len, self.slots.values()))


class GatedBackend(ScriptedBackend):
    """Waits before every step until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(lambda held: 10 + len(held) % 50)
        self.gate = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)

    def launch(self, plan: Plan) -> StepHandle:
        self.reached.release()
        self.gate.acquire()
        return super().launch(plan)


class LosableBackend(GatedBackend):
    """Backend with processes of its own, which can be lost while a step waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.lose: Callable[[DeviceLostError], None] = lambda error: None

    def when_lost(self, tell: Callable[[DeviceLostError], None]) -> None:
        self.lose = tell

    def close(self) -> None:
        self.is_closed = True


class ScriptedStep:
    """A step that is done."""

    def __init__(self, plan: Plan, result: StepResult) -> None:
        self.plan = plan
        self.result = result
