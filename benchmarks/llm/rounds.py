"""Measurement rounds, in which the contestants alternate."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from .contestant import Arrivals, LoadReport, Remote
from .workload import Workload

REPLY_TOKENS: Final = 33
"""Tokens of a measured reply: the first, and 32 intervals."""
TURN_TOKENS: Final = 16
"""Tokens of a reply in a dialogue: a spoken sentence."""
TOGETHER: Final = (1, 2, 4, 8)
TOGETHER_TOKENS: Final = 24
MAX_SLICE: Final = 500
"""Steps of the long run that a contestant does at a time. The reply, and with it the context, grows
by this number."""
OTHERS_STEPS: Final = 2000
"""Steps of the long run of the other engines: enough for their 99th percentile."""
TALK_TOKENS: Final = 64
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Entry:
    """Contestant, and the measurements that it takes part in."""

    remote: Remote
    is_own: bool = False
    drafts: bool = False
    """True if a step may yield several tokens: excluded from the long run, which times single
    ones."""


@dataclass(slots=True)
class Figures:
    """Measurements of one contestant. Times in ms."""

    loaded: LoadReport
    between: list[float] = field(default_factory=list)
    """Intervals between two tokens of one reply."""
    first_short: list[float] = field(default_factory=list)
    """TTFT of the prompt of 36 tokens."""
    first_long: list[float] = field(default_factory=list)
    """TTFT of the prompt of 512 tokens."""
    by_turn: list[list[float]] = field(default_factory=list)
    """TTFT of each turn of a dialogue, a list for each round."""
    by_turn_previewed: list[list[float]] = field(default_factory=list)
    """TTFT of each turn whose message was prefilled before."""
    together: dict[int, list[float]] = field(default_factory=dict)
    """Tokens a second of all sequences, by their number; one value a round."""
    together_between: dict[int, list[float]] = field(default_factory=dict)
    """Intervals between two tokens of a sequence, by the number of sequences."""
    steps: list[float] = field(default_factory=list)
    """Intervals of the long run."""
    talk: list[float] = field(default_factory=list)
    """Mean time of a token in ordinary replies, one value a round."""
    read_back: list[float] = field(default_factory=list)
    """Mean time of a token in replies that repeat the caller's words, one value a round."""
    drafts: tuple[int, int] = (0, 0)
    """Number of tokens drafted and accepted in `talk` and `read_back`."""
    perplexity: float | None = None

    def summary(self) -> dict[str, Any]:
        """Medians and percentiles as JSON data."""
        turns = list(zip(*self.by_turn, strict=True))
        previewed = list(zip(*self.by_turn_previewed, strict=True))
        return {
            "version": self.loaded.version,
            "load_s": round(self.loaded.load_s, 2),
            "resident_mb": rounded(self.loaded.resident_mb),
            "model_mb": rounded(self.loaded.model_mb),
            "token_ms": percentiles(self.between),
            "prompt_36_ms": rounded(median(self.first_short)),
            "prompt_512_ms": rounded(median(self.first_long)),
            "first_token_by_turn_ms": [rounded(median(turn)) for turn in turns],
            "first_token_previewed_ms": [rounded(median(turn)) for turn in previewed],
            "together_tokens_a_s": {n: rounded(median(each)) for n, each in self.together.items()},
            "together_token_ms": {n: percentiles(e) for n, e in self.together_between.items()},
            "steps_ms": percentiles(self.steps),
            "talk_token_ms": rounded(median(self.talk)),
            "read_back_token_ms": rounded(median(self.read_back)),
            "perplexity": rounded(self.perplexity),
            "drafted": self.drafts[0],
            "accepted": self.drafts[1],
        }


def measure(
    entries: Sequence[Entry],
    loaded: Mapping[str, LoadReport],
    script: Workload,
    *,
    num_rounds: int,
    num_steps: int,
    on_progress: Callable[[str], None],
) -> dict[str, Figures]:
    """Run all measurements. Returns figures by contestant. Raises EngineError."""
    figures = {entry.remote.name: Figures(loaded[entry.remote.name]) for entry in entries}
    for entry in entries:  # warm-up: the first round is slower
        _one_round(entry, Figures(loaded[entry.remote.name]), script)
    for number in range(num_rounds):
        on_progress(f"round {number + 1} of {num_rounds}")
        for entry in entries:
            _one_round(entry, figures[entry.remote.name], script)
    for number in range(num_rounds):
        on_progress(f"replies of natural length {number + 1} of {num_rounds}")
        for entry in entries:
            _talk(entry, figures[entry.remote.name], script)
    for first in range(0, num_steps, MAX_SLICE):
        on_progress(f"steps: {first} of {num_steps}")
        prompt = script.talk[first // MAX_SLICE % len(script.talk)]
        num_tokens = min(MAX_SLICE, num_steps - first) + 1
        others_rest = first >= OTHERS_STEPS
        for entry in entries:
            if not entry.drafts and (entry.is_own or not others_rest):
                arrivals = entry.remote.call("reply", prompt, num_tokens)
                figures[entry.remote.name].steps += between(arrivals)
    for entry in entries if script.text else ():
        on_progress(f"perplexity of {entry.remote.name}")
        figures[entry.remote.name].perplexity = math.exp(entry.remote.call("nats", script.text))
    return figures


def _one_round(entry: Entry, figures: Figures, script: Workload) -> None:
    call = entry.remote.call
    arrivals = call("reply", script.short, REPLY_TOKENS)
    figures.first_short.append(arrivals[0][0])
    figures.between += between(arrivals)
    figures.first_long.append(call("reply", script.long, 1)[0][0])
    figures.by_turn.append(call("dialogue", script.turns, TURN_TOKENS))
    if entry.is_own:
        figures.by_turn_previewed.append(call("previewed", script.turns, TURN_TOKENS))
    for num_sequences in TOGETHER:
        replies = call("together", script.talk[:num_sequences], TOGETHER_TOKENS)
        rate = tokens_a_second(replies)
        figures.together.setdefault(num_sequences, []).append(rate)
        times = [ms for arrivals in replies for ms in between(arrivals)]
        figures.together_between.setdefault(num_sequences, []).extend(times)


def _talk(entry: Entry, figures: Figures, script: Workload) -> None:
    call = entry.remote.call
    before = call("drafts") if entry.is_own else (0, 0)
    for prompts, times in ((script.talk, figures.talk), (script.read_back, figures.read_back)):
        replies = [call("reply", prompt, TALK_TOKENS, may_end=True) for prompt in prompts]
        spans = [ms for arrivals in replies for ms in between(arrivals)]
        if spans:
            times.append(statistics.fmean(spans))
    after = call("drafts") if entry.is_own else (0, 0)
    drafted, accepted = figures.drafts
    figures.drafts = drafted + after[0] - before[0], accepted + after[1] - before[1]


def between(arrivals: Arrivals) -> list[float]:
    """Time in ms of each token after the first step; the tokens of one step share its time."""
    return list(_between(arrivals))


def _between(arrivals: Arrivals) -> Iterator[float]:
    for (before_ms, _), (at_ms, num_tokens) in pairwise(arrivals):
        yield from [(at_ms - before_ms) / num_tokens] * num_tokens


def tokens_a_second(replies: Sequence[Arrivals]) -> float:
    """Rate of all replies together while all of them run: from the latest first token to the
    earliest end."""
    begin_ms = max(arrivals[0][0] for arrivals in replies)
    end_ms = min(arrivals[-1][0] for arrivals in replies)
    num_tokens = sum(
        tokens for arrivals in replies for at_ms, tokens in arrivals if begin_ms < at_ms <= end_ms
    )
    return num_tokens / max(end_ms - begin_ms, 1e-3) * 1000


def percentiles(values: Sequence[float]) -> dict[str, float | int]:
    """Number of values and their percentiles, each a measured value; empty without values."""
    if not values:
        return {}
    found = np.quantile(values, list(_SHARES.values()), method="higher")
    return {"count": len(values)} | {
        name: round(float(value), 2) for name, value in zip(_SHARES, found, strict=True)
    }


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
