"""`halfsec bench chat`: are the agent's answers right, speakable and acted upon?

Holds the scripted dialogues of `dialogues/` with a model, greedily, and judges each by program. A
dialogue passes if every reply and its final state do. Without `--url` a server with the given
settings is started, and its default agent's prompt is used; any other server is told the same.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agent.cli.settings_arguments import add_arguments, flags_of
from agent.config.sources import read_config
from agent.errors import HalfsecError
from agent.session.response.opening_clause import shaped
from benchmarks.callers.server_process import own_server
from benchmarks.statistics import wilson_interval
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine

from .contestant import DialogueRecord, TextContestant
from .dialogue import FOLDER, Dialogue, read_dialogues

CALLS: Final = "tool calls"
"""Category of single turns with tools: most of them need a call, some must have none."""
RIGHT_CALLS: Final = "right calls"
"""Row of the dialogues of `CALLS` whose calls are right, name and arguments, whatever is said."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 if a gate is missed; 2 if nothing could be measured."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        dialogues = [
            each
            for each in read_dialogues(options.dialogues or [FOLDER])
            if options.only is None or each.category in options.only
        ]
        with _contestant(options) as (contestant, model):
            records, seconds = _hold(contestant, dialogues, is_shown=options.show)
    except HalfsecError as error:
        print(f"bench chat: {error}", file=sys.stderr)
        return 2
    result: dict[str, Any] = {
        "bench": "chat",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": " ".join(["halfsec bench chat", *arguments]),
        "model": model,
        "seconds": round(seconds, 1),
        "summary": summary(records),
        "dialogues": [asdict(record) | {"passed": record.is_passed} for record in records],
    }
    print(table(model, result["summary"]))
    if options.json is not None:
        text = json.dumps(result, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    missed = missed_gates(result["summary"], options.min, options.min_calls)
    for line in missed:
        print(f"GATE MISSED: {line}")
    return 1 if missed else 0


def summary(records: Sequence[DialogueRecord]) -> dict[str, dict[str, Any]]:
    """Passed and held dialogues with the rate's 95 % interval, by category and over "all"."""
    categories = dict.fromkeys(record.category for record in records)
    rows: dict[str, dict[str, Any]] = {}
    for name in (*categories, "all"):
        held = [record for record in records if name in (record.category, "all")]
        rows[name] = _row([record.is_passed for record in held])
        if name == CALLS:
            rows[RIGHT_CALLS] = _row([record.calls_right for record in held])
    return rows


def _row(verdicts: Sequence[bool]) -> dict[str, Any]:
    passed, held = sum(verdicts), len(verdicts)
    return {
        "passed": passed,
        "held": held,
        "rate": passed / held if held else 0.0,
        "interval": wilson_interval(passed, held),
    }


def table(model: str, rows: dict[str, dict[str, Any]]) -> str:
    """Format a summary."""
    lines = [f"{model:<40}{'passed':>12}{'%':>7}   95 % interval"]
    for name, row in rows.items():
        low, high = row["interval"]
        count = f"{row['passed']} of {row['held']}"
        lines.append(f"{name:<40}{count:>12}{row['rate']:>7.0%}   {low:.0%} to {high:.0%}")
    return "\n".join(lines)


def missed_gates(
    rows: dict[str, dict[str, Any]], least: float | None, least_calls: float | None
) -> list[str]:
    """Gates missed, in per cent of all dialogues and of `RIGHT_CALLS`. A category that was not held
    misses its gate."""
    missed = []
    for name, gate in (("all", least), (RIGHT_CALLS, least_calls)):
        if gate is not None:
            rate = 100 * rows[name]["rate"] if name in rows else 0.0
            if rate < gate:
                missed.append(f"{name} {rate:.1f} % < {gate:g} %")
    return missed


def _hold(
    contestant: TextContestant, dialogues: Sequence[Dialogue], *, is_shown: bool
) -> tuple[list[DialogueRecord], float]:
    clock = SystemClock()
    started_ns = clock.now_ns()
    records = []
    for index, dialogue in enumerate(dialogues, 1):
        record = contestant.hold(dialogue)
        records.append(record)
        verdict = "passed" if record.is_passed else "failed"
        print(f"{index} of {len(dialogues)} {dialogue.id}: {verdict}", file=sys.stderr, flush=True)
        if is_shown and not record.is_passed:
            print(_failure(record), flush=True)
    return records, (clock.now_ns() - started_ns) / 1e9


def _failure(record: DialogueRecord) -> str:
    lines = [f"--- {record.id}"]
    for turn in record.turns:
        lines += [f"caller: {turn.caller}", f"agent:  {turn.reply}"]
        lines += [f"        calls {name} {dict(given)}" for name, given in turn.calls]
        lines += [f"    !!  {problem}" for problem in turn.problems]
    if record.state_problem:
        lines.append(f"    !!  {record.state_problem}")
    return "\n".join(lines)


@contextlib.contextmanager
def _contestant(options: argparse.Namespace) -> Iterator[tuple[TextContestant, str]]:
    """The model and its name. Raises HalfsecError."""
    config = read_config(flags_of(options), path=options.config)
    agent = shaped(config.agents["default"], by_clause=True)
    examples = [(each.user, each.assistant) for each in agent.examples]
    with contextlib.ExitStack() as stack:
        url, model = options.url, options.model or config.llm_engine.model
        if url is None:
            serve = ["--set", "access.require_key=never"]
            for name, value in flags_of(options).items():
                serve += ["--set", f"{name}={value}"]
            if options.config is not None:
                serve += ["--config", options.config]
            server = stack.enter_context(own_server(serve))
            url = server.url.replace("ws://", "http://").replace("/realtime", "")
        contestant = TextContestant(
            url,
            model,
            agent.instructions,
            examples,
            with_tools=config.llm_engine.examples_with_tools,
            key=options.key,
        )
        stack.callback(contestant.close)
        yield contestant, model


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench chat",
        description="Scripted dialogues, judged by program.",
        epilog="example: halfsec bench chat --set llm_engine.model=qwen2.5-coder-0.5b-instruct",
    )
    add_arguments(parser)
    add = parser.add_argument
    add("dialogues", nargs="*", type=Path, help="TOML files or folders (the project's own)")
    add("--url", help="of another server, up to /v1; without it one is started")
    add("--model", help="name of its model (llm_engine.model)")
    add("--key", default="", help="its API key")
    add("--only", action="append", metavar="CATEGORY", help="hold only these; may be repeated")
    add("--show", action="store_true", help="print the dialogues that fail")
    add("--min", type=float, metavar="PERCENT", help="gate: dialogues passed")
    add("--min-calls", type=float, metavar="PERCENT", help=f"gate: {RIGHT_CALLS}")
    add("--json", type=Path, help="save all replies and verdicts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
