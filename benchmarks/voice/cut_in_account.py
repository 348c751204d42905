"""`halfsec bench cutins`: the service's account of cut-ins against calls whose turns are known.

Theory of operation
-------------------
The account decides after the fact whether a reply cut in
(`agent/turn_taking/reply_outcome.py`). This bench knows where turns end, because it makes the
calls: a caller who pauses inside a sentence and goes on, one who interrupts on purpose, one who
says "mm-hmm", one who takes the next turn, and one who only listens. Detector, listener,
recognizer, turn model, turn-taking machine and turn recorder are the real ones, in virtual time
(`benchmarks/end_of_turn/simulated_call.py`); the agent's reply is words with a length.

Sentences are recordings of people, cut where they paused or dropped their voice, and the callers'
lines of `benchmarks/chat/dialogues` in the installed voices, cut at a drawn word boundary: the
first half then sounds like a whole sentence, which is the hard case. Pauses have a tail as long as
in real halting speech. Interruptions begin 0.5 to 3.5 s after the reply's first sound, backchannels
0.3 to 3.5 s, next turns after the end of a short reply. Half of the speakers and lines (b, by their
names) are for fitting (`--fit`), figures are of the other half.

A reply counts as cut in where it was audible before the last voiced sample of the caller's turn,
and the speech that went on began within two seconds of its first sound. Precision depends on the
mix of calls; the result has every count.
"""

import argparse
import functools
import random
import re
import sys
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import soxr

import asr
from agent.client.simulated_caller.microphone import RecordingError, load_recording
from agent.errors import BenchError
from agent.observability.turn_recorder import TurnRecorder
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.reply_outcome import (
    UNDERSTOOD_MS,
    WEIGHTS,
    WINDOW_NS,
    LateSpeech,
    ReplyOutcomes,
    continuation_log_odds,
    features,
)
from asr.audio.samples import frame_rms, last_voiced_sample
from asr.recognition.transcripts import DecodeJob, Hypothesis
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from benchmarks.end_of_turn.simulated_call import (
    NS_PER_SAMPLE,
    Float32,
    SpeechModels,
    VirtualCall,
    load_models,
)
from benchmarks.end_of_turn.simulation import NEVER_MS, Timing
from benchmarks.signals.recordings import SUFFIXES
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.account.turn_record import Outcome
from latency_budget.reporting.trace import TraceWriter
from latency_budget.statistics.intervals import wilson_interval
from latency_budget.storage.history import TurnEntry

from .options import positive
from .report import heading, save

Kind = Literal["goes on", "interrupts", "stops", "backchannel", "next turn", "listens"]

MIX: Final[tuple[tuple[Kind, int], ...]] = (
    ("goes on", 10),
    ("interrupts", 4),
    ("stops", 2),
    ("backchannel", 3),
    ("next turn", 3),
    ("listens", 2),
)
"""Shares of the calls. Half of the callers who go on are not answered in their pause."""

PAUSE_S: Final = (0.5, 0.33, 2.6)
"""Pause inside a turn in s: least, mean of the exponential tail, most. Measured: the 130 pauses of
0.5 s and more in 410 utterances of 140 halting readers (speechocean762) exceed that by 0.33 s."""

OVER_S: Final = (0.5, 3.5)
"""Onset of an interruption after the reply's first sound in s, uniform over a reply's length: a
word of it has to be heard, and a reaction takes 0.2 s."""

ASIDE_S: Final = (0.3, 3.5)
"""Onset of a backchannel likewise; the least is that of `harness.py`."""

MIN_MORE: Final = asr.RATE_HZ * 160 // 1000
"""Samples of the caller's turn after a reply's first sound that make it a cut-in. Less is a breath
or the last consonant, and no detector takes it for speech (`min_speech_over_ms`)."""

NEXT_S: Final = (0.25, 0.9)
"""Onset of the next turn after the reply's end in s, uniform."""

LISTEN_S: Final = 6.0
"""Length of a call in s after the caller's last word."""

LEAD_S: Final = 0.4

NOISE: Final = 10 ** (-60 / 20)
"""RMS of the room's tone."""

MIN_DIP_MS: Final = 100
"""Shortest drop of the voice at which a recording is cut; stops inside words are shorter."""

DIP_DB: Final = 25.0

REPLIES: Final = (
    ("Sure, I can do that for you. It takes a moment, and then you get a message.", 4.2),
    ("Of course. There are several ways to do it, and the first one is the simplest.", 4.0),
    ("That is no problem at all. I have made a note of it for you.", 3.4),
    ("All right. Which day would suit you?", 1.9),
    ("Sure. How many of you will there be?", 1.8),
    ("Okay.", 0.5),
)
"""The agent's replies and their lengths in s."""

SHORT: Final = REPLIES[3:]
"""Replies after which the caller's next turn comes within two seconds of their first sound."""

STOPS: Final = (
    "Stop.", "No, wait.", "Hold on a second.", "Sorry, I meant Tuesday.", "Actually, never mind.",
    "Wait a moment please.", "No, that's not what I asked.", "Excuse me, can you repeat that?",
    "No, no, for four people.", "Hang on, that's the wrong one.", "Sorry, what was that?",
    "Okay, stop, that's enough.", "I don't need that.", "Can you speak a bit slower?",
    "That's wrong.", "Let me ask you something else.",
)  # fmt: skip
"""What callers say who stop an agent."""

BACKCHANNELS: Final = ("Mm-hmm.", "Yeah.", "Okay.", "Right.", "I see.", "Uh-huh.", "Got it.")

Json = dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A whole sentence and its two halves, as float32 at 16 kHz without silence around. Each is
    made when it is first asked for: synthesis takes longer than the call."""

    name: str
    make_whole: Callable[[], Float32]
    make_halves: Callable[[], tuple[Float32, Float32]]

    @functools.cached_property
    def whole(self) -> Float32:
        return self.make_whole()

    @functools.cached_property
    def halves(self) -> tuple[Float32, Float32]:
        return self.make_halves()


@dataclass(slots=True)
class Material:
    """What callers say, of one half of the speakers and lines."""

    sentences: list[Sentence]
    stops: list[Float32]
    backchannels: list[Float32]


@dataclass(slots=True)
class Heard:
    """One call: what was true, and what the account says of its first reply."""

    kind: Kind
    name: str
    truth: Outcome | None
    account: Outcome | None
    delay_ms: float | None
    """Onset of the speech over the reply after its first sound, by the bench."""
    speech: LateSpeech | None
    """What the account judged."""
    words: list[str] = field(default_factory=list)
    """The caller's messages, as recognized."""


def half_of(name: str) -> str:
    """Half of a speaker or line."""
    return "ab"[zlib.crc32(name.encode()) % 2]


def dips(pcm: Float32) -> list[tuple[int, int]]:
    """First sample and sample after the last of each drop of the voice inside a recording."""
    size = asr.RATE_HZ // 100
    rms = frame_rms(pcm, size)
    if len(rms) < 100:
        return []
    quiet = rms < float(np.quantile(rms, 0.95)) * 10 ** (-DIP_DB / 20)
    found, began = [], None
    for at, is_quiet in enumerate([*quiet[60:-50], False], start=60):
        if is_quiet and began is None:
            began = at
        elif not is_quiet and began is not None:
            if (at - began) * 10 >= MIN_DIP_MS:
                found.append((began * size, at * size))
            began = None
    return found


def trimmed(pcm: Float32) -> Float32:
    """The voiced part."""
    last, first = last_voiced_sample(pcm), last_voiced_sample(pcm[::-1])
    if last is None or first is None:
        return pcm[:0]
    return pcm[len(pcm) - 1 - first : last + 1]


def recorded(
    folders: Sequence[Path], wanted_half: str, number: int, rng: random.Random
) -> list[Sentence]:
    """At most so many recordings of one half of the speakers (a folder each) that have a place to
    be cut, drawn by `rng`. Raises BenchError."""
    paths = [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES and half_of(path.parent.name) == wanted_half
    ]
    if folders and not paths:
        raise BenchError(f"There are no recordings in {', '.join(map(str, folders))}.")
    rng.shuffle(paths)
    found: list[Sentence] = []
    for path in paths:
        if len(found) == number:
            break
        try:
            pcm, rate_hz = load_recording(path)
        except RecordingError as error:
            raise BenchError(str(error)) from None
        sound = pcm.astype(np.float32) / np.float32(32768)
        if rate_hz != asr.RATE_HZ:
            sound = soxr.resample(sound, rate_hz, asr.RATE_HZ, quality="HQ")
        sound = trimmed(sound)
        places = dips(sound)
        if places:
            end, begin = rng.choice(places)
            halves = sound[:end], sound[begin:]
            name = f"{path.parent.name}/{path.stem}"
            found.append(Sentence(name, partial(_same, sound), partial(_same, halves)))
    return found


def lines_of_callers() -> list[str]:
    """Callers' lines of the chat bench, of six words and more."""
    folder = Path(__file__).parents[1] / "chat" / "dialogues"
    found: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        for dialogue in tomllib.loads(path.read_text(encoding="utf-8"))["dialogue"]:
            found += [turn["caller"] for turn in dialogue["turn"] if "caller" in turn]
    return [line for line in dict.fromkeys(found) if len(line.split()) >= 6]


Speak = Callable[[str], Float32]


def installed_voices() -> list[Speak]:
    """Functions from words to float32 at 16 kHz, one for each voice. Raises BenchError."""
    import tts  # imports take seconds
    from agent.stages.model_store.catalogue import ModelStore
    from tts.load import available_voices
    from tts.text_chunker import SpeakablePiece

    def speak(voice: tts.Voice, text: str) -> Float32:
        piece = SpeakablePiece(text, (0, len(text)), 0, is_last=True)
        pcm = np.concatenate([chunk.pcm for chunk in voice.synthesize(piece)])
        sound = pcm.astype(np.float32) / np.float32(32768)
        return trimmed(soxr.resample(sound, voice.rate_hz, asr.RATE_HZ, quality="HQ"))

    folder = ModelStore().directory
    try:
        voices = [tts.load_voice(name, folder) for name in available_voices(folder)]
    except tts.VoiceError as error:
        raise BenchError(f"No voice can be used: {error}") from None
    return [partial(speak, voice) for voice in voices]


def spoken(line: str, speak: Speak, rng: random.Random) -> Sentence:
    """A line cut at a drawn word boundary from the third word on; its halves are spoken apart."""
    words = line.split()
    at = rng.randint(3, len(words) - 2)
    first = re.sub(r"[^\w']+$", "", " ".join(words[:at])) + "."
    second = " ".join(words[at:])
    return Sentence(line, partial(speak, line), lambda: (speak(first), speak(second)))


Made = TypeVar("Made")


def _same(made: Made) -> Made:
    return made


def material(
    folders: Sequence[Path], half: str, num_calls: int, voices: Sequence[Speak], seed: int
) -> Material:
    """What the callers of so many calls say. Raises BenchError where there is nothing."""
    rng = random.Random(f"{seed} {half}")
    real = recorded(folders, half, num_calls // 2, rng)
    lines = [line for line in lines_of_callers() if half_of(line) == half]
    rng.shuffle(lines)
    made = [
        spoken(line, voices[number % len(voices)], rng)
        for number, line in enumerate(lines[: num_calls - len(real)])
    ]
    sentences = real + made
    if not sentences:
        raise BenchError("There is nothing to say.")
    rng.shuffle(sentences)
    of_half = [text for number, text in enumerate(STOPS) if "ab"[number % 2] == half]
    stops = [voice(text) for text in of_half for voice in voices]
    return Material(sentences, stops, [voice(text) for text in BACKCHANNELS for voice in voices])


class AccountedCall:
    """A call of one turn and what follows it, in virtual time, with its turn recorder."""

    def __init__(
        self,
        kind: Kind,
        sentence: Sentence,
        over: Float32,
        models: SpeechModels,
        rng: random.Random,
        *,
        ducks: bool,
    ) -> None:
        """`over`: what is said over the reply, or after it, where the kind of call has that."""
        detector, self._recognizer, self._judge = models
        self._kind, self._sentence, self._over, self._rng = kind, sentence, over, rng
        self._reply_text, self._reply_s = rng.choice(SHORT if kind == "next turn" else REPLIES)
        quiet = asr.ListenerConfig(partial_interval_ms=NEVER_MS)
        rules = TurnRules(ducks=ducks)
        self._call = _Followed(Listener(quiet, detector), rules, self._decode, self._do)
        self._early = asr.FinalReuse()
        self._turns: list[TurnEntry] = []
        trace = TraceWriter(
            SessionId("bench"), started_unix_ns=0, config_fingerprint="", origin_ns=0
        )
        self._log = self._call.log = TurnRecorder(SessionId("bench"), trace, self._turns.append)
        noise = np.random.default_rng(rng.randrange(1 << 30))
        self._room = noise.normal(0.0, NOISE, int(40 * asr.RATE_HZ)).astype(np.float32)
        self._end = 0
        """Sample after the caller's last word so far."""
        self._audible: dict[TurnId, int] = {}
        """Sample at which each reply was audible."""
        self._stopped: set[TurnId] = set()
        self._withdrawn: set[TurnId] = set()
        self._guess: tuple[TurnId, int] | None = None
        self._talk = 0
        self._over_at: int | None = None
        """First voiced sample of what is said over the reply, or goes on."""
        self._turn_end = 0
        """Sample after the last voiced one of the caller's turn."""
        self._first_end = 0
        """The same of its first half; of the whole where it is not cut."""
        self._texts: list[str] = []

    def run(self) -> Heard:
        """Hold the call."""
        lead = int(LEAD_S * asr.RATE_HZ)
        if self._kind == "goes on":
            least_s, mean_s, most_s = PAUSE_S
            pause_s = min(most_s, least_s + self._rng.expovariate(1 / mean_s))
            first, second = self._sentence.halves
            self._say(first, lead)
            self._first_end = self._end
            self._over_at = self._end + int(pause_s * asr.RATE_HZ)
            self._say(second, self._over_at)
        else:
            self._say(self._sentence.whole, lead)
            self._first_end = self._end
        self._turn_end = self._end
        number = 0
        while number * FRAME < self._end + int(LISTEN_S * asr.RATE_HZ):
            self._call.hear(self._room[number * FRAME : (number + 1) * FRAME])
            number += 1
        self._log.over.settle_all()
        turn = TurnId(1)
        records = {entry.record.turn: entry.record for entry in self._turns}
        audible, onset = self._audible.get(turn), self._over_at
        delay_ms = None if audible is None or onset is None else (onset - audible) / 16
        return Heard(
            self._kind,
            self._sentence.name,
            self._truth(turn),
            records[turn].outcome if turn in records else None,
            delay_ms,
            self._call.judged.get(turn),
            self._texts,
        )

    def _truth(self, turn: TurnId) -> Outcome | None:
        audible = self._audible.get(turn)
        if audible is None:
            return Outcome.REOPENED if turn in self._withdrawn else None
        if audible < self._first_end - MIN_MORE:  # in a pause of the speaker's own
            return Outcome.CUT_IN
        if self._kind == "goes on" and self._over_at is not None:
            late_ns = (self._over_at - audible) * NS_PER_SAMPLE
            return Outcome.CUT_IN if audible < self._turn_end and late_ns <= WINDOW_NS else None
        is_meant = self._kind in ("interrupts", "stops") and turn in self._stopped
        return Outcome.INTERRUPTED if is_meant else None

    def _say(self, pcm: Float32, at: int) -> None:
        self._room[at : at + len(pcm)] += pcm
        self._end = at + len(pcm)

    def _say_over(self, after_s: float) -> None:
        """Say what is said over the reply, from now on `after_s`."""
        if self._over_at is None:
            self._over_at = self._call.now_ns // NS_PER_SAMPLE + int(after_s * asr.RATE_HZ)
            self._say(self._over, self._over_at)

    def _decode(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        words = self._early.recognize(self._recognizer, job)
        return words, self._judge.log_odds(job.pcm) if job.kind == "final" else 0.0

    def _do(self, command: cmd.Command) -> None:
        now_ns = self._call.now_ns
        self._log.command(command, now_ns, self._call.machine.turn)
        self._call.follow(command)
        match command:
            case cmd.CommitUtterance(_, text) if text is not None:
                self._texts.append(text)
                self._log.caller_said(text)
            case cmd.DropUtterance():
                self._log.utterance_dropped()
            case cmd.GuessReply(turn):
                self._guess = turn, now_ns + round(Timing().reply_ms * 1e6)
            case cmd.DropGuess():
                self._guess = None
            case cmd.StartReply(turn):
                self._start(turn)
            case cmd.ReleaseReply(turn):
                self._release(turn)
            case cmd.ReopenTurn(turn):
                self._withdrawn.add(turn)
                self._cut(turn)
                self._log.reopened(turn, now_ns)
            case cmd.CutReply(turn):
                self._cut(turn)
            case cmd.HoldReply(turn) | cmd.DuckReply(turn):
                if isinstance(command, cmd.HoldReply):
                    self._talk += 1
                self._call.feed(ev.ReplyStands(turn, self._heard(turn), ""))
            case cmd.ResumeReply(turn):
                self._send(turn, 1.0)

    def _heard(self, turn: TurnId) -> str:
        """Words of the reply that were heard by now."""
        passed_s = (self._call.now_ns // NS_PER_SAMPLE - self._audible[turn]) / asr.RATE_HZ
        words = self._reply_text.split()
        return " ".join(words[: int(len(words) * passed_s / self._reply_s)])

    def _start(self, turn: TurnId) -> None:
        self._log.reply_begun(turn, self._call.now_ns)
        wait_ms = Timing().reply_ms
        if self._guess is not None and self._guess[0] == turn:
            wait_ms = max(0.0, (self._guess[1] - self._call.now_ns) / 1e6)
        self._guess = None
        self._talk += 1
        number = self._talk

        def ready() -> None:
            if number == self._talk:
                self._call.feed(ev.ReplyAudible(turn))

        self._call.later(wait_ms, ready)

    def _release(self, turn: TurnId) -> None:
        self._audible[turn] = self._call.now_ns // NS_PER_SAMPLE
        self._log.mark(turn, MarkName.RELEASED, self._call.now_ns)
        self._call.outcomes.audible(turn, self._call.now_ns)
        self._send(turn, self._reply_s)
        if turn > 1 or self._audible[turn] < self._first_end:
            return
        if self._kind in ("interrupts", "stops"):
            self._say_over(self._rng.uniform(*OVER_S))
        elif self._kind == "backchannel":
            self._say_over(self._rng.uniform(*ASIDE_S))
        elif self._kind == "next turn":
            self._say_over(self._reply_s + self._rng.uniform(*NEXT_S))

    def _send(self, turn: TurnId, length_s: float) -> None:
        """The rest of the reply is sent and played, unless it is cut or held."""
        self._talk += 1
        number = self._talk

        def sent() -> None:
            if number == self._talk:
                self._log.mark(turn, MarkName.REPLY_DONE, self._call.now_ns)
                self._ended(turn, self._reply_text)
                self._call.feed(ev.ReplySent(turn))

        def played() -> None:
            if number == self._talk:
                self._call.feed(ev.ReplyPlayed(turn))

        self._call.later(max(0.0, 1000 * length_s - 400), sent)
        self._call.later(1000 * length_s, played)

    def _cut(self, turn: TurnId) -> None:
        self._talk += 1
        self._stopped.add(turn)
        self._log.mark(turn, MarkName.INTERRUPTED, self._call.now_ns)
        self._ended(turn, self._heard(turn) if turn in self._audible else "")

    def _ended(self, turn: TurnId, text: str) -> None:
        self._log.reply_ended(turn, text, 0.0)
        self._call.outcomes.reply_ended(turn, text)


class _Followed(VirtualCall):
    """Virtual call whose events a turn recorder follows."""

    log: TurnRecorder

    def __init__(
        self,
        listener: Listener,
        rules: TurnRules,
        decode: Callable[[DecodeJob], tuple[Hypothesis, float]],
        do: Callable[[cmd.Command], None],
    ) -> None:
        super().__init__(listener, rules, decode, do)
        self.outcomes = ReplyOutcomes()
        """Beside the recorder's own: it says what was judged."""
        self.judged: dict[TurnId, LateSpeech] = {}

    def feed(self, event: ev.Event) -> None:
        onset_ns = None
        if isinstance(event, ev.SpeechStarted):
            onset_ns = event.at_sample * NS_PER_SAMPLE
            result = SpeechResult(event.utterance, event, onset_ns=onset_ns)
            self.log.heard(result, self.machine.turn)
        self.log.event(event, self.now_ns, self.machine.turn)
        self.outcomes.event(event, self.now_ns, onset_ns)
        super().feed(event)

    def follow(self, command: cmd.Command) -> None:
        verdict = self.outcomes.command(command)
        if verdict is not None and verdict.speech is not None:
            self.judged.setdefault(verdict.turn, verdict.speech)


def measure(
    said: Material,
    num_calls: int,
    models: SpeechModels,
    seed: int,
) -> list[Heard]:
    """Hold so many calls."""
    kinds = [kind for kind, share in MIX for _ in range(share)]
    rng = random.Random(seed)
    heard = []
    for number in range(num_calls):
        kind = kinds[number % len(kinds)]
        sentence = said.sentences[number % len(said.sentences)]
        others = {"stops": said.stops, "backchannel": said.backchannels}
        over = rng.choice(others[kind]) if kind in others else rng.choice(said.sentences).whole
        own = random.Random(f"{seed} {number}")
        call = AccountedCall(kind, sentence, over, models, own, ducks=number % 2 == 1)
        heard.append(call.run())
        if not (number + 1) % 20:
            print(f"{number + 1}/{num_calls} calls", file=sys.stderr, flush=True)
    return heard


def fitted(heard: Sequence[Heard]) -> dict[str, float]:
    """Weights of a logistic regression of cut-ins, for speech that could be an answer; the delay
    counts as it does in the account. A prior of one keeps rare features small."""
    late = [
        (each.speech, each.truth is Outcome.CUT_IN)
        for each in heard
        if each.speech is not None and each.speech.delay_ms >= UNDERSTOOD_MS
    ]
    names = list(WEIGHTS)
    seen = np.array([[features(s).get(name, 0.0) for name in names] for s, _ in late])
    plain = dict.fromkeys(names, 0.0)
    given = np.array([continuation_log_odds(speech, plain) for speech, _ in late])
    is_more = np.array([went_on for _, went_on in late], float)
    weights = np.zeros(len(names))
    for _ in range(4000):
        error = is_more - 1 / (1 + np.exp(-(seen @ weights + given)))
        weights += 0.01 * (seen.T @ error - weights)
    return {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True)}


def figures(heard: Sequence[Heard]) -> Json:
    """Counts of truth against account, with recall and precision of each outcome."""
    found: Json = {"calls": len(heard)}
    for outcome in Outcome:
        true = sum(each.truth is outcome for each in heard)
        told = sum(each.account is outcome for each in heard)
        both = sum(each.truth is each.account is outcome for each in heard)
        found[outcome.value] = {
            "true": true,
            "accounted": told,
            "both": both,
            "recall": both / true if true else None,
            "recall_interval": wilson_interval(both, true),
            "precision": both / told if told else None,
            "precision_interval": wilson_interval(both, told),
        }
    found["kinds"] = {
        kind: dict(
            Counter(f"{_named(e.truth)} as {_named(e.account)}" for e in heard if e.kind == kind)
        )
        for kind, _ in MIX
    }
    return found


def _named(outcome: Outcome | None) -> str:
    return "none" if outcome is None else outcome.value


def show(result: Json) -> None:
    """Print the tables."""
    print(f"\n{result['machine']}, {result['date']}; {result['calls']} calls in virtual time\n")
    print(f"{'':<14}{'true':>6}{'told':>6}{'both':>6}{'recall':>9}{'(95 %)':>12}", end="")
    print(f"{'precision':>11}{'(95 %)':>12}")
    for outcome in Outcome:
        row = result[outcome.value]
        print(f"{outcome.value:<14}{row['true']:>6}{row['accounted']:>6}{row['both']:>6}", end="")
        for name, width in (("recall", 9), ("precision", 11)):
            low, high = row[f"{name}_interval"]
            value = "-" if row[name] is None else f"{100 * row[name]:.1f} %"
            print(f"{value:>{width}}{f'{100 * low:.1f}-{100 * high:.1f}':>12}", end="")
        print()
    for kind, counts in result["kinds"].items():
        told = ", ".join(f"{name}: {number}" for name, number in sorted(counts.items()))
        print(f"{kind:<14}{told}")
    for line in result["wrong"]:
        print(f"  {line['kind']}, {line['truth']} as {line['account']}: {line['words']}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if a gate was missed, else 0. Raises BenchError."""
    options = _parser().parse_args(argv)
    half = "b" if options.fit else "a"
    said = material(options.folders, half, options.calls, installed_voices(), options.seed)
    heard = measure(said, options.calls, load_models(), options.seed)
    wrong = [
        {
            "kind": each.kind,
            "truth": _named(each.truth),
            "account": _named(each.account),
            "delay_ms": each.delay_ms,
            "words": each.words,
        }
        for each in heard
        if each.truth is not each.account
    ]
    result = {**heading("cutins", vars(options)), "half": half, **figures(heard), "wrong": wrong}
    result["judged"] = [
        {"goes_on": each.kind == "goes on", "truth": _named(each.truth), **asdict(each.speech)}
        for each in heard
        if each.speech is not None
    ]
    if options.fit:
        result["fitted"] = fitted(heard)
        print(result["fitted"])
    show(result)
    save(result, options.json)
    missed = [
        f"GATE MISSED: {name} of cut-ins {value if value is None else round(value, 3)} < {limit:g}"
        for name, limit in (("recall", options.gate_recall), ("precision", options.gate_precision))
        if limit is not None
        and ((value := result[Outcome.CUT_IN.value][name]) is None or value < limit)
    ]
    print("".join(f"{line}\n" for line in missed), end="")
    return int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench cutins",
        description="Hold calls in virtual time in which it is known where turns end, and compare "
        "what the service's account says of each reply: cut in, interrupted, re-opened or none.",
        epilog="example: halfsec bench cutins speechocean762/WAVE --gate-recall 0.9 "
        "--gate-precision 0.9",
    )
    add = parser.add_argument
    add("folders", nargs="*", type=Path, help="recordings, each speaker's in a folder of its own")
    add("--calls", type=positive, default=240, help="number of calls (%(default)s)")
    add("--seed", type=int, default=1, help="of pauses, replies and cuts (%(default)s)")
    add("--fit", action="store_true", help="the other half of the speakers: print fitted weights")
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--gate-recall", type=float, metavar="SHARE", help="fail below this recall of cut-ins")
    add("--gate-precision", type=float, metavar="SHARE", help="fail below this precision")
    return parser


if __name__ == "__main__":
    sys.exit(main())
