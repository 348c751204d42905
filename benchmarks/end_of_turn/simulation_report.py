"""`halfsec bench turns --virtual`: latency against cut-ins over release thresholds."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr

import asr
from agent.client.simulated_caller.summary import percentiles_ms
from agent.config.sources import read_config
from agent.errors import BenchError
from agent.turn_taking.end_of_turn import TurnRules
from benchmarks.signals.recordings import TurnRecording
from benchmarks.statistics import wilson_interval
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine

from .curve_drawing import draw, simulation_panels
from .simulation import Played, Timing, Track, play

SCALES: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0)
"""Factors of every silence in the rules: from as soon as there are words to twice the wait."""

FIXED_MS: Final = 500
"""Silence in ms at scale 1 of the curve without words."""

Json = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the virtual mode."""
    group = parser.add_argument_group("virtual time")
    group.add_argument(
        "--virtual",
        action="store_true",
        help="play nothing: detector and recognizer run once, then the turn-taking machine "
        "decides at many thresholds; prints latency against cut-ins",
    )
    group.add_argument(
        "--scales",
        type=_scales,
        default=SCALES,
        metavar="N,N,...",
        help="factors of the silences that the rules require (0.3 to 2)",
    )
    group.add_argument(
        "--reply-ms",
        type=float,
        default=Timing().reply_ms,
        help="time in ms from the caller's words to the first sound (%(default)g)",
    )
    group.add_argument(
        "--final-ms", type=float, help="time in ms of a pass; by default each one's measured time"
    )
    group.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw the curves, the shipped rules marked"
    )


def _scales(text: str) -> tuple[float, ...]:
    scales = tuple(float(each) for each in text.split(","))
    if not all(0.05 <= scale <= 20 for scale in scales):
        raise argparse.ArgumentTypeError("scales lie between 0.05 and 20")
    return scales


def main(recordings: Sequence[TurnRecording], options: argparse.Namespace) -> int:
    """Listen, play, print. Returns 0. Raises BenchError for models that can't be used."""
    config = read_config()
    heard = _listened(recordings)
    recordings, tracks = [one for one, _ in heard], [track for _, track in heard]
    listening = asr.ListenerConfig(
        endpointing=asr.EndpointingConfig(pause_ms=config.asr.pause_ms),
        early_ms=config.asr.early_ms,
    )
    timing = Timing(options.reply_ms, options.final_ms)
    curves: Json = {}
    for name, rules in (
        ("by the words", TurnRules()),
        ("fixed silence", TurnRules(silence_ms=FIXED_MS)),
    ):
        curves[name] = [
            _point(recordings, [play(each, listening, rules, scale, timing) for each in tracks])
            | {"scale": scale}
            for scale in options.scales
        ]
    result = {
        "bench": "turns --virtual",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "turns": len(tracks),
        "reply_ms": timing.reply_ms,
        "final_ms": timing.final_ms,
        "curves": curves,
    }
    _show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.svg is not None:
        drawn = draw(simulation_panels(curves), "Cut-ins against the median wait, over silences")
        options.svg.write_text(drawn, encoding="utf-8")
    return 0


def _listened(recordings: Sequence[TurnRecording]) -> list[tuple[TurnRecording, Track]]:
    """Analyse the recordings, without those that have no voiced frame."""
    from agent.stages.load_progress import Conversion
    from agent.stages.loading import Loading  # imports take seconds, for this mode only
    from agent.stages.model_store.catalogue import ModelStore

    config, clock = read_config(), SystemClock()
    conversion = Conversion(config.llm_engine.model, clock)
    load = Loading(config, ModelStore(), clock, conversion)
    try:
        detector, recognizer, judge = load.detector(), load.recognizer(), load.turn_model()
    except asr.ModelError as error:
        raise BenchError(str(error)) from None
    heard = []
    for number, one in enumerate(recordings, start=1):
        pcm = one.pcm.astype(np.float32) / np.float32(32768)
        if one.rate_hz != asr.RATE_HZ:
            pcm = soxr.resample(pcm, one.rate_hz, asr.RATE_HZ, quality="HQ")
        last = asr.last_voiced_sample(pcm) if one.label is None else one.label.end - 1
        if last is not None:
            heard.append((one, Track(pcm, last + 1, detector, recognizer, judge)))
        if not number % 20:
            print(f"{number}/{len(recordings)} heard", file=sys.stderr, flush=True)
    if not heard:
        raise BenchError("Nothing is voiced in these recordings.")
    return heard


def _point(recordings: Sequence[TurnRecording], outcomes: Sequence[Played]) -> Json:
    kinds = sorted({one.kind for one in recordings if one.kind})
    pairs = list(zip(recordings, outcomes, strict=True))
    by_kind = {kind: _figures([o for r, o in pairs if r.kind == kind]) for kind in kinds}
    return {**_figures(outcomes), "kinds": by_kind}


def _figures(outcomes: Sequence[Played]) -> Json:
    cut_ins = sum(one.cut_in for one in outcomes)
    return {
        "turns": len(outcomes),
        "cut_ins": cut_ins,
        "cut_in_interval": wilson_interval(cut_ins, len(outcomes)),
        "reopened": sum(one.reopened for one in outcomes),
        "missed": sum(one.latency_ms is None and not one.cut_in for one in outcomes),
        **percentiles_ms(one.latency_ms for one in outcomes),
    }


def _show(result: Json) -> None:
    print(f"\n{result['machine']}, {result['date']}; {result['turns']} turns in virtual time")
    for name, points in result["curves"].items():
        kinds = list(points[0]["kinds"]) if points else []
        print(f"\n{name}\n{'':>6}", end="")
        for kind in ["all", *kinds]:
            print(f"  {kind:<46}", end="")
        print(f"\n{'scale':>6}" + f"  {_HEAD:<46}" * (1 + len(kinds)))
        for point in points:
            parts = [point, *(point["kinds"][kind] for kind in kinds)]
            print(f"{point['scale']:>6g}" + "".join(f"  {_row(part):<46}" for part in parts))
    print("\nms from the last voiced frame to the first sound; cut-ins apart")


_HEAD: Final = f"{'p50':>5}{'p95':>6}{'p99':>6}{'cut in':>8}{'(95 %)':>11}{'missed':>8}"


def _row(part: Json) -> str:
    times = [
        f"{part[rank]:.0f}" if part[rank] is not None else "-" for rank in ("p50", "p95", "p99")
    ]
    low, high = part["cut_in_interval"]
    rate = 100 * part["cut_ins"] / part["turns"]
    interval = f"{100 * low:.1f}-{100 * high:.1f}"
    return f"{times[0]:>5}{times[1]:>6}{times[2]:>6}{rate:>6.1f} %{interval:>11}{part['missed']:>8}"
