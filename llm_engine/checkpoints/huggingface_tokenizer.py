"""Loads a tokenizer from a Hugging Face directory."""

import copy
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Bpe

from llm_engine.errors import ModelError

from .checkpoint import MAX_DIMENSION
from .tokenizer import Tokenizer, bytes_of_tokens, end_ids


def load_tokenizer(path: Path, model_config: dict[str, Any]) -> Tokenizer:
    """Read tokenizer.json and the settings beside it. Raises ModelError."""
    file = path / "tokenizer.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        full = Bpe.from_str(json.dumps(description))
        plain = Bpe.from_str(json.dumps(_without_added_tokens(description)))
    except FileNotFoundError:
        raise ModelError(f"{path}: tokenizer.json is missing") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # the Rust library raises bare Exception, and panics are not even
        raise ModelError(f"{file}: not a usable tokenizer: {error}") from None
    settings = _optional_json(path / "tokenizer_config.json")
    # The file says ids, too, which the library does not always give them.
    decoder = full.get_added_tokens_decoder()
    added = {token_id: bool(token.special) for token_id, token in decoder.items()}
    by_text = full.get_vocab(with_added_tokens=True)
    largest_id = max(by_text.values(), default=-1)
    if largest_id >= MAX_DIMENSION:
        raise ModelError(f"{file}: has a token with the id {largest_id}, which no vocabulary has")
    tokens = [""] * (largest_id + 1)
    for text, index in by_text.items():
        tokens[index] = text
    control_ids = frozenset(index for index, special in added.items() if special)
    declared = {by_text.get(_text_of(settings.get("eos_token")), -1)}
    for values in (model_config, _optional_json(path / "generation_config.json")):
        ends = values.get("eos_token_id")
        listed = ends if isinstance(ends, list) else [ends]
        declared.update(index for index in listed if isinstance(index, int))
    return Tokenizer(
        plain=plain,
        full=full,
        token_bytes=bytes_of_tokens(tokens, byte_level=_is_byte_level(description), added=added),
        control_ids=control_ids,
        end_ids=end_ids(tokens, control_ids, declared),
        bos=_text_of(settings.get("bos_token")),
        eos=_text_of(settings.get("eos_token")),
        chat_template=_chat_template(path, settings),
    )


def _without_added_tokens(description: dict[str, Any]) -> dict[str, Any]:
    """Copy of the vocabulary without control tokens, and without a space prepended to the text."""
    plain = copy.deepcopy(description)
    added = {entry["content"] for entry in plain.pop("added_tokens", [])}
    plain["added_tokens"] = []
    plain["post_processor"] = None
    model = plain["model"]
    model["vocab"] = {text: index for text, index in model["vocab"].items() if text not in added}
    if model.get("unk_token") in added:
        model["unk_token"] = None
    for part in _parts(plain.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "never"
    normalizer = plain.get("normalizer")
    if normalizer is not None:
        kept = [p for p in _parts(normalizer, "normalizers") if p.get("type") != "Prepend"]
        plain["normalizer"] = {"type": "Sequence", "normalizers": kept}
    return plain


def _parts(stage: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if stage is None:
        return []
    return list(stage.get(key, [])) if stage.get("type") == "Sequence" else [stage]


def _is_byte_level(description: dict[str, Any]) -> bool:
    decoder = description.get("decoder")
    return any(part.get("type") == "ByteLevel" for part in _parts(decoder, "decoders"))


def _text_of(token: object) -> str:
    """Text of a special token: settings have it as text, or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    return values if isinstance(values, dict) else {}


def _chat_template(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: cannot be read: {error}") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = [entry.get("template") for entry in entries if entry.get("name") == "default"]
        template = named[-1] if named else None
    return template if isinstance(template, str) else None
