"""Report of a comparison: tables, and the gates of our engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llm_engine.config import ModelConfig

from .rounds import TOGETHER

Summary = Mapping[str, Any]
"""Result of `Figures.summary`."""


_INT4_SHARES: Final = (0.75, 0.85)
"""Most that a token may take with 4-bit weights, in llama.cpp's tokens on the same file of 4 to 6
bits, of a model below `_LARGE` weights and of a larger one. There is less to save of the larger
one: the head, which `int4` rounds, is 15 % of its weights, and 28 % of the half-billion model's."""
_LARGE: Final = 10**9


def max_int4_share(config: ModelConfig) -> float:
    """The gate's limit for a model: the same for every machine."""
    return _INT4_SHARES[num_weights(config) >= _LARGE]


def num_weights(config: ModelConfig) -> int:
    """Weights of the matrices, the head counted once; norms and biases left out."""
    heads = 2 * (config.num_heads + config.num_kv_heads)
    attention = config.hidden_size * heads * config.head_dim
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the contestants that gates compare. None: it did not take part."""

    own: str
    """Our engine with drafts, as in the service."""
    plain: str
    """Our engine without drafts."""
    same_file: str | None
    """llama.cpp with the same file."""
    eight_bit: str | None
    """llama.cpp with the file requantized to Q8_0."""
    plain_int4: str | None = None
    """Our engine without drafts, with 4-bit weights."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Measured value beside its upper limit."""

    promise: str
    measured: float
    limit: float

    @property
    def is_held(self) -> bool:
        return self.measured <= self.limit

    def __str__(self) -> str:
        word = "held  " if self.is_held else "MISSED"
        return f"{word}  {self.promise}: {self.measured:.2f} (at most {self.limit:.2f})"


def gates(
    results: Mapping[str, Summary], first_load_s: float, names: Names, int4_share: float
) -> list[Gate]:
    """Gates of the contestants that took part. A value that was not measured is NaN, and misses its
    gate. `int4_share`: `max_int4_share` of the model."""
    own, plain = results[names.own], results[names.plain]
    token_ms = plain["token_ms"].get("p50") or math.nan  # 0 where tokens came together
    turns, previewed = own["first_token_by_turn_ms"], own["first_token_previewed_ms"]
    held = [
        Gate("first load, s", first_load_s, 15),
        Gate("load from then on, s", own["load_s"], 3),
        Gate("first token of turn 10 in those of turn 2", turns[-1] / (turns[1] or math.nan), 1.1),
        Gate("first token after a preview, in forward passes", max(previewed) / token_ms, 1.5),
    ]
    if names.eight_bit is not None:
        theirs = results[names.eight_bit]["token_ms"].get("p50") or math.nan
        held.append(Gate("a token without drafts, in llama.cpp's Q8_0", token_ms / theirs, 1))
    if names.same_file is not None:
        theirs = results[names.same_file]["talk_token_ms"] or math.nan
        share = (own["talk_token_ms"] or math.nan) / theirs
        held.append(Gate("a token of talk, in llama.cpp's of the same file", share, 1 / 1.2))
        if names.plain_int4 is not None:
            token_ms = results[names.plain_int4]["token_ms"].get("p50") or math.nan
            theirs = results[names.same_file]["token_ms"].get("p50") or math.nan
            promise = "a token in 4 bits without drafts, in llama.cpp's of the same file"
            held.append(Gate(promise, token_ms / theirs, int4_share))
    return held


def tables(results: Mapping[str, Summary]) -> str:
    """Format the summaries as tables."""
    return "\n\n".join(
        _table(title, columns, results)
        for title, columns in (
            ("one caller", _ONE),
            ("a dialogue: ms to the first token of a turn", _TURNS),
            (
                "several at once: tokens a second in all (p99 ms from one to the next)",
                _TOGETHER,
            ),
            ("a token of replies of natural length, ms", _TALK),
            ("steps, ms", _STEPS),
        )
    )


def _table(title: str, columns: Sequence[tuple[str, Any]], results: Mapping[str, Summary]) -> str:
    width = max(len(name) for name in results)
    rows = {name: [cell(summary) for _, cell in columns] for name, summary in results.items()}
    shown = {name: cells for name, cells in rows.items() if any(cells)}
    sizes = [
        max(len(head), *(len(cells[at]) for cells in shown.values())) if shown else len(head)
        for at, (head, _) in enumerate(columns)
    ]
    lines = [title]
    heads = [head.rjust(size) for (head, _), size in zip(columns, sizes, strict=True)]
    lines.append("  ".join([" " * width, *heads]))
    for name, cells in shown.items():
        padded = [cell.rjust(size) for cell, size in zip(cells, sizes, strict=True)]
        lines.append("  ".join([name.ljust(width), *padded]))
    return "\n".join(lines)


def _number(*path: str | int, digits: int = 1) -> Any:
    """Function that formats the number at `path` of a summary; empty if it is absent."""

    def cell(summary: Summary) -> str:
        value: Any = summary
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError):
                return ""
        return "" if value is None else f"{value:.{digits}f}"

    return cell


def _rate(num_tokens: int) -> Any:
    def cell(summary: Summary) -> str:
        ms = summary[f"prompt_{num_tokens}_ms"]
        return "" if ms is None else f"{num_tokens / ms * 1000:.0f}"

    return cell


def _at_once(num_sequences: int) -> Any:
    def cell(summary: Summary) -> str:
        rate = summary["together_tokens_a_s"].get(num_sequences)
        times = summary["together_token_ms"].get(num_sequences)
        return f"{rate:.0f} ({times['p99']:.0f})" if rate and times else ""

    return cell


_ONE = (
    ("ms a token", _number("token_ms", "p50")),
    ("p99", _number("token_ms", "p99")),
    ("36 tokens, ms", _number("prompt_36_ms")),
    ("prompt tokens/s: 36", _rate(36)),
    ("512", _rate(512)),
    ("load s", _number("load_s", digits=2)),
    ("process MB", _number("resident_mb", digits=0)),
    ("of it the model", _number("model_mb", digits=0)),
    ("perplexity", _number("perplexity", digits=2)),
)
_TURNS = (
    *((f"turn {n}", _number("first_token_by_turn_ms", n - 1)) for n in (1, 2, 4, 6, 8, 10)),
    ("turn 2 previewed", _number("first_token_previewed_ms", 1)),
    ("turn 10 previewed", _number("first_token_previewed_ms", 9)),
)
_TOGETHER = tuple((str(n), _at_once(n)) for n in TOGETHER)
_TALK = (
    ("talk", _number("talk_token_ms")),
    ("read back", _number("read_back_token_ms")),
    ("drafted", _number("drafted", digits=0)),
    ("accepted", _number("accepted", digits=0)),
)
_STEPS = (
    *((name, _number("steps_ms", name)) for name in ("p50", "p90", "p99", "p99.9")),
    ("steps", _number("steps_ms", "count", digits=0)),
)
