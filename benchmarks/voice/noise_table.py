"""`halfsec bench noise`: the end of the turn in noise, in a room and over a telephone line.

DIR holds turns of many speakers, as `python -m benchmarks.end_of_turn.turn_data` writes them. The
same turns are played in each condition (`benchmarks/signals/noise_mixing.py`), each as a call in
virtual time (`benchmarks/end_of_turn/noisy_call.py`). A table has a row for each condition: the
wait, the turns cut in on, missed, begun by noise, and the answers that noise interrupted. With the
same seed and files it is the same table.

Noises are made, or come from the files of `--noise`; babble is mixed from speakers of half "b" of
speechocean762 (its `test/`) who are none of those of the turns: no fit has heard them.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import asr
from agent.client.simulated_caller.summary import percentiles_ms
from agent.config.sources import read_config
from agent.errors import BenchError
from asr.audio.samples import RATE_HZ, Pcm, last_voiced_sample
from asr.errors import AudioError
from asr.stream.asr_stream import Listener
from benchmarks.end_of_turn.corpora import SPEECHOCEAN, CorpusFiles, files_of, speechocean
from benchmarks.end_of_turn.evaluation import percentile_interval
from benchmarks.end_of_turn.noisy_call import (
    PASS_MS,
    NoisyCall,
    NoisyOutcome,
    SpokenSpan,
    lengthened,
)
from benchmarks.end_of_turn.simulated_call import load_models
from benchmarks.end_of_turn.simulation import NEVER_MS
from benchmarks.end_of_turn.turn_data import (
    LabelledTurn,
    UnusableRecording,
    decoded,
    read_turns,
    trimmed,
)
from benchmarks.signals.noise_mixing import (
    GENERATED,
    MakeNoise,
    Mixer,
    SoundCondition,
    babble,
    read_noises,
    read_sound,
)
from benchmarks.signals.noise_suppressors import (
    SUPPRESSORS,
    MakeSuppressor,
)
from benchmarks.statistics import wilson_interval

from .options import positive
from .report import heading, save

MAX_S: Final = 12.0
"""Longest turn in s."""

NUM_BABBLERS: Final = 24
"""Speakers of whom the babble is mixed."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HeardTurn:
    """A turn with its sound."""

    turn: LabelledTurn
    pcm: Pcm
    """float32 [n] at 16 kHz, with the call's lead and tail."""
    span: SpokenSpan


@dataclass(frozen=True, slots=True)
class CallModels:
    """Models that listen in a call."""

    detector: asr.VoiceDetector
    recognizer: asr.Transcriber
    judge: asr.EndOfTurnModel
    listening: asr.ListenerConfig


def chosen_turns(turns: Sequence[LabelledTurn], count: int, seed: int) -> list[LabelledTurn]:
    """Turns of half "b" as recorded, of as many speakers as there are: one of each, in an order
    drawn from the seed, then a second of each, and so on."""
    usable = [
        one
        for one in turns
        if one.half == "b" and one.channel == "plain" and one.speaker and one.end < MAX_S * RATE_HZ
    ]
    rng = np.random.default_rng(seed)
    seen: Counter[tuple[str, str]] = Counter()
    ordered = []
    for index in rng.permutation(len(usable)):
        one = usable[index]
        ordered.append((seen[one.source, one.speaker], one))
        seen[one.source, one.speaker] += 1
    ordered.sort(key=lambda pair: pair[0])
    return [one for _, one in ordered[:count]]


def heard_turn(folder: Path, turn: LabelledTurn) -> HeardTurn:
    """Read a turn. Raises BenchError."""
    pcm = read_sound(folder / turn.file)
    last = last_voiced_sample(pcm[: turn.end][::-1])
    if last is None:
        raise BenchError(f"{folder / turn.file}: nothing is voiced before its end.")
    return HeardTurn(turn, *lengthened(pcm, SpokenSpan(turn.end - 1 - last, turn.end)))


def babble_voices(files: CorpusFiles, judged: Sequence[LabelledTurn], seed: int) -> list[Pcm]:
    """Voices of `NUM_BABBLERS` speakers of half "b", none of whom speaks in the turns judged."""
    known = {one.speaker for one in judged if one.source == SPEECHOCEAN}
    by_speaker = {
        one.speaker: one
        for one in speechocean(files, per_speaker=1)
        if one.half == "b" and one.speaker not in known
    }
    rng = np.random.default_rng(seed)
    speakers = sorted(by_speaker)
    drawn = [speakers[index] for index in rng.permutation(len(speakers))]
    voices: list[Pcm] = []
    for content in files.read_all([by_speaker[name].path for name in drawn[: 2 * NUM_BABBLERS]]):
        try:
            if content is not None and len(voices) < NUM_BABBLERS:
                voices.append(trimmed(decoded(content)))
        except UnusableRecording:
            continue
    return voices


def play(
    one: HeardTurn, pcm: Pcm, models: CallModels, suppressor: MakeSuppressor | None
) -> NoisyOutcome:
    """Play one turn as it sounds in a condition."""
    listener = Listener(
        replace(models.listening, partial_interval_ms=NEVER_MS),
        models.detector,
        None if suppressor is None else suppressor().process,
    )
    return NoisyCall(one.span, listener, models.recognizer, models.judge).hear(pcm)


def row(outcomes: Sequence[NoisyOutcome]) -> Json:
    """Figures of a condition: percentiles with bootstrap intervals, counts with Wilson's."""
    waits = [one.wait_ms for one in outcomes if one.wait_ms is not None]
    whole = sorted(round(each) for each in waits)
    counts = {
        "cut_ins": sum(one.cut_in for one in outcomes),
        "missed": sum(one.missed for one in outcomes),
        "false_starts": sum(one.false_start for one in outcomes),
        "answered_noise": sum(one.answered_noise for one in outcomes),
    }
    interrupted = sum(one.interrupted for one in outcomes)
    percentiles = percentiles_ms(waits)
    return {
        "turns": len(outcomes),
        "answered": len(waits),
        "p50_ms": percentiles["p50"],
        "p50_interval": percentile_interval(whole, 50),
        "p95_ms": percentiles["p95"],
        "p95_interval": percentile_interval(whole, 95),
        **counts,
        **{f"{name}_interval": _interval(n, len(outcomes)) for name, n in counts.items()},
        "interrupted": interrupted,
        "interrupted_interval": _interval(interrupted, len(waits)),
        "wait_ms": [None if one.wait_ms is None else round(one.wait_ms) for one in outcomes],
    }


def _interval(count: int, total: int) -> list[float]:
    return [round(bound, 4) for bound in wilson_interval(count, total)] if total else []


def measured(
    turns: Sequence[HeardTurn],
    conditions: Sequence[SoundCondition],
    mixer: Mixer,
    models: CallModels,
    suppressors: Mapping[str, MakeSuppressor],
) -> Iterator[Json]:
    """Rows in order: each condition without a suppressor, then with each."""
    for condition in conditions:
        variants: dict[str, MakeSuppressor | None] = {"": None, **suppressors}
        for name, suppressor in variants.items():
            outcomes = []
            for one in turns:
                pcm = mixer.mixed(one.turn.name, one.pcm, condition)
                outcomes.append(play(one, pcm, models, suppressor))
            yield {"condition": str(condition), "suppressor": name, **row(outcomes)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0. Raises BenchError."""
    options = _parser().parse_args(argv)
    try:
        turns = chosen_turns(read_turns(options.turns_dir), options.turns, options.seed)
        if not turns:
            raise BenchError(
                f'{options.turns_dir}: no turn of half "b" with a speaker, as recorded.'
            )
        noises = _noises(options, turns)
    except AudioError as error:
        raise BenchError(str(error)) from None
    response = None if options.room is None else read_sound(options.room)
    mixer = Mixer(noises, response, options.seed)
    conditions = options.conditions or default_conditions(noises, is_room=response is not None)
    mixer.check(conditions)
    suppressors = {name: SUPPRESSORS[name](options.suppressor_model) for name in options.suppressor}
    heard = [heard_turn(options.turns_dir, one) for one in turns]
    result: Json = {
        **heading("noise", vars(options)),
        "pass_ms": PASS_MS,
        "speakers": len({(one.source, one.speaker) for one in turns}),
        "kinds": dict(sorted(Counter(one.kind for one in turns).items())),
        "names": [one.name for one in turns],
        "rows": [],
    }
    print(f"\n{result['machine']}, {result['date']}; {len(turns)} turns in virtual time\n{_HEAD}")
    for found in measured(heard, conditions, mixer, _models(), suppressors):
        print(_line(found), flush=True)
        result["rows"].append(found)
        save(result, options.json)  # what a long run has so far
    print("\nms from the last voiced sample to the first sound; counts in % with 95 % intervals")
    return 0


def _noises(options: argparse.Namespace, turns: Sequence[LabelledTurn]) -> dict[str, MakeNoise]:
    noises = dict(GENERATED)
    if options.noise is not None:
        noises |= read_noises(options.noise)
    if options.babble is not None:
        files = files_of(options.babble, SPEECHOCEAN)
        noises["babble"] = babble(babble_voices(files, turns, options.seed))
    return noises


def default_conditions(noises: Mapping[str, MakeNoise], *, is_room: bool) -> list[SoundCondition]:
    """Clean, telephone, room where there is one, and each noise at 20, 10 and 5 dB."""
    plain = [SoundCondition(), SoundCondition(by_telephone=True)]
    rooms = [SoundCondition(in_room=True)] if is_room else []
    return [
        *plain,
        *rooms,
        *(SoundCondition(name, db) for db in (10.0, 5.0, 20.0) for name in noises),
    ]


def _models() -> CallModels:
    config = read_config()
    listening = asr.ListenerConfig(
        endpointing=asr.EndpointingConfig(pause_ms=config.asr.pause_ms),
        early_ms=config.asr.early_ms,
    )
    return CallModels(*load_models(config), listening)


_HEAD: Final = (
    f"{'condition':<28}{'turns':>6}{'p50':>6}{'p95':>6}{'cut in':>18}{'missed':>18}"
    f"{'false start':>18}{'interrupted':>18}"
)


def _line(found: Json) -> str:
    name = found["condition"]
    if found["suppressor"]:
        name += f", {found['suppressor']}"
    times = ["-" if found[rank] is None else f"{found[rank]:.0f}" for rank in ("p50_ms", "p95_ms")]
    shares = [_share(found, part, found["turns"]) for part in ("cut_ins", "missed", "false_starts")]
    shares.append(_share(found, "interrupted", found["answered"]))
    return f"{name:<28}{found['turns']:>6}{times[0]:>6}{times[1]:>6}" + "".join(
        f"{share:>18}" for share in shares
    )


def _share(found: Json, name: str, total: int) -> str:
    if not total:
        return "-"
    low, high = found[f"{name}_interval"]
    return f"{100 * found[name] / total:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def _conditions(text: str) -> list[SoundCondition]:
    try:
        return [SoundCondition.parse(each) for each in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench noise",
        description="Play the same turns clean and in noise, in a room and over a telephone line, "
        "in virtual time: how long the answer takes, how often it comes too early or never, and "
        "what noise alone begins or interrupts. DIR holds turns of many speakers "
        "(python -m benchmarks.end_of_turn.turn_data).",
        epilog="example: halfsec bench noise DIR --babble speechocean762 --noise noises "
        "--conditions clean,babble@10,street@5,telephone",
    )
    add = parser.add_argument
    add("turns_dir", type=Path, metavar="DIR", help="labelled turns")
    add("--turns", type=positive, default=40, help="number of turns (%(default)s)")
    add("--seed", type=int, default=1, help="of the turns and the noises (%(default)s)")
    add(
        "--conditions",
        type=_conditions,
        metavar="A,B,...",
        help="clean, or parts joined by +: NOISE@DB, room, telephone; by default clean, "
        "telephone, room, and each noise at 10, 5 and 20 dB",
    )
    add(
        "--noise",
        type=Path,
        metavar="DIR",
        help="noises beside those that are made (fan, keyboard, music): NAME.wav or NAME/*.wav",
    )
    add("--babble", type=Path, metavar="DIR", help="speechocean762, as files or git repository")
    add("--room", type=Path, metavar="FILE", help="impulse response of a room")
    add(
        "--suppressor",
        action="append",
        default=[],
        choices=tuple(SUPPRESSORS),
        help="measure beside it a noise suppressor in front of the detector; may be repeated",
    )
    add("--suppressor-model", type=Path, metavar="FILE", help="model of the suppressor gtcrn")
    add("--json", type=Path, metavar="FILE", help="save the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
