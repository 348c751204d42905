"""`python -m asr.turn_pauses TURNS OUT`: what is known at each pause of recorded turns, and when.

Each turn of `asr.turn_data` goes through the real listener, detector, recognizer and turn model. A
pause is written down with what the service would know in it: the newest partial transcript, the
final pass's words, and the turn model's probability after several lengths of silence. Times of
computing are not simulated: whoever fits on these lines says at which silence each was ready.

The utterance is never ended here, so a pause after the last word lasts until the end of the file.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .__main__ import models_dir
from .audio import Pcm, last_voiced_sample, ms_from_samples, samples_from_ms
from .endpointing import EndpointingConfig, SpeechPaused, SpeechResumed
from .errors import AudioError, ModelError
from .files import read_file
from .listener import Listener
from .transcripts import DecodeJob, FinalTranscript, Hypothesis
from .turn_data import Turn, read_turns
from .turn_model import TurnModel
from .utterance import ListenerConfig
from .vad import FRAME, SileroVad
from .whisper import WhisperTranscriber

PAUSE_MS: Final = 64
"""Shortest pause written down: two frames of the detector."""

PROBED_MS: Final = (64, 96)
"""Silences after which the turn model is asked: where pauses may be noticed."""

LISTENER: Final = ListenerConfig(endpointing=EndpointingConfig(pause_ms=PAUSE_MS))


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of one turn. Silences count from the detector's first silent frame."""

    file: str
    kind: str
    half: str
    at_sample: int
    """First silent sample."""
    is_end: bool
    """Whether the turn is over."""
    silence_ms: int
    """Until the caller went on, or the file ended."""
    voiced_ms: int
    """From the last voiced 20 ms (see `audio.last_voiced_sample`) to `at_sample`; the detector is
    late by this much, or early where negative."""
    utterance_ms: int
    """From the utterance's first sample to `at_sample`."""
    partial: str
    """Newest partial transcript that was asked for before the pause."""
    partial_lag_ms: int
    """From the end of the audio behind it to `at_sample`; -1 where there is none."""
    final: str
    sound: tuple[tuple[int, float], ...]
    """Silence in ms, and the turn model's probability after it."""
    llm: float | None = None
    """See `agent.turn_score.Evidence`; filled in by `agent.turn_llm`."""


class Models:
    """What a worker has loaded."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.vad = SileroVad.load(folder / "silero-vad" / "silero_vad.onnx")
        self.whisper = WhisperTranscriber.load(folder / "whisper-tiny.en", threads=threads)
        self.turn = TurnModel.load(folder / "smart-turn" / "smart-turn-v3.2-cpu.onnx")


def pauses_of(turn: Turn, pcm: Pcm, models: Models) -> list[Pause]:
    """All pauses of one turn, in order."""
    listener = Listener(LISTENER, models.vad)
    found: list[Pause] = []
    open_pause: Pause | None = None
    newest: DecodeJob | None = None
    for start in range(0, len(pcm) - FRAME + 1, FRAME):
        heard = listener.feed(pcm[start : start + FRAME])
        for job in heard.jobs:
            if job.kind == "partial":
                newest = job  # decoded only where a pause follows
                listener.complete(job, Hypothesis(""))
            else:
                listener.complete(job, models.whisper.transcribe(job.pcm))
        for event in heard.events:
            if isinstance(event, SpeechPaused):
                open_pause = _noted(turn, pcm, listener, event, models)
                open_pause = _with_partial(open_pause, newest, models)
            elif isinstance(event, SpeechResumed) and open_pause is not None:
                silence_ms = int(ms_from_samples(event.at_sample - open_pause.at_sample))
                found.append(_with_sound(open_pause, pcm, silence_ms, False, models))
                open_pause = None
    if open_pause is not None:
        silence_ms = int(ms_from_samples(len(pcm) - open_pause.at_sample))
        found.append(_with_sound(open_pause, pcm, silence_ms, True, models))
    return found


def _noted(turn: Turn, pcm: Pcm, listener: Listener, event: SpeechPaused, models: Models) -> Pause:
    job = listener.finalize(event.utterance, event.at_sample)
    text = ""
    first = 0
    if job is not None:
        first = job.utterance_first_sample
        for told in listener.complete(job, models.whisper.transcribe(job.pcm)):
            assert isinstance(told, FinalTranscript)
            text = told.text
    voiced = last_voiced_sample(pcm[: event.at_sample + samples_from_ms(LISTENER.tail_ms)])
    return Pause(
        file=turn.file,
        kind=turn.kind,
        half=turn.half,
        at_sample=event.at_sample,
        is_end=False,
        silence_ms=0,
        voiced_ms=int(ms_from_samples(event.at_sample - (voiced or event.at_sample))),
        utterance_ms=int(ms_from_samples(event.at_sample - first)),
        partial="",
        partial_lag_ms=-1,
        final=text,
        sound=(),
    )


def _with_partial(pause: Pause, job: DecodeJob | None, models: Models) -> Pause:
    if job is None:
        return pause
    heard = models.whisper.transcribe(job.pcm, fallback=False)
    return dataclasses.replace(
        pause,
        partial=f"{job.settled_text} {heard.text}".strip(),
        partial_lag_ms=int(ms_from_samples(pause.at_sample - job.end_sample)),
    )


def heard_before(pause: Pause) -> int:
    """The sample from which the turn model hears: the utterance's first, with the pre-roll."""
    assert LISTENER.endpointing is not None
    before_ms = pause.utterance_ms + LISTENER.endpointing.preroll_ms
    return max(0, pause.at_sample - samples_from_ms(before_ms))


def _with_sound(pause: Pause, pcm: Pcm, silence_ms: int, is_end: bool, models: Models) -> Pause:
    began = heard_before(pause)
    sound = []
    for after_ms in PROBED_MS:
        if after_ms <= silence_ms:
            heard = pcm[began : pause.at_sample + samples_from_ms(after_ms)]
            sound.append((after_ms, round(models.turn.probability(heard), 4)))
    return dataclasses.replace(pause, is_end=is_end, silence_ms=silence_ms, sound=tuple(sound))


def read_pauses(path: Path) -> list[Pause]:
    """What `main` wrote. Raises AudioError where it did not."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        pauses = [Pause(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise AudioError(
            f"{path}: no pauses in it ({error}); make them with `python -m asr.turn_pauses`"
        ) from error
    return [
        dataclasses.replace(one, sound=tuple((after_ms, p) for after_ms, p in one.sound))
        for one in pauses
    ]


_worker: list[Models] = []
"""The models of a worker process, loaded once."""


def _prepare(folder: Path, threads: int) -> None:
    _worker.append(Models(folder, threads))


def _work(folder: Path, turn: Turn) -> list[Pause]:
    return pauses_of(turn, read_file(folder / turn.file), _worker[0])


def _all(args: argparse.Namespace, turns: list[Turn]) -> Iterator[list[Pause]]:
    with ProcessPoolExecutor(
        args.jobs, initializer=_prepare, initargs=(args.models, args.threads)
    ) as pool:
        yield from pool.map(_work, [args.turns] * len(turns), turns)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asr.turn_pauses", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("turns", type=Path, help="the folder that asr.turn_data wrote")
    parser.add_argument("out", type=Path, help="JSON lines, one for each pause")
    parser.add_argument("--models", type=Path, default=models_dir())
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of each recognizer (%(default)s)")
    args = parser.parse_args(argv)
    try:
        turns = read_turns(args.turns)
        Models(args.models, 1)  # whatever is wrong with them is said once, and here
        with args.out.open("w", encoding="utf-8") as out:
            num_pauses = 0
            for pauses in _all(args, turns):
                num_pauses += len(pauses)
                for one in pauses:
                    out.write(json.dumps(dataclasses.asdict(one)) + "\n")
                out.flush()
    except (AudioError, ModelError, OSError) as error:
        print(f"asr.turn_pauses: {error}", file=sys.stderr)
        return 2
    print(f"{num_pauses} pauses in {len(turns)} turns")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
