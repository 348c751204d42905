"""`halfsec bench llm --speculation`: replies with each drafter beside replies without drafts.

The same model is loaded once for each drafter and once without any, each in a process of its own.
They answer the same prompts in turns, A B B A, so that a machine that becomes slower in between
slows both sides. A token's time is compared over the two replies of each side to one prompt, which
follow each other within seconds; reported is the median of these ratios, over all prompts of a kind
and all rounds, and the same of the processor time, which other work on the machine changes less.

Three kinds of text: free talk, where little can be foreseen; read-back of numbers and addresses;
and structured repetition. A drafter must lose nowhere, and gain where the reply repeats the prompt.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from latency_budget.account.clock import unix_ns
from latency_budget.host import machine
from llm_engine.checkpoints.load import default_model, load_checkpoint
from llm_engine.config import MAX_DRAFT_TOKENS, EngineConfig, Precision
from llm_engine.engine import read_vocabulary
from llm_engine.errors import EngineError, ModelError, RequestError

from .contestant import Arrivals, Remote
from .engine_under_test import OwnEngine
from .model_path import halfsec_home, locate_model
from .report import Gate
from .rounds import between
from .workload import QUESTIONS, asked

MAX_RATIO: Final = 1.02
"""Most that a token with a drafter may take, in tokens without: what noise leaves of 1."""
MAX_REPEAT_RATIO: Final = 1 / 1.3
"""The same for the text that repeats the prompt."""
REPEATS: Final = "read-back"
CONTEXT_LENGTH: Final = 1024

READ_BACK: Final = (
    "Repeat exactly, word for word: Your order number is 7 4 4 1 9 0 2 6. It will be sent to "
    "Margaret Holloway, 218 Kensington Park Road, flat 12 B, London W11 2ES, on Thursday the 12th "
    "of March between 9:30 and 11:45.",
    "Repeat exactly, word for word: The code is 0171 555 0123, then 88 40 61. The train to "
    "Edinburgh leaves from platform nine at 6:32 and arrives at platform four at 10:47, coach C, "
    "seats 41 and 42.",
    "Repeat exactly, word for word: Please call Jonathan Fairweather at 020 7946 0018, or write to "
    "14 Old Station Lane, Upper Slaughter, Cheltenham GL54 2JG, before Friday the 23rd of May.",
)
STRUCTURED: Final = (
    'Write this list again with every "status" set to "open", and nothing else:\n'
    '[{"id": 101, "name": "kitchen", "status": "closed"},\n'
    ' {"id": 102, "name": "bedroom", "status": "closed"},\n'
    ' {"id": 103, "name": "bathroom", "status": "closed"},\n'
    ' {"id": 104, "name": "hallway", "status": "closed"}]',
    "Write this Python class again with the attribute volume renamed to level, and nothing else:\n"
    "class Speaker:\n    def __init__(self, volume):\n        self.volume = volume\n\n"
    "    def louder(self):\n        self.volume = self.volume + 1\n\n"
    "    def softer(self):\n        self.volume = self.volume - 1\n",
    "Continue this table up to seven:\n| number | square | cube |\n| --- | --- | --- |\n"
    "| 1 | 1 | 1 |\n| 2 | 4 | 8 |\n| 3 | 9 | 27 |",
)
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "talk": QUESTIONS,
    REPEATS: READ_BACK,
    "structured": STRUCTURED,
}
"""User messages by kind of text."""


class Callee(Protocol):
    """What the bench needs of a `Remote`."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *arguments: Any, **options: Any) -> Any: ...


TimedReply = tuple[Arrivals, float]
"""Reply with its processor time in ms after the first token."""


@dataclass(slots=True)
class KindFigures:
    """Measurements of one drafter on one kind of text, one value for each prompt and round. Times
    of a token in ms."""

    plain_ms: list[float] = field(default_factory=list)
    """Without drafts."""
    drafted_ms: list[float] = field(default_factory=list)
    plain_processor_ms: list[float] = field(default_factory=list)
    """Processor time of all threads, without drafts."""
    drafted_processor_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    """Tokens with the drafter, the first of each reply excluded."""
    num_drafted: int = 0
    num_checked: int = 0
    num_accepted: int = 0

    @property
    def ratio(self) -> float:
        """Median ratio: a token with the drafter in those without. NaN without any."""
        return _median(_ratios(self.drafted_ms, self.plain_ms))

    @property
    def processor_ratio(self) -> float:
        """The same by processor time."""
        return _median(_ratios(self.drafted_processor_ms, self.plain_processor_ms))

    @property
    def acceptance(self) -> float | None:
        """Share of right ones among the drafted tokens behind right ones."""
        return self.num_accepted / self.num_checked if self.num_checked else None

    @property
    def tokens_per_step(self) -> float:
        """Each step yields the accepted tokens of its draft and one more."""
        return self.num_tokens / max(1, self.num_tokens - self.num_accepted)

    def summary(self) -> dict[str, Any]:
        """JSON form."""
        acceptance = self.acceptance
        return {
            "plain_token_ms": round(statistics.median(self.plain_ms), 2),
            "token_ms": round(statistics.median(self.drafted_ms), 2),
            "ratio": round(self.ratio, 3),
            "ratios": [round(each, 3) for each in _ratios(self.drafted_ms, self.plain_ms)],
            "plain_processor_ms": round(_median(self.plain_processor_ms), 2),
            "processor_ms": round(_median(self.drafted_processor_ms), 2),
            "processor_ratio": round(self.processor_ratio, 3),
            "processor_ratios": [
                round(each, 3)
                for each in _ratios(self.drafted_processor_ms, self.plain_processor_ms)
            ],
            "acceptance": None if acceptance is None else round(acceptance, 3),
            "tokens_per_step": round(self.tokens_per_step, 2),
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "tokens": self.num_tokens,
        }

    def count(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Add the drafts between two calls of `OwnEngine.draft_counts`."""
        drafted, checked, accepted = (new - old for old, new in zip(before, after, strict=True))
        self.num_drafted += drafted
        self.num_checked += checked
        self.num_accepted += accepted


def _ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [each / beside for each, beside in zip(own, other, strict=True)]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


Figures = dict[str, dict[str, KindFigures]]
"""Figures by drafter and kind of text."""


def measure(
    plain: Callee,
    drafted: Sequence[Callee],
    prompts: Mapping[str, Sequence[Sequence[int]]],
    *,
    num_rounds: int,
    num_tokens: int,
    on_progress: Callable[[str], None],
) -> Figures:
    """Run the rounds after one that is not counted. Raises EngineError."""
    figures: Figures = {each.name: {kind: KindFigures() for kind in prompts} for each in drafted}
    for number in range(num_rounds + 1):
        on_progress(f"round {number} of {num_rounds}" if number else "warm-up")
        for kind, its_prompts in prompts.items():
            for prompt in its_prompts if number else its_prompts[:1]:
                before = {each.name: each.call("draft_counts") for each in drafted}
                replies = _alternate([plain, *drafted], prompt, num_tokens)
                plain_ms, plain_processor_ms, _ = _token_ms(replies[plain.name])
                for each in drafted if number and plain_ms else ():
                    found = figures[each.name][kind]
                    ms, processor_ms, num_timed = _token_ms(replies[each.name])
                    found.plain_ms.append(plain_ms)
                    found.drafted_ms.append(ms)
                    found.plain_processor_ms.append(plain_processor_ms)
                    found.drafted_processor_ms.append(processor_ms)
                    found.num_tokens += num_timed
                    found.count(before[each.name], each.call("draft_counts"))
    return figures


def _alternate(
    contestants: Sequence[Callee], prompt: Sequence[int], num_tokens: int
) -> dict[str, list[TimedReply]]:
    """Replies of all contestants to a prompt, there and back: A B B A."""
    replies: dict[str, list[TimedReply]] = {each.name: [] for each in contestants}
    for each in (*contestants, *reversed(contestants)):
        replies[each.name].append(each.call("timed_reply", prompt, num_tokens))
    return replies


def _token_ms(replies: Sequence[TimedReply]) -> tuple[float, float, int]:
    """Mean time and processor time of a token after the first, and their number; 0 without any."""
    spans = [ms for arrivals, _ in replies for ms in between(arrivals)]
    if not spans:
        return 0.0, 0.0, 0
    processor_ms = sum(each for _, each in replies)
    return statistics.fmean(spans), processor_ms / len(spans), len(spans)


def gates(figures: Figures, *, by_processor_time: bool = False) -> list[Gate]:
    """Gates of each drafter: it loses on no kind of text, and gains on the one that repeats."""
    found = []
    for name, kinds in figures.items():
        for kind, one in kinds.items():
            limit = MAX_REPEAT_RATIO if kind == REPEATS else MAX_RATIO
            ratio = one.processor_ratio if by_processor_time else one.ratio
            found.append(Gate(f"a token of {kind} with {name}, in those without", ratio, limit))
    return found


def calculated_gain(acceptance: float, draft_cost: float) -> tuple[int, float]:
    """Best draft length and its gain in tokens per time, by arithmetic, where a drafted token takes
    `draft_cost` of a step, and rows beside the first one cost nothing."""
    gains = [
        sum(acceptance**place for place in range(length + 1)) / (1 + length * draft_cost)
        for length in range(MAX_DRAFT_TOKENS + 1)
    ]
    best = max(range(len(gains)), key=gains.__getitem__)
    return best, gains[best]


def table(figures: Figures, draft_costs: Sequence[float]) -> str:
    """Format the figures, and what the measured acceptance would gain at other costs."""
    lines = [
        f"{'drafter':<16} {'text':<12} {'ms a token':>10} {'without':>8} {'ratio':>6} "
        f"{'by processor':>12} {'accepted':>9} {'tokens a step':>13}"
    ]
    for name, kinds in figures.items():
        for kind, one in kinds.items():
            if not one.plain_ms:
                continue
            shown = one.summary()
            accepted = "" if one.acceptance is None else f"{100 * one.acceptance:.0f} %"
            lines.append(
                f"{name:<16} {kind:<12} {shown['token_ms']:>10.2f} {shown['plain_token_ms']:>8.2f} "
                f"{shown['ratio']:>6.3f} {shown['processor_ratio']:>12.3f} {accepted:>9} "
                f"{shown['tokens_per_step']:>13.2f}"
            )
    for cost in draft_costs:
        lines.append(
            f"\nArithmetic, not measured: a draft token at {cost:g} of a step, rows free, the "
            "measured acceptance"
        )
        for name, kinds in figures.items():
            for kind, one in kinds.items():
                if one.acceptance is not None:
                    length, gain = calculated_gain(one.acceptance, cost)
                    lines.append(f"{name:<16} {kind:<12} {gain:.2f}x by drafts of {length}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 if a gate is missed; 2 for a model that can't be used."""
    options = _parser().parse_args(argv)
    try:
        result, is_held = _run(options)
    except (ModelError, RequestError, EngineError, OSError) as error:
        print(f"bench llm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if is_held else 1


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    path = default_model() if options.model is None else locate_model(options.model)
    checkpoint = load_checkpoint(path)
    template = read_vocabulary(checkpoint.tokenizer, path).template
    if template is None:
        raise RequestError("model", "has no chat template; the bench asks questions")
    prompts = {
        kind: [asked(template, text) for text in texts[: options.prompts]]
        for kind, texts in KINDS.items()
    }
    config = EngineConfig(
        precision=Precision.INT8,
        num_threads=options.threads,
        context_length=CONTEXT_LENGTH,
        max_batch=1,
        cache_dir=halfsec_home() / "converted",
        ngram_drafts=False,
    )
    drafters: dict[str, dict[str, Any]] = {"n-gram": {"ngram_drafts": True}}
    if options.draft_heads is not None:
        drafters["heads"] = {"draft_heads": options.draft_heads}
    if options.draft_model is not None:
        drafters["draft model"] = {"draft_model": locate_model(options.draft_model)}
    with ExitStack() as stack:

        def start(name: str, **more: Any) -> Remote:
            remote = Remote(
                name,
                OwnEngine,
                path=path,
                config=replace(config, **more),
                draft_length=options.draft_length,
            )
            stack.callback(remote.close)
            _say(f"loading: {name}")
            remote.call("start")
            return remote

        drafted = [start(name, **more) for name, more in reversed(drafters.items())]
        figures = measure(
            start("no drafts"),
            drafted[::-1],
            prompts,
            num_rounds=options.rounds,
            num_tokens=options.tokens,
            on_progress=_say,
        )
    judged = (
        gates(figures, by_processor_time=options.processor_time)
        if options.draft_length is None
        else []
    )
    print(f"{machine()}, {path.name}, {options.threads} threads\n")
    print(table(figures, options.draft_cost), end="\n\n")
    for gate in judged:
        print(gate)
    calculated = {
        f"{cost:g}": {
            name: {
                kind: round(calculated_gain(one.acceptance, cost)[1], 2)
                for kind, one in kinds.items()
                if one.acceptance is not None
            }
            for name, kinds in figures.items()
        }
        for cost in options.draft_cost
    }
    result = {
        "bench": "llm-speculation",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": _command(options),
        "model": path.name,
        "draft_model": None
        if options.draft_model is None
        else locate_model(options.draft_model).name,
        "threads": options.threads,
        "drafters": {
            name: {kind: one.summary() for kind, one in kinds.items() if one.plain_ms}
            for name, kinds in figures.items()
        },
        "calculated_gain_by_draft_cost": calculated,
        "gates": [
            {"promise": each.promise, "measured": each.measured, "limit": each.limit}
            | {"is_held": each.is_held}
            for each in judged
        ],
    }
    return result, all(gate.is_held for gate in judged)


def _command(options: argparse.Namespace) -> str:
    names = ("model", "draft_model", "draft_heads", "draft_length", "rounds", "tokens", "prompts")
    given = [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in names
        if getattr(options, name) is not None
    ]
    given += ["--processor-time"] if options.processor_time else []
    return " ".join(["halfsec bench llm --speculation", *given])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench llm --speculation",
        description="Time replies with each drafter beside replies without, over free talk, "
        f"read-back and structured repetition. Exit status 1 unless a token takes at most "
        f"{MAX_RATIO} of one without drafts on every kind, and 1/1.3 on read-back.",
    )
    parser.add_argument(
        "--model", help="name of a fetched model, GGUF file or Hugging Face directory (embedded)"
    )
    parser.add_argument("--draft-model", metavar="NAME", help="also draft with this model")
    parser.add_argument("--draft-heads", type=Path, metavar="DIR", help="also draft with heads")
    parser.add_argument(
        "--draft-length",
        type=int,
        choices=range(1, MAX_DRAFT_TOKENS + 1),
        metavar="N",
        help="tokens of every draft, whether they pay or not, to measure how many are accepted; "
        "without gates (as many as pay)",
    )
    parser.add_argument(
        "--draft-cost",
        type=float,
        action="append",
        default=[],
        metavar="SHARE",
        help="also calculate the gain where a draft token costs this share of a step, as on a GPU; "
        "may be repeated",
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="judge by processor time, where others use the machine",
    )
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="most of a reply (%(default)s)")
    parser.add_argument("--prompts", type=int, default=3, help="of each kind (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    return parser
