"""`python -m llm_engine.bench --device cuda`: options, sections, result file."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine
from llm_engine.config import Precision
from llm_engine.cuda.device import require_device
from llm_engine.errors import ModelError, RequestError

from . import arguments, device_limits, draft_heads, gemm, other_engines, sockets, steps
from .figures import Figure, table
from .harness import Job, JobResult, RunContext, run_jobs
from .models import (
    FORMATS,
    DeviceUnderTest,
    Lab,
    LoadedModel,
    Subject,
    file_subjects,
    random_subjects,
)
from .random_weights import SHAPES

SECTIONS: Final = {
    "card": "bandwidth, launch cost and arithmetic of the card",
    "itl": "from one token to the next",
    "ttft": "from a prompt to the first token",
    "speculation": "time of a token by the acceptance rate of drafts",
    "heads": "time of a token with draft heads in the captured graph",
    "operations": "bandwidth of each operation",
    "choices": "a step with other launch options of its kernels",
    "memory": "memory in use, and its growth",
    "jitter": "ITL beside fifty busy sockets",
    "libraries": "the same products by cuBLAS",
    "others": f"other engines: {', '.join(other_engines.NAMES)}",
}
"""Sections in the order in which they run, with their help lines."""
_CARD: Final = {
    "bandwidth": device_limits.bandwidth,
    "launches": device_limits.launches,
    "arithmetic": device_limits.arithmetic,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0; 1 with --gate if a target is missed or a job failed; 2
    without a suitable GPU, or for a model that can't be used."""
    options = _parser().parse_args(argv)
    try:
        target, subjects = _target(options), _subjects(options)
    except (ModelError, RequestError, OSError) as error:
        print(f"bench llm: {error}", file=sys.stderr)
        return 2
    head = _head(options, target)
    print(head["device"], "\n", flush=True)
    try:
        records = _run(options, target, subjects, head)
    except KeyboardInterrupt:
        return 130
    missed = [figure for record in records for figure in record.figures if figure.is_held is False]
    failed = [one for one in records if one.problem and not one.name.endswith(other_engines.NAMES)]
    print(f"\n{len(missed)} bars missed, {len(failed)} of our own measurements incomplete")
    return 1 if options.gate and (missed or failed) else 0


def _run(
    options: argparse.Namespace,
    target: DeviceUnderTest,
    subjects: Sequence[Subject],
    head: dict[str, Any],
) -> list[JobResult]:
    lab = Lab(target, options.context, _say)
    printed: set[str] = set()

    def show(records: Sequence[JobResult]) -> None:
        for record in records[:-1]:
            if record.name not in printed:
                printed.add(record.name)
                _print(record)
        if options.json is not None:
            _save(options.json, head | {"sections": {one.name: one.as_data() for one in records}})

    around = RunContext(SystemClock(), options.limit_s, _mark(target), lab.clear, show)
    records = run_jobs(list(_jobs(options, lab, subjects)), around)
    if records:
        _print(records[-1])
    return records


def _jobs(options: argparse.Namespace, lab: Lab, subjects: Sequence[Subject]) -> Iterator[Job]:
    """Jobs in order; those of one model follow each other, so that it is loaded once."""
    target = lab.target
    if "card" in options.sections:
        yield from (Job(f"card: {name}", partial(each, target)) for name, each in _CARD.items())
    measures = _model_measures(options)
    for subject in subjects:
        for name in options.sections:
            if name in measures:
                job = partial(_on_model, lab, subject, measures[name])
                yield Job(f"{subject.name}: {name}", job)
    if {"libraries", "others"} & set(options.sections):
        yield Job("(models are taken off)", partial(_cleared, lab))
    first_of_shape = {subject.shape: subject for subject in reversed(subjects)}
    if "libraries" in options.sections:
        for shape, subject in reversed(first_of_shape.items()):
            yield Job(f"{shape}: libraries", partial(gemm.libraries, subject, target))
    if "others" in options.sections:
        for subject in subjects:
            for name in other_engines.NAMES:
                job = partial(other_engines.compared, name, subject, target)
                yield Job(f"{subject.name}: {name}", job)


def _model_measures(
    options: argparse.Namespace,
) -> dict[str, Callable[[LoadedModel], Iterator[Figure]]]:
    acceptances, lengths = tuple(options.acceptance), tuple(options.drafts)
    return {
        "itl": steps.intervals,
        "ttft": steps.first_tokens,
        "speculation": partial(steps.speculation, acceptances=acceptances, lengths=lengths),
        "heads": partial(
            draft_heads.in_graph, acceptances=acceptances, numbers=tuple(options.heads)
        ),
        "operations": gemm.operations,
        "choices": arguments.choices,
        "memory": steps.memory,
        "jitter": sockets.jitter,
    }


def _on_model(
    lab: Lab, subject: Subject, measure: Callable[[LoadedModel], Iterator[Figure]]
) -> Iterator[Figure]:
    device_limits.read_bandwidth(lab.target)  # before: a large model leaves no room for its buffers
    yield from measure(lab.loaded(subject))


def _cleared(lab: Lab) -> Iterator[Figure]:
    lab.clear()
    yield from ()


def _target(options: argparse.Namespace) -> DeviceUnderTest:
    if options.rehearse:
        return DeviceUnderTest(None, num_steps=options.steps, repeats=options.repeats)
    formats = [FORMATS[name] for name in options.precision]
    needs_fp8 = any(Precision.FP8 in (each.body, each.rest) for each in formats)
    device = require_device(index=options.gpu, needs_fp8=needs_fp8)
    torch.cuda.set_device(device.index)
    return DeviceUnderTest(
        device,
        num_steps=options.steps,
        repeats=options.repeats,
        uses_megakernel=options.megakernel,
    )


def _subjects(options: argparse.Namespace) -> list[Subject]:
    if options.rehearse:
        return random_subjects(["tiny"], options.precision)
    if options.model is not None:
        return file_subjects(options.model, options.precision)
    return random_subjects(options.shapes, options.precision)


def _head(options: argparse.Namespace, target: DeviceUnderTest) -> dict[str, Any]:
    device = str(target.found) if target.found else "a rehearsal on the CPU: no figure counts"
    return {
        "bench": "llm on a GPU",
        "is_gpu": target.is_gpu,
        "device": device,
        "machine": machine(),
        "system": platform.platform(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m llm_engine.bench --device cuda", *options.arguments]),
    }


@contextmanager
def _range(name: str) -> Iterator[None]:
    """Mark the block as a range in NVIDIA's profilers."""
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@contextmanager
def _no_range(name: str) -> Iterator[None]:
    yield


def _mark(target: DeviceUnderTest) -> Any:
    return _range if target.is_gpu else _no_range


def _print(record: JobResult) -> None:
    print(f"{record.name}  ({record.seconds:.1f} s)")
    if record.figures:
        print(table(record.figures))
    if record.problem:
        print(f"  {record.problem}")
    sys.stdout.flush()


def _save(path: Path, result: dict[str, Any]) -> None:
    """Write the result file atomically: the process may be killed at any time."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{text!r}: known are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _numbers(kind: type, low: float, high: float) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        try:
            values = [kind(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or not all(low <= value <= high for value in values):
            raise argparse.ArgumentTypeError(f"{text!r}: numbers from {low} to {high}, by commas")
        return values

    return parse


class _Options(argparse.Namespace):
    """Parsed options with the arguments that they were parsed from."""

    arguments: Sequence[str] = ()


class _Parser(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        options = super().parse_args(arguments, namespace or _Options())
        options.arguments = arguments
        return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m llm_engine.bench --device cuda",
        description="Speed of one stream of tokens on one GPU, beside its limits. Sections: "
        + "; ".join(f"{name}: {what}" for name, what in SECTIONS.items())
        + ".",
    )
    parser.add_argument("--model", type=Path, help="GGUF file or directory (random weights)")
    parser.add_argument(
        "--shapes",
        type=_names(list(SHAPES)),
        default=[name for name in SHAPES if "qwen" not in name],
        metavar="NAMES",
        help=f"shapes with random weights: {','.join(SHAPES)}",
    )
    parser.add_argument(
        "--precision",
        type=_names(list(FORMATS)),
        default=["fp8", "int4", "bfloat16"],
        metavar="NAMES",
        help=f"formats of weights: {','.join(FORMATS)} (fp8,int4,bfloat16)",
    )
    parser.add_argument(
        "--sections", type=_names(list(SECTIONS)), default=list(SECTIONS), metavar="NAMES"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="steps of ITL (%(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=20, help="repeats of other measurements (%(default)s)"
    )
    parser.add_argument("--context", type=int, default=6144, help="longest context (%(default)s)")
    parser.add_argument(
        "--acceptance", type=_numbers(float, 0, 1), default=[0.6, 0.77, 0.9], metavar="P,..."
    )
    parser.add_argument("--drafts", type=_numbers(int, 1, 7), default=[3, 5, 7], metavar="N,...")
    parser.add_argument("--heads", type=_numbers(int, 1, 7), default=[3, 4], metavar="N,...")
    parser.add_argument(
        "--limit-s", type=float, help="start no measurement after this time (no limit)"
    )
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU (%(default)s)")
    parser.add_argument(
        "--megakernel", action="store_true", help="run all layers of a decode step in one kernel"
    )
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save after each figure")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="run on the CPU with a tiny model: a test of the bench, without valid figures",
    )
    return parser
