"""`python -m llm_engine.bench`: load, first token and time per token, for each way to calculate.

Run it on an idle machine and compare within one run: two cores that something else uses give other
figures from one minute to the next.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from latency_budget.clock import SystemClock
from latency_budget.turn import TurnId
from llm_engine.__main__ import default_model
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine
from llm_engine.errors import EngineError, ModelError, RequestError
from llm_engine.quality import CONFIGS

SYSTEM = "You are a friendly voice assistant. Answer in one or two short sentences."
QUESTIONS = (
    "What is the capital of France?",
    "And what do people like to eat there?",
    "How do I get there from London?",
    "Tell me something about the river.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to calculate."""

    backend: str
    precision: str
    load_s: float
    cold_first_token_ms: float
    """Of a conversation's first turn: system prompt and question."""
    warm_first_token_ms: float
    """Median of the later turns, whose history is in the cache."""
    token_ms: float
    """Median between two tokens, with a few hundred tokens of history."""
    num_tokens: int


async def measure(path: Path, config: EngineConfig, max_tokens: int) -> Row:
    """One conversation. Raises ModelError, EngineError."""
    clock = SystemClock()
    started_ns = clock.now_ns()
    engine = await asyncio.to_thread(Engine.load, path, config)
    load_s = (clock.now_ns() - started_ns) / 1e9
    await engine.warm()
    first_ms: list[float] = []
    between_ms: list[float] = []
    sampling = SamplingParams(max_tokens=max_tokens)
    conversation = await engine.open_conversation(SYSTEM, sampling=sampling)
    for number, question in enumerate(QUESTIONS, start=1):
        await conversation.commit(question)
        before_ns, count = clock.now_ns(), 0
        async for chunk in conversation.generate(TurnId(number)):
            now_ns = clock.now_ns()
            if chunk.token_ids:
                times = between_ms if count else first_ms
                times.append((now_ns - before_ns) / 1e6 / len(chunk.token_ids))
                count += len(chunk.token_ids)
            before_ns = now_ns
    await conversation.close()
    await asyncio.to_thread(engine.close)
    return Row(
        config.backend.value,
        config.precision.value,
        load_s,
        first_ms[0],
        statistics.median(first_ms[1:]),
        statistics.median(between_ms),
        len(first_ms) + len(between_ms),
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'':<16}{'load s':>8}{'first token ms':>16}{'with history':>14}"
        f"{'ms a token':>12}{'tokens':>8}"
    ]
    lines += [
        f"{row.backend + ' ' + row.precision:<16}{row.load_s:>8.1f}{row.cold_first_token_ms:>16.0f}"
        f"{row.warm_first_token_ms:>14.0f}{row.token_ms:>12.1f}{row.num_tokens:>8}"
        for row in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 for a model that can't be used."""
    parser = argparse.ArgumentParser(
        prog="halfsec bench llm", description="Time the language model engine."
    )
    parser.add_argument(
        "--model", type=Path, help="GGUF file or Hugging Face directory (the embedded one)"
    )
    parser.add_argument("--threads", type=int, default=2, help="processor threads (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of each reply (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    options = parser.parse_args(argv)
    try:
        path = options.model or default_model()
        rows = [
            asyncio.run(
                measure(path, replace(config, num_threads=options.threads), options.max_tokens)
            )
            for config in CONFIGS
        ]
    except (ModelError, RequestError, EngineError) as error:
        print(f"bench llm: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if options.json is not None:
        result = {"bench": "llm", "model": path.name, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
