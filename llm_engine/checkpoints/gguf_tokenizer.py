"""Builds a tokenizer from a GGUF file's metadata.

GGUF names the pre-tokenizer instead of describing it, so the table here has, for each supported
name, how words are split before byte pairs are merged. A different split would still give tokens,
but not those that the model was trained on: an unknown name is therefore an error.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Bpe
from tokenizers.models import BPE

from llm_engine.errors import ModelError

from .tokenizer import Tokenizer, bytes_of_tokens, end_ids

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4

_MAX_TOKEN_CHARS = 1024
"""Longest SentencePiece token; real ones have 16, or a few hundred spaces. The merges are found in
a time that grows with the square of it: one token of a megabyte would take hours."""

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2, _SMOLLM, _LLAMA3, _QWEN2 = "gpt-2", "smollm", "llama-bpe", "qwen2"
_FAMILIES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def build_tokenizer(metadata: dict[str, Any], path: Path) -> Tokenizer:
    """Build the tokenizer. Raises ModelError where the metadata have none, or an unsupported
    kind."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise ModelError(
            f"{path}: tokenizer {model!r} is not supported; 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece) are"
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise ModelError(f"{path}: the header lacks a token list")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise ModelError(f"{path}: the header lacks a token type for each of {len(tokens)} tokens")
    outside = (_CONTROL, _USER_DEFINED)
    added = {i: kind == _CONTROL for i, kind in enumerate(kinds) if kind in outside}
    build = _byte_level if model == "gpt2" else _sentencepiece
    try:
        plain = build(metadata, tokens, added, path)
        full = build(metadata, tokens, {}, path)
        full.add_special_tokens(
            [AddedToken(tokens[i], normalized=False, special=True) for i in added]
        )
    except (ModelError, KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # the Rust library raises bare Exception, and panics are not even
        raise ModelError(f"{path}: its tokenizer is damaged: {error}") from None
    if model == "llama" and metadata.get("tokenizer.ggml.add_space_prefix", True):
        full.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    control_ids = frozenset(i for i, is_control in added.items() if is_control)
    return Tokenizer(
        plain=plain,
        full=full,
        token_bytes=bytes_of_tokens(tokens, byte_level=model == "gpt2", added=added),
        control_ids=control_ids,
        end_ids=end_ids(tokens, control_ids, _declared_ends(metadata)),
        bos=_token_text(metadata, tokens, "bos"),
        eos=_token_text(metadata, tokens, "eos"),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _byte_level(
    metadata: dict[str, Any], tokens: list[str], excluded: dict[int, bool], path: Path
) -> Bpe:
    """Byte-level BPE of the family that `tokenizer.ggml.pre` names."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    family = _FAMILIES.get(name)
    if family is None:
        raise ModelError(
            f"{path}: pre-tokenizer {name!r} is not supported; these are: {', '.join(_FAMILIES)}"
        )
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelError(f"{path}: the header lacks the merges of its byte-level BPE")
    pairs = [_split_merge(merge) for merge in merges]
    tokenizer = Bpe(
        BPE(
            vocab=_vocabulary(tokens, excluded),
            merges=pairs,
            ignore_merges=family == _LLAMA3,
        )
    )
    words = {_LLAMA3: _LLAMA3_WORDS, _QWEN2: _QWEN2_WORDS}.get(family)
    if words is not None:
        split = pre_tokenizers.Split(Regex(words), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    else:
        by_word = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if family == _SMOLLM else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, by_word])
    if family == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    metadata: dict[str, Any], tokens: list[str], excluded: dict[int, bool], path: Path
) -> Bpe:
    """SentencePiece BPE: the pair whose token has the best score is merged first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{path}: the header lacks the scores of its SentencePiece tokens")
    vocabulary = _vocabulary(tokens, excluded)
    ranked = []
    for token, index in vocabulary.items():
        if len(token) > _MAX_TOKEN_CHARS:
            raise ModelError(f"{path}: token {index} has {len(token)} characters")
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Bpe(
        BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=tokens[unknown_id] if tokens[unknown_id] in vocabulary else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _vocabulary(tokens: list[str], excluded: dict[int, bool]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens) if index not in excluded}


def _split_merge(merge: str) -> tuple[str, str]:
    # The pair is joined by one space, and either half may itself begin with one in old files.
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _token_text(metadata: dict[str, Any], tokens: list[str], role: str) -> str:
    index = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else ""


def _declared_ends(metadata: dict[str, Any]) -> set[int]:
    ids = (metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom"))
    return {index for index in ids if isinstance(index, int)}
