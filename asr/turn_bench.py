"""`python -m asr.turn_bench TURNS PAUSES`: what the turn model costs, and what it tells.

Every pause of `asr.turn_pauses` that lasts LEAST_MS is judged with windows of several lengths and
after several silences. The area under the curve is how often an end of turn is thought likelier to
be one than a pause is, 0.5 being chance; where turns are command-like, nearly all pauses come after
whole sentences, so it is told for hesitant turns. Times are of one call, mel included.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from latency_budget.clock import SystemClock

from .__main__ import models_dir
from .audio import Pcm, samples_from_ms
from .errors import AudioError, ModelError
from .files import read_file
from .turn_model import TRAINED_S, WINDOW_S, TurnModel
from .turn_pauses import Pause, heard_before, read_pauses

LEAST_MS: Final = 256

WAYS: Final = (
    *((window_s, 1, 96) for window_s in (2, 4, 6, 8)),
    *((window_s, 2, 96) for window_s in (4, 8)),
    *((WINDOW_S, 1, silence_ms) for silence_ms in (64, 160, 256)),
)
"""Seconds of window, threads, silence in ms before the model is asked."""


def area_under_curve(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Mann-Whitney's statistic: ties count half. NaN where there is only one kind."""
    x, y = np.array(scores), np.array(labels, bool)
    if y.all() or not y.any():
        return float("nan")
    below = np.searchsorted(np.sort(x[~y]), x[y], "left")
    at_most = np.searchsorted(np.sort(x[~y]), x[y], "right")
    return float((below + at_most).mean() / 2 / (~y).sum())


def measure(
    model: TurnModel, heard: Sequence[tuple[Pause, Pcm]], silence_ms: int
) -> tuple[float, list[float]]:
    """The area over these pauses, and the ms of each call."""
    clock = SystemClock()
    scores, times = [], []
    for pause, pcm in heard:
        end = pause.at_sample + samples_from_ms(silence_ms)
        part = pcm[heard_before(pause) : end]
        begun_ns = clock.now_ns()
        scores.append(model.probability(part))
        times.append((clock.now_ns() - begun_ns) / 1e6)
    return area_under_curve(scores, [pause.is_end for pause, _ in heard]), times


def _run(args: argparse.Namespace) -> int:
    pauses = [one for one in read_pauses(args.pauses) if one.kind == "hesitant" and one.final]
    pauses = [one for one in pauses if one.silence_ms >= LEAST_MS][: args.limit]
    files = {one.file: read_file(args.turns / one.file) for one in pauses}
    heard = [(one, files[one.file]) for one in pauses]
    rows: list[dict[str, Any]] = []
    print(f"{len(pauses)} pauses, {sum(one.is_end for one in pauses)} of them ends")
    for window_s, threads, silence_ms in WAYS:
        model = TurnModel.load(args.model, threads=threads, window_s=window_s)
        model.warm()
        area, times = measure(model, heard, silence_ms)
        row = {
            "window_s": window_s,
            "threads": threads,
            "silence_ms": silence_ms,
            "area_under_curve": round(area, 3),
            "least_ms": round(min(times), 1),
            "p50_ms": round(statistics.median(times), 1),
        }
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.json:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        result = {"bench": "turn model", "machine": machine, "trained_s": TRAINED_S}
        result |= {"pauses": len(pauses), "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asr.turn_bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("turns", type=Path, help="the folder that asr.turn_data wrote")
    parser.add_argument("pauses", type=Path, help="what asr.turn_pauses wrote")
    model = models_dir() / "smart-turn" / "smart-turn-v3.2-cpu.onnx"
    parser.add_argument("--model", type=Path, default=model)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pauses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, ModelError, OSError) as error:
        print(f"asr.turn_bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
