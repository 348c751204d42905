"""`python -m benchmarks.end_of_turn.question_effect PAUSES`: what the agent's question changes.

The alphanumeric data set has names that are spelled, telephone numbers and addresses, without the
question that they answer. Each turn of the half that nothing was fitted on is judged twice by the
decision that is shipped: as if nothing had been asked, and after the question of its part. The
halting readers, who answer none of these, are judged after the question for a telephone number:
it should change nothing, but for the few who happen to read digits.

    python -m benchmarks.end_of_turn.question_effect PAUSES --message-ends ENDS --json FILE
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent.turn_taking.dialogue.agent_question import NO_QUESTION, AgentQuestion, question_of
from agent.turn_taking.end_of_turn_model import Evidence, shipped_score
from asr.errors import AudioError, ModelError
from asr.speech_detection.turn_model import HEAD_FILE
from asr.speech_detection.turn_model_head import TurnModelHead
from latency_budget.account.clock import unix_ns
from latency_budget.host import machine

from .evaluation import KnownTurn, TurnOutcome, figures, outcome
from .fit import judge, read_all, turns_of
from .message_ends import read_message_ends

QUESTIONS: Final[Mapping[str, str]] = {
    "numbers": "What is your phone number?",
    "names": "Could you spell your name for me?",
    "addresses": "What is your address?",
}
"""Question before each part of the data set, by the beginning of its recordings' names."""

OTHERS: Final = "halting"
"""Kind of turns that answer none of the questions."""

Asked = Callable[[KnownTurn], AgentQuestion]


def part_of(turn: KnownTurn) -> str:
    """Part of the data set that a turn is of; "" for other turns."""
    file = turn.pauses[0][0].file if turn.pauses else ""
    return next((part for part in QUESTIONS if f"_{part}-" in file), "")


def outcomes_after(turns: Sequence[KnownTurn], asked: Asked) -> list[TurnOutcome]:
    """Outcomes of the shipped decision by "auto", after the question that each turn is given."""
    return [outcome(turn, partial(_wait_ms, asked(turn))) for turn in turns]


def _wait_ms(question: AgentQuestion, evidence: Evidence) -> float:
    return shipped_score().wait_ms(replace(evidence, question=question), "auto")


def report(turns: Sequence[KnownTurn]) -> dict[str, Any]:
    """Figures of each part, of all parts, and of the turns that answer no question."""

    def own(turn: KnownTurn) -> AgentQuestion:
        return question_of(QUESTIONS[part_of(turn)])

    groups: dict[str, tuple[list[KnownTurn], Asked]] = {
        part: ([turn for turn in turns if part_of(turn) == part], own) for part in QUESTIONS
    }
    groups["all parts"] = [turn for turn in turns if part_of(turn)], own
    groups[f"{OTHERS}, asked for a number"] = (
        [turn for turn in turns if turn.kind == OTHERS],
        lambda turn: question_of(QUESTIONS["numbers"]),
    )
    return {
        name: {
            "nothing asked": figures(outcomes_after(ours, lambda turn: NO_QUESTION), None),
            "asked": figures(outcomes_after(ours, asked), None),
        }
        for name, (ours, asked) in groups.items()
    }


def _print(found: Mapping[str, Any]) -> None:
    for name, pair in found.items():
        for what, one in pair.items():
            low, high = one["cut_in_wilson"]
            print(
                f"{name:28} {what:14} n={one['turns']:3} missed {one['missed']} cut-ins "
                f"{100 * one['cut_in_rate']:5.1f} % ({100 * low:4.1f}-{100 * high:4.1f}) after the "
                f"voice p50 {one['p50_ms']} p95 {one['p95_ms']} mean {one['mean_ms']:.0f} ms"
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.question_effect", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("pauses", type=Path, nargs="+", help="files written by turn_pauses")
    parser.add_argument(
        "--message-ends", type=Path, required=True, metavar="ENDS", help="written by message_ends"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    args = parser.parse_args(argv)
    try:
        head = TurnModelHead.read(HEAD_FILE)
        held_back = read_all(args.pauses).of_half("b")
        found = report(turns_of(judge(held_back, head), read_message_ends(args.message_ends)))
        _print(found)
        if args.json:
            saved = {
                "bench": "effect of the agent's question",
                "command": "python -m benchmarks.end_of_turn.question_effect PAUSES "
                "--message-ends ENDS",
                "data": "end-of-turn-data-2026-11-28.json",
                "machine": machine(),
                "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
                "questions": dict(QUESTIONS),
                "held_back": found,
            }
            args.json.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    except (AudioError, ModelError, OSError) as error:
        print(f"question_effect: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
