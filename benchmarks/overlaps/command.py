"""`halfsec bench overlaps`: what is said over the agent keeps the reply, or stops it, in virtual
time.

Backchannels must keep it, interruptions must stop it; over a question of the agent's the same
backchannels are answers, and must be taken as such. The result has each share with its interval,
for English voices, for synthetic ones of other languages, for those that no threshold was chosen
by, for those that are synthesized and recorded, and every clip that went wrong with its words.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import asr
from agent.client.simulated_caller.summary import percentiles_ms
from asr.recognition.transcripts import Hypothesis
from benchmarks.end_of_turn.simulated_call import Float32, SpeechModels, load_models
from benchmarks.statistics import wilson_interval
from benchmarks.voice.report import heading, save

from .clips import Clip, read_clips
from .overlap_call import Client, OverlapCall, Overlapped

CLIENTS: Final[tuple[Client, ...]] = ("stock", "ducks")

Json = dict[str, Any]


class Remembering:
    """A recognizer that decodes the same audio once: both kinds of client hear the same."""

    def __init__(self, recognizer: asr.Transcriber) -> None:
        self._recognizer = recognizer
        self._known: dict[tuple[bytes, bool], Hypothesis] = {}

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
        key = pcm.tobytes(), fallback
        if key not in self._known:
            self._known[key] = self._recognizer.transcribe(pcm, fallback=fallback)
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()


def measure(
    clips: Sequence[Clip], models: SpeechModels, seed: int, *, words_only: bool = False
) -> list[Overlapped]:
    """Say each clip over a reply of each kind of client, and each backchannel over a question."""
    detector, recognizer, judge = models
    remembering = Remembering(recognizer)
    models = detector, remembering, judge
    found = []
    for number, clip in enumerate(clips):
        for client in CLIENTS:
            for is_answer in (False, True) if clip.kind == "backchannels" else (False,):
                rng = random.Random(f"{seed} {clip.voice} {clip.words} {is_answer}")
                call = OverlapCall(
                    clip, client, models, rng, is_answer=is_answer, words_only=words_only
                )
                found.append(call.run())
                if is_wrong(found[-1]):
                    print(_each(found[-1]), file=sys.stderr, flush=True)
        remembering.forget()
        if not (number + 1) % 20:
            print(f"{number + 1}/{len(clips)} clips", file=sys.stderr, flush=True)
    return found


def figures(calls: Sequence[Overlapped]) -> Json:
    """Shares with intervals: `{client: {group: {backchannels, interruptions, answers}}}`."""
    groups: dict[str, Callable[[Overlapped], bool]] = {
        "all": lambda _: True,
        "English voices": lambda each: not each.clip.is_accented,
        "accented": lambda each: each.clip.is_accented,
        "held out": lambda each: each.clip.is_held_out,
        "synthesized": lambda each: not each.clip.is_recorded,
        "recorded": lambda each: each.clip.is_recorded,
    }
    return {
        client: {
            name: _group([each for each in calls if each.client == client and belongs(each)])
            for name, belongs in groups.items()
        }
        for client in CLIENTS
    }


def _group(calls: Sequence[Overlapped]) -> Json:
    over = [each for each in calls if each.clip.kind == "backchannels" and not each.is_answer]
    stops = [each for each in calls if each.clip.kind == "interruptions"]
    answers = [each for each in calls if each.is_answer]
    return {
        "backchannels": {
            **_share(over, lambda each: each.kept),
            "unnoticed": sum(not each.noticed for each in over),
            "gone_ms": percentiles_ms(each.gone_ms for each in over if each.kept and each.noticed),
        },
        "interruptions": {
            **_share(stops, lambda each: each.stopped),
            "reacted_ms": percentiles_ms(_known(each.reacted_ms for each in stops)),
            "stopped_ms": percentiles_ms(_known(each.stopped_ms for each in stops)),
        },
        "answers": _share(answers, lambda each: bool(each.messages)),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]


def _share(calls: Sequence[Overlapped], is_right: Callable[[Overlapped], bool]) -> Json:
    num = sum(map(is_right, calls))
    return {
        "said": len(calls),
        "voices": len({each.clip.voice for each in calls}),
        "right": num,
        "share": num / len(calls) if calls else None,
        "interval": wilson_interval(num, len(calls)),
    }


def _each(call: Overlapped) -> Json:
    return {
        "kind": "answer" if call.is_answer else call.clip.kind.removesuffix("s"),
        "client": call.client,
        "voice": call.clip.voice,
        "said": call.clip.words,
        "heard": call.words,
        "partials": call.partials,
        "messages": call.messages,
        "kept": call.kept,
        "stopped": call.stopped,
        "noticed": call.noticed,
    }


def is_wrong(call: Overlapped) -> bool:
    if call.is_answer:
        return not call.messages
    return not (call.kept if call.clip.kind == "backchannels" else call.stopped)


def show(result: Json) -> None:
    """Print the tables."""
    print(f"\n{result['machine']}, {result['date']}; {result['calls']} calls in virtual time\n")
    print(f"{'':<22}{'':<15}{'said':>6}{'voices':>8}{'right':>7}{'share':>9}", end="")
    print(f"{'(95 %)':>13}  ms p50 / p95")
    for client, groups in result["clients"].items():
        for name, group in groups.items():
            for what, row in group.items():
                if row["said"]:
                    _show_row(f"{client}, {name}", what, row)
    for line in result["wrong"]:
        print(
            f"  {line['client']}, {line['kind']}: {line['voice']} said {line['said']!r}, ", end=""
        )
        print(f"heard {line['heard']}, messages {line['messages']}")


def _show_row(group: str, what: str, row: Json) -> None:
    low, high = row["interval"]
    ms = row.get("stopped_ms") or row.get("gone_ms") or {}
    times = " / ".join(f"{ms[key]:.0f}" for key in ("p50", "p95") if ms.get(key) is not None)
    print(f"{group:<22}{what:<15}{row['said']:>6}{row['voices']:>8}{row['right']:>7}", end="")
    print(f"{100 * row['share']:>8.1f}%{f'{100 * low:.1f}-{100 * high:.1f}':>13}  {times}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if a gate was missed, else 0. Raises BenchError."""
    options = _parser().parse_args(argv)
    clips = read_clips(options.folder)
    if options.voices:
        clips = [each for each in clips if each.voice in options.voices]
    calls = measure(clips, load_models(), options.seed, words_only=options.words_only)
    result = {
        **heading("overlaps", vars(options)),
        "calls": len(calls),
        "clients": figures(calls),
        "wrong": [_each(each) for each in calls if is_wrong(each)],
    }
    show(result)
    save(result, options.json)
    missed = [
        f"GATE MISSED: {what}, {client}: {row['share']} < {limit:g}"
        for what, limit in (
            ("backchannels", options.gate_kept),
            ("interruptions", options.gate_stopped),
        )
        for client, groups in result["clients"].items()
        if limit is not None and ((row := groups["all"][what])["share"] or 0) < limit
    ]
    print("".join(f"{line}\n" for line in missed), end="")
    return int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench overlaps",
        description="Say backchannels and interruptions over the agent, in virtual time: do the "
        "first keep the reply, do the second stop it?",
        epilog="example: halfsec bench overlaps CLIPS --gate-kept 0.9 --gate-stopped 0.97 (make "
        "CLIPS with `python -m benchmarks.overlaps.clips CLIPS`)",
    )
    add = parser.add_argument
    add("folder", type=Path, help="backchannels/VOICE/WORDS.wav and interruptions/VOICE/WORDS.wav")
    add("--voices", nargs="+", default=(), metavar="VOICE", help="only these")
    add("--words-only", action="store_true", help="as if lengths were unknown, for comparison")
    add("--seed", type=int, default=1, help="of replies and onsets (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--gate-kept", type=float, metavar="SHARE", help="fail below this share of backchannels")
    add("--gate-stopped", type=float, metavar="SHARE", help="fail below this of interruptions")
    return parser


if __name__ == "__main__":
    sys.exit(main())
