"""`python -m tts "text" out.wav`: synthesize a text into a file, as the agent would.

The text goes through the chunker and the voice like a reply, so the time printed is what a caller
would wait for the first audible sample.
"""

import argparse
import os
import sys
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from latency_budget.account.clock import SystemClock
from latency_budget.storage.private_files import remove_unfinished
from tts.voices.engine import VoiceError

from .load import load_voice
from .resample import StreamResampler
from .text_chunker import TextChunker
from .voice import SpeechChunk, Voice, leading_silence_ms

_RATES_HZ = (8_000, 192_000)


class _UsageError(Exception):
    """Wrong arguments: one line on standard error, exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        _speak(options)
    except (_UsageError, VoiceError) as error:
        print(f"tts: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tts", description="Speak a text into a wav file."
    )
    parser.add_argument("text", help='what to say, or "-" to read standard input')
    parser.add_argument("out", type=Path, help="wav file to write (16-bit mono)")
    parser.add_argument("--voice", default="hibari", help="hibari (default), piper-joe, ...")
    parser.add_argument("--rate", type=int, metavar="HZ", help="sample rate (default: the voice's)")
    home = os.environ.get("HALFSEC_HOME", "~/.halfsec")
    parser.add_argument(
        "--models", type=Path, default=Path(home, "models"), metavar="DIR", help="voices live here"
    )
    return parser


def _speak(options: argparse.Namespace) -> None:
    low, high = _RATES_HZ
    if options.rate is not None and not low <= options.rate <= high:
        raise _UsageError(f"--rate {options.rate}: give something from {low} to {high}")
    text = sys.stdin.read() if options.text == "-" else options.text
    voice = load_voice(options.voice, options.models.expanduser())
    voice.warm()
    rate_hz = options.rate or voice.rate_hz
    is_open = False
    try:
        try:
            with options.out.open("wb") as file, wave.open(file, "wb") as out:
                is_open = True
                out.setnchannels(1)
                out.setsampwidth(2)
                out.setframerate(rate_hz)
                _write(text, voice, rate_hz, out)
        except BaseException:
            if is_open:
                remove_unfinished(options.out)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _UsageError(f"cannot write {options.out}: {reason}") from error


def _write(text: str, voice: Voice, rate_hz: int, out: wave.Wave_write) -> None:
    clock = SystemClock()
    resampler = StreamResampler(voice.rate_hz, rate_hz)
    began_ns = clock.now_ns()
    first_audible_ms: float | None = None
    speech_ms = 0.0
    for chunk in _chunks(text, voice):
        if first_audible_ms is None and len(chunk.pcm):
            first_audible_ms = (clock.now_ns() - began_ns) / 1e6 + leading_silence_ms([chunk])
        speech_ms += chunk.duration_ms
        out.writeframes(_little_endian(resampler.push(chunk.pcm)))
    out.writeframes(_little_endian(resampler.flush()))
    spent_ms = (clock.now_ns() - began_ns) / 1e6
    if first_audible_ms is None:
        print(f"nothing to say: the file holds no audio ({voice.name}, {rate_hz} Hz)")
        return
    print(
        f"first audible after {first_audible_ms:.0f} ms, {speech_ms / 1000:.2f} s of speech in "
        f"{spent_ms:.0f} ms (RTF {spent_ms / speech_ms:.3f}, {voice.name}, {rate_hz} Hz)"
    )


def _chunks(text: str, voice: Voice) -> Iterator[SpeechChunk]:
    chunker = TextChunker()
    for piece in (*chunker.push(text), *chunker.flush()):
        yield from voice.synthesize(piece)


def _little_endian(pcm: np.ndarray[tuple[int, ...], np.dtype[np.int16]]) -> bytes:
    return pcm.astype("<i2").tobytes()


if __name__ == "__main__":
    sys.exit(main())
