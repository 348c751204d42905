"""`python -m latency_budget trace.jsonl`: where the time of a recorded session went."""

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .ledger import records_of
from .record import TurnRecord
from .report import report_json, summarize, turn_json
from .trace import MAX_LINE_CHARS, Trace, TraceError, read_trace
from .waterfall import summary_table, waterfall


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 with one line on stderr where there is nothing to report."""
    options = _parser().parse_args(argv)
    try:
        trace = _load(options.trace)
        records = records_of(trace.marks())
        if not records:
            raise TraceError("the trace holds no marks: no turn was timed in this session")
    except (TraceError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print(f"{options.trace}: {reason}", file=sys.stderr)
        return 2
    _print(_json(trace, records) if options.json else _text(trace, records, options.width))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec report",
        description="Show where the time of a session's turns went: a waterfall of each turn and"
        " percentiles over all of them.",
    )
    parser.add_argument("trace", help="a session's trace (JSON lines)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--width",
        type=int,
        default=shutil.get_terminal_size().columns,
        help="columns to draw in (default: the terminal's)",
    )
    return parser


def _load(path: str) -> Trace:
    try:
        with Path(path).open(encoding="utf-8") as file:
            # Bounded, because a file that is no trace may be one endless line.
            return read_trace(iter(lambda: file.readline(MAX_LINE_CHARS + 1), ""))
    except UnicodeDecodeError:
        raise TraceError("not UTF-8 text, so this is not a trace") from None


def _print(text: str) -> None:
    """To any terminal and any pipe: one without block characters, one closed by its reader."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered would be flushed at exit and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _doubts(trace: Trace) -> list[str]:
    if not trace.header.dropped:
        return []
    return [f"the first {trace.header.dropped} records of the session are not in this trace"]


def _json(trace: Trace, records: Sequence[TurnRecord]) -> str:
    """A trace holds no texts and no audio: those fields are empty."""
    turns = [turn_json(record, "", "", None) for record in records]
    report = report_json(trace.header.session, turns, summarize(records), _doubts(trace))
    return json.dumps(report, indent=2)


def _text(trace: Trace, records: Sequence[TurnRecord], width: int) -> str:
    blocks = [f"session {trace.header.session}", *_doubts(trace)]
    blocks += [waterfall(record, width=width) for record in records]
    return "\n\n".join([*blocks, summary_table(summarize(records))])


if __name__ == "__main__":
    sys.exit(main())
