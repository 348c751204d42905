"""Frozen settings: of a model (read from its file), of the engine, of one request."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from llm_engine.errors import RequestError


class BackendName(StrEnum):
    """What calculates."""

    AUTO = "auto"
    """The quick one where the precision allows it."""
    ONNX = "onnx"
    """ONNX Runtime on the CPU, in int8."""
    TORCH = "torch"
    """Plain torch on the CPU, in either precision: the reference."""


class Precision(StrEnum):
    """In what the linear layers calculate."""

    FLOAT32 = "float32"
    """The reference: equality tests compare with this."""
    INT8 = "int8"
    """Weights and activations in 8 bits."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's stretching of the rotary frequencies to longer contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder of the Llama, Qwen2 or Qwen3 family."""

    architecture: str
    """`llama`, `qwen2` or `qwen3`."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """Positions the model was trained for."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalized per head (Qwen3)."""
        return self.architecture == "qwen3"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs. Raises RequestError naming the field that is out of range."""

    precision: Precision = Precision.FLOAT32
    backend: BackendName = BackendName.AUTO
    num_threads: int = 2
    """Threads of one forward pass."""
    context_length: int | None = None
    """Tokens a sequence may hold, if the model can hold as many; None takes the model's limit."""
    prefill_chunk: int = 64
    """Prompt tokens in one step. Lower: long prompts pay more passes over the weights. Higher:
    another call's next token waits longer (64 tokens of a 135 M model: 0.1 s on two cores)."""
    max_sequences: int = 32
    """Conversations and loose requests alive at once; more are refused."""
    max_batch: int = 1
    """Sequences that share a pass over the weights (ONNX backend). More than one costs a second
    packed copy of them, 150 MB for a 135 M model; four at once then take half the time."""
    kv_cache_mb: int = 1024
    """Keys and values of all of them. A token of a 135 M model takes 46 KB, of an 8 B model 256."""
    cache_dir: Path | None = None
    """Where the ONNX backend keeps converted weights; None converts them at every load."""

    def __post_init__(self) -> None:
        for name, choices in (("precision", Precision), ("backend", BackendName)):
            try:
                object.__setattr__(self, name, choices(getattr(self, name)))
            except ValueError:
                problem = f"{getattr(self, name)!r} is not one of {', '.join(choices)}"
                raise RequestError(name, problem) from None
        if self.backend is BackendName.ONNX and self.precision is not Precision.INT8:
            raise RequestError("backend", "onnx calculates in int8; for float32 choose torch")
        _require_int("num_threads", self.num_threads, 1, 256)
        _require_int("prefill_chunk", self.prefill_chunk, 1, 4096)
        _require_int("max_sequences", self.max_sequences, 1, 4096)
        _require_int("max_batch", self.max_batch, 1, 64)
        _require_int("kv_cache_mb", self.kv_cache_mb, 1, 1 << 20)
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", Path(self.cache_dir))
        if self.context_length is not None:
            _require_int("context_length", self.context_length, 16, 1 << 24)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Raises RequestError for values out of range.

    They apply in this order: repetition_penalty, temperature, top_k, min_p, top_p.
    """

    temperature: float = 0.0
    """0 takes the likeliest token; up to 2."""
    top_k: int = 0
    """Keep the k likeliest; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set with this much probability; (0, 1]."""
    min_p: float = 0.0
    """Drop what is less likely than this times the likeliest; [0, 1)."""
    repetition_penalty: float = 1.0
    """Scores of tokens that the reply already has are divided by this; [1, 2]. Small models fall
    into loops without it: 1.1 is enough for them, 1.3 makes them avoid their own subject."""
    seed: int | None = None
    """Same seed, same prompt, same text. None lets the engine draw one for each request."""
    stop: tuple[str, ...] = field(default=())
    """Generation ends before any of these; they are never part of the text."""
    max_tokens: int | None = None
    """None: until the model ends its turn or the context is full."""

    def __post_init__(self) -> None:
        _require_real("temperature", self.temperature, "in [0, 2]", lambda v: 0 <= v <= 2)
        _require_real("top_p", self.top_p, "in (0, 1]", lambda v: 0 < v <= 1)
        _require_real("min_p", self.min_p, "in [0, 1)", lambda v: 0 <= v < 1)
        _require_real(
            "repetition_penalty", self.repetition_penalty, "in [1, 2]", lambda v: 1 <= v <= 2
        )
        _require_int("top_k", self.top_k, 0, 1 << 24)
        if self.seed is not None:
            _require_int("seed", self.seed, 0, (1 << 63) - 1)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1, 1 << 24)
        if isinstance(self.stop, str) or not all(isinstance(s, str) for s in self.stop):
            raise RequestError("stop", "must be a sequence of strings")
        object.__setattr__(self, "stop", tuple(self.stop))
        if len(self.stop) > MAX_STOP_STRINGS or not all(self.stop):
            raise RequestError("stop", f"takes at most {MAX_STOP_STRINGS} strings, none empty")


MAX_STOP_STRINGS = 16
"""Every token's text is searched for each of them; clients of chat APIs may send four."""


def _require_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(name, f"must be a whole number from {low} to {high}, not {value!r}")


def _require_real(name: str, value: object, range_: str, valid: Callable[[float], bool]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not valid(value):  # type: ignore[arg-type]
        raise RequestError(name, f"must be a number {range_}, not {value!r}")
