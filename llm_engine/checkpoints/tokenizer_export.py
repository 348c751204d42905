"""Exports a model's tokenizer as a Hugging Face directory.

Load generators count prompts and replies in tokens, and ask for a directory that
`transformers.AutoTokenizer` reads; a GGUF file keeps its tokenizer in its header. The exported
tokenizer gives the ids of `Tokenizer.encode_template`. The engine encodes clients' text without
control tokens, so the two differ where a text spells one.
"""

import json
from pathlib import Path
from typing import Any

from llm_engine.errors import ModelError

from .load import load_checkpoint
from .tokenizer import Tokenizer


def save_tokenizer(model: Path, directory: Path) -> None:
    """Write the tokenizer of a GGUF file or Hugging Face directory, chat template included.

    Files of an earlier call are replaced. Raises ModelError.
    """
    checkpoint = load_checkpoint(model)
    if directory.exists() and directory.samefile(model):
        raise ModelError(f"{directory}: is the model itself; give another directory")
    write_tokenizer(checkpoint.tokenizer, checkpoint.config.context_length, directory)


def write_tokenizer(tokenizer: Tokenizer, context_length: int, directory: Path) -> None:
    """Write a loaded tokenizer to a directory. Raises ModelError."""
    settings = json.dumps(_settings(tokenizer, context_length), indent=2, ensure_ascii=False)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer.full.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")
    except Exception as error:  # the Rust library raises bare Exception where it can't write
        raise ModelError(f"{directory}: can't be written: {error}") from None


def _settings(tokenizer: Tokenizer, context_length: int) -> dict[str, Any]:
    """Contents of tokenizer_config.json."""
    texts = {
        "bos_token": tokenizer.bos,
        "eos_token": tokenizer.eos,
        "pad_token": tokenizer.eos,  # without one, batches are refused
        "chat_template": tokenizer.chat_template,
    }
    return {
        # This class reads tokenizer.json as it is; others rebuild it from a vocabulary.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        # Decoding shall undo encoding; older readers take out spaces before commas.
        "clean_up_tokenization_spaces": False,
        **{name: text for name, text in texts.items() if text},
    }
