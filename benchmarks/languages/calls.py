"""`halfsec bench languages --calls`: voice to voice of calls in each language, beside English.

The same requests, translated, are turns of calls with a real server, in real time; the agent of
each call speaks its language. The languages alternate after each round of calls, in another order
every time, so that other load on the machine falls on all alike; a call in each language that is
not counted comes first, since the server loads its models then. Of each answer a second is heard,
then it is cancelled. Measured:

    p50, p95      from the caller's last voiced sample to the first audible sample of the answer
    over English  the median of the differences to the same request in English, and its 95 %
                  interval by bootstrap
    stages        the server's own account: what was spent and what the caller waited for
    passes        time of the recognizer over the first half of each sentence, as a partial, and
                  over all of it, as it is decoded in calls and greedily; and the words that it gets
                  wrong. No server runs meanwhile

The callers are voices of Pico, the same engine in all languages. The English one is not the
agent's; the others are, since there is no other voice of those languages.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import asr
import languages
from agent.client.call import wait_ready
from agent.client.errors import ConnectError
from agent.client.simulated_caller.talk import TalkError
from agent.config.schema import AsrSettings
from agent.errors import BenchError
from agent.stages.model_store.catalogue import ModelStore, ModelStoreError
from asr.recognition.whisper import WhisperTranscriber
from benchmarks.asr.scoring import load_jiwer
from benchmarks.callers.server_process import own_server
from benchmarks.chat.caller_voice import in_room
from benchmarks.languages.sentence_errors import NormalizedSentence, compared
from benchmarks.overlaps.clips import pico
from benchmarks.signals.recordings import TurnRecording
from benchmarks.voice.harness import CallerPlan, HeldCall, hold
from benchmarks.voice.options import positive
from benchmarks.voice.report import figures_of, heading, in_ms, save
from benchmarks.voice.turns import HEARD_S, PATIENCE_S, START_TIMEOUT_S

VOICES: Final = {"en": "en-US", "de": "de-DE", "es": "es-ES", "fr": "fr-FR"}
"""The caller's voice of Pico, by language."""

ENGLISH: Final = languages.ENGLISH.code

LOADING_S: Final = 60.0
"""Timeout in s of the first answer in a language: the server loads its models before."""

NUM_RESAMPLED: Final = 2000
"""Samples of the bootstrap."""

_SENTENCES: Final = Path(__file__).with_name("caller_sentences.toml")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Passes of the recognizer over the sentences of one language. Times in ms, medians."""

    recognizer: str
    partial_ms: float
    final_ms: float
    greedy_partial_ms: float
    greedy_final_ms: float
    words: int
    errors: int
    """Words wrong in the passes over whole sentences."""
    greedy_errors: int


def load_sentences() -> dict[str, list[str]]:
    """Sentences by language; those at the same place mean the same."""
    return tomllib.loads(_SENTENCES.read_text(encoding="utf-8"))


def recordings_in(language: str, sentences: Sequence[str]) -> list[TurnRecording]:
    """The sentences as a caller says them, in the tone of a room. Raises BenchError."""
    found = []
    for number, sentence in enumerate(sentences):
        sound = in_room(pico(VOICES[language], sentence), sentence).pcm
        found.append(TurnRecording(Path(f"{language}-{number}"), sound, asr.RATE_HZ, None))
    return found


def is_agents_voice(language: str) -> bool:
    """True where the caller has the agent's own voice."""
    return bool(languages.PROFILES[language].voice == f"pico-{language}")


async def measure(
    recordings: Mapping[str, Sequence[TurnRecording]], url: str, turns_a_call: int
) -> dict[str, list[HeldCall]]:
    """Hold the calls of all languages, in rounds. Returns those of each language. Raises
    ConnectError."""
    await wait_ready(url, START_TIMEOUT_S)
    for language, said in recordings.items():
        print(f"warming up {language}", file=sys.stderr, flush=True)
        await hold(said[:1], url, CallerPlan(HEARD_S, LOADING_S, language=language))
    held: dict[str, list[HeldCall]] = {language: [] for language in recordings}
    order = list(recordings)
    num_sentences = max(map(len, recordings.values()))
    for first in range(0, num_sentences, turns_a_call):
        for language in order:
            plan = CallerPlan(HEARD_S, PATIENCE_S, language=language)
            said = recordings[language][first : first + turns_a_call]
            held[language].append(await hold(said, url, plan))
        order.append(order.pop(0))
        done = min(first + turns_a_call, num_sentences)
        print(f"{done}/{num_sentences} sentences", file=sys.stderr, flush=True)
    return held


def over_english_ms(calls: Sequence[HeldCall], english: Sequence[HeldCall]) -> list[float]:
    """Times by which answers came later at the ear than those to the same request in English, of
    requests that were answered in both, in ms."""
    base = _ear_ms(english)
    return [ms - base[number] for number, ms in _ear_ms(calls).items() if number in base]


def _ear_ms(calls: Sequence[HeldCall]) -> dict[str, float]:
    """Time at the ear by the sentence's number."""
    return {
        one.path.name.partition("-")[2]: exchange.e2e_ear_ms
        for held in calls
        for one, exchange in zip(held.recordings, held.exchanges, strict=False)
        if exchange.e2e_ear_ms is not None
    }


def median_interval(values: Sequence[float], seed: int = 1) -> tuple[float, float] | None:
    """95 % interval of the median by bootstrap; None without values."""
    if not values:
        return None
    chance = random.Random(seed)
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(NUM_RESAMPLED)
    )
    return medians[NUM_RESAMPLED // 40], medians[-NUM_RESAMPLED // 40 - 1]


def figures(calls: Mapping[str, Sequence[HeldCall]]) -> dict[str, Json]:
    """Figures of each language, beside those of English."""
    found: dict[str, Json] = {}
    for language, held in calls.items():
        over = over_english_ms(held, calls[ENGLISH])
        found[language] = {
            **figures_of(held),
            "caller": f"pico-{VOICES[language]}",
            "has_agents_voice": is_agents_voice(language),
            "seconds": round(
                statistics.fmean(
                    exchange.voiced_samples / asr.RATE_HZ
                    for call in held
                    for exchange in call.exchanges
                    if exchange.voiced_samples is not None
                ),
                2,
            )
            if any(call.exchanges for call in held)
            else None,
            "over_english": {
                "requests": len(over),
                "median_ms": statistics.median(over) if over else None,
                "interval_ms": median_interval(over),
            },
        }
    return found


def pass_times(
    language: str, recordings: Sequence[TurnRecording], sentences: Sequence[str]
) -> PassTimes:
    """Recognize the sentences with the model of calls in this language. Raises ModelError and
    ModelStoreError."""
    settings = AsrSettings()
    name = settings.model if language == ENGLISH else settings.multilingual_model
    path = ModelStore().locate(name)
    shipped = WhisperTranscriber.load(path, language=language)
    greedy = WhisperTranscriber.load(path, language=language, foreign_beam=1)
    times: dict[tuple[bool, bool], list[float]] = {}
    errors = {False: 0, True: 0}
    words = 0
    shipped.warm()
    greedy.warm()
    for one, sentence in zip(recordings, sentences, strict=True):
        pcm = one.pcm.astype(np.float32) / np.float32(32768)
        end = (asr.last_voiced_sample(pcm) or len(pcm) - 1) + 1
        for is_greedy, recognizer in ((False, shipped), (True, greedy)):
            for is_partial in (True, False):
                part = pcm[: end // 2] if is_partial else pcm[:end]
                heard = recognizer.transcribe(part, fallback=not is_partial)
                took_ms = heard.encode_ms + heard.decode_ms
                times.setdefault((is_partial, is_greedy), []).append(took_ms)
            result = compared(NormalizedSentence(sentence, sentence), heard.text, language)
            errors[is_greedy] += result.errors
        words += result.words
    medians = {key: round(statistics.median(found), 1) for key, found in times.items()}
    return PassTimes(
        name,
        partial_ms=medians[True, False],
        final_ms=medians[False, False],
        greedy_partial_ms=medians[True, True],
        greedy_final_ms=medians[False, True],
        words=words,
        errors=errors[False],
        greedy_errors=errors[True],
    )


def show(result: Json) -> None:
    """Print the tables."""
    print(f"\n{result['machine']}, {result['date']}\n")
    print(f"{'':<4}{'caller':<12}{'said s':>7}{'turns':>6}{'missed':>7}{'cut in':>7}", end="")
    print(f"{'p50':>7}{'p95':>7}{'over English (95 %)':>27}")
    for language, row in result["languages"].items():
        summary, over = row["summary"], row["over_english"]
        shown = "-"
        if language != ENGLISH and over["median_ms"] is not None:
            low, high = over["interval_ms"]
            shown = f"{over['median_ms']:+.0f} ({low:+.0f} .. {high:+.0f})"
        cut_ins = f"{100 * (summary['cut_in_rate'] or 0):.0f} %"
        print(
            f"{language:<4}{row['caller']:<12}{row['seconds'] or 0:>7.1f}{summary['turns']:>6}"
            f"{row['missed']:>7}{cut_ins:>7}{in_ms(summary['p50']):>7}{in_ms(summary['p95']):>7}"
            f"{shown:>27}"
        )
    print("\nms at the ear; median of the differences to the same request in English")
    same = [each for each, row in result["languages"].items() if row["has_agents_voice"]]
    print(f"callers with the agent's own voice, for want of another: {', '.join(same) or 'none'}")
    print(f"\n{'median ms, spent/exposed':<26}" + "".join(f"{s:>12}" for s in _stages(result)))
    for language, row in result["languages"].items():
        cells = [row["stages"].get(stage) for stage in _stages(result)]
        texts = ["-" if c is None else f"{c['spent_ms']:.0f}/{c['exposed_ms']:.0f}" for c in cells]
        print(f"{language:<26}" + "".join(f"{text:>12}" for text in texts))
    if result["passes"]:
        print(f"\n{'passes, median ms':<26}{'partial':>9}{'final':>7}", end="")
        print(f"{'greedy partial':>16}{'greedy final':>14}{'words wrong, greedily':>24}")
    for language, one in result["passes"].items():
        wrong = f"{one['errors']} and {one['greedy_errors']} of {one['words']}"
        print(
            f"{language + '  ' + one['recognizer']:<26}{one['partial_ms']:>9.0f}"
            f"{one['final_ms']:>7.0f}{one['greedy_partial_ms']:>16.0f}"
            f"{one['greedy_final_ms']:>14.0f}{wrong:>24}"
        )
    for language, row in result["languages"].items():
        for error in row["errors"]:
            print(f"error ({language}): {error}")


def _stages(result: Json) -> list[str]:
    """Stages of which the account of any language has a time."""
    found: dict[str, None] = {}
    for row in result["languages"].values():
        for stage, times in row["stages"].items():
            if times["spent_ms"]:
                found[stage] = None
    return list(found)


def missed_gates(result: Json, over_ms: float) -> list[str]:
    """Gates missed: p50 above English, and the median of the differences, in ms. An unknown figure
    misses its gate."""
    rows, lines = result["languages"], []
    english = rows[ENGLISH]["summary"]["p50"]
    for language, row in rows.items():
        if language == ENGLISH:
            continue
        p50 = row["summary"]["p50"]
        of_p50 = None if english is None or p50 is None else p50 - english
        for what, over in (
            ("p50 over English", of_p50),
            ("later than in English, request by request", row["over_english"]["median_ms"]),
        ):
            if over is None or over > over_ms:
                shown = "-" if over is None else f"{over:.1f}"
                lines.append(f"GATE MISSED: {language}: {what}: {shown} ms > {over_ms:g} ms")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if no gate was missed and no call broke. Raises BenchError,
    and TalkError for a model that can't be used."""
    options = _parser().parse_args(argv)
    load_jiwer()
    sentences = {each: said[: options.sentences] for each, said in load_sentences().items()}
    if unknown := set(options.language) - set(sentences):
        raise BenchError(f"There are no sentences in {', '.join(sorted(unknown))}.")
    if options.language:
        wanted = {ENGLISH, *options.language}
        sentences = {each: said for each, said in sentences.items() if each in wanted}
    recordings = {each: recordings_in(each, said) for each, said in sentences.items()}
    try:
        if options.url is not None:
            held = asyncio.run(measure(recordings, options.url, options.turns_a_call))
        else:
            with own_server(options.serve_args.split()) as server:
                held = asyncio.run(measure(recordings, server.url, options.turns_a_call))
    except ConnectError as error:
        raise BenchError(str(error)) from None
    passes: dict[str, Json] = {}
    if options.passes:
        try:
            for language, said in sentences.items():
                passes[language] = asdict(pass_times(language, recordings[language], said))
        except (asr.ModelError, ModelStoreError) as error:
            raise TalkError(str(error)) from None
    result = {
        **heading("languages", vars(options)),
        "languages": figures(held),
        "passes": passes,
    }
    show(result)
    save(result, options.json)
    missed = missed_gates(result, options.gate_over)
    print("".join(f"{line}\n" for line in missed), end="")
    return int(bool(missed) or any(row["errors"] for row in result["languages"].values()))


def _parser() -> argparse.ArgumentParser:
    known = load_sentences()
    parser = argparse.ArgumentParser(
        prog="halfsec bench languages --calls",
        description="Call in each language and in English, with the same requests, and compare how "
        "long answers take at the caller's ear. Takes five minutes on two cores.",
    )
    add = parser.add_argument
    # `choices` refuse the empty list that stands for all, in Python 3.11.
    add("language", nargs="*", metavar="LANGUAGE", help=f"beside English; {', '.join(known)}")
    add(
        "--sentences",
        type=positive,
        default=6,
        help=f"turns in each language, at most {min(map(len, known.values()))} (%(default)s)",
    )
    add("--turns-a-call", type=positive, default=2, help="in each call (%(default)s)")
    add("--no-passes", dest="passes", action="store_false", help="leave out the recognizer's times")
    add("--url", help="URL of a running server; without it one is started")
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    add(
        "--gate-over",
        type=float,
        default=80.0,
        metavar="MS",
        help="fail where p50, or the median of the differences, is more above English "
        "(%(default)g)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
