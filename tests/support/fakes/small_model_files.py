"""Smallest models of both formats, and their files made from a description that can be changed."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import pre_tokenizers

CHATML: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAIRS: Final = (("h", "e"), ("t", "he"))
LETTERS: Final = "abcdehloust\u0120\u010a"
"""Of the byte-level alphabet: with a space and a line feed."""

HIDDEN: Final = 32
VOCABULARY: Final = len(SPECIAL) + len(LETTERS) + len(PAIRS)


def tokens(letters: Sequence[str] = LETTERS) -> list[str]:
    """Every token, in the order of ids."""
    return [*SPECIAL, *letters, *("".join(pair) for pair in PAIRS)]


def tokenizer_json(letters: Sequence[str] = LETTERS) -> dict[str, Any]:
    """Description of a byte-level BPE, as in tokenizer.json."""
    added = [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for index, text in enumerate(SPECIAL)
    ]  # fmt: skip
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**by_bytes, "use_regex": True},
        "post_processor": None,
        "decoder": {**by_bytes, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(tokens(letters))},
            "merges": [list(pair) for pair in PAIRS],
        },
    }


def whole_tokenizer_json() -> dict[str, Any]:
    """Description of a tokenizer that spells every text."""
    return tokenizer_json(sorted(pre_tokenizers.ByteLevel.alphabet()))


CONFIG: Final[dict[str, Any]] = {
    "model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "hidden_act": "silu",
    "eos_token_id": 2,
}  # fmt: skip
SETTINGS: Final[dict[str, Any]] = {
    "eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}, "chat_template": CHATML,
}  # fmt: skip

_MATRICES: Final = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (16, HIDDEN),
    "self_attn.v_proj": (16, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, HIDDEN), "mlp.up_proj": (HIDDEN, HIDDEN),
    "mlp.down_proj": (HIDDEN, HIDDEN), "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}  # fmt: skip
TENSORS: Final[dict[str, list[Any]]] = {
    "model.embed_tokens.weight": ["F16", [VOCABULARY, HIDDEN]],
    "model.norm.weight": ["F32", [HIDDEN]],
    **{
        f"model.layers.0.{part}.weight": ["BF16" if "mlp" in part else "F32", list(shape)]
        for part, shape in _MATRICES.items()
    },
}
"""Types and shapes of the tensors in a directory."""

_GGUF_PARTS: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
GGUF_TENSORS: Final[dict[str, list[Any]]] = {
    "token_embd.weight": ["Q8_0", [VOCABULARY, HIDDEN]],
    "output_norm.weight": ["F32", [HIDDEN]],
    **{
        f"blk.0.{_GGUF_PARTS[part]}.weight": ["Q4_0" if len(shape) == 2 else "F32", list(shape)]
        for part, shape in _MATRICES.items()
    },
}
GGUF_TYPES: Final = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2), "I8": (24, 1, 1),
}  # fmt: skip
"""Number, elements and bytes of a block, by type."""

_TOKEN_FIELDS: Final[dict[str, Any]] = {
    "tokenizer.ggml.tokens": tokens(), "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (VOCABULARY - len(SPECIAL)),
    "tokenizer.chat_template": CHATML,
}  # fmt: skip


def gguf_metadata(family: str = "qwen2") -> dict[str, Any]:
    """Metadata of a model with a byte-level tokenizer, or of a Llama with a SentencePiece one."""
    shape = {
        "block_count": 1, "context_length": 64, "embedding_length": HIDDEN,
        "feed_forward_length": HIDDEN, "attention.head_count": 2, "attention.head_count_kv": 1,
        "attention.key_length": 16, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }  # fmt: skip
    if family == "llama":
        spelled: dict[str, Any] = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [float(-each) for each in range(VOCABULARY)],
            "tokenizer.ggml.unknown_token_id": 3,
        }
    else:
        spelled = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.merges": [" ".join(pair) for pair in PAIRS],
        }
    return {
        "general.architecture": family,
        **{f"{family}.{name}": value for name, value in shape.items()},
        **_TOKEN_FIELDS,
        **spelled,
    }


def safetensors_file(tensors: Mapping[str, Any]) -> bytes:
    """File with these tensors, `[type, shape]` by name, all zeros. What is no such pair stands in
    the header as it is."""
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U8": 1, "F8_E4M3": 1}
    header: dict[str, Any] = {}
    at = 0
    for name, described in tensors.items():
        try:
            kind, shape = described
            length = sizes.get(kind, 1)
            for size in shape:
                length *= size
            end = at + min(max(0, int(length)), 1 << 14)
        except (TypeError, ValueError, OverflowError):
            header[name] = described
            continue
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def gguf_file(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> bytes:
    """File of version 3 with these metadata and tensors, `[type, shape]` by name, all zeros."""
    pairs = [
        _gguf_string(name) + encoded
        for name, value in metadata.items()
        if (encoded := _gguf_value(value)) is not None
    ]
    entries, offset = [], 0
    for name, described in tensors.items():
        try:
            kind, shape = described
            number, elements, size = GGUF_TYPES.get(kind, (99, 1, 1))
            dims = [int(each) & (1 << 64) - 1 for each in shape][::-1]
        except (TypeError, ValueError, OverflowError):
            continue
        length = size
        for each in dims:
            length *= each
        entries.append(
            _gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)
        )
        offset += min(-(-length // elements // 32) * 32, 1 << 14)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(pairs)) + b"".join(pairs + entries)
    return head + bytes(-len(head) % 32 + offset)


def _gguf_string(text: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _gguf_value(value: Any) -> bytes | None:
    """Type and value; None for what GGUF has no type for."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        if 0 <= value < 1 << 32:
            return struct.pack("<II", 4, value)
        if -(1 << 63) <= value < 1 << 63:
            return struct.pack("<Iq", 11, value)
        return struct.pack("<IQ", 10, value & (1 << 64) - 1)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_string(value)
    if isinstance(value, list):
        items = [each for each in map(_gguf_value, value) if each is not None]
        kinds = {each[:4] for each in items}
        if len(kinds) > 1:
            items = [each for each in items if each[:4] == items[0][:4]]
        kind = items[0][:4] if items else struct.pack("<I", 4)
        body = b"".join(each[4:] for each in items)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + body
    return None
