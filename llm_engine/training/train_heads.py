"""Command `halfsec train-heads`: trains draft heads for a model on its own replies.

Generates the model's replies to many questions, then trains heads on them. Both can be stopped at
any moment; the same command resumes. One question in ten is held out: the acceptance that is
printed at the end comes from its replies.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine
from llm_engine.chat.template import ChatMessage
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import default_model, load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.engine import Engine, message_ids
from llm_engine.errors import EngineError, ModelError, RequestError
from llm_engine.models.medusa_heads import (
    MAX_HEADS,
    DraftHeads,
    HeadsShape,
    frequent_tokens,
    model_fingerprint,
    save_heads,
    shared_parts,
)

from .draft_head_training import (
    Acceptance,
    Recipe,
    Training,
    TrainingReply,
    TrainingRows,
    acceptance,
    joined,
    read_rows,
    shared_of,
)

QUESTIONS = Path(__file__).with_name("spoken_questions.txt")
SYSTEM = "You are a helpful voice assistant. Answer in a few short spoken sentences."
REPLIES, STATE, REPORT = "replies.jsonl", "training.safetensors", "report.json"
HELD_OUT_EVERY = 10
_TOGETHER = 4
"""Replies generated at once: the ONNX backend takes a third less time for each then."""
_SAVE_EVERY_NS = 20_000_000_000
"""Interval of saving. Lower: saving takes a share of the time. Higher: a kill costs that much
work."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, 2 for unusable input, or 130 when stopped."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        recipe = Recipe(
            num_heads=options.heads,
            inner_size=options.inner,
            num_tokens=options.tokens,
            num_epochs=options.epochs,
            batch_rows=options.batch,
            learning_rate=options.rate,
            seed=options.seed,
        )
        report = {"command": " ".join(["halfsec train-heads", *arguments])}
        report |= train(options, recipe)
        (options.out / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    except (ModelError, RequestError, EngineError, OSError, UnicodeError) as error:
        print(f"train-heads: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(json.dumps(report, indent=1))
    return 0


def train(options: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """Generate, train and save; returns the report. Raises ModelError, RequestError, EngineError,
    OSError."""
    clock = SystemClock()
    start_ns = clock.now_ns()
    path = options.model or default_model()
    checkpoint = load_checkpoint(path)
    options.out.mkdir(parents=True, exist_ok=True)
    questions = [line for line in options.prompts.read_text("utf-8").splitlines() if line.strip()]
    if len(questions) < 2:
        raise RequestError("prompts", f"{options.prompts} has fewer than two questions")
    replies = generate(checkpoint, questions, options)
    generated_ns = clock.now_ns()
    torch.set_num_threads(options.threads)
    learned, held_out, heads = _train(checkpoint, questions, replies, options, recipe)
    shared = shared_parts(checkpoint, heads.tokens)
    report = {
        "bench": "train-heads",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "model": path.name,
        "recipe": asdict(recipe),
        "replies": len(replies),
        "rows": len(learned.states),
        "generation_s": round((generated_ns - start_ns) / 1e9),
        "training_s": round((clock.now_ns() - generated_ns) / 1e9),
        "held_out": _described(acceptance(heads, shared, held_out)),
    }
    save_heads(options.out, heads)
    (options.out / STATE).unlink(missing_ok=True)
    return report


def _described(found: Acceptance) -> dict[str, Any]:
    return {
        "accepted_by_position": [round(share, 4) for share in found.by_position],
        "tokens_a_step": round(found.tokens_a_step, 3),
        "rows": found.num_rows,
    }


def _train(
    checkpoint: Checkpoint,
    questions: Sequence[str],
    replies: dict[int, TrainingReply],
    options: argparse.Namespace,
    recipe: Recipe,
) -> tuple[TrainingRows, TrainingRows, DraftHeads]:
    """Train; returns training rows, held-out rows (on the CPU), and the heads."""
    config = checkpoint.config
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    longest = max(len(reply.prompt) + len(reply.tokens) for reply in replies.values())
    model = load_model(
        checkpoint, WeightFormat(dtype=dtype), options.device, context_length=longest
    )
    shown = tqdm(replies.items(), desc="reading replies", disable=options.quiet)
    rows = {index: read_rows(model, reply) for index, reply in shown}
    learned = joined([each for index, each in rows.items() if not _is_held_out(index, questions)])
    held_out = joined([each for index, each in rows.items() if _is_held_out(index, questions)])
    texts = [each.tokens for index, each in replies.items() if not _is_held_out(index, questions)]
    tokens = frequent_tokens(texts, recipe.num_tokens)
    shape = HeadsShape(
        model=model_fingerprint(checkpoint),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_heads=recipe.num_heads,
        inner_size=recipe.inner_size or 2 * config.hidden_size,
        num_tokens=len(tokens),
        norm_eps=config.norm_eps,
    )
    shared = shared_of(model, tokens.to(options.device))
    training = Training(shape, tokens, shared, learned, recipe)
    _run(training, options.out / STATE, options.quiet)
    on_cpu = TrainingRows(held_out.states.cpu(), held_out.following.cpu(), held_out.num_more.cpu())
    return learned, on_cpu, training.heads()


def _run(training: Training, state: Path, quiet: bool) -> None:
    clock = SystemClock()
    if state.exists():
        training.restore(state)
    saved_ns = clock.now_ns()
    with tqdm(
        total=training.num_steps, initial=training.num_done, desc="training", disable=quiet
    ) as bar:
        try:
            while training.num_done < training.num_steps:
                loss = training.step()
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                if clock.now_ns() - saved_ns > _SAVE_EVERY_NS:
                    training.save(state)
                    saved_ns = clock.now_ns()
        except KeyboardInterrupt:
            training.save(state)
            raise


def _is_held_out(index: int, questions: Sequence[str]) -> bool:
    """True if a reply is to a held-out question."""
    return index % len(questions) % HELD_OUT_EVERY == 0


def generate(
    checkpoint: Checkpoint, questions: Sequence[str], options: argparse.Namespace
) -> dict[int, TrainingReply]:
    """The model's replies by number, saved ones and newly generated ones, without empty ones.

    Raises ModelError.
    """
    path = options.out / REPLIES
    key = {
        "model": model_fingerprint(checkpoint),
        "questions": len(questions),
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "system": options.system,
        "seed": options.seed,
    }
    done = read_replies(path, key)
    missing = [index for index in range(options.replies) if index not in done]
    if missing:
        config = EngineConfig(
            precision=options.precision,
            num_threads=options.threads,
            context_length=min(2048, checkpoint.config.context_length),
            max_batch=_TOGETHER if options.precision == Precision.INT8 else 1,
        )
        engine = Engine.load(checkpoint.path, config)
        try:
            done |= asyncio.run(_ask(engine, questions, missing, path, options))
        finally:
            engine.close()
    return {index: done[index] for index in range(options.replies) if done[index].tokens}


def read_replies(path: Path, key: dict[str, Any]) -> dict[int, TrainingReply]:
    """Read saved replies by number; creates the file where there is none. A truncated last line is
    dropped. Raises ModelError for a file of other settings."""
    if not path.exists():
        path.write_text(json.dumps(key) + "\n")
    lines = path.read_text().split("\n")
    try:
        found = json.loads(lines[0])
    except ValueError:
        found = None
    if found != key:
        raise ModelError(f"{path}: replies of another model or with other settings; remove it")
    done: dict[int, TrainingReply] = {}
    whole = len(lines[0]) + 1
    for line in lines[1:-1]:
        index, prompt, tokens = json.loads(line)
        done[index] = TrainingReply(tuple(prompt), tuple(tokens))
        whole += len(line) + 1
    os.truncate(path, whole)
    return done


async def _ask(
    engine: Engine,
    questions: Sequence[str],
    missing: Sequence[int],
    path: Path,
    options: argparse.Namespace,
) -> dict[int, TrainingReply]:
    """Generate the replies with these numbers; each is saved at once."""
    done: dict[int, TrainingReply] = {}
    template = engine.vocabulary.template
    if template is None:
        raise RequestError("model", "has no chat template; it can't be asked questions")
    indices = iter(missing)
    with (
        path.open("a", encoding="utf-8") as file,
        tqdm(total=len(missing), desc="replies", disable=options.quiet) as bar,
    ):

        async def work() -> None:
            for index in indices:
                messages = [
                    ChatMessage("system", options.system),
                    ChatMessage("user", questions[index % len(questions)]),
                ]
                prompt = message_ids(template, messages)
                # The first round greedy, as the agent speaks by default, later ones sampled.
                is_first = index < len(questions)
                sampling = SamplingParams(
                    temperature=0.0 if is_first else options.temperature,
                    seed=options.seed + index,
                    max_tokens=options.max_tokens,
                )
                tokens: list[int] = []
                async for chunk in engine.generate(prompt, sampling):
                    tokens += chunk.token_ids
                bar.update()
                done[index] = TrainingReply(tuple(prompt), tuple(tokens))
                file.write(json.dumps([index, prompt, tokens]) + "\n")
                file.flush()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_TOGETHER):
                    group.create_task(work())
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
    return done


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec train-heads",
        description="Train draft heads for a model on its own replies. Can be stopped; goes on.",
        epilog="example: halfsec train-heads --model model.gguf --out heads",
    )
    add, default = parser.add_argument, Recipe()
    add("--model", type=Path, help="GGUF file or Hugging Face directory (the embedded model)")
    add("--out", type=Path, required=True, metavar="DIR", help="for heads, and work in between")
    add("--prompts", type=Path, default=QUESTIONS, metavar="FILE", help="one question a line")
    add("--system", default=SYSTEM, help="the system prompt of all of them")
    add("--replies", type=int, default=600, help="how many; each question in turn (%(default)s)")
    add("--max-tokens", type=int, default=96, help="of a reply (%(default)s)")
    add("--temperature", type=float, default=0.7, help="after the first round (%(default)s)")
    precisions = Precision.INT8, Precision.FLOAT32
    add("--precision", default=Precision.INT8, choices=precisions, help="that replies come in")
    add("--heads", type=int, default=default.num_heads, choices=range(1, MAX_HEADS + 1))
    add("--inner", type=int, default=default.inner_size, help="size of a head's layer (2 x hidden)")
    add("--tokens", type=int, default=default.num_tokens, help="that can be drafted (%(default)s)")
    add("--epochs", type=int, default=default.num_epochs, help="(%(default)s)")
    add("--batch", type=int, default=default.batch_rows, help="rows in a step (%(default)s)")
    add("--rate", type=float, default=default.learning_rate, help="of learning (%(default)s)")
    add("--seed", type=int, default=default.seed)
    add("--threads", type=int, default=2)
    add("--device", default="cpu", help="cpu or cuda")
    add("--quiet", action="store_true", help="no progress bars")
    return parser


if __name__ == "__main__":
    sys.exit(main())
