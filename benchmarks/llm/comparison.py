"""`halfsec bench llm` on a CPU: this engine beside llama.cpp and CTranslate2."""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from latency_budget.account.clock import unix_ns
from latency_budget.host import machine
from llm_engine.checkpoints.load import default_model, load_checkpoint
from llm_engine.config import EngineConfig, Precision
from llm_engine.engine import read_vocabulary
from llm_engine.errors import EngineError, ModelError, RequestError

from .contestant import LoadReport, Remote
from .engine_under_test import OwnEngine
from .model_path import halfsec_home, locate_model
from .peer_ctranslate2 import CTranslate2
from .peer_llama_cpp import LlamaCpp
from .report import Names, gates, max_int4_share, tables
from .rounds import TOGETHER, Entry, measure
from .workload import make_script

CONTEXT_LENGTH: Final = 2048
"""Context length in tokens of every contestant: that of a call in the embedded preset."""
MAX_BATCH: Final = 4
"""Largest batch of our engine, as in the service."""
OWN, PLAIN = "halfsec", "halfsec, no drafts"
INT4, PLAIN_INT4 = "halfsec int4", "halfsec int4, no drafts"
SAME_FILE, EIGHT_BIT, FOUR_BIT = "llama.cpp, same file", "llama.cpp, Q8_0", "llama.cpp, Q4_0"
CTRANSLATE2 = "CTranslate2, int8"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 with --gate if a gate is missed; 2 for a model that can't
    be used."""
    options = _parser().parse_args(argv)
    try:
        result, is_held = _run(options)
    except (ModelError, RequestError, EngineError, OSError) as error:
        print(f"bench llm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if options.gate and not is_held else 0


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print. Returns the result as data, and True if no gate is missed."""
    path = default_model() if options.model is None else locate_model(options.model)
    checkpoint = load_checkpoint(path)
    template = read_vocabulary(checkpoint.tokenizer, path).template
    if template is None:
        raise RequestError("model", "has no chat template; the bench holds dialogues")
    script = make_script(template, checkpoint.tokenizer)
    directory = options.work or halfsec_home() / "bench"
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cache_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        first_load_s = _first_load_s(path, _own_config(options, cache_dir))
        _say(f"first load: {first_load_s:.1f} s")
        entries, missing = _entries(path, options, directory, cache_dir)
        for entry in entries:
            stack.callback(entry.remote.close)
        figures = measure(
            entries,
            {entry.remote.name: entry.remote.call("start") for entry in entries},
            script,
            num_rounds=options.rounds,
            num_steps=options.steps,
            on_progress=_say,
        )
    results = {name: one.summary() for name, one in figures.items()}
    others = (n if n in results else None for n in (SAME_FILE, EIGHT_BIT, PLAIN_INT4))
    limit = max_int4_share(checkpoint.config)
    judged = gates(results, first_load_s, Names(OWN, PLAIN, *others), limit)
    print(f"{machine()}, {path.name}, {options.threads} threads\n\n{tables(results)}\n")
    for gate in judged:
        print(gate)
    for note in missing:
        print(f"not measured: {note}")
    result = {
        "bench": "llm",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": _command(options),
        "model": path.name,
        "threads": options.threads,
        "first_load_s": round(first_load_s, 2),
        "engines": results,
        "gates": [asdict(gate) | {"is_held": gate.is_held} for gate in judged],
        "not_measured": missing,
    }
    return result, all(gate.is_held for gate in judged)


def _command(options: argparse.Namespace) -> str:
    """The command that measures this again; a model's path is cut to its file's name."""
    given = [] if options.model is None else [f"--model {Path(options.model).name}"]
    given += [f"--{name} {getattr(options, name)}" for name in ("threads", "rounds", "steps")]
    flags = ("alone", "int4", "same_file")
    given += [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    return " ".join(["halfsec bench llm", *given])


def _first_load_s(path: Path, config: EngineConfig) -> float:
    """Load time in s with an empty cache: the weights are converted first."""
    remote = Remote(OWN, OwnEngine, path=path, config=config)
    try:
        loaded: LoadReport = remote.call("start")
    finally:
        remote.close()
    return loaded.load_s


def _entries(
    path: Path, options: argparse.Namespace, directory: Path, cache_dir: Path
) -> tuple[list[Entry], list[str]]:
    """Contestants, and a line for each that does not take part, with the reason."""
    own = _own_config(options, cache_dir)
    entries = _own_entries(path, own, (OWN, PLAIN))
    if options.int4:
        # A directory of its own: converted weights are kept for one precision at a time.
        four = replace(own, precision=Precision.INT4, cache_dir=cache_dir / "int4")
        entries += _own_entries(path, four, (INT4, PLAIN_INT4))
    if options.alone:
        return entries, ["others: --alone is set"]
    missing = []
    if path.is_dir():
        missing.append("llama.cpp: it reads GGUF files")
    elif importlib.util.find_spec("llama_cpp") is None:
        missing.append("llama.cpp: pip install 'halfsec[bench]' compiles it in ten minutes")
    else:
        made = () if options.same_file else ((EIGHT_BIT, "Q8_0"), (FOUR_BIT, "Q4_0"))
        for name, file_type in ((SAME_FILE, None), *made):
            remote = Remote(
                name,
                LlamaCpp,
                path=path,
                threads=options.threads,
                context_length=CONTEXT_LENGTH,
                max_sequences=max(TOGETHER),
                file_type=file_type,
                directory=directory,
            )
            entries.append(Entry(remote))
    if options.same_file:
        return entries, [*missing, "other formats: --same-file is set"]
    other = Remote(
        CTRANSLATE2, CTranslate2, path=path, threads=options.threads, directory=directory
    )
    return [*entries, Entry(other)], missing


def _own_entries(path: Path, config: EngineConfig, names: tuple[str, str]) -> list[Entry]:
    """Our engine with n-gram drafts, and without."""
    drafting, plain = names
    without = replace(config, ngram_drafts=False)
    return [
        Entry(Remote(drafting, OwnEngine, path=path, config=config), is_own=True, drafts=True),
        Entry(Remote(plain, OwnEngine, path=path, config=without), is_own=True),
    ]


def _own_config(options: argparse.Namespace, cache_dir: Path) -> EngineConfig:
    return EngineConfig(
        precision=Precision.INT8,
        num_threads=options.threads,
        context_length=CONTEXT_LENGTH,
        max_batch=MAX_BATCH,
        cache_dir=cache_dir,
    )


def _say(text: str) -> None:
    """Print progress: on a terminal one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench llm",
        description="Time the language model engine beside llama.cpp and CTranslate2. With "
        "--device cuda: time it on a GPU; with --speculation: replies with drafts beside replies "
        "without (each with --help says how).",
    )
    parser.add_argument(
        "--model", help="name of a fetched model, GGUF file or Hugging Face directory (embedded)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of each engine (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps of each engine's long run (%(default)s)"
    )
    parser.add_argument("--alone", action="store_true", help="measure only this engine")
    parser.add_argument("--int4", action="store_true", help="measure it with 4-bit weights as well")
    parser.add_argument(
        "--same-file", action="store_true", help="of the others only those that read the same file"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="directory of the others' converted files (HALFSEC_HOME/bench)",
    )
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a gate is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    return parser
