"""`python -m benchmarks.end_of_turn.message_ends`: the language model's opinion on words of pauses.

For each text in PAUSES (`turn_pauses.py`) the model that the settings name prefills the default
agent's prompt and the text as the caller's first message, as in a call, and gives its
log-probability that the message ends there. OUT is JSON, text to log-probability; texts that OUT
has already are left out, so that a run goes on where another stopped. 10 to 60 ms a text.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import llm_engine
from agent.cli.settings_arguments import add_arguments, flags_of
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.errors import HalfsecError
from agent.session.response.opening_clause import example_messages
from agent.stages.load_progress import Conversion
from agent.stages.loading import Loading
from agent.stages.model_store.catalogue import ModelStore
from asr.errors import AudioError
from latency_budget.account.clock import SystemClock

from .turn_pauses import read_pauses

BLOCK: Final = 50
"""Texts after which OUT is written."""


async def scored(
    engine: llm_engine.Engine, config: Config, texts: Iterable[str]
) -> dict[str, float]:
    """Log-probability that a message ends, for each of these texts that has words."""
    _, profile = config.profile(None)
    examples = [llm_engine.ChatMessage(each.role, each.text) for each in example_messages(profile)]
    talk = await engine.open_conversation(profile.instructions, examples=examples)
    found: dict[str, float] = {}
    talk.watch_message_end(found.__setitem__)
    for text in texts:
        await talk.warm(text)
    await talk.close()
    return found


def read_message_ends(path: Path) -> dict[str, float]:
    """Read what `main` wrote. Raises AudioError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {str(text): float(log_prob) for text, log_prob in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AudioError(
            f"{path}: no scores in it ({error}); "
            "make them with `python -m benchmarks.end_of_turn.message_ends`"
        ) from error


def _run(args: argparse.Namespace) -> int:
    config = read_config(flags_of(args), args.config)
    texts = {pause.final for path in args.pauses for pause in read_pauses(path)}
    known = read_message_ends(args.out) if args.out.exists() else {}
    wanted = sorted(text for text in texts - known.keys() if text.strip())
    clock = SystemClock()
    load = Loading(config, ModelStore(), clock, Conversion(config.llm_engine.model, clock))
    engine = load.engine()
    try:
        began_ns = clock.now_ns()
        for first in range(0, len(wanted), BLOCK):
            known |= asyncio.run(scored(engine, config, wanted[first : first + BLOCK]))
            text = json.dumps(known, indent=0, sort_keys=True) + "\n"
            args.out.write_text(text, encoding="utf-8")
        took_ms = (clock.now_ns() - began_ns) / 1e6 / max(1, len(wanted))
    finally:
        engine.close()
    print(f"{len(wanted)} texts by {config.llm_engine.model}, {took_ms:.0f} ms each")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.message_ends", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path)
    parser.add_argument("pauses", type=Path, nargs="+", help="files written by turn_pauses")
    add_arguments(parser)
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, HalfsecError, OSError) as error:
        print(f"message_ends: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
