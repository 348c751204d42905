"""`halfsec bench chat`: are the agent's answers right, speakable and acted upon?

Holds the scripted dialogues of `dialogues/` with a model, greedily, and judges each by program. A
dialogue passes if every reply and its final state do. Without `--url` a server with the given
settings is started, and its default agent's prompt is used; any other server is told the same.

With `--voice` the same dialogues are spoken in calls, and more of callers who hesitate and
interrupt; the agent has its own prompt.
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agent.cli.settings_arguments import add_arguments, flags_of
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.errors import BenchError, HalfsecError
from agent.session.response.opening_clause import shaped
from benchmarks.callers.server_process import own_server
from benchmarks.voice.options import positive
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine

from .contestant import DialogueContestant, TextContestant
from .dialogue import FOLDER, Dialogue, read_dialogues
from .records import DialogueRecord
from .report import (
    RIGHT_CALLS,
    failure,
    missed_gates,
    progress,
    summary,
    table,
    voice_figures,
    voice_table,
)

CALLER_VOICE: Final = "piper-joe"
"""Voice of the callers: a man's, where the agent's own is a woman's."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 if a gate is missed; 2 if nothing could be measured."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        dialogues = chosen(
            read_dialogues(options.dialogues or [FOLDER]),
            only=options.only,
            limit=options.limit,
            by_voice=options.voice,
        )
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
    if options.voice:
        result["voice"] = voice_figures(records) | {"caller": CALLER_VOICE}
        print(voice_table(result["voice"]))
    if options.json is not None:
        text = json.dumps(result, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    if not any(turn.reply or turn.calls for record in records for turn in record.turns):
        print(f"bench chat: no line was answered.\n{failure(records[0])}", file=sys.stderr)
        return 2
    missed = missed_gates(result["summary"], options.min, options.min_calls)
    for line in missed:
        print(f"GATE MISSED: {line}")
    return 1 if missed else 0


def chosen(
    dialogues: Sequence[Dialogue], *, only: Sequence[str] | None, limit: int | None, by_voice: bool
) -> list[Dialogue]:
    """Dialogues to hold: the first `limit` of each category of `only`. Those that need a voice are
    skipped without one, with a line that says so. Raises BenchError if none is left."""
    categories = dict.fromkeys(each.category for each in dialogues)
    unknown = [name for name in only or () if name not in categories]
    if unknown:
        raise BenchError(
            f"--only {unknown[0]!r}: there are no dialogues of this category, but of "
            f"{', '.join(categories)}."
        )
    wanted = [each for each in dialogues if only is None or each.category in only]
    held = [each for each in wanted if by_voice or not each.needs_voice]
    if len(held) < len(wanted):
        number = len(wanted) - len(held)
        print(f"{number} dialogues need a voice and are skipped: add --voice", file=sys.stderr)
    counts: Counter[str] = Counter()
    kept = []
    for each in held:
        counts[each.category] += 1
        if limit is None or counts[each.category] <= limit:
            kept.append(each)
    if not kept:
        raise BenchError("There are no dialogues to hold.")
    return kept


def _hold(
    contestant: DialogueContestant, dialogues: Sequence[Dialogue], *, is_shown: bool
) -> tuple[list[DialogueRecord], float]:
    clock = SystemClock()
    started_ns = clock.now_ns()
    records = []
    for index, dialogue in enumerate(dialogues, 1):
        record = contestant.hold(dialogue)
        records.append(record)
        print(f"{index} of {len(dialogues)} {progress(record)}", file=sys.stderr, flush=True)
        if is_shown and not record.is_passed:
            print(failure(record), flush=True)
    return records, (clock.now_ns() - started_ns) / 1e9


@contextlib.contextmanager
def _contestant(options: argparse.Namespace) -> Iterator[tuple[DialogueContestant, str]]:
    """The model and its name. Raises HalfsecError."""
    config = read_config(flags_of(options), path=options.config)
    model = options.model or config.llm_engine.model
    with contextlib.ExitStack() as stack:
        if options.voice:
            yield _voice_contestant(options, config, stack), model
            return
        agent = shaped(config.agents["default"], by_clause=True)
        url = options.url
        if url is None:
            url = _served(options, stack).replace("ws://", "http://").replace("/realtime", "")
        contestant = TextContestant(
            url,
            model,
            agent.instructions,
            [(each.user, each.assistant) for each in agent.examples],
            with_tools=config.llm_engine.examples_with_tools,
            key=options.key,
        )
        stack.callback(contestant.close)
        yield contestant, model


def _served(options: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    """Start a server with the given settings; returns the URL of its voice WebSocket."""
    serve = ["--set", "access.require_key=never"]
    for name, value in flags_of(options).items():
        serve += ["--set", f"{name}={value}"]
    if options.config is not None:
        serve += ["--config", options.config]
    return stack.enter_context(own_server(serve)).url


def _voice_contestant(
    options: argparse.Namespace, config: Config, stack: contextlib.ExitStack
) -> DialogueContestant:
    import tts  # imports take seconds, and only this option needs them
    from agent.stages.model_store.catalogue import ModelStore

    from .caller_voice import CallerVoice
    from .voice_contestant import VoiceContestant

    if CALLER_VOICE in (config.tts.voice, config.agents["default"].voice):
        raise BenchError(f"The callers speak with {CALLER_VOICE}: choose another tts.voice.")
    store = ModelStore()
    store.locate(CALLER_VOICE)
    try:
        voice = CallerVoice(tts.load_voice(CALLER_VOICE, store.directory))
    except tts.VoiceError as error:
        raise BenchError(f"The callers have no voice: {error}") from None
    url = options.url or _served(options, stack)
    return VoiceContestant(url, voice, key=options.key or None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench chat",
        description="Scripted dialogues, judged by program.",
        epilog="example: halfsec bench chat --set llm_engine.model=qwen2.5-coder-0.5b-instruct",
    )
    add_arguments(parser)
    add = parser.add_argument
    add("dialogues", nargs="*", type=Path, help="TOML files or folders (the project's own)")
    add(
        "--voice",
        action="store_true",
        help=f"speak the dialogues in calls, in real time, with the voice {CALLER_VOICE} (needs "
        "the extras piper and bench)",
    )
    add(
        "--url",
        help="of another server, up to /v1, or with --voice of its WebSocket; without it one is "
        "started",
    )
    add("--model", help="name of its model (llm_engine.model)")
    add("--key", default="", help="its API key")
    add("--only", action="append", metavar="CATEGORY", help="hold only these; may be repeated")
    add("--limit", type=positive, metavar="N", help="hold only the first N of each category")
    add("--show", action="store_true", help="print the dialogues that fail")
    add("--min", type=float, metavar="PERCENT", help="gate: dialogues passed")
    add("--min-calls", type=float, metavar="PERCENT", help=f"gate: {RIGHT_CALLS}")
    add("--json", type=Path, help="save all replies and verdicts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
