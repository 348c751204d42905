"""`python -m benchmarks.end_of_turn.noisy_pauses TURNS PAUSES OUT`: pauses again, in noise.

The head of the turn model has to know how a turn ends among other voices and beside a fan; of
`turn_data`'s turns a fifth have other voices under them, and none a fan. So each turn of PAUSES
(output of `turn_pauses`) is mixed with noises at random levels, and the turn model hears its pauses
anew, where they are known to be. Detector and recognizer are not asked. OUT and OUT.npy are as
`turn_pauses` writes them; `channel` is the noise and by how many dB the voice is above it.

In noise a pause is noticed later than without, so each is heard a random time later, as long as it
lasts.

Drawn from the turns' names and a seed: the same command writes the same numbers. Some 25 ms for
each pause and copy. Turns that OUT has already are left out.
"""

import argparse
import dataclasses
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from agent.errors import BenchError
from asr.__main__ import models_dir
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, samples_from_ms
from asr.errors import AudioError, ModelError
from asr.speech_detection.turn_model import TurnModel
from benchmarks.signals.noise_mixing import (
    GENERATED,
    NUM_VOICES,
    PEAK,
    MakeNoise,
    babble,
    noise_under,
)

from .turn_data import SEED, read_turns, trimmed
from .turn_pauses import (
    PAUSE_MS,
    WORDS_MS,
    Known,
    Pause,
    embeddings_path,
    read_embeddings,
    read_pauses,
)

COPIES: Final = 2
"""Noises under each turn."""

SHARES: Final[Mapping[str, float]] = {"babble": 0.55, "steady": 0.3, "music": 0.1, "keyboard": 0.05}
"""How often each kind of noise is drawn. Other voices are the worst noise for a turn's end."""

SNR_DB: Final = (0.0, 25.0)
"""Range in dB, uniform, of the voice above the noise."""

LATE_MS: Final = 160.0
"""Greatest time in ms by which a pause is noticed later in noise."""

_SWELLS_DB: Final = 3.0
"""Standard deviation in dB, from half second to half second, of a noise that swells."""


def steady_noise(rng: np.random.Generator, num_samples: int) -> Pcm:
    """Noise of a random colour, from white to brown; half of them swell: float32 [num_samples]."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    hz = np.fft.rfftfreq(num_samples, 1 / RATE_HZ)
    sound = np.fft.irfft(spectrum / np.maximum(hz, 20) ** rng.uniform(0, 1), num_samples)
    if rng.integers(2):
        half_seconds = np.arange(num_samples) / (RATE_HZ / 2)
        levels_db = rng.normal(0, _SWELLS_DB, int(num_samples / (RATE_HZ / 2)) + 2)
        sound *= 10 ** (np.interp(half_seconds, np.arange(len(levels_db)), levels_db) / 20)
    return (sound / max(1e-9, float(sound.std()))).astype(np.float32)


def noises_of(folder: Path, half: str) -> dict[str, MakeNoise]:
    """The kinds of noise for turns of a half; babble of one turn of each of its speakers. Raises
    AudioError."""
    noises: dict[str, MakeNoise] = {**GENERATED, "steady": steady_noise}
    by_speaker = {
        turn.speaker: turn
        for turn in read_turns(folder)
        if turn.half == half and turn.speaker and turn.channel == "plain"
    }
    if len(by_speaker) >= NUM_VOICES[1]:
        turns = by_speaker.values()
        voices = [trimmed(read_file(folder / turn.file)[: turn.end]) for turn in turns]
        try:
            noises["babble"] = babble([pcm for pcm in voices if len(pcm)])
        except BenchError as error:
            raise AudioError(str(error)) from None
    return noises


@dataclass(frozen=True, slots=True)
class NoisyTurn:
    """A turn in noise."""

    pcm: Pcm
    channel: str
    """Kind of noise, and by how many dB the voice is above it."""


def noisy(pcm: Pcm, noises: Mapping[str, MakeNoise], rng: np.random.Generator) -> NoisyTurn:
    """A turn, float32 [n] at 16 kHz, with a noise that is drawn from those there are."""
    kinds = [kind for kind in SHARES if kind in noises]
    shares = np.array([SHARES[kind] for kind in kinds])
    kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
    snr_db = float(rng.uniform(*SNR_DB))
    mixed = pcm + noise_under(pcm, noises[kind](rng, len(pcm)), snr_db)
    peak = float(np.abs(mixed).max(initial=0.0))
    return NoisyTurn(mixed * np.float32(min(1.0, PEAK / max(peak, 1e-9))), f"{kind}@{snr_db:.1f}")


def heard_in_noise(
    pauses: Sequence[Pause],
    pcm: Pcm,
    noises: Mapping[str, MakeNoise],
    model: TurnModel,
    seeds: Sequence[int],
) -> list[Known]:
    """The pauses of one turn once more in a noise for each seed."""
    found: list[Known] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, zlib.crc32(pauses[0].file.encode())])
        turn = noisy(pcm, noises, rng)
        for pause in pauses:
            late_ms = min(rng.uniform(0, LATE_MS), pause.silence_ms - PAUSE_MS)
            first = max(0, pause.at_sample - samples_from_ms(pause.speech_ms))
            end = pause.at_sample + samples_from_ms(PAUSE_MS + late_ms)
            embedding = model.embedding(turn.pcm[first:end])
            found.append((dataclasses.replace(pause, channel=turn.channel), embedding))
    return found


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker process has loaded."""

    folder: Path
    model: TurnModel
    noises: Mapping[str, Mapping[str, MakeNoise]]
    """Kinds of noise by half."""

    @classmethod
    def load(cls, folder: Path, models: Path, halves: Sequence[str]) -> "Worker":
        model = TurnModel.load(models / "smart-turn" / "smart-turn-v3.2-cpu.onnx")
        return cls(folder, model, {half: noises_of(folder, half) for half in halves})


_worker: list[Worker] = []


def _prepare(folder: Path, models: Path, halves: Sequence[str]) -> None:
    _worker.append(Worker.load(folder, models, halves))


def _work(pauses: Sequence[Pause], seeds: Sequence[int]) -> list[Known]:
    (worker,) = _worker
    pcm = read_file(worker.folder / pauses[0].file)
    return heard_in_noise(pauses, pcm, worker.noises[pauses[0].half], worker.model, seeds)


def _run(args: argparse.Namespace) -> int:
    # Pauses without words are too short to be fitted on.
    pauses = [one for one in read_pauses(args.pauses) if one.silence_ms >= WORDS_MS]
    before: list[Known] = []
    if args.out.exists() and embeddings_path(args.out).exists():
        before = list(zip(read_pauses(args.out), read_embeddings(args.out), strict=True))
        known_files = {pause.file for pause, _ in before}
        pauses = [pause for pause in pauses if pause.file not in known_files]
    turns = [list(ours) for _, ours in groupby(pauses, lambda pause: pause.file)]
    halves = sorted({pause.half for pause in pauses})
    Worker.load(args.turns, args.models, halves)  # errors in them are reported once, here
    seeds = range(args.seed, args.seed + args.copies)
    workers = ProcessPoolExecutor(
        args.jobs, initializer=_prepare, initargs=(args.turns, args.models, halves)
    )
    with workers:
        found = [
            known for ours in workers.map(_work, turns, [seeds] * len(turns)) for known in ours
        ]
    both = before + found
    np.save(embeddings_path(args.out), np.array([sound for _, sound in both], np.float32))
    lines = [json.dumps(dataclasses.asdict(pause)) + "\n" for pause, _ in both]
    args.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(found)} pauses in noise, of {len(turns)} turns")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.noisy_pauses", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("turns", type=Path, help="folder written by turn_data")
    parser.add_argument("pauses", type=Path, help="its pauses, written by turn_pauses")
    parser.add_argument("out", type=Path, help="JSON lines, one for each pause; and OUT.npy")
    parser.add_argument("--models", type=Path, default=models_dir())
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--copies", type=int, default=COPIES, help="noises a turn (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the noises (%(default)s)")
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, ModelError, OSError) as error:
        print(f"noisy_pauses: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
