"""Comparison of voices: real-time factor, time to the first audible sample, word error rate.

Intelligibility is a round trip: a recognizer transcribes the synthesized speech, and the word error
rate is taken against the input text. The recognizer is an argument: `compare` takes any function
from 16 kHz PCM to text. Run alone, the table has no WER:

    python -m benchmarks.tts.speed [--models DIR] [--json] [VOICE ...]
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.asr.scoring import errors_in_words
from latency_budget.account.clock import Clock, SystemClock
from tts.load import available_voices, load_voice
from tts.resample import StreamResampler
from tts.text.normalize import normalize
from tts.text_chunker import SpeakablePiece
from tts.voice import SpeechChunk, Voice, leading_silence_ms
from tts.voices.engine import VoiceError

TRANSCRIBER_HZ = 16_000

Transcribe = Callable[[npt.NDArray[np.int16]], str]
"""Function from 16 kHz mono int16 to text."""

SENTENCES = (
    "Sure.",
    "Yes, we are open.",
    "Sure, I can help you with that.",
    "What time works best for you?",
    "Your table for four is booked for seven thirty on Friday.",
    "I'm sorry, I didn't catch that. Could you say it again?",
    "The total comes to $29.99, and that includes delivery.",
    "Let me check that for you. One moment, please.",
    "We open at 9:00 a.m. and close at 5:30 p.m. on weekdays.",
    "Dr. Smith can see you on March 5 or on the 12th of April.",
    "It takes about 20 minutes by car, or a little longer by bus.",
    "You can reach us at 555-0123 at any time.",
    "The weather will be sunny tomorrow, with a high of 75 degrees.",
    "I have moved your appointment to Thursday afternoon.",
    "There are 3 trains an hour, and the next one leaves in 10 minutes.",
    "If you like, I can send the details to your phone right after this call.",
    "Would you like a window seat or an aisle seat?",
    "That is a good question, and the short answer is that it depends on the season.",
    "About 80% of our customers choose the monthly plan, because they can always cancel.",
    "Thank you for calling, and have a wonderful day!",
)
"""Typical sentences of a voice agent."""


@dataclass(frozen=True, slots=True)
class VoiceFigures:
    """Figures of one voice."""

    voice: str
    num_sentences: int
    ms_per_sentence: float
    """Median time in ms from a piece to its last chunk."""
    p95_ms: float
    first_audible_ms: float
    """Median time in ms to the first chunk, plus the silence at its start."""
    leading_silence_ms: float
    """Mean silence in ms before the first audible sample of a chunk."""
    speech_s: float
    rtf: float
    """Real-time factor: time to synthesize over time to play."""
    word_error_rate: float | None
    """Word error rate of the round trip; None without a recognizer."""


def compare(
    voices: Sequence[Voice],
    transcribe: Transcribe | None = None,
    *,
    sentences: Sequence[str] = SENTENCES,
    clock: Clock | None = None,
) -> tuple[VoiceFigures, ...]:
    """Measure every voice over every sentence, warm. Blocks for about a second per voice, longer
    with a recognizer. Raises `VoiceError`."""
    timer = clock or SystemClock()
    return tuple(_measure(voice, transcribe, sentences, timer) for voice in voices)


def _measure(
    voice: Voice, transcribe: Transcribe | None, sentences: Sequence[str], clock: Clock
) -> VoiceFigures:
    voice.warm()
    spent_ms: list[float] = []
    audible_ms: list[float] = []
    silence_ms: list[float] = []
    speech_ms = 0.0
    wanted: list[tuple[str, ...]] = []
    heard: list[tuple[str, ...]] = []
    for sentence in sentences:
        began_ns = clock.now_ns()
        chunks: list[SpeechChunk] = []
        arrived_ns = began_ns
        for chunk in voice.synthesize(whole_piece(sentence)):
            if not chunks:
                arrived_ns = clock.now_ns()
            chunks.append(chunk)
        spent_ms.append((clock.now_ns() - began_ns) / 1e6)
        speech_ms += sum(chunk.duration_ms for chunk in chunks)
        silence = leading_silence_ms(chunks)
        silence_ms.append(silence)
        audible_ms.append((arrived_ns - began_ns) / 1e6 + silence)
        if transcribe is not None:
            wanted.append(_comparable(sentence))
            heard.append(_comparable(transcribe(_at_16k(chunks))))
    return VoiceFigures(
        voice=voice.name,
        num_sentences=len(sentences),
        ms_per_sentence=float(np.median(spent_ms)),
        p95_ms=float(np.percentile(spent_ms, 95)),
        first_audible_ms=float(np.median(audible_ms)),
        leading_silence_ms=float(np.mean(silence_ms)),
        speech_s=speech_ms / 1000,
        rtf=sum(spent_ms) / speech_ms if speech_ms else 0.0,
        word_error_rate=errors_in_words(wanted, heard).rate if any(wanted) else None,
    )


def whole_piece(text: str) -> SpeakablePiece:
    """Make a text the only piece of its reply."""
    return SpeakablePiece(text, (0, len(text)), 0, is_last=True)


def _at_16k(chunks: Sequence[SpeechChunk]) -> npt.NDArray[np.int16]:
    if not chunks:
        return np.zeros(0, np.int16)
    resampler = StreamResampler(chunks[0].rate_hz, TRANSCRIBER_HZ)
    parts = [resampler.push(chunk.pcm) for chunk in chunks]
    return np.concatenate([*parts, resampler.flush()])


def _comparable(text: str) -> tuple[str, ...]:
    """Spoken words of a text, so that "$5" and "five dollars" are no error."""
    spoken = normalize(text).lower().replace("-", " ").replace(".", "")
    return tuple(word for word in (w.strip(",;:!?…'") for w in spoken.split()) if word)


def table(rows: Sequence[VoiceFigures]) -> str:
    """Format the rows as a table."""
    lines = [
        f"{'voice':<12} {'ms/sentence':>11} {'p95':>7} {'first audible':>13} {'silence':>8}"
        f" {'RTF':>6} {'WER':>6}"
    ]
    for row in rows:
        wer = "-" if row.word_error_rate is None else f"{100 * row.word_error_rate:.1f}%"
        lines.append(
            f"{row.voice:<12} {row.ms_per_sentence:>11.0f} {row.p95_ms:>7.0f}"
            f" {row.first_audible_ms:>10.0f} ms {row.leading_silence_ms:>5.0f} ms"
            f" {row.rtf:>6.3f} {wer:>6}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0, or 2 for a voice that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tts.speed", description="Compare voices."
    )
    parser.add_argument("voices", nargs="*", metavar="VOICE", help="default: all on this machine")
    home = os.environ.get("HALFSEC_HOME", "~/.halfsec")
    parser.add_argument("--models", type=Path, default=Path(home, "models"), metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    models_dir = options.models.expanduser()
    try:
        names = options.voices or available_voices(models_dir)
        rows = compare([load_voice(name, models_dir) for name in names])
    except VoiceError as error:
        print(f"bench tts: {error}", file=sys.stderr)
        return 2
    print(json.dumps([asdict(row) for row in rows], indent=2) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
