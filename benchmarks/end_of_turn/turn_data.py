"""`python -m benchmarks.end_of_turn.turn_data`: turns to fit and evaluate the end of turn on.

Theory of operation
-------------------
Recorded sentences have no hesitations in them, and no recordings of hesitant speech were found with
a free licence. So each recording is used twice:

* *command-like*: as it was spoken, pauses between its sentences included;
* *hesitant*: with 200-900 ms of room tone put in at one to three of its word boundaries.

Boundaries come from Whisper's word timestamps, which are good to a tenth of a second; each is moved
to the quietest place around it, and only those are used at which the level really drops. A cut
through a voiced sound would be a click that no caller makes. Punctuation plays no part in the
choice, so some of the pauses come after whole sentences: they can't be told from an end of turn by
ear, and they stay in, because callers make them.

Under every turn, from before its first word until after its end, lies the same steady noise, so
that a spliced pause sounds like the rest. Everything is drawn from a seed and the recording's name:
the same command writes the same bytes. Recordings are split in two halves by their names; fits use
one half, published figures come from the other.

Writes OUT/NAME.KIND.wav (16 kHz, PCM16) and OUT/turns.jsonl, one `LabelledTurn` a line.
"""

import argparse
import dataclasses
import json
import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import soundfile

from asr.__main__ import models_dir
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, last_voiced_sample, samples_from_ms
from asr.errors import AudioError, ModelError
from benchmarks.asr.latency import find_recordings, read_transcripts
from benchmarks.signals.hesitations import levels_of, quietest_frame, room_tone, spliced

SEED: Final = 20261121

PAUSE_MS: Final = (200, 900)
"""Range of a hesitation's length in ms, uniform."""

MIN_WORDS: Final = 4

LEAD_MS: Final = 300
"""Length in ms of the room tone before the first word."""

TAIL_MS: Final = 2500
"""Length in ms of the room tone after the last word: longer than any rule waits."""

DIP_DB: Final = 15.0
"""Least drop in dB of a word boundary below the recording's loud frames."""

MIN_APART_S: Final = 0.5
"""Least time in s between two hesitations, and before the first: less is stammering."""

Kind = Literal["command", "hesitant"]


@dataclass(frozen=True, slots=True)
class LabelledTurn:
    """One recording made into a turn, and where it ends. Positions are 16 kHz samples."""

    name: str
    """Name of the recording: the same for both kinds."""
    kind: Kind
    half: str
    """"a": to fit on. "b": held back."""
    file: str
    text: str
    end: int
    """Sample after the last voiced 20 ms, see `audio.last_voiced_sample`."""
    pauses: tuple[tuple[int, int], ...]
    """First sample and sample after the last of each spliced pause."""


@dataclass(frozen=True, slots=True)
class SourceRecording:
    """A recording, trimmed to its speech."""

    name: str
    pcm: Pcm
    text: str
    boundaries: tuple[int, ...]
    """Samples between words at which the sound drops."""


def half_of(name: str) -> str:
    """Half that a recording belongs to, as in `benchmarks/asr/latency.py`."""
    return "ab"[zlib.crc32(name.encode()) % 2]


def trimmed(pcm: Pcm) -> Pcm:
    """Trim to 0.1 s before the first voiced 20 ms and 0.1 s after the last."""
    last = last_voiced_sample(pcm)
    first = last_voiced_sample(pcm[::-1])
    if last is None or first is None:
        return pcm[:0]
    margin = RATE_HZ // 10
    return pcm[max(0, len(pcm) - 1 - first - margin) : last + 1 + margin]


def word_boundaries(pcm: Pcm, ends: list[float], starts: list[float]) -> tuple[int, ...]:
    """Samples between words at which the level drops by `DIP_DB`, ascending.

    `ends[i]` and `starts[i]` are the seconds between which word i ends and word i + 1 begins, as
    estimated by a recognizer.
    """
    levels = levels_of(pcm)
    if not len(levels):
        return ()
    quiet = float(np.quantile(levels, 0.95)) * 10 ** (-DIP_DB / 20)
    found = set()
    for end_s, start_s in zip(ends, starts, strict=True):
        place = quietest_frame(levels, end_s, start_s)
        if place is not None and place[1] <= quiet:
            found.add(place[0])
    return tuple(sorted(found))


def command_turn(source: SourceRecording, seed: int = SEED) -> tuple[LabelledTurn, Pcm]:
    """Command-like turn: the recording as it was spoken, in room tone."""
    return _turn(source, "command", [], np.random.default_rng(_key(seed, source, "command")))


def hesitant_turn(source: SourceRecording, seed: int = SEED) -> tuple[LabelledTurn, Pcm] | None:
    """Hesitant turn: the recording with pauses put in; None without a usable word boundary."""
    rng = np.random.default_rng(_key(seed, source, "hesitant"))
    wanted = int(rng.integers(1, 4))
    places: list[int] = []
    apart = int(MIN_APART_S * RATE_HZ)
    candidates = [at for at in source.boundaries if apart <= at <= len(source.pcm) - apart]
    for at in rng.permutation(np.array(candidates, np.int64)):
        if len(places) < wanted and all(abs(int(at) - other) >= apart for other in places):
            places.append(int(at))
    return _turn(source, "hesitant", sorted(places), rng) if places else None


def _turn(
    source: SourceRecording, kind: Kind, places: list[int], rng: np.random.Generator
) -> tuple[LabelledTurn, Pcm]:
    lead = samples_from_ms(LEAD_MS)
    lengths = [samples_from_ms(float(rng.uniform(*PAUSE_MS))) for _ in places]
    hesitant, pauses = spliced(source.pcm, places, lengths)
    speech = np.concatenate([np.zeros(lead, np.float32), hesitant])
    last_voiced = last_voiced_sample(speech)
    assert last_voiced is not None
    turn = LabelledTurn(
        source.name,
        kind,
        half_of(source.name),
        f"{source.name.replace('/', '_')}.{kind}.wav",
        source.text,
        last_voiced + 1,
        tuple((lead + first, lead + end) for first, end in pauses),
    )
    pcm = np.concatenate([speech, np.zeros(samples_from_ms(TAIL_MS), np.float32)])
    return turn, np.clip(pcm + room_tone(len(pcm), rng), -1, 1)


def _key(seed: int, source: SourceRecording, kind: Kind) -> list[int]:
    return [seed, zlib.crc32(source.name.encode()), len(kind)]


def read_texts(path: Path) -> dict[str, str]:
    """Read texts as `read_transcripts` of `benchmarks/asr/latency.py` does, and Sphinx's format
    `<s> words </s> (name)`."""
    text = path.read_bytes()
    if b"</s>" in text:
        lines = re.findall(r"<s>(.*)</s>\s*\((.*)\)", text.decode("utf-8", "replace"))
        return {name: said.strip() for said, name in lines}
    return read_transcripts(path)


def read_turns(folder: Path) -> list[LabelledTurn]:
    """Read the turns that `main` wrote into `folder`. Raises AudioError if there are none."""
    try:
        lines = (folder / "turns.jsonl").read_text(encoding="utf-8").splitlines()
        turns = [LabelledTurn(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise AudioError(
            f"{folder}: no turns in it ({error}); "
            "make them with `python -m benchmarks.end_of_turn.turn_data`"
        ) from error
    return [
        dataclasses.replace(one, pauses=tuple((first, end) for first, end in one.pauses))
        for one in turns
    ]


def _sources(args: argparse.Namespace) -> list[SourceRecording]:
    from faster_whisper import WhisperModel

    aligner = WhisperModel(str(args.model), device="cpu", compute_type="int8", cpu_threads=2)
    found: list[SourceRecording] = []
    for folder, texts in args.sounds:
        for one in find_recordings(Path(folder), read_texts(Path(texts)), MIN_WORDS):
            pcm = trimmed(read_file(one.path))
            words: list[Any] = []
            if len(pcm):
                segments, _ = aligner.transcribe(
                    pcm, language="en", beam_size=1, word_timestamps=True
                )
                words = [word for segment in segments for word in segment.words or ()]
            ends, starts = [w.end for w in words[:-1]], [w.start for w in words[1:]]
            found.append(
                SourceRecording(one.name, pcm, one.text, word_boundaries(pcm, ends, starts))
            )
    return [one for one in found if len(one.pcm)]


def _run(args: argparse.Namespace) -> int:
    sources = _sources(args)
    if not sources:
        raise AudioError("no recording has a transcript of four words or more")
    args.out.mkdir(parents=True, exist_ok=True)
    made = [command_turn(one, args.seed) for one in sources]
    made += [pair for one in sources if (pair := hesitant_turn(one, args.seed)) is not None]
    with (args.out / "turns.jsonl").open("w", encoding="utf-8") as lines:
        for turn, pcm in made:
            soundfile.write(args.out / turn.file, pcm, RATE_HZ, subtype="PCM_16")
            lines.write(json.dumps(dataclasses.asdict(turn)) + "\n")
    for kind in ("command", "hesitant"):
        halves = [turn.half for turn, _ in made if turn.kind == kind]
        print(f"{kind}: {len(halves)} turns, {halves.count('b')} of them held back")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.turn_data", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument(
        "--sounds",
        nargs=2,
        action="append",
        required=True,
        metavar=("DIR", "TEXTS"),
        help="recordings and their transcripts, as for `halfsec bench asr`; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--model", type=Path, default=models_dir() / "whisper-tiny.en")
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, ModelError, OSError) as error:
        print(f"turn_data: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
