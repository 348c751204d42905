"""Frozen settings of a model (read from its file), of the engine and of one request."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from llm_engine.structured_output.grammar import Grammar

from .errors import RequestError

MAX_STEP_ROWS: Final = 8
"""Rows of a step up to which a row's result is the same to the last bit, however many rows run
beside it: eight sequences with a row each, or one sequence with a draft. GPU kernels are written
for as many, the narrowest tile of the matrix units; more would need a second set of kernels, fewer
would cut off drafts that pay (see `speculative.draft_length`)."""

MAX_DRAFT_TOKENS: Final = MAX_STEP_ROWS - 1
"""Longest draft: with the token that is certain it fills a step."""


class BackendName(StrEnum):
    """Name of a compute backend."""

    AUTO = "auto"
    """The backend for the precision."""
    ONNX = "onnx"
    """ONNX Runtime on the CPU, in int8 or int4: the fast one."""
    TORCH = "torch"
    """Plain torch on the CPU, in float32: the reference."""
    CUDA = "cuda"
    """An NVIDIA GPU, in bfloat16 or with weights of 8 or 4 bits."""


class Precision(StrEnum):
    """Arithmetic of the linear layers."""

    FLOAT32 = "float32"
    """Reference that equality tests compare with."""
    INT8 = "int8"
    """On a CPU: weights and activations in 8 bits."""
    INT4 = "int4"
    """On a CPU: as int8, with most weights in 4 bits. On a GPU, by `EngineConfig.backend`: weights
    in 4 bits, activations in 16."""
    BFLOAT16 = "bfloat16"
    """On a GPU: everything in 16 bits."""
    FP8 = "fp8"
    """On a GPU: weights as 8-bit floats, activations in 16 bits."""


def backends_for(precision: Precision) -> tuple[BackendName, ...]:
    """The backends that compute in this precision; `AUTO` is the first."""
    match precision:
        case Precision.FLOAT32:
            return (BackendName.TORCH,)
        case Precision.INT8:
            return (BackendName.ONNX,)
        case Precision.INT4:
            return BackendName.ONNX, BackendName.CUDA
        case Precision.BFLOAT16 | Precision.FP8:
            return (BackendName.CUDA,)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        """Raises ValueError naming the value, here as in the other scalings."""
        _require_positive("factor", self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: wavelengths beyond the original context are stretched by `factor`, short
    ones are left alone, and those between are blended."""

    factor: float
    low_freq_factor: float
    """Frequencies that turn fewer times than this within the original context are stretched."""
    high_freq_factor: float
    """Frequencies that turn more often than this are left alone."""
    original_context_length: int

    def __post_init__(self) -> None:
        _require_positive("factor", self.factor)
        _require_positive("low_freq_factor", self.low_freq_factor)
        _require_positive("original context length", self.original_context_length)
        _require_positive("high_freq_factor", self.high_freq_factor)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(f"low_freq_factor is {self.low_freq_factor!r}, not the lower one")


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): blended like Llama 3.1's, but by the index of a frequency instead of
    its turns, and with sharper attention."""

    factor: float
    original_context_length: int
    attention_factor: float
    """Sines and cosines are multiplied by this: see `ModelConfig.rope_attention_factor`."""
    beta_fast: float = 32.0
    """Frequencies that turn more often than this within the original context are left alone."""
    beta_slow: float = 1.0
    """Frequencies that turn fewer times than this are stretched."""
    whole_indices: bool = True
    """True: the blend begins and ends at whole indices."""

    def __post_init__(self) -> None:
        for name in ("factor", "attention_factor", "beta_fast", "beta_slow"):
            _require_positive(name, getattr(self, name))
        _require_positive("original context length", self.original_context_length)
        if self.beta_slow > self.beta_fast:
            raise ValueError(f"beta_slow is {self.beta_slow!r}, more than beta_fast")

    @property
    def context_length(self) -> int:
        """Positions that the stretched frequencies reach."""
        return round(self.original_context_length * self.factor)


def yarn_attention_factor(factor: float, mscale: float = 0, mscale_all_dim: float = 0) -> float:
    """Attention factor that YaRN's paper recommends, or DeepSeek's variant with both scales given.

    Raises ValueError for negative scales.
    """
    if mscale < 0 or mscale_all_dim < 0:
        raise ValueError(f"mscale is {mscale!r}, mscale_all_dim {mscale_all_dim!r}")

    def recommended(scale: float) -> float:
        return 1 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return recommended(mscale) / recommended(mscale_all_dim)
    return recommended(1)


@dataclass(frozen=True, slots=True)
class DivisorScaling:
    """Each frequency divided by its own number: how GGUF stores Llama 3.1's scaling."""

    divisors: tuple[float, ...]
    """One per pair of a head's dimensions."""

    def __post_init__(self) -> None:
        for divisor in self.divisors:
            _require_positive("a divisor", divisor)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | DivisorScaling
"""Scaling of rotary frequencies to longer contexts; `llm_engine.models.rope` turns any of
them into frequencies."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder of the Llama, Mistral, Qwen2 or Qwen3 family."""

    architecture: str
    """`llama`, `mistral`, `qwen2` or `qwen3`. A GGUF file calls Mistral `llama`."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """Positions that the model was trained for."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    """Backends read it only through `llm_engine.models.rope` and
    `rope_attention_factor`."""
    sliding_windows: tuple[int | None, ...] = ()
    """Window of each layer, or empty where all layers see all positions: see `sliding_window`."""

    @property
    def has_qk_norm(self) -> bool:
        """True where queries and keys are normalized per head (Qwen3)."""
        return self.architecture == "qwen3"

    @property
    def rope_attention_factor(self) -> float:
        """Sines and cosines of the rotary embedding are multiplied by this; 1 without YaRN."""
        scaling = self.rope_scaling
        return scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0

    def sliding_window(self, layer: int) -> int | None:
        """Latest positions that a token sees in this layer, its own included; None: all.

        A token at position p sees keys at positions greater than p - window.
        """
        return self.sliding_windows[layer] if self.sliding_windows else None


_CPU_PROMPT_CHUNK = 64
"""Prompt tokens in a step on a CPU: 0.1 s of a 135 M model on two cores."""

_GPU_PROMPT_CHUNK = 256
"""Prompt tokens in a step on a GPU: 4 TFLOP of an 8B model, some 8 ms in bfloat16 on Hopper. A
recognizer on the same GPU must not wait longer for its turn."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine. Raises RequestError naming the field that is out of range."""

    precision: Precision = Precision.FLOAT32
    backend: BackendName = BackendName.AUTO
    num_threads: int = 2
    """Threads of one forward pass."""
    context_length: int | None = None
    """Tokens a sequence may hold, if the model can hold as many; None takes the model's limit."""
    prefill_chunk: int | None = None
    """Prompt tokens in one step; None: as many as suit the backend (`prompt_chunk`). Lower: long
    prompts pay more passes over the weights. Higher: another call's next token waits longer."""
    kv_cache_mb: int = 1024
    """Memory for keys and values of all sequences together. When it is full, conversations that
    have been idle longest are forgotten and computed anew when they go on."""
    max_sequences: int = 32
    """Conversations and single requests alive at once; more are refused."""
    max_batch: int = 1
    """Sequences that share a pass over the weights (ONNX backend); four at once take half the time.
    More than one costs a second session, of the same weights: logits of 64 rows for each."""
    cache_dir: Path | None = None
    """Directory in which the ONNX backend caches converted weights; None converts at every load."""
    thinks: bool = False
    """Let the model think before it answers, where its chat template can switch that."""
    ngram_drafts: bool = True
    """Draft repetitions (prompt lookup) and verify several tokens in one step. Replies are the same
    with and without."""
    head_precision: Precision | None = None
    """Precision of the LM head, the matrix that gives the logits, on a GPU; None: as all others,
    with int4 in 4 bits only where the checkpoint has it so."""
    calibration: Path | None = None
    """Text file for calibration: weights are rounded so that the model's outputs on texts like it
    change least. With fp8 it takes minutes at every start; None: each weight is rounded to the
    nearest. With int4 at the first start, on a GPU at every one, where the checkpoint is not in
    4 bits; None: on a CPU rounded to the nearest, on a GPU a text of the engine's own."""
    kv_precision: Precision = Precision.BFLOAT16
    """Precision of keys and values on a GPU: bfloat16, or fp8 for half the memory."""
    megakernel: bool = False
    """Run all layers of a decode step in one kernel, on one GPU of compute capability 9.0 or newer
    with a model that it serves (`llm_engine/cuda/megakernel`)."""
    num_gpus: int = 1
    """GPUs among which the model is divided (CUDA backend)."""
    draft_model: Path | None = None
    """Draft model: a smaller one with the same vocabulary, for text that does not repeat."""
    draft_heads: Path | None = None
    """Draft heads trained for the model (`halfsec train-heads`), for the same purpose."""

    def __post_init__(self) -> None:
        for name, choices in (("precision", Precision), ("backend", BackendName)):
            try:
                object.__setattr__(self, name, choices(getattr(self, name)))
            except ValueError:
                problem = f"{getattr(self, name)!r} is not one of {', '.join(choices)}"
                raise RequestError(name, problem) from None
        fitting = backends_for(self.precision)
        if self.backend not in (BackendName.AUTO, *fitting):
            can = " and ".join(each for each in Precision if self.backend in backends_for(each))
            raise RequestError(
                "backend",
                f"{self.backend} calculates in {can}; for {self.precision} choose "
                + " or ".join(fitting),
            )
        _require_int("num_threads", self.num_threads, 1, 256)
        if self.prefill_chunk is not None:
            _require_int("prefill_chunk", self.prefill_chunk, 1, 4096)
        _require_int("kv_cache_mb", self.kv_cache_mb, 1, 1 << 20)
        _require_int("max_sequences", self.max_sequences, 1, 4096)
        for name in ("head_precision", "kv_precision"):
            if getattr(self, name) not in (None, Precision.BFLOAT16, Precision.FP8):
                raise RequestError(name, f"{getattr(self, name)!r} is not one of bfloat16, fp8")
        _require_int("num_gpus", self.num_gpus, 1, 64)
        _require_int("max_batch", self.max_batch, 1, 64)
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", Path(self.cache_dir))
        if self.context_length is not None:
            _require_int("context_length", self.context_length, 16, 1 << 24)

    @property
    def chosen_backend(self) -> BackendName:
        """`backend`, or the one that `AUTO` stands for."""
        is_auto = self.backend is BackendName.AUTO
        return backends_for(self.precision)[0] if is_auto else self.backend

    @property
    def on_gpu(self) -> bool:
        return self.chosen_backend is BackendName.CUDA

    @property
    def prompt_chunk(self) -> int:
        """Prompt tokens in one step: `prefill_chunk`, or the backend's default."""
        if self.prefill_chunk is not None:
            return self.prefill_chunk
        return _GPU_PROMPT_CHUNK if self.on_gpu else _CPU_PROMPT_CHUNK


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and the end of a reply. Raises RequestError for values out of range.

    They apply in this order: repetition_penalty, temperature, top_k, min_p, top_p.
    """

    temperature: float = 0.0
    """0 takes the likeliest token; up to 2. Below `MIN_TEMPERATURE` it counts as 0."""
    top_k: int = 0
    """Keep the k likeliest; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set with this much probability; (0, 1]."""
    min_p: float = 0.0
    """Drop what is less likely than this times the likeliest; [0, 1)."""
    repetition_penalty: float = 1.0
    """Divides the scores of tokens that the reply already has; [1, 2]. Small models fall into loops
    without it: 1.1 is enough for them, 1.3 makes them avoid their own subject."""
    seed: int | None = None
    """Same seed, same prompt, same text. None lets the engine draw one for each request."""
    stop: tuple[str, ...] = field(default=())
    """Generation ends before any of these; they are never part of the text."""
    max_tokens: int | None = None
    """None: until the model ends its turn or the context is full."""
    min_tokens: int = 0
    """The model can't end its turn before this many tokens."""
    ignore_eos: bool = False
    """The model can't end its turn at all. For benchmarks with replies of equal length."""
    grammar: Grammar | None = None
    """Grammar that the reply must fit. It ends where nothing more can follow, whatever `min_tokens`
    and `ignore_eos` say; `max_tokens` and `stop` may cut it short."""

    def __post_init__(self) -> None:
        for name, (range_, is_valid) in _REALS.items():
            # Whole numbers are accepted and converted.
            object.__setattr__(self, name, _real(name, getattr(self, name), range_, is_valid))
        if self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        _require_int("top_k", self.top_k, 0, 1 << 24)
        if self.seed is not None:
            _require_int("seed", self.seed, 0, (1 << 63) - 1)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1, 1 << 24)
        _require_int("min_tokens", self.min_tokens, 0, self.max_tokens or 1 << 24)
        if isinstance(self.stop, str) or not all(isinstance(s, str) for s in self.stop):
            raise RequestError("stop", "must be a sequence of strings")
        object.__setattr__(self, "stop", tuple(self.stop))
        if len(self.stop) > MAX_STOP_STRINGS or not all(self.stop):
            raise RequestError("stop", f"takes at most {MAX_STOP_STRINGS} strings, none empty")
        if max(map(len, self.stop), default=0) > MAX_STOP_CHARS:
            raise RequestError("stop", f"takes strings of at most {MAX_STOP_CHARS} characters")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError("grammar", "must be a Grammar")


MAX_STOP_STRINGS = 16
"""Stop strings in a request. Every token's text is searched for each of them; clients of chat APIs
may send four."""

MAX_STOP_CHARS = 256
"""Length of a stop string. Text that may be the beginning of one is held back and compared again
with every token: a stop string of a thousand letters that nearly fits would make every step 10 ms
longer."""

MIN_TEMPERATURE = 1e-4
"""Lowest temperature; below it the choice is greedy. Scores that differ by a thousandth are then
e^10 apart in probability. Much lower, scores divided by it are infinite and probabilities NaN."""


_REALS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("in [0, 2]", lambda v: 0 <= v <= 2),
    "top_p": ("in (0, 1]", lambda v: 0 < v <= 1),
    "min_p": ("in [0, 1)", lambda v: 0 <= v < 1),
    "repetition_penalty": ("in [1, 2]", lambda v: 1 <= v <= 2),
}
"""Ranges of the real numbers of `SamplingParams`. NaN compares false with everything."""

_LARGEST_SCALING = 1e9
"""Bound for the values of a rotary scaling: none comes near it; a damaged header easily does."""


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < _LARGEST_SCALING:
        raise ValueError(f"{name} is {value!r}")


def _require_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(
            name, f"must be a whole number from {low} to {high}, not {_short(value)}"
        )


def _real(name: str, value: Any, range_: str, is_valid: Callable[[float], bool]) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not is_valid(value):  # comparing, as a conversion fails for huge ones
        raise RequestError(name, f"must be a number {range_}, not {_short(value)}")
    return float(value)


def _short(value: object) -> str:
    """Abbreviate a value of any size and depth for a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more than 4300 digits
        return f"such a large {type(value).__name__}"
