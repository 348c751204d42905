"""Command `python -m llm_engine "Hello"`: one answer on stdout, timings on stderr."""

import argparse
import asyncio
import io
import os
import sys
from contextlib import aclosing

from latency_budget.account.clock import SystemClock
from llm_engine.chat.template import ChatMessage
from llm_engine.checkpoints.load import default_model

from .config import BackendName, EngineConfig, Precision, SamplingParams
from .engine import Engine
from .errors import EngineError, ModelError, RequestError

_CLOCK = SystemClock()


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0, or 2 after one line on stderr with the error."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack some characters
    try:
        sampling = SamplingParams(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            seed=options.seed,
            max_tokens=options.max_tokens,
        )
        config = EngineConfig(
            precision=options.precision, backend=options.backend, num_threads=options.threads
        )
        start_ns = _CLOCK.now_ns()
        engine = Engine.load(options.model or default_model(), config)
        load_s = (_CLOCK.now_ns() - start_ns) / 1e9
        try:
            asyncio.run(_answer(engine, options.text, options.system, sampling, load_s))
        finally:
            engine.close()
    except (ModelError, RequestError, EngineError) as error:
        print(f"llm_engine: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reading end of the pipe is closed; the interpreter must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    return 0


async def _answer(
    engine: Engine, text: str, system: str, sampling: SamplingParams, load_s: float
) -> None:
    await engine.warm()
    messages = [ChatMessage("user", text)]
    if system:
        messages.insert(0, ChatMessage("system", system))
    start_ns = _CLOCK.now_ns()
    instants: dict[str, int] = {}
    usage = None
    async with aclosing(engine.chat(messages, sampling, on_mark=instants.__setitem__)) as stream:
        async for chunk in stream:
            print(chunk.text, end="", flush=True)
            usage = chunk.usage
    end_ns = _CLOCK.now_ns()
    print()
    assert usage is not None
    first_ns = instants["llm_first_token"]
    per_token_ms = (end_ns - first_ns) / 1e6 / max(usage.output_tokens, 1)
    print(
        f"load {load_s:.1f} s, prompt {usage.prompt_tokens} tokens, first token after "
        f"{(first_ns - start_ns) / 1e6:.0f} ms, {usage.output_tokens} tokens at "
        f"{per_token_ms:.1f} ms each",
        file=sys.stderr,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_engine", description="Let a language model answer one message."
    )
    parser.add_argument("text", help="what to say to it")
    parser.add_argument("--model", help="a GGUF file or a Hugging Face directory")
    parser.add_argument("--system", default="", help="the system prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default) to 2")
    parser.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens")
    parser.add_argument("--top-p", type=float, default=1.0, help="keep this much probability")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop what is less likely")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="1 (default) to 2")
    parser.add_argument("--seed", type=int, help="same seed, same text")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default=Precision.FLOAT32, help=", ".join(Precision))
    parser.add_argument("--backend", default=BackendName.AUTO, help=", ".join(BackendName))
    return parser


if __name__ == "__main__":
    sys.exit(main())
