"""`halfsec bench quiet`: false triggers, turns opened by sounds that are no speech to the agent.

Silence, noise, tones and a keyboard are made from the seed; music, and whatever else should not be
answered, comes from files. Each sound is a call of its own in virtual time
(`benchmarks/end_of_turn/simulated_call.py`): real detector, listener, recognizer and turn-taking.
After an answer the agent talks for `REPLY_S`, and is interrupted by anything it takes for speech.

Counted are the utterances opened (on a Realtime socket each of them stops the agent), the partials
shown, the transcripts that became messages, and the answers. The gate is on the answers.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

import asr
from agent.client.simulated_caller.microphone import RecordingError, load_recording
from agent.config.sources import read_config
from agent.errors import BenchError
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from asr.recognition.transcripts import DecodeJob, Hypothesis, PartialTranscript
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone
from benchmarks.end_of_turn.simulated_call import Float32, VirtualCall, load_models
from benchmarks.end_of_turn.simulation import TAIL_S, Timing
from benchmarks.signals.noise import SOUNDS, make_sound
from benchmarks.signals.recordings import SUFFIXES
from latency_budget.account.clock import unix_ns
from latency_budget.account.turn import TurnId
from latency_budget.host import machine

from .options import positive
from .report import save

REPLY_S: Final = 3.0
"""Time in s for which the agent talks after a false trigger."""

BLOCK_S: Final = 60.0
"""Length in s of one generated sound: one call."""

Json = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """Counts of false triggers for one kind of sound."""

    name: str
    seconds: float = 0.0
    utterances: int = 0
    decoded: int = 0
    """Passes of the recognizer, partial and final."""
    partials: int = 0
    transcripts: list[str] = field(default_factory=list)
    """Texts of utterances that became messages."""
    answers: int = 0

    def json(self) -> Json:
        return {
            "minutes": round(self.seconds / 60, 2),
            "utterances": self.utterances,
            "decoded": self.decoded,
            "partials": self.partials,
            "transcripts": self.transcripts,
            "answers": self.answers,
        }


class QuietCall:
    """A call whose caller never speaks."""

    def __init__(
        self,
        detector: asr.VoiceDetector,
        recognizer: asr.Transcriber,
        judge: asr.EndOfTurnModel,
        listening: asr.ListenerConfig,
        tally: Tally,
    ) -> None:
        self._recognizer = recognizer
        self._judge = judge
        self._early = asr.FinalReuse()
        self._tally = tally
        self._num_talks = 0
        listener = Listener(listening, detector)
        self._call = VirtualCall(listener, TurnRules(), self._decode, self._do)
        self._call.on_partial = self._shown

    def hear(self, pcm: Float32) -> None:
        """Process `pcm`, float32 [n] at 16 kHz, and the silence after it."""
        self._tally.seconds += len(pcm) / asr.RATE_HZ
        pcm = np.concatenate([pcm, np.zeros(int(TAIL_S * asr.RATE_HZ), np.float32)])
        for frame in pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME):
            self._call.hear(frame)

    def _decode(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        self._tally.decoded += 1
        words = self._early.recognize(self._recognizer, job)
        return words, self._judge.log_odds(job.pcm) if job.kind == "final" else 0.0

    def _shown(self, partial: PartialTranscript) -> None:
        self._tally.partials += 1
        if self._call.machine.checks_words:
            self._call.feed(ev.WordsHeard(partial.utterance, partial.text))

    def _do(self, command: cmd.Command) -> None:
        match command:
            case cmd.AnnounceSpeech():
                self._tally.utterances += 1
            case cmd.CommitUtterance(text=text) if text:
                self._tally.transcripts.append(text)
            case cmd.StartReply(turn):
                self._tally.answers += 1
                first_ms = Timing().reply_ms
                self._call.later(first_ms, lambda: self._call.feed(ev.ReplyAudible(turn)))
                self._talk(turn, first_ms)
            case cmd.HoldReply() | cmd.CutReply():
                self._num_talks += 1  # the reply in progress is not sent
            case cmd.ResumeReply(turn):
                self._talk(turn, 0.0)

    def _talk(self, turn: TurnId, after_ms: float) -> None:
        self._num_talks += 1
        number = self._num_talks

        def tell(event: ev.Event) -> None:
            if number == self._num_talks:
                self._call.feed(event)

        sent_ms = after_ms + REPLY_S * 1000 - 400
        self._call.later(sent_ms, lambda: tell(ev.ReplySent(turn)))
        self._call.later(sent_ms + 400, lambda: tell(ev.ReplyPlayed(turn)))


def sounds(files: Sequence[Path], options: argparse.Namespace) -> Iterator[tuple[str, Float32]]:
    """Sound of each call with the name that it is counted under: the files for at most half of the
    time, then generated sounds, in turns. Raises BenchError for a file that can't be played."""
    left_s = options.minutes * 60.0
    for path in files:
        try:
            pcm, rate_hz = load_recording(path)
        except RecordingError as error:
            raise BenchError(str(error)) from None
        if left_s <= options.minutes * 30.0:
            break
        left_s -= len(pcm) / rate_hz
        sound = pcm.astype(np.float32) / np.float32(32768)
        yield f"{path.parent.name}/{path.name}", _on_the_line(sound, options.telephony)
    names = list(SOUNDS)
    number = 0
    while left_s > 0:
        name, seed = names[number % len(names)], options.seed + number // len(names)
        made = make_sound(name, seed, min(BLOCK_S, left_s))
        yield name, _on_the_line(made, options.telephony)
        left_s -= BLOCK_S
        number += 1


def _on_the_line(sound: Float32, is_telephone: bool) -> Float32:
    if not is_telephone:
        return sound
    line = over_telephone(np.rint(sound * 32767).astype(np.int16), asr.RATE_HZ)
    return asr.Resampler(LINE_RATE_HZ).push(line)


def measure(
    played: Iterator[tuple[str, Float32]],
    detector: asr.VoiceDetector,
    recognizer: asr.Transcriber,
    judge: asr.EndOfTurnModel,
    listening: asr.ListenerConfig,
) -> list[Tally]:
    """Hold all calls. Returns one tally per name, in order of first appearance."""
    tallies: dict[str, Tally] = {}
    for name, pcm in played:
        tally = tallies.setdefault(name, Tally(name))
        QuietCall(detector, recognizer, judge, listening, tally).hear(pcm)
        print(f"{name}: {tally.answers} answers", file=sys.stderr, flush=True)
    return list(tallies.values())


def report(tallies: Sequence[Tally], options: argparse.Namespace) -> Json:
    """Make the result as JSON data."""
    whole = Tally("whole")
    for each in tallies:
        whole.seconds += each.seconds
        whole.utterances += each.utterances
        whole.decoded += each.decoded
        whole.partials += each.partials
        whole.transcripts += each.transcripts
        whole.answers += each.answers
    return {
        "bench": "quiet",
        "machine": machine(),
        "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "telephony": options.telephony,
        **whole.json(),
        "sounds": {each.name: each.json() for each in tallies},
    }


def show(result: Json) -> None:
    """Print the table."""
    print(f"\n{result['machine']}, {result['date']}; {result['minutes']:.1f} min in virtual time\n")
    print(f"{'':<36}{'min':>6}{'utterances':>11}{'decoded':>8}{'partials':>9}", end="")
    print(f"{'transcripts':>12}{'answers':>8}")
    for name, row in [("whole", result), *result["sounds"].items()]:
        print(f"{name:<36}{row['minutes']:>6.1f}{row['utterances']:>11}{row['decoded']:>8}", end="")
        print(f"{row['partials']:>9}{len(row['transcripts']):>12}{row['answers']:>8}")
    for name, row in result["sounds"].items():
        for text in row["transcripts"]:
            print(f"  {name}: {text!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if the gate was missed, else 0. Raises BenchError for models
    that can't be used."""
    options = _parser().parse_args(argv)
    files = [path for path in options.recordings if path.is_file()]
    for folder in (path for path in options.recordings if path.is_dir()):
        files += sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    config = read_config()
    detector, recognizer, judge = load_models(config)
    listening = asr.ListenerConfig(endpointing=asr.EndpointingConfig(pause_ms=config.asr.pause_ms))
    result = report(
        measure(sounds(files, options), detector, recognizer, judge, listening), options
    )
    show(result)
    save(result, options.json)
    gate = options.gate_answers
    if gate is None or result["answers"] <= gate:
        return 0
    print(f"GATE MISSED: {result['answers']} answers > {gate}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench quiet",
        description="Let a call hear what is not a turn: silence, noise, tones and a keyboard, "
        "made from the seed, and the music or whatever else the files hold. Counts what it takes "
        "for speech, for words, and answers.",
        epilog="example: halfsec bench quiet /usr/share/asterisk/moh --gate-answers 0",
    )
    add = parser.add_argument
    add("recordings", nargs="*", type=Path, help="files or folders, for half of the time at most")
    add("--minutes", type=positive, default=30, help="of sound (%(default)s)")
    add("--seed", type=int, default=1, help="of the generated sounds (%(default)s)")
    add("--telephony", action="store_true", help="through 300-3400 Hz and mu-law first")
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--gate-answers", type=int, metavar="N", help="fail above this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
