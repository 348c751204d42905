"""`halfsec bench asr DIR`: word error rate and pass time of short against full windows.

Every recording of a folder that has a transcript is recognized three times: through the listener
as in a call; with the usual 30 s window and silence behind the audio; and with the 30 s window and
zeros behind the features, as faster-whisper does (`--zero-mel`). The first must stay within
MAX_LOSS of the second, else the exit status is 1. The caller may pass a telephone channel
(`benchmarks/asr/command.py` does): with `--telephony` the first two are repeated through it, and
the first at each level that `--level-db` names. `--finals` and `--tails` measure instead the time
of a turn's final transcript, and the audio behind the last word that it needs (`finals.py`).
"""

import argparse
import gzip
import json
import math
import statistics
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from asr.__main__ import models_dir
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, voiced_rms
from asr.errors import AudioError, ModelError
from asr.recognition.transcripts import FinalTranscript, Hypothesis
from asr.recognition.whisper import FULL_WINDOW, WhisperTranscriber, WindowPolicy
from asr.speech_detection.vad import SileroVad
from asr.stream.streaming import StreamingConfig, StreamingTranscriber
from asr.stream.utterance import ListenerConfig
from latency_budget.host import machine

from . import finals
from .scoring import WordErrors, load_jiwer, normalized, word_errors

MAX_LOSS: Final = 0.015
"""Greatest loss in word error rate by the short window, as a fraction."""

SUFFIXES: Final = (".wav", ".flac", ".ogg")

Line = Callable[[Pcm], Pcm]
"""Channel: maps float32 [n] at 16 kHz to the sound at the other end of a line."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Recording and its transcript."""

    name: str
    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class RecognitionRun:
    """Texts and passes of all recordings under one configuration."""

    texts: tuple[str, ...]
    passes: tuple[Hypothesis, ...]

    def summary(self, recordings: list[Recording]) -> dict[str, Any]:
        errors = self.errors(recordings)
        return {
            "wer": round(errors.rate, 5),
            "words": errors.words,
            "errors": errors.errors,
            "unheard": sum(not text for text in self.texts),
            "passes": len(self.passes),
            "fell_back": sum(one.fell_back for one in self.passes),
            "encode_ms": _quantiles([one.encode_ms for one in self.passes]),
            "decode_ms": _quantiles([one.decode_ms for one in self.passes]),
        }

    def errors(self, recordings: list[Recording]) -> WordErrors:
        return word_errors((one.text for one in recordings), self.texts)


class _Noting:
    """Recognizer that records its passes."""

    def __init__(self, recognizer: WhisperTranscriber) -> None:
        self.passes: list[Hypothesis] = []
        self._recognizer = recognizer

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        hypothesis = self._recognizer.transcribe(pcm, fallback=fallback)
        self.passes.append(hypothesis)
        return hypothesis


def read_transcripts(path: Path) -> dict[str, str]:
    """Read texts, by the recordings' names without suffix.

    The file is JSON, `{"name.wav": "text"}`, the `turns.jsonl` of
    `benchmarks.end_of_turn.turn_data`, or has lines `name: text` (`;` begins a comment), as
    Debian's `core-sounds-en.txt.gz`. Raises AudioError when it cannot be read.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
        if path.name.removesuffix(".gz").endswith(".json"):
            pairs = [(str(name), str(said)) for name, said in json.loads(text).items()]
        elif path.suffix == ".jsonl":
            turns = [json.loads(line) for line in text.splitlines()]
            pairs = [(str(turn["file"]), str(turn["text"])) for turn in turns]
        else:
            lines = (line for line in text.splitlines() if not line.startswith(";"))
            pairs = [tuple(line.split(":", 1)) for line in lines if ":" in line]  # type: ignore[misc]
    except (OSError, EOFError, zlib.error, ValueError, AttributeError, KeyError) as error:
        raise AudioError(f"{path}: not readable as transcripts: {error}") from error
    return {_stem(name.strip()): said.strip() for name, said in pairs}


def find_recordings(folder: Path, texts: dict[str, str], min_words: int) -> list[Recording]:
    """Recordings below `folder` with a transcript of at least `min_words` words, by name."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = _stem(path.relative_to(folder).as_posix())
        text = texts.get(name)
        if path.suffix in SUFFIXES and text and len(normalized(text)) >= min_words:
            found.append(Recording(name, path, text))
    return found


def half_of(recordings: list[Recording], half: str) -> list[Recording]:
    """Select half "a", to choose settings on, or half "b", to report; any other name: all."""
    if half not in ("a", "b"):
        return recordings
    wanted = 0 if half == "a" else 1
    return [one for one in recordings if zlib.crc32(one.name.encode()) % 2 == wanted]


def at_level(pcm: Pcm, level_db: float) -> Pcm:
    """Scale to a root mean square of the voiced frames in dB of full scale; clip what exceeds full
    scale."""
    rms = voiced_rms(pcm)
    gain = math.pow(10, level_db / 20) / rms if rms else 1.0
    brought: Pcm = np.clip(pcm * np.float32(gain), -1, 1)
    return brought


def as_heard(
    recordings: list[Recording],
    recognizer: WhisperTranscriber,
    vad: SileroVad,
    line: Line = lambda pcm: pcm,
) -> RecognitionRun:
    """Recognize through the listener, 20 ms at a time, with a second of silence behind each."""
    noting = _Noting(recognizer)
    config = StreamingConfig(listener=ListenerConfig(partial_interval_ms=0))
    transcriber = StreamingTranscriber(noting, vad, config)
    texts = []
    for one in recordings:
        pcm = np.concatenate([line(read_file(one.path)), np.zeros(RATE_HZ, np.float32)])
        events = [
            event
            for start in range(0, len(pcm), RATE_HZ // 50)
            for event in transcriber.feed(pcm[start : start + RATE_HZ // 50])
        ]
        events += transcriber.flush()
        texts.append(" ".join(e.text for e in events if isinstance(e, FinalTranscript)))
    return RecognitionRun(tuple(texts), tuple(noting.passes))


def as_file(
    recordings: list[Recording], recognizer: WhisperTranscriber, line: Line = lambda pcm: pcm
) -> RecognitionRun:
    """Recognize each recording in one pass."""
    passes = tuple(recognizer.transcribe(line(read_file(one.path))) for one in recordings)
    return RecognitionRun(tuple(one.text for one in passes), passes)


def main(argv: list[str] | None = None, telephone: Line | None = None) -> int:
    """Run the command line. `telephone`: the channel of `--telephony`; None: no such option.
    Returns 0; 1 if the short window loses too much; 2 for a model or recording that can't be
    used. Raises BenchError without jiwer."""
    args = _parser(has_telephone=telephone is not None).parse_args(argv)
    try:
        return _run(args, telephone if telephone is not None and args.telephony else None)
    except (AudioError, ModelError) as error:
        print(f"bench asr: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace, telephone: Line | None) -> int:
    load_jiwer()  # missing, it is reported before an hour of recognition
    texts = read_transcripts(args.transcripts)
    recordings = find_recordings(args.folder, texts, args.min_words)
    recordings = half_of(recordings, args.half)[:: args.every][: args.limit]
    if not recordings:
        raise AudioError(f"{args.folder}: no recording has a transcript in {args.transcripts}")
    window = _window(args)
    short = WhisperTranscriber.load(args.model, threads=args.threads, window=window)
    short.warm()
    if args.finals or args.tails:
        report = _last_words(args, recordings, short)
        _write(args.json, report)
        return 0
    outcomes = {"streaming": as_heard(recordings, short, SileroVad.load(args.vad))}
    full = WhisperTranscriber.load(args.model, threads=args.threads, window=FULL_WINDOW)
    outcomes["full window"] = as_file(recordings, full)
    if args.zero_mel:
        padded = replace(FULL_WINDOW, silence=False)
        zeros = WhisperTranscriber.load(args.model, threads=args.threads, window=padded)
        outcomes["full window, zero features"] = as_file(recordings, zeros)
    if telephone is not None:
        vad = SileroVad.load(args.vad)
        outcomes["streaming, telephone"] = as_heard(recordings, short, vad, telephone)
        outcomes["full window, telephone"] = as_file(recordings, full, telephone)
        for level_db in args.level_db:
            outcomes[f"streaming, {level_db:g} dBFS"] = as_heard(
                recordings, short, vad, partial(_quiet_call, telephone, level_db)
            )
    report = _report(args, recordings, outcomes)
    _print(report)
    if args.errors:
        _print_errors(recordings, outcomes["streaming"])
    _write(args.json, report)
    return 0 if report["loss"] <= MAX_LOSS else 1


def _quiet_call(telephone: Line, level_db: float, pcm: Pcm) -> Pcm:
    return telephone(at_level(pcm, level_db))


def _report(
    args: argparse.Namespace, recordings: list[Recording], outcomes: dict[str, RecognitionRun]
) -> dict[str, Any]:
    streaming = outcomes["streaming"].errors(recordings)
    full = outcomes["full window"].errors(recordings)
    return _header(args, recordings) | {
        "loss": round(streaming.rate - full.rate, 5),
        "max_loss": MAX_LOSS,
        "ways": {name: outcome.summary(recordings) for name, outcome in outcomes.items()},
    }


def _header(args: argparse.Namespace, recordings: list[Recording]) -> dict[str, Any]:
    return {
        "bench": "asr",
        "machine": machine(),
        "model": args.model.name,
        "threads": args.threads,
        "window": asdict(_window(args)),
        "recordings": len(recordings),
        "half": args.half,
        "every": args.every,
        "min_words": args.min_words,
    }


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _last_words(
    args: argparse.Namespace, recordings: list[Recording], recognizer: WhisperTranscriber
) -> dict[str, Any]:
    report = _header(args, recordings)
    paths, said = [one.path for one in recordings], [one.text for one in recordings]
    if args.finals:
        vad = SileroVad.load(args.vad)
        early_ms = args.early_ms or [ListenerConfig().early_ms]
        report["finals"] = finals.finals(paths, said, recognizer, vad, early_ms)
    if args.tails:
        report["tails_ms"] = finals.tails(paths, said, recognizer)
    finals.show(report)
    return report


def _print(report: dict[str, Any]) -> None:
    print(f"{report['recordings']} recordings, {report['model']}, {report['threads']} threads")
    print(f"{'':28} {'WER':>7} {'errors':>7} {'encode ms':>16} {'decode ms':>16} fell back")
    for name, way in report["ways"].items():
        times = [f"{way[key]['p50']:6.0f} (p95 {way[key]['p95']:4.0f})" for key in _TIMES]
        print(
            f"{name:28} {100 * way['wer']:6.2f}% {way['errors']:7} {times[0]:>16} {times[1]:>16} "
            f"{way['fell_back']}/{way['passes']}"
            + (f", {way['unheard']} unheard" if way["unheard"] else "")
        )
    verdict = "within" if report["loss"] <= MAX_LOSS else "beyond"
    print(f"loss {100 * report['loss']:+.2f} points, {verdict} {100 * MAX_LOSS:g}")


def _print_errors(recordings: list[Recording], outcome: RecognitionRun) -> None:
    for one, text in zip(recordings, outcome.texts, strict=True):
        if normalized(one.text) != normalized(text):
            print(f"\n{one.name}\n  said:  {one.text}\n  heard: {text}")


def _window(args: argparse.Namespace) -> WindowPolicy:
    return WindowPolicy(args.floor_s, args.lead_s, args.margin_s)


_TIMES: Final = ("encode_ms", "decode_ms")


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"p50": 0.0, "p95": 0.0}
    p95 = float(np.quantile(values, 0.95, method="higher"))
    return {"p50": round(statistics.median(values), 1), "p95": round(p95, 1)}


def _stem(name: str) -> str:
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in SUFFIXES else name


def _parser(*, has_telephone: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench asr",
        description=(__doc__ or "").partition(": ")[2],
        epilog="example: halfsec bench asr recordings/ --transcripts texts.json --limit 20",
    )
    parser.add_argument("folder", type=Path, help="WAV, FLAC or OGG files, at any depth")
    parser.add_argument(
        "--transcripts", type=Path, required=True, help='JSON, or lines "name: text", perhaps .gz'
    )
    models = models_dir()
    options: list[tuple[str, type, Any, str]] = [
        ("--model", Path, models / "whisper-tiny.en", "directory of a CTranslate2 Whisper"),
        ("--vad", Path, models / "silero-vad" / "silero_vad.onnx", "silero VAD's file"),
        ("--threads", int, 2, "processor threads of the recognizer"),
        ("--floor-s", float, WindowPolicy().floor_s, "shortest window"),
        ("--lead-s", float, WindowPolicy().lead_s, "silence before the audio"),
        ("--margin-s", float, WindowPolicy().margin_s, "silence behind the audio, at least"),
        ("--min-words", int, 4, "only recordings with so many words"),
    ]
    for name, kind, default, words in options:
        parser.add_argument(name, type=kind, default=default, help=f"{words} (%(default)s)")
    parser.add_argument(
        "--half",
        choices=("all", "a", "b"),
        default="all",
        help="choose settings on one half of the recordings, report the other (%(default)s)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N recordings")
    parser.add_argument("--every", type=int, metavar="N", default=1, help="only each Nth recording")
    parser.add_argument(
        "--finals", action="store_true", help="time from the last word to the final transcript"
    )
    parser.add_argument(
        "--early-ms",
        type=int,
        action="append",
        metavar="N",
        help="with --finals: silence before an early pass; may be repeated",
    )
    parser.add_argument(
        "--tails", action="store_true", help="word errors by the audio behind the last word"
    )
    if has_telephone:
        parser.add_argument(
            "--telephony", action="store_true", help="also through 300-3400 Hz and mu-law"
        )
        parser.add_argument(
            "--level-db",
            type=float,
            action="append",
            default=[],
            metavar="DB",
            help="with --telephony: also with the voice at this level (dB of full scale, such as "
            "-40); may be repeated",
        )
    parser.add_argument("--zero-mel", action="store_true", help="also pad features with zeros")
    parser.add_argument("--errors", action="store_true", help="print misrecognized texts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
