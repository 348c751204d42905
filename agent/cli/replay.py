"""`halfsec replay`: replay a recorded call through the turn-taking machine.

The machine reads no clock and uses no random numbers, so the events of a trace, at their recorded
times, must give the recorded commands. Where they don't, the machine has changed since (or got an
input that is not in the trace), and the first difference shows where.
"""

import argparse
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.observability.event_codec import (
    Record,
    RecordError,
    command_from_record,
    event_from_record,
    to_record,
)
from agent.turn_taking.events import RulesChanged
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import IllegalEvent
from latency_budget.reporting.trace import (
    MAX_LINE_CHARS,
    Trace,
    TraceError,
    TraceRecord,
    read_trace,
)

TIMER: Final = "TimerFired"
"""Type of the record of the machine's timer among the events."""

NOTHING: Final = "nothing"


class ReplayError(ValueError):
    """The trace can't be replayed. The message has the reason."""


@dataclass(frozen=True, slots=True)
class CommandDifference:
    """First difference between the replay and the recording."""

    index: int
    """Number of the command, from 0."""
    at_ms: float
    """ms since the session's start."""
    expected: str
    """The recorded command, or "nothing"."""
    got: str
    """The machine's command, "nothing", or the reason why it refused the event."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of a replay, up to the first difference."""

    num_events: int
    num_commands: int
    """Number of commands that were compared."""
    difference: CommandDifference | None


def replay(trace: Trace) -> ReplayResult:
    """Feed the trace's events to a fresh machine; stop at the first command that differs.

    Raises ReplayError for a trace that lacks its beginning, or of another version.
    """
    if trace.header.dropped:
        raise ReplayError(
            f"the first {trace.header.dropped} records of the session are not in this trace;"
            " only a whole trace can be replayed"
        )
    replayer = _Replayer()
    for line, record in enumerate(trace.records, start=2):  # as lines of the file, after its header
        if record.kind == "mark":
            continue
        try:
            difference = replayer.take(record)
        except (RecordError, ReplayError) as error:
            raise ReplayError(f"line {line}: {error}") from None
        if difference is not None:
            return replayer.result(difference)
    return replayer.result(replayer.left_over())


class _Replayer:
    """A machine, with its commands that have not been compared yet."""

    def __init__(self) -> None:
        self._machine: TurnTaking | None = None
        self._done: deque[Record] = deque()
        self._at_ns = 0
        self._num_events = 0
        self._num_commands = 0

    def take(self, record: TraceRecord) -> CommandDifference | None:
        """Process the next event or command. Returns a difference, if there is one."""
        if self._machine is None:
            self._begin(record)
            return None
        if record.kind == "command":
            expected = to_record(command_from_record(_flat(record)))
            got = self._done.popleft() if self._done else None
            if got != expected:
                return self._difference(_text(expected), _text(got))
            self._num_commands += 1
            return None
        difference = self.left_over()
        if difference is not None:
            return difference
        self._at_ns = record.at_ns
        try:
            self._done.extend(_decide(self._machine, record))
        except IllegalEvent as error:
            return self._difference("that the event is legal", str(error))
        self._num_events += 1
        return None

    def left_over(self) -> CommandDifference | None:
        """The difference of a command that was not recorded."""
        return self._difference(NOTHING, _text(self._done[0])) if self._done else None

    def result(self, difference: CommandDifference | None) -> ReplayResult:
        """The result. Raises ReplayError where there was no event."""
        if self._num_events == 0:
            raise ReplayError("the trace holds no events: there is nothing to replay")
        return ReplayResult(self._num_events, self._num_commands, difference)

    def _begin(self, record: TraceRecord) -> None:
        """Create the machine with the rules of the first event."""
        began = event_from_record(_flat(record)) if record.kind == "event" else None
        if not isinstance(began, RulesChanged):
            raise ReplayError(f"{record.type} begins the trace, where RulesChanged is wanted")
        self._machine = TurnTaking(began.rules)
        self._num_events = 1

    def _difference(self, expected: str, got: str) -> CommandDifference:
        return CommandDifference(self._num_commands, self._at_ns / 1_000_000, expected, got)


def _decide(machine: TurnTaking, record: TraceRecord) -> list[Record]:
    if record.type == TIMER:
        commands = machine.on_timer(record.at_ns)
    else:
        commands = machine.apply(event_from_record(_flat(record)), record.at_ns)
    return [to_record(command) for command in commands]


def _flat(record: TraceRecord) -> Record:
    return {"type": record.type, "turn": record.turn, **record.fields}


def _text(record: Record | None) -> str:
    if record is None:
        return NOTHING
    fields = ", ".join(f"{name}={value!r}" for name, value in record.items() if name != "type")
    return f"{record['type']}({fields})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 identical, 1 different, 2 with one line on stderr
    for an unusable trace."""
    parser = argparse.ArgumentParser(
        prog="halfsec replay",
        description="Take the decisions of a recorded call again and compare them with the"
        " recorded ones.",
        epilog="Exit status: 0 identical, 1 different, 2 no trace or not a whole one.",
    )
    parser.add_argument("trace", help="a session's trace (JSON lines)")
    path = parser.parse_args(argv).trace
    try:
        result = replay(_load(path))
    except (TraceError, ReplayError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print(f"{path}: {reason}", file=sys.stderr)
        return 2
    counted = f"{result.num_events} events, {result.num_commands} commands"
    difference = result.difference
    if difference is None:
        print(f"{counted}, identical")
        return 0
    print(
        f"{counted}, then different: command {difference.index} at {difference.at_ms:.3f} ms\n"
        f"  expected {difference.expected}\n"
        f"  got      {difference.got}"
    )
    return 1


def _load(path: str) -> Trace:
    try:
        with Path(path).open(encoding="utf-8") as file:
            # Bounded, because a file that is no trace may be one endless line.
            return read_trace(iter(lambda: file.readline(MAX_LINE_CHARS + 1), ""))
    except UnicodeDecodeError:
        raise TraceError("not UTF-8 text, so this is not a trace") from None


if __name__ == "__main__":
    sys.exit(main())
