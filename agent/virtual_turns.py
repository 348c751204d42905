"""Recorded turns through the turn-taking machine in virtual time.

Theory of operation
-------------------
The real detector judges a recording once, and the real recognizer decodes each stretch of it that
is ever asked for once (`Track`). The rest of a call is cheap: the real listener and the real
machine on the recording's own clock (`play`). So hundreds of turns at dozens of thresholds take a
minute, and a change of the rules shows before any call is held.

What is not real is time: a frame is heard when its last sample was spoken, a final pass takes what
it took when it was decoded (or what is given), and a reply is audible `reply_ms` after it was
begun, by a guess or by the end of the turn, whichever came first. Load, transport and the language
model's mood are left to the bench that plays.

A threshold is moved from outside: at scale 2 the machine is told of half of the silence, so every
rule that it has waits twice as long. Its watchdogs for audio that stops coming run on the clock and
are re-armed by every frame, so they do not notice.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

import asr
from asr.listener import Listener
from asr.transcripts import DecodeJob, Hypothesis
from asr.vad import FRAME

from . import commands as cmd
from . import events as ev
from .end_of_turn import TurnRules
from .turn_taking import TurnTaking

NS_PER_SAMPLE: Final = 1_000_000_000 // asr.RATE_HZ

TAIL_S: Final = 4.0
"""Silence behind each recording: longer than any rule waits, at any scale worth trying."""

Float32 = npt.NDArray[np.float32]


class TurnModel(Protocol):
    """What is needed of a turn model."""

    def log_odds(self, pcm: Float32) -> float: ...


class Recognizer(Protocol):
    """What is needed of a recognizer."""

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """How long work takes that is not done here, in ms."""

    reply_ms: float = 125.0
    """From a final's words to the first sound at the ear: prefill 30, four tokens 65, voice 20,
    transport 10, on two cores."""
    final_ms: float | None = None
    """Of a final pass; None: what each really took."""
    sound_ms: float = 25.0
    """Of the turn model, beside a final pass."""


class Track:
    """A recording that was listened to. Not thread-safe."""

    def __init__(
        self,
        pcm: Float32,
        end: int,
        detector: asr.VoiceDetector,
        recognizer: Recognizer,
        judge: TurnModel,
    ) -> None:
        """`pcm`: float32 [n] at 16 kHz. `end`: sample after its last voiced 20 ms."""
        tail = int(TAIL_S * asr.RATE_HZ)
        padded = np.concatenate([pcm, np.zeros(tail + -(len(pcm) + tail) % FRAME, np.float32)])
        self.frames: Final = padded.reshape(-1, FRAME)
        self.end: Final = end
        state = asr.VadState()
        self.probabilities: Final = [detector.probability(one, state) for one in self.frames]
        self._recognizer = recognizer
        self._judge = judge
        self._known: dict[tuple[int, int], tuple[Hypothesis, float]] = {}

    def heard(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        """Words and turn model's log-odds of a job over this recording, computed at most once."""
        place = job.first_sample, job.end_sample
        if place not in self._known:
            words = self._recognizer.transcribe(job.pcm)
            self._known[place] = words, self._judge.log_odds(job.pcm)
        return self._known[place]


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a turn."""

    latency_ms: float | None
    """From the last voiced sample to the first sound. None: cut in, or missed."""
    cut_in: bool
    reopened: bool
    """A reply was begun before the last voiced sample."""


def play(
    track: Track,
    listening: asr.ListenerConfig,
    rules: TurnRules,
    scale: float = 1.0,
    timing: Timing | None = None,
) -> Played:
    """One turn up to the first sound of a reply, or to the end of the recording."""
    call = _Call(track, listening, rules, scale, timing or Timing())
    for number in range(len(track.frames)):
        call.hear(number)
        if call.audible_ns is not None:
            break
    end_ns = track.end * NS_PER_SAMPLE
    if call.audible_ns is None:
        return Played(None, cut_in=False, reopened=call.reopened)
    if call.audible_ns < end_ns:
        return Played(None, cut_in=True, reopened=True)
    return Played((call.audible_ns - end_ns) / 1e6, cut_in=False, reopened=call.reopened)


class _Remembered:
    """The detector, from memory: as `asr.VoiceDetector`."""

    def __init__(self, probabilities: list[float]) -> None:
        self._next = iter(probabilities)

    def probability(self, frame: Float32, state: asr.VadState) -> float:
        return next(self._next)


class _Call:
    """A session without its desks: carries out what concerns the order of events."""

    def __init__(
        self,
        track: Track,
        listening: asr.ListenerConfig,
        rules: TurnRules,
        scale: float,
        timing: Timing,
    ) -> None:
        self.audible_ns: int | None = None
        self.reopened = False
        self._track = track
        quiet = replace(listening, partial_interval_ms=0)  # partials decide nothing
        self._listener = Listener(quiet, _Remembered(track.probabilities))
        self._machine = TurnTaking(rules)
        self._scale = scale
        self._timing = timing
        self._now_ns = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._paused_at = 0
        self._guess: tuple[int, int] | None = None
        """Its turn, and when it is ready."""

    def hear(self, number: int) -> None:
        """Whatever is due before this frame has been spoken, then the frame."""
        frame_ns = (number + 1) * FRAME * NS_PER_SAMPLE
        while self.audible_ns is None and self._step(frame_ns):
            pass
        self._now_ns = frame_ns
        for event in self._listener.feed(self._track.frames[number]).events:
            self._pass_on(event)

    def _step(self, until_ns: int) -> bool:
        """The next thing that happens by itself; False where there is none until then."""
        timer_ns = self._machine.next_deadline_ns()
        due_ns = self._due[0][0] if self._due else None
        if timer_ns is not None and timer_ns <= until_ns and (due_ns is None or timer_ns < due_ns):
            self._now_ns = max(self._now_ns, timer_ns)
            self._carry_out(self._machine.on_timer(self._now_ns))
            return True
        if due_ns is None or due_ns > until_ns:
            return False
        self._now_ns, _, happen = heapq.heappop(self._due)
        happen()
        return True

    def _later(self, ms: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self._now_ns + round(ms * 1e6), self._count, happen))

    def _pass_on(self, event: asr.EndpointEvent) -> None:
        match event:
            case asr.SpeechStarted(utterance, at_sample):
                self._feed(ev.SpeechStarted(utterance, at_sample))
            case asr.SpeechPaused(utterance, at_sample):
                self._paused_at = at_sample
                self._feed(ev.SpeechPaused(utterance, at_sample))
            case asr.SpeechResumed(utterance, at_sample):
                self._feed(ev.SpeechResumed(utterance, at_sample))
            case asr.SilenceGrew(utterance, silence_ms):
                self._feed(ev.SilenceGrew(utterance, int(silence_ms / self._scale)))

    def _feed(self, event: ev.Event) -> None:
        self._carry_out(self._machine.apply(event, self._now_ns))

    def _carry_out(self, commands: tuple[cmd.Command, ...]) -> None:
        for command in commands:
            match command:
                case cmd.Transcribe(utterance, revision):
                    self._transcribe(utterance, revision)
                case cmd.CommitUtterance(utterance) | cmd.DropUtterance(utterance):
                    self._listener.end(utterance)
                case cmd.GuessReply(turn):
                    ready_ns = self._now_ns + round(self._timing.reply_ms * 1e6)
                    self._guess = turn, ready_ns
                case cmd.DropGuess():
                    self._guess = None
                case cmd.StartReply(turn):
                    self._start(turn)
                case cmd.ReleaseReply():
                    self.audible_ns = self._now_ns

    def _transcribe(self, utterance: int, revision: int) -> None:
        job = self._listener.finalize(utterance, self._paused_at, revision)
        if job is None:
            self._later(0, lambda: self._feed(ev.TranscriptReady(utterance, revision, "")))
            return
        words, log_odds = self._track.heard(job)
        judged = ev.PauseJudged(utterance, revision, log_odds)
        self._later(self._timing.sound_ms, lambda: self._feed(judged))
        took_ms = self._timing.final_ms
        if took_ms is None:
            took_ms = words.encode_ms + words.decode_ms

        def ready(job: Any = job) -> None:
            for told in self._listener.complete(job, words):
                self._feed(ev.TranscriptReady(utterance, revision, told.text))

        self._later(took_ms, ready)

    def _start(self, turn: Any) -> None:
        self.reopened |= self._now_ns < self._track.end * NS_PER_SAMPLE
        wait_ms = self._timing.reply_ms
        if self._guess is not None and self._guess[0] == turn:
            wait_ms = max(0.0, (self._guess[1] - self._now_ns) / 1e6)
        self._guess = None
        self._later(wait_ms, lambda: self._feed(ev.ReplyAudible(turn)))
