"""GGUF files: header, configuration, tokenizer, chat template, weights.

An input is a file, or a JSON description of one (behind a byte of 0), whose values are changed one
by one. A model is opened and read, or refused with a ModelError.
"""

import json
import random
from typing import Any, Final

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.tokenizer import Detokenizer
from llm_engine.engine import read_vocabulary
from llm_engine.errors import MAX_MODEL_ERROR_CHARS, ModelError
from tests.fuzz.scratch import file_of
from tests.fuzz.target import JsonGrammar, Target
from tests.support.fakes.small_model_files import GGUF_TENSORS, GGUF_TYPES, gguf_file, gguf_metadata

TEXT: Final = "the cat\nhé \U0001f600"

_MORE: Final[dict[str, Any]] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32, "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.attn_factor": 1.0, "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True], "rope.dimension_count": 16,
    "attention.value_length": 16, "attention.causal": True, "expert_count": 0,
}  # fmt: skip
SAMPLES: Final[tuple[dict[str, Any], ...]] = (
    {"metadata": gguf_metadata(), "tensors": GGUF_TENSORS},
    {"metadata": gguf_metadata("llama"), "tensors": GGUF_TENSORS},
    {
        "metadata": {**gguf_metadata(), **{f"qwen2.{name}": _MORE[name] for name in _MORE}},
        "tensors": {**GGUF_TENSORS, "rope_freqs.weight": ["F32", [8]]},
    },
)
OTHERS: Final = (
    *GGUF_TYPES, *("linear", "yarn", "none", "llama", "qwen2", "qwen3", "gpt2", "llama-bpe"),
    *("smollm", "default", "<0x0A>", "\u2581", "{{ messages }}", "{% for m in messages %}"),
    *("{% set x = 'a' * 10**9 %}", "{{ raise_exception('x') }}", 2**32 - 1, -1.0, 1e-300),
)  # fmt: skip
GRAMMAR: Final = JsonGrammar([*SAMPLES, {"other": list(OTHERS)}])


def examine(data: bytes) -> None:
    """One file."""
    if data[:1] == b"\x00":
        made = _file_of(data[1:])
        if made is None:
            return
        content = made
    else:
        content = data
    with file_of(content, ".gguf") as path:
        try:
            check_checkpoint(load_checkpoint(path))
        except ModelError as error:
            check_refusal(error)


def _file_of(description: bytes) -> bytes | None:
    """None for what is no description."""
    try:
        described = json.loads(description)
        return gguf_file(described["metadata"], described["tensors"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Read all of a model that was opened. Raises ModelError."""
    for name in sorted(checkpoint.names):
        checkpoint.read(name)
    tokenizer = checkpoint.tokenizer
    for encode in (tokenizer.encode, tokenizer.encode_spelled, tokenizer.encode_template):
        detokenizer = Detokenizer(tokenizer.token_bytes)
        for token_id in encode(TEXT):
            detokenizer.push(token_id)
    read_vocabulary(tokenizer, checkpoint.path)


def check_refusal(error: ModelError) -> None:
    """It says what is wrong, and not the whole of it."""
    assert str(error), error
    assert len(str(error)) <= MAX_MODEL_ERROR_CHARS, str(error)[:4000]


def change(data: bytes, chance: random.Random) -> bytes | None:
    """The description; a file is changed as bytes."""
    if data[:1] != b"\x00":
        return None
    if chance.random() < 0.02:  # from now on as bytes
        return _file_of(data[1:])
    text: bytes | None = data[1:]
    for _ in range(chance.choice((1, 1, 2))):
        text = None if text is None else GRAMMAR.change_text(text, chance)
    return None if text is None else b"\x00" + text


def seeds() -> list[bytes]:
    described = [b"\x00" + json.dumps(sample).encode() for sample in SAMPLES]
    return [*described, *(gguf_file(each["metadata"], each["tensors"]) for each in SAMPLES)]


TARGET: Final = Target(
    examine,
    seeds,
    change,
    words=[*(f'"{name}"'.encode() for name in GRAMMAR.names), b"GGUF\x03\x00\x00\x00"],
    max_bytes=12_000,
)
