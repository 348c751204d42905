"""`halfsec bench languages`: round trip of voice and recognizer in each complete language.

A voice reads sentences as a reply has them, numbers and dates included; the recognizer writes down
what it hears, in the language that it was asked for, as in a call. What was heard is read by the
normalizer of the language, so that "14:30" and "vierzehn Uhr dreißig" are the same words, and
compared without case, punctuation and ligatures with the words that a native speaker reads. Where a
sentence has a number they are written by hand, so that an error of the normalizer counts. English
is measured by `bench tts` and `bench asr`. With `--calls` voice to voice is measured instead, in
calls of each language and in English (`calls.py`).
"""

import argparse
import json
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

import asr
import languages
import tts
from agent.client.simulated_caller.talk import TalkError
from agent.stages.model_store.catalogue import ModelStore, ModelStoreError
from benchmarks.asr.scoring import load_jiwer
from benchmarks.languages.sentence_errors import NormalizedSentence, SentenceResult, compared
from latency_budget.account.clock import SystemClock
from latency_budget.host import machine
from tts.resample import StreamResampler

MAX_ERROR_RATE: Final = 0.1
"""Word error rate of the round trip that each language has to keep to."""

_SENTENCES: Final = Path(__file__).with_name("sentences.toml")


@dataclass(frozen=True, slots=True)
class LanguageResult:
    """Round trip of one language."""

    language: str
    voice: str
    recognizer: str
    sentences: tuple[SentenceResult, ...]
    word_error_rate: float
    audio_s: float
    voice_s: float
    """Time of synthesis."""
    recognizer_s: float
    """Time of recognition."""
    found: int | None = None
    """Sentences whose language was found; None: it was given."""
    find_ms: tuple[float, ...] = ()
    """Time that finding it took, of each sentence."""


def load_sentences() -> Mapping[str, Sequence[NormalizedSentence]]:
    """Sentences by language."""
    found = tomllib.loads(_SENTENCES.read_text(encoding="utf-8"))
    return {
        language: [
            NormalizedSentence(each, each) if isinstance(each, str) else NormalizedSentence(**each)
            for each in sentences
        ]
        for language, sentences in found.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 where a language is above the bar, else 0. Raises TalkError
    for a voice or model that can't be used, and BenchError without jiwer."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--calls" in arguments:
        from . import calls  # which imports the clients, and the server

        return calls.main([each for each in arguments if each != "--calls"])
    known = load_sentences()
    parser = argparse.ArgumentParser(
        prog="halfsec bench languages",
        description="Word error rate of voice and recognizer in each language: at most "
        f"{MAX_ERROR_RATE:.0%}.",
    )
    parser.add_argument(
        "languages", nargs="*", metavar="LANGUAGE", help=f"default: {', '.join(known)}"
    )
    parser.add_argument("--model", default="whisper-base", help="the recognizer")
    parser.add_argument(
        "--find", action="store_true", help='find the language, as with "auto", and say how long'
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    parser.add_argument(
        "--calls",
        action="store_true",
        help="measure voice to voice in calls of each language and in English instead; "
        "`--calls --help` has its options",
    )
    options = parser.parse_args(arguments)
    wanted = options.languages or list(known)
    if unknown := [each for each in wanted if each not in known]:
        parser.error(f"there are no sentences in {', '.join(unknown)}; in {', '.join(known)}")
    load_jiwer()  # missing, it is reported before the models are loaded
    store = ModelStore()
    try:
        recognizer = asr.load_recognizer(store.locate(options.model), language=wanted[0])
        recognizer.warm()
        rows = [
            round_trip(
                language, known[language], recognizer, store, options.model, finds=options.find
            )
            for language in wanted
        ]
    except (asr.ModelError, tts.VoiceError, ModelStoreError) as error:
        raise TalkError(str(error)) from None
    print(machine())
    for row in rows:
        speeds = f"{row.voice_s / row.audio_s:.3f}, {row.recognizer_s / row.audio_s:.2f}"
        print(
            f"{row.language}  {row.voice:<8} {row.recognizer}  {len(row.sentences)} sentences  "
            f"WER {row.word_error_rate:.1%}  RTF of voice and recognizer {speeds}"
        )
        if row.found is not None:
            print(
                f"    language found in {row.found} of {len(row.sentences)}, in "
                f"{statistics.median(row.find_ms):.0f} ms (median), {max(row.find_ms):.0f} ms "
                "at the longest"
            )
    if options.json is not None:
        result = {
            "bench": "languages",
            "machine": machine(),
            "max_word_error_rate": MAX_ERROR_RATE,
            "languages": [asdict(row) for row in rows],
        }
        text = json.dumps(result, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    return int(any(row.word_error_rate > MAX_ERROR_RATE for row in rows))


def round_trip(
    language: str,
    sentences: Sequence[NormalizedSentence],
    recognizer: asr.Recognizer,
    store: ModelStore,
    recognizer_name: str,
    *,
    finds: bool = False,
) -> LanguageResult:
    """Read and recognize all sentences of a language; `finds`: it is to be found. Raises
    VoiceError."""
    profile = languages.PROFILES[language]
    voice = tts.load_voice(profile.voice, store.directory)
    voice.warm()
    clock, candidates = SystemClock(), tuple(languages.PROFILES) if finds else ()
    options = asr.TranscriptionOptions(language, candidates=candidates)
    results: list[SentenceResult] = []
    found, find_ms = 0, []
    audio_s = voice_ns = recognizer_ns = 0.0
    for sentence in sentences:
        began_ns = clock.now_ns()
        pcm = spoken(voice, sentence.written)
        spoken_ns = clock.now_ns()
        hypothesis = recognizer.transcribe(pcm, options=options)
        found += hypothesis.language == language
        find_ms.append(round(hypothesis.language_ms, 1))
        voice_ns += spoken_ns - began_ns
        recognizer_ns += clock.now_ns() - spoken_ns
        audio_s += len(pcm) / asr.RATE_HZ
        results.append(compared(sentence, hypothesis.text, language))
    words = sum(each.words for each in results)
    errors = sum(each.errors for each in results)
    return LanguageResult(
        language,
        voice.name,
        recognizer_name,
        tuple(results),
        round(errors / words, 4),
        round(audio_s, 2),
        round(voice_ns / 1e9, 2),
        round(recognizer_ns / 1e9, 2),
        found if finds else None,
        tuple(find_ms) if finds else (),
    )


def spoken(voice: tts.Voice, text: str) -> asr.Pcm:
    """Speech of a text: float32 [n] at 16 kHz."""
    piece = tts.SpeakablePiece(text, (0, len(text)), 0)
    pcm = np.concatenate([chunk.pcm for chunk in voice.synthesize(piece)])
    if voice.rate_hz != asr.RATE_HZ:
        resampler = StreamResampler(voice.rate_hz, asr.RATE_HZ)
        pcm = np.concatenate([resampler.push(pcm), resampler.flush()])
    return pcm.astype(np.float32) / np.float32(32768)


if __name__ == "__main__":
    sys.exit(main())
