"""`halfsec bench long`: first tokens and memory in a call longer than the model's context.

Types the turns of `long_call.toml` into one call of the service, over its WebSocket, with a pause
after each reply as if it were being listened to. The context is small, so that it is exceeded
several times. Two gates: no reply's first token comes later than `MAX_RATIO` times that of turn 5,
and what the caller told in turn 2 is known from turn 60 on and at the end.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.cli.settings_arguments import add_arguments, flags_of
from agent.client import events as ev
from agent.client.call import Call, connect
from agent.config.sources import read_config
from agent.errors import BenchError, HalfsecError
from benchmarks.callers.server_process import own_server
from benchmarks.voice.report import heading, save
from latency_budget.account.clock import Clock, SystemClock

SCRIPT: Final = Path(__file__).with_name("long_call.toml")
MAX_RATIO: Final = 1.5
REFERENCE: Final = (4, 5, 6)
"""Turns whose median time stands for turn 5's: a single time may be a stray."""
REPLY_S: Final = 120.0
"""Longest wait for a reply."""
CONNECT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Question:
    """A line of the caller that asks for a fact."""

    caller: str
    knows: str
    """Regular expression that a reply which knows the fact matches."""


@dataclass(frozen=True, slots=True)
class CallScript:
    """The call's turns."""

    fact_turn: int
    facts: str
    first_question_turn: int
    questions: tuple[Question, ...]
    talk: tuple[str, ...]

    def turns(self, num_turns: int) -> list[tuple[str, Question | None]]:
        """The caller's lines. Raises BenchError where the questions do not fit."""
        asked_at = [
            *range(self.first_question_turn, self.first_question_turn + len(self.questions)),
            *range(num_turns - len(self.questions) + 1, num_turns + 1),
        ]
        if len(set(asked_at)) < len(asked_at) or asked_at != sorted(asked_at):
            least = self.first_question_turn + 2 * len(self.questions) - 1
            raise BenchError(f"--turns must be at least {least}.")
        asked = dict(zip(asked_at, self.questions * 2, strict=True))
        lines: list[tuple[str, Question | None]] = []
        for turn in range(1, num_turns + 1):
            if turn == self.fact_turn:
                lines.append((self.facts, None))
            elif turn in asked:
                lines.append((asked[turn].caller, asked[turn]))
            else:
                lines.append((self.talk[(turn - 1) % len(self.talk)], None))
        return lines


@dataclass(slots=True)
class Turn:
    """What a turn brought."""

    turn: int
    caller: str
    reply: str = ""
    first_token_ms: float = 0.0
    """From the request to the first text that the client receives."""
    prompt_tokens: int = 0
    computed_tokens: int = 0
    """Of the prompt, those that were not in the cache."""
    knows: bool | None = None
    """The reply has the fact that it was asked for; None: it was not."""


@dataclass(slots=True)
class LongCallResult:
    """What the call brought."""

    turns: list[Turn] = field(default_factory=list)
    condensed: list[dict[str, Any]] = field(default_factory=list)
    """Summaries, each with the turn after which it came."""

    @property
    def reference_ms(self) -> float:
        """First token of turn 5."""
        return statistics.median(
            each.first_token_ms for each in self.turns if each.turn in REFERENCE
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 if a gate is missed; 2 if nothing could be measured."""
    options = _parser().parse_args(argv)
    try:
        lines = read_script(options.script).turns(options.turns)
        flags = flags_of(options) | _defaults(flags_of(options))
        config = read_config(flags, path=options.config)
        serve = ["--set", "access.require_key=never"]
        for name, value in flags.items():
            serve += ["--set", f"{name}={value}"]
        if options.config is not None:
            serve += ["--config", options.config]
        with own_server(serve) as server:
            record = asyncio.run(hold(server.url, lines, options.gap_s))
    except HalfsecError as error:
        print(f"bench long: {error}", file=sys.stderr)
        return 2
    missed = missed_gates(record)
    result = heading("long", vars(options)) | {
        "model": config.llm_engine.model,
        "context": config.llm_engine.context,
        "condense": config.llm_engine.condense,
        "reference_ms": round(record.reference_ms, 1),
        "slowest_ratio": round(slowest_ratio(record), 2),
        "missed": missed,
        **asdict(record),
    }
    print(table(record))
    if options.json is not None:
        save(result, options.json)
    for line in missed:
        print(f"GATE MISSED: {line}")
    return 1 if missed else 0


def read_script(path: Path) -> CallScript:
    """Raises BenchError for a file that is no script."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        questions = tuple(Question(each["caller"], each["knows"]) for each in data["questions"])
        return CallScript(
            int(data["fact_turn"]),
            str(data["facts"]),
            int(data["first_question_turn"]),
            questions,
            tuple(data["talk"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} is no script of a long call: {error!r}") from None


async def hold(
    url: str,
    lines: Sequence[tuple[str, Question | None]],
    gap_s: float,
    clock: Clock | None = None,
) -> LongCallResult:
    """Hold the call. Raises BenchError where a reply does not come."""
    clock = clock or SystemClock()
    record = LongCallResult()
    async with connect(url, wait_s=CONNECT_S) as call:
        await call.update(output_modalities=["text"])
        events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(_read(call, events))
                for number, (line, question) in enumerate(lines, 1):
                    turn = Turn(number, line)
                    record.turns.append(turn)
                    await _timely_answer(call, events, turn, record, clock)
                    if question is not None:
                        turn.knows = re.search(question.knows, turn.reply) is not None
                    shown = f"{number:>4} {turn.first_token_ms:6.0f} ms  {turn.reply}"
                    print(shown, file=sys.stderr)
                    await asyncio.sleep(gap_s)
                reading.cancel()
        except* BenchError as errors:
            raise BenchError(str(errors.exceptions[0])) from None
    return record


async def _timely_answer(
    call: Call,
    events: "asyncio.Queue[ev.ClientEvent]",
    turn: Turn,
    record: LongCallResult,
    clock: Clock,
) -> None:
    try:
        async with asyncio.timeout(REPLY_S):
            await _answer(call, events, turn, record, clock)
    except TimeoutError:
        raise BenchError(f"Turn {turn.turn} had no answer in {REPLY_S:g} s.") from None


async def _read(call: Call, events: "asyncio.Queue[ev.ClientEvent]") -> None:
    async for event in call.events():
        events.put_nowait(event)


async def _answer(
    call: Call,
    events: "asyncio.Queue[ev.ClientEvent]",
    turn: Turn,
    record: LongCallResult,
    clock: Clock,
) -> None:
    asked_ns = clock.now_ns()
    await call.send_text(turn.caller)
    while True:
        event = await events.get()
        match event:
            case ev.ReplyText() if not turn.first_token_ms:
                turn.first_token_ms = round((event.at_ns - asked_ns) / 1e6, 1)
            case ev.ContextCondensed(summary, num_messages, before, after):
                told: dict[str, Any] = {"after_turn": turn.turn - 1, "messages": num_messages}
                told |= {"tokens_before": before, "tokens": after, "summary": summary}
                record.condensed.append(told)
            case ev.ReplyDone():
                # Small models loop; a reply that its limit cut off came as well as any.
                if event.status not in ("completed", "incomplete"):
                    raise BenchError(
                        f"Turn {turn.turn} ended {event.status}: {event.error_message}"
                    )
                turn.reply = event.text
                details = event.usage.get("input_token_details") or {}
                turn.prompt_tokens = int(event.usage.get("input_tokens", 0))
                turn.computed_tokens = turn.prompt_tokens - int(details.get("cached_tokens", 0))
                return
            case ev.ServerError():
                raise BenchError(f"Turn {turn.turn}: the server says: {event.message}")
            case ev.Closed():
                raise BenchError(f"The call ended in turn {turn.turn}: {event.reason}")
            case _:
                pass


def slowest_ratio(record: LongCallResult) -> float:
    """First token of the slowest turn after the reference, as a multiple of turn 5's."""
    later = [each.first_token_ms for each in record.turns if each.turn > max(REFERENCE)]
    return max(later, default=0.0) / record.reference_ms


def missed_gates(record: LongCallResult) -> list[str]:
    """Gates missed, a line for each turn."""
    limit_ms = MAX_RATIO * record.reference_ms
    late = [
        f"turn {each.turn}: first token after {each.first_token_ms:.0f} ms > {limit_ms:.0f}"
        for each in record.turns
        if each.turn > max(REFERENCE) and each.first_token_ms > limit_ms
    ]
    unknown = [
        f"turn {each.turn}: not known: {each.caller!r}, answered {each.reply!r}"
        for each in record.turns
        if each.knows is False
    ]
    return late + unknown


def table(record: LongCallResult) -> str:
    """Format the call: first tokens by ten turns, summaries, and what is known."""
    lines = [f"{'turns':<10}{'first token, ms: median':>24}{'slowest':>9}{'prompt tokens':>15}"]
    for start in range(0, len(record.turns), 10):
        part = record.turns[start : start + 10]
        times = [each.first_token_ms for each in part]
        lines.append(
            f"{f'{part[0].turn} to {part[-1].turn}':<10}{statistics.median(times):>24.0f}"
            f"{max(times):>9.0f}{part[-1].prompt_tokens:>15}"
        )
    lines.append(
        f"turn 5: {record.reference_ms:.0f} ms; slowest after it: {slowest_ratio(record):.2f}x"
    )
    lines += [
        f"condensed after turn {each['after_turn']}: {each['messages']} messages, "
        f"{each['tokens_before']} to {each['tokens']} tokens"
        for each in record.condensed
    ]
    for turn in record.turns:
        if turn.knows is not None:
            verdict = "known" if turn.knows else "NOT KNOWN"
            lines.append(f"turn {turn.turn}, {verdict}: {turn.caller} {turn.reply}")
    return "\n".join(lines)


def _defaults(flags: dict[str, Any]) -> dict[str, Any]:
    """A small context, so that it is exceeded soon."""
    name = "llm_engine.context"
    return {} if name in flags else {name: "2048"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench long",
        description="A call longer than the model's context, typed.",
        epilog="example: halfsec bench long --preset embedded-0.5b",
    )
    add_arguments(parser)
    add = parser.add_argument
    add("--turns", type=int, default=100, metavar="N", help="of the call (100)")
    add("--gap-s", type=float, default=2.0, metavar="S", help="pause after each reply (2 s)")
    add("--script", type=Path, default=SCRIPT, help="TOML file of the call")
    add("--json", type=Path, help="save all turns")
    return parser


if __name__ == "__main__":
    sys.exit(main())
