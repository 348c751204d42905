"""`python -m benchmarks.end_of_turn.turn_pauses`: features of each pause of recorded turns.

Each turn of `benchmarks/end_of_turn/turn_data.py` goes through the real listener, detector,
recognizer and turn model. A pause is written with the service's evidence in it: the final pass's
words, and the input of the turn model's head (OUT.npy, a row for each line). Computing times are
not simulated: a fit on these lines sets the silence at which each result was ready.

Turns that OUT has already are left out, so a run that ended early goes on where it stopped, and
`--limit` makes the work in pieces.

The utterance is never ended here, so a pause after the last word lasts until the end of the file.
"""

import argparse
import dataclasses
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from asr.__main__ import models_dir
from asr.audio.files import read_file
from asr.audio.samples import Pcm, ms_from_samples, samples_from_ms
from asr.errors import AudioError, ModelError
from asr.load import load_recognizer
from asr.recognition.transcripts import DecodeJob, Hypothesis
from asr.speech_detection.endpointing import (
    EndpointingConfig,
    SilenceGrew,
    SpeechPaused,
    SpeechResumed,
)
from asr.speech_detection.turn_model import Embedding, TurnModel
from asr.speech_detection.vad import FRAME, SileroVad
from asr.stream.asr_stream import Listener
from asr.stream.utterance import ListenerConfig

from .turn_data import LabelledTurn, read_turns

PAUSE_MS: Final = EndpointingConfig().pause_ms
"""Silence in ms at which a pause is noticed."""

MIN_MS: Final = 128
"""Shortest pause in ms that is written: shorter ones end before any result."""

WORDS_MS: Final = 192
"""Shortest pause in ms whose words are recognized, which takes most of the time: no decision falls
before. Shorter ones count among the caller's own pauses only."""

LISTENER: Final = ListenerConfig(endpointing=EndpointingConfig(pause_ms=PAUSE_MS))


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of one turn."""

    file: str
    kind: str
    half: str
    at_sample: int
    """First silent sample, as estimated when the pause was noticed."""
    is_end: bool
    """True if the turn is over."""
    silence_ms: int
    """Time in ms from the last loud sample until the caller continued, or the file ended."""
    voiced_ms: int
    """At the end of a turn: time in ms from its last voiced 20 ms to the estimated start of the
    silence; negative if the estimate is early. Else 0."""
    final: str
    source: str = ""
    speaker: str = ""
    channel: str = "plain"
    """Source, speaker and channel, as in `LabelledTurn`."""
    speech_ms: int = 0
    """Time in ms from the begin of the utterance to the pause, earlier pauses included."""


Known = tuple[Pause, Embedding]


class Models:
    """Models loaded by one worker process."""

    def __init__(self, folder: Path, *, words: bool) -> None:
        self.vad = SileroVad.load(folder / "silero-vad" / "silero_vad.onnx")
        whisper = folder / "whisper-tiny.en"
        self._recognizer = load_recognizer(whisper, threads=1) if words else None
        self.turn = TurnModel.load(folder / "smart-turn" / "smart-turn-v3.2-cpu.onnx")

    def words(self, pcm: Pcm) -> Hypothesis:
        return Hypothesis("") if self._recognizer is None else self._recognizer.transcribe(pcm)


@dataclass(frozen=True, slots=True)
class _Open:
    """A pause that has not ended yet."""

    paused: SpeechPaused
    job: DecodeJob | None
    silent_from: int


def pauses_of(turn: LabelledTurn, pcm: Pcm, models: Models) -> list[Known]:
    """Pauses of one turn that last long enough for a decision, in order."""
    listener = Listener(LISTENER, models.vad)
    found: list[Known] = []
    open_pause: _Open | None = None
    for start in range(0, len(pcm) - FRAME + 1, FRAME):
        heard = listener.feed(pcm[start : start + FRAME])
        for job in heard.jobs:
            is_partial = job.kind == "partial"  # decides nothing
            listener.complete(job, Hypothesis("") if is_partial else models.words(job.pcm))
        for event in heard.events:
            if isinstance(event, SpeechPaused):
                asked = listener.finalize(event.utterance, event.at_sample)
                open_pause = _Open(event, asked, event.at_sample)
            elif isinstance(event, SilenceGrew) and open_pause is not None:
                began = listener.position - samples_from_ms(event.silence_ms)
                open_pause = dataclasses.replace(open_pause, silent_from=began)
            elif isinstance(event, SpeechResumed) and open_pause is not None:
                found += _ended(turn, pcm, listener, open_pause, event.at_sample, models)
                open_pause = None
    if open_pause is not None:
        found += _ended(turn, pcm, listener, open_pause, len(pcm), models)
    return found


def _ended(
    turn: LabelledTurn, pcm: Pcm, listener: Listener, pause: _Open, end: int, models: Models
) -> list[Known]:
    """Evidence of a pause that has ended; empty if it was too short for any."""
    silence_ms = int(ms_from_samples(end - pause.silent_from))
    if silence_ms < MIN_MS or pause.job is None:
        return []
    text = ""
    words = models.words(pause.job.pcm) if silence_ms >= WORDS_MS else Hypothesis("")
    for transcript in listener.complete(pause.job, words):
        text = transcript.text
    at_sample = pause.paused.at_sample
    is_end = end == len(pcm)
    found = Pause(
        file=turn.file,
        kind=turn.kind,
        half=turn.half,
        at_sample=at_sample,
        is_end=is_end,
        silence_ms=silence_ms,
        voiced_ms=round(ms_from_samples(pause.silent_from - turn.end)) if is_end else 0,
        final=text,
        source=turn.source,
        speaker=turn.speaker,
        channel=turn.channel,
        speech_ms=round(ms_from_samples(pause.paused.at_sample - pause.job.first_sample)),
    )
    return [(found, models.turn.embedding(pause.job.pcm))]


def read_pauses(path: Path) -> list[Pause]:
    """Read the pauses that `main` wrote. Raises AudioError if there are none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        pauses = [Pause(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise AudioError(
            f"{path}: no pauses in it ({error}); "
            "make them with `python -m benchmarks.end_of_turn.turn_pauses`"
        ) from error
    return pauses


def read_embeddings(path: Path) -> npt.NDArray[np.float32]:
    """Read the rows of `read_pauses(path)`: float32 [pauses, EMBEDDING]. Raises AudioError."""
    try:
        return np.asarray(np.load(embeddings_path(path)), np.float32)
    except (OSError, ValueError) as error:
        raise AudioError(f"{embeddings_path(path)}: not readable: {error}") from error


def embeddings_path(path: Path) -> Path:
    """File of the embeddings beside one of pauses."""
    return path.with_suffix(path.suffix + ".npy")


_worker: list[Models] = []
"""The models of a worker process, loaded once."""


def _prepare(folder: Path, words: bool) -> None:
    _worker.append(Models(folder, words=words))


def _work(folder: Path, turn: LabelledTurn) -> list[Known]:
    return pauses_of(turn, read_file(folder / turn.file), _worker[0])


def _chosen(turns: list[LabelledTurn], names: Path | None) -> list[LabelledTurn]:
    """The turns whose files a list names. Raises AudioError for a name without a turn."""
    if names is None:
        return turns
    wanted = set(names.read_text(encoding="utf-8").split())
    found = [turn for turn in turns if turn.file in wanted]
    if len(found) < len(wanted):
        missing = sorted(wanted - {turn.file for turn in found})
        raise AudioError(f"{names}: no turn {missing[0]!r}, and {len(missing) - 1} others")
    return found


def _run(args: argparse.Namespace) -> int:
    turns = _chosen(read_turns(args.turns), args.names)
    turns = [turn for turn in turns if args.half in (None, turn.half)]
    embeddings: list[Embedding] = []
    if args.out.exists() and embeddings_path(args.out).exists():
        embeddings = list(read_embeddings(args.out))
        known = {pause.file for pause in read_pauses(args.out)}
        turns = [turn for turn in turns if turn.file not in known]
    else:
        args.out.write_text("", encoding="utf-8")
    turns = turns[: args.limit]
    Models(args.models, words=args.words)  # errors in them are reported once, here
    workers = ProcessPoolExecutor(
        args.jobs, initializer=_prepare, initargs=(args.models, args.words)
    )
    lines: list[str] = []
    with workers:
        for found in workers.map(_work, [args.turns] * len(turns), turns):
            for pause, embedding in found:
                lines.append(json.dumps(dataclasses.asdict(pause)) + "\n")
                embeddings.append(embedding)
    with args.out.open("a", encoding="utf-8") as out:
        out.writelines(lines)
    np.save(embeddings_path(args.out), np.array(embeddings, np.float32))
    print(f"{len(lines)} pauses in {len(turns)} turns, {len(embeddings)} in all")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.turn_pauses", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("turns", type=Path, help="folder written by turn_data")
    parser.add_argument("out", type=Path, help="JSON lines, one for each pause; and OUT.npy")
    parser.add_argument("--models", type=Path, default=models_dir())
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="turns of this run; all by default")
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="only these turns: a file name a line"
    )
    parser.add_argument("--half", choices=("a", "b"), help="only turns of this half")
    parser.add_argument(
        "--no-words", dest="words", action="store_false", help="sound only, without recognition"
    )
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, ModelError, OSError) as error:
        print(f"turn_pauses: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
