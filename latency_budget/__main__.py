"""`halfsec report`: latency of recorded turns by stage, a gate for pipelines, and a comparison.

Reads a session's trace, or a store of turns. `--gate` makes it a test for a pipeline, `--compare`
tests whether a second run differs from the first by more than chance. With a trace, and with
`--policy` of a store, the turns are replayed through the policy: what would it have done?
"""

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from latency_budget.account.clock import unix_ns
from latency_budget.enforcement.policy import Policy
from latency_budget.reporting.compare import CompareError, Comparison, compare
from latency_budget.reporting.html_report import Report, html_report
from latency_budget.reporting.replay import foresight_json, foresight_table, replay
from latency_budget.reporting.thresholds import GateError, misses, read_gate
from latency_budget.reporting.trace_or_store import Source, SourceError, read_source
from latency_budget.reporting.waterfall import summary_table, waterfall
from latency_budget.statistics.report import report_json, summarize, turn_json
from latency_budget.storage.database import Place
from latency_budget.storage.private_files import write_private_file
from latency_budget.storage.store_query import TurnFilter, unix_ns_of

MAX_LAST: Final = 10**9
"""Largest number of turns to ask for; databases have 63 bits for it."""

DRAWN: Final = 20
"""Most turns whose waterfalls are drawn; all count in the table."""


def main(
    argv: Sequence[str] | None = None,
    default_place: Callable[[str | None], Place] | None = None,
) -> int:
    """Run the command. Returns the exit status: 0; 1 where a gate was missed; 2 with one line on
    stderr where there is nothing to report. `default_place` returns the store that is read
    where nothing is named, by the settings file that --config names."""
    options = _parser(needs_source=default_place is None).parse_args(argv)
    try:
        gate = () if options.gate is None else read_gate(options.gate)
        wanted = _filter(options)
        if options.source is None and default_place is not None:
            source = _default_source(default_place(options.config), wanted)
        else:
            source = read_source(options.source, wanted)
        other = None if options.compare is None else read_source(options.compare, wanted)
        found = None if other is None else compare(source.records, other.records)
    except (GateError, SourceError, CompareError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    summary = summarize(source.records)
    missed = misses(gate, summary)
    if options.html is not None:
        page = html_report(Report(source, summary, unix_ns(), other, found, gate))
        try:
            write_private_file(Path(options.html), page.encode())
        except OSError as error:
            print(f"{options.html}: {error.strerror}", file=sys.stderr)
            return 2
    if options.json:
        report = _json(source, summary, found)
        if source.is_trace or options.policy:
            report["policy"] = foresight_json(*replay(source.entries, Policy()))
        if gate:
            report["gate_missed"] = missed
        _print(json.dumps(report, indent=2))
    else:
        _print("\n\n".join(_blocks(source, summary, other, found, missed, options)))
    return int(bool(missed))


def _parser(*, needs_source: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec report",
        description="Show where the time of turns went: a waterfall of each turn, and percentiles"
        " over all of them.",
        epilog="example: halfsec report --since 2026-11-20 --html report.html --gate"
        " 'e2e.p95<=500 cutin<=0.02'",
    )
    kinds = "a session's trace (JSON lines), or a store (a SQLite file, or postgresql://...)"
    if needs_source:
        parser.add_argument("source", help=kinds)
    else:
        shown = f"{kinds}; default: the store of the settings (latency_budget.store)"
        parser.add_argument("source", nargs="?", help=shown)
        parser.add_argument("--config", metavar="FILE", help="settings file (halfsec.toml)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the report with its waterfalls as a page: one file, no script, no network",
    )
    parser.add_argument(
        "--gate",
        metavar="CONDITIONS",
        help="exit with 1 unless all hold, as in 'e2e.p95<=500 cutin<=0.02 asr.p90<200'",
    )
    parser.add_argument(
        "--compare", metavar="OTHER", help="a second trace or store: is it faster, or is it chance?"
    )
    parser.add_argument(
        "--policy",
        action="store_true",
        help="what the policy would have done, turn by turn; always shown for a trace",
    )
    parser.add_argument("--last", type=int, metavar="N", help="only the newest so many turns")
    choosing = parser.add_argument_group("of a store")
    choosing.add_argument("--session", help="only this one's turns")
    choosing.add_argument("--profile", help="only turns held to this budget")
    choosing.add_argument("--agent", help="only turns of the agent of this name")
    choosing.add_argument("--replica", help="only turns of the server of this name")
    choosing.add_argument("--since", metavar="TIME", help="a date, or seconds since 1970")
    choosing.add_argument("--until", metavar="TIME")
    parser.add_argument(
        "--width",
        type=int,
        default=shutil.get_terminal_size().columns,
        help="columns to draw in (default: the terminal's)",
    )
    return parser


def _default_source(place: Place, wanted: TurnFilter) -> Source:
    """Raises SourceError."""
    if isinstance(place, Path) and not place.exists():
        raise SourceError(
            f"{place}: no turn was kept yet; a server keeps them there (unless latency_budget.store"
            " is off), or name the trace or store to read"
        )
    return read_source(place, wanted)


def _filter(options: argparse.Namespace) -> TurnFilter:
    """Raises ValueError."""
    if options.last is not None and options.last < 1:
        raise ValueError("--last is 1 or more")
    if options.last is not None and options.last > MAX_LAST:
        raise ValueError(f"--last is {MAX_LAST} at most")
    return TurnFilter(
        session=options.session,
        profile=options.profile,
        agent=options.agent,
        replica=options.replica,
        since_unix_ns=None if options.since is None else unix_ns_of(options.since),
        until_unix_ns=None if options.until is None else unix_ns_of(options.until),
        max_turns=options.last,
    )


def _json(source: Source, summary: dict[str, Any], found: Comparison | None) -> dict[str, Any]:
    turns = [
        turn_json(entry.record, entry.caller_text, entry.agent_text, entry.reply_s)
        for entry in source.entries
    ]
    report = report_json(source.session, turns, summary, source.doubts)
    if found is not None:
        report["comparison"] = {
            "measure": found.measure,
            "p_value": found.p_value,
            "verdict": found.verdict,
            **{
                each.name: {
                    "first_ms": each.first_ms,
                    "second_ms": each.second_ms,
                    "difference_ms": each.ms,
                    "interval_ms": [each.low_ms, each.high_ms],
                }
                for each in found.differences
            },
        }
    return report


def _blocks(
    source: Source,
    summary: dict[str, Any],
    other: Source | None,
    found: Comparison | None,
    missed: Sequence[str],
    options: argparse.Namespace,
) -> list[str]:
    """The blocks of text to print, with an empty line between them."""
    name = source.name if source.session is None else f"session {source.session}"
    drawn = source.entries[-DRAWN:] if options.html is None else ()
    left_out = len(source.entries) - len(drawn)
    blocks = [name, *source.doubts]
    if options.html is not None:
        blocks.append(f"the turns are drawn in {options.html}")
    elif left_out:
        blocks.append(f"{left_out} turns before these are not drawn")
    blocks += [waterfall(entry.record, width=options.width, budget=entry.budget) for entry in drawn]
    blocks.append(summary_table(summary))
    if source.is_trace or options.policy:
        blocks.append(foresight_table(*replay(source.entries, Policy())))
    if other is not None and found is not None:
        blocks.append(_comparison(source.name, other.name, found))
    return [*blocks, *missed]


def _comparison(first: str, second: str, found: Comparison) -> str:
    lines = [
        f"first:  {first}, {found.num_first} turns",
        f"second: {second}, {found.num_second} turns",
        f"{found.measure:<14}{'first':>9}{'second':>9}{'change':>9}  95 % interval",
    ]
    lines += [
        f"{each.name:<14}{each.first_ms:>9.1f}{each.second_ms:>9.1f}{each.ms:>+9.1f}"
        f"  {each.low_ms:+.1f} to {each.high_ms:+.1f}"
        for each in found.differences
    ]
    return "\n".join([*lines, found.verdict])


def _print(text: str) -> None:
    """Print to any terminal and any pipe: one without block characters, one closed by its
    reader."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered would be flushed at exit and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
