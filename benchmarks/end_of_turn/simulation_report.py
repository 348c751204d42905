"""`halfsec bench turns --virtual`: latency against cut-ins over release thresholds."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import soxr

import asr
from agent.client.simulated_caller.summary import percentiles_ms
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.errors import BenchError
from agent.session.api.settings import ServerVad
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.end_of_turn_model import EAGERNESS
from asr.speech_detection.turn_model import TurnModel
from benchmarks.signals.recordings import TurnRecording
from benchmarks.statistics import wilson_interval
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine

from .curve_drawing import draw, simulation_panels
from .line_score import LineScore, read_line_head
from .published_classifier import ASKED_MS, THRESHOLD, PublishedClassifier, rule_of
from .simulated_call import WaitMs
from .simulation import Played, Timing, Track, play

SCALES: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0)
"""Factors of every silence in the rules: from as soon as there are words to twice the wait."""

FIXED_MS: Final = ServerVad().silence_duration_ms
"""Silence in ms at scale 1 of the curve of one silence: what `server_vad` is without a number."""

THRESHOLDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Thresholds of Smart Turn's published classifier."""

MORE_MS: Final = ASKED_MS - asr.ListenerConfig().tail_ms
"""Silence in ms that the published classifier hears in addition."""

DECISION: Final = "halfsec, auto"
EAGERNESSES: Final = "halfsec, as shipped"
SILENCE: Final = "one silence"
PUBLISHED: Final = "Smart Turn, published"
VERSION_1: Final = "halfsec before, version 1"
"""Names of the curves."""

OVER: Final = frozenset({"scale", "silence_ms", "threshold", "eagerness"})
"""What curves go over."""

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
        "--svg", type=Path, metavar="FILE", help="draw the curves, the shipped points marked"
    )
    group.add_argument(
        "--language",
        default="",
        metavar="CODE",
        help='of the callers: "de" judges the rules of German calls; by default the settings\'',
    )
    group.add_argument(
        "--line-score", type=Path, metavar="FILE",
        help="draw the decision of version 1 too: its weights, see benchmarks/end_of_turn/"
        "line_score.py",
    )  # fmt: skip
    group.add_argument("--line-head", type=Path, metavar="FILE", help="head of its turn model")


def _scales(text: str) -> tuple[float, ...]:
    scales = tuple(float(each) for each in text.split(","))
    if not all(0.05 <= scale <= 20 for scale in scales):
        raise argparse.ArgumentTypeError("scales lie between 0.05 and 20")
    return scales


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a curve: how every turn is decided."""

    at: Json
    """Name and value of what the curve goes over."""
    tracks: Sequence[Track]
    """The turns, judged by the turn model that the decision uses."""
    rules: TurnRules
    scale: float = 1.0
    decision: WaitMs | None = None
    mark: str = ""
    """Label of a point that is shipped, here or by others; "": of others."""


def main(recordings: Sequence[TurnRecording], options: argparse.Namespace) -> int:
    """Listen, play, print. Returns 0. Raises BenchError for models that can't be used."""
    flags = {"agent.language": options.language} if options.language else {}
    config = read_config(flags)
    language = config.own_language
    line = _line_score(options)
    heard, turn_models = _listened(recordings, config, options.line_head)
    recordings, tracks = [one for one, _ in heard], [track for _, track in heard]
    listening = asr.ListenerConfig(
        endpointing=asr.EndpointingConfig(pause_ms=config.asr.pause_ms),
        early_ms=config.asr.early_ms,
    )
    timing = Timing(options.reply_ms, options.final_ms)
    settings = {
        **_shipped(tracks, language, options.scales),
        SILENCE: _one_silence(tracks, options.scales),
        PUBLISHED: _published([each.judged_by(turn_models.published, MORE_MS) for each in tracks]),
    }
    if line is not None and turn_models.version_1 is not None:
        judged = [each.judged_by(turn_models.version_1) for each in tracks]
        settings[VERSION_1] = _version_1(judged, line, options.scales)
    curves = {
        name: [_played(recordings, one, listening, timing) for one in points]
        for name, points in settings.items()
    }
    result = {
        "bench": "turns --virtual",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "turns": len(tracks),
        "language": language,
        "reply_ms": timing.reply_ms,
        "final_ms": timing.final_ms,
        "curves": curves,
    }
    _show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.svg is not None:
        drawn = draw(simulation_panels(curves), "Cut-ins against the median wait")
        options.svg.write_text(drawn, encoding="utf-8")
    return 0


def _line_score(options: argparse.Namespace) -> LineScore | None:
    """The decision of version 1, where it is asked for. Raises BenchError."""
    if (options.line_score is None) != (options.line_head is None):
        raise BenchError("--line-score and --line-head go together.")
    if options.line_score is None:
        return None
    try:
        return LineScore.load(options.line_score)
    except asr.AudioError as error:
        raise BenchError(str(error)) from None


def _shipped(
    tracks: Sequence[Track], language: str, scales: Sequence[float]
) -> dict[str, list[Setting]]:
    """The rules of a language: "auto" over scales, and each eagerness as it is."""
    rules = TurnRules(language=language)
    auto = [Setting({"scale": scale}, tracks, rules, scale) for scale in scales]
    each = [
        Setting(
            {"eagerness": name}, tracks, TurnRules(language=language, eagerness=name), mark=name
        )
        for name in EAGERNESS
    ]
    return {DECISION: auto, EAGERNESSES: each}


def _one_silence(tracks: Sequence[Track], scales: Sequence[float]) -> list[Setting]:
    """`server_vad` over silences; its default is marked."""
    silences = sorted({round(FIXED_MS * scale) for scale in scales} | {FIXED_MS})
    return [
        Setting(
            {"silence_ms": each},
            tracks,
            TurnRules(silence_ms=each),
            mark=f"{each} ms" if each == FIXED_MS else "",
        )
        for each in silences
    ]


def _published(tracks: Sequence[Track]) -> list[Setting]:
    """Smart Turn's classifier over its threshold; the published one is marked."""
    return [
        Setting(
            {"threshold": each},
            tracks,
            TurnRules(silence_ms=FIXED_MS),
            decision=rule_of(each),
            mark=str(each) if each == THRESHOLD else "",
        )
        for each in THRESHOLDS
    ]


def _version_1(tracks: Sequence[Track], line: LineScore, scales: Sequence[float]) -> list[Setting]:
    """ "auto" of the decision before this one, over scales; as it was is marked."""

    def decision(scale: float) -> WaitMs:
        return lambda evidence: scale * line.wait_ms(evidence, "auto")

    return [
        Setting(
            {"scale": each},
            tracks,
            TurnRules(silence_ms=FIXED_MS),
            decision=decision(each),
            mark="auto" if each == 1 else "",
        )
        for each in scales
    ]


def _played(
    recordings: Sequence[TurnRecording],
    setting: Setting,
    listening: asr.ListenerConfig,
    timing: Timing,
) -> Json:
    """Play all turns by a setting. Returns the figures of the point."""
    outcomes = [
        play(each, listening, setting.rules, setting.scale, timing, setting.decision)
        for each in setting.tracks
    ]
    return {**_point(recordings, outcomes), **setting.at, "mark": setting.mark}


@dataclass(frozen=True, slots=True)
class TurnModels:
    """Turn models to compare with."""

    published: PublishedClassifier
    version_1: asr.EndOfTurnModel | None


def _listened(
    recordings: Sequence[TurnRecording], config: Config, line_head: Path | None
) -> tuple[list[tuple[TurnRecording, Track]], TurnModels]:
    """Analyse the recordings, without those that have no voiced frame. `line_head`: of version 1's
    turn model."""
    from agent.stages.load_progress import Conversion
    from agent.stages.loading import Loading  # imports take seconds, for this mode only
    from agent.stages.model_store.catalogue import ModelStore

    clock, models = SystemClock(), ModelStore()
    load = Loading(config, models, clock, Conversion(config.llm_engine.model, clock))
    try:
        detector, recognizer, judge = load.detector(), load.recognizer(), load.turn_model()
        if config.own_language not in recognizer.languages:
            recognizer = load.multilingual()
        network = models.locate("smart-turn")
        turn_models = TurnModels(
            PublishedClassifier.load(network),
            None if line_head is None else TurnModel.load(network, head=read_line_head(line_head)),
        )
    except (asr.AudioError, asr.ModelError) as error:
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
    return heard, turn_models


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
        print(f"\n{name}\n{'':>10}", end="")
        for kind in ["all", *kinds]:
            print(f"  {kind:<46}", end="")
        (over,) = points[0].keys() & OVER
        print(f"\n{over:>10}" + f"  {_HEAD:<46}" * (1 + len(kinds)))
        for point in points:
            parts = [point, *(point["kinds"][kind] for kind in kinds)]
            print(f"{point[over]!s:>10}" + "".join(f"  {_row(part):<46}" for part in parts))
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
