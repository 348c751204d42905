"""`python -m asr FILE`: transcribe a recording, with partials, as if it were live."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from asr.audio.files import read_blocks
from asr.audio.samples import RATE_HZ
from asr.recognition.transcripts import FinalTranscript, PartialTranscript
from asr.stream.streaming import AsrEvent, StreamingConfig, StreamingTranscriber
from asr.stream.utterance import ListenerConfig

from .errors import AudioError, ModelError


def models_dir() -> Path:
    """Directory of fetched models: under HALFSEC_HOME, `~/.halfsec` by default."""
    return Path(os.environ.get("HALFSEC_HOME", "~/.halfsec")).expanduser() / "models"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    listener = ListenerConfig(partial_interval_ms=0 if args.no_partials else 600)
    config = StreamingConfig(listener=listener, end_silence_ms=args.silence_ms)
    try:
        transcriber = StreamingTranscriber.load(
            args.model, args.vad, threads=args.threads, config=config
        )
        heard_s = 0.0
        for block in read_blocks(args.file):
            for start in range(0, len(block), RATE_HZ // 10):
                piece = block[start : start + RATE_HZ // 10]
                heard_s += len(piece) / RATE_HZ
                for event in transcriber.feed(piece):
                    _print(event, heard_s, args.json)
        for event in transcriber.flush():
            _print(event, heard_s, args.json)
    except (AudioError, ModelError) as error:
        print(f"asr: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asr", description="Transcribe a WAV, FLAC or OGG file as if it were heard."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--model",
        type=Path,
        default=models_dir() / "whisper-tiny.en",
        help="directory of a CTranslate2 Whisper (default: %(default)s)",
    )
    parser.add_argument(
        "--vad",
        type=Path,
        default=models_dir() / "silero-vad" / "silero_vad.onnx",
        help="the voice detector's ONNX file (default: %(default)s)",
    )
    parser.add_argument(
        "--silence-ms",
        type=int,
        default=500,
        help="silence that ends an utterance (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=2, help="for Whisper (default: 2)")
    parser.add_argument("--no-partials", action="store_true", help="print finals only")
    parser.add_argument("--json", action="store_true", help="print every event as a line of JSON")
    return parser


def _print(event: AsrEvent, heard_s: float, as_json: bool) -> None:
    if as_json:
        record = {"type": type(event).__name__, **dataclasses.asdict(event)}
        print(json.dumps({"heard_s": round(heard_s, 3), **record}), flush=True)
    elif isinstance(event, PartialTranscript):
        text = f"{event.text[: event.stable_chars]}|{event.text[event.stable_chars :]}"
        print(f"{heard_s:8.2f}  partial  {text}", flush=True)
    elif isinstance(event, FinalTranscript):
        end = event.last_voiced_sample or event.first_sample
        span = f"{event.first_sample / RATE_HZ:.2f}-{end / RATE_HZ:.2f}"
        print(f"{heard_s:8.2f}  FINAL    {event.text}   ({span} s)", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
