"""Simulation: recorded turns through the turn-taking machine in virtual time.

Theory of operation
-------------------
The real detector judges a recording once, and the real recognizer decodes each requested stretch of
it once (`Track`). The rest of a call is cheap: the real listener and the real machine on the
recording's own clock (`play`). So hundreds of turns at dozens of thresholds take a minute, and the
effect of a changed rule shows before any call is held.

Only time is simulated: a frame arrives when its last sample was spoken, a pass takes its measured
time (or a given one), and a reply is audible `reply_ms` after it was begun, by a guess or by the
end of the turn, whichever came first. Early passes are made when the voice drops, and finals reuse
their words (`asr/recognition/final_reuse.py`). Timed partials are not made, because they decide
nothing: the wait of a pass for one is left out. Load, transport and the language model's variation
are left to the bench that plays in real time.

A threshold is moved from outside: at scale 2 the machine receives half of the silence, so every
rule waits twice as long. Its watchdogs for missing audio run on the clock and are re-armed by every
frame, so the scale does not affect them.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

import asr
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from asr.audio.samples import samples_from_ms
from asr.recognition.transcripts import DecodeJob, Hypothesis
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from latency_budget.account.turn import TurnId

from .simulated_call import NS_PER_SAMPLE, Float32, VirtualCall, WaitMs

TAIL_S: Final = 4.0
"""Silence in s behind each recording: longer than any rule waits, at any useful scale."""


NEVER_MS: Final = 10**9
"""Interval in ms of timed partials. Without an interval there are no early passes either."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in ms of work that the simulation does not do."""

    reply_ms: float = 125.0
    """Time from a final's words to the first sound at the ear: prefill 30, four tokens 65, voice
    20, transport 10, on two cores."""
    final_ms: float | None = None
    """Duration of a pass, final or early; None: each pass's measured one."""
    sound_ms: float = 25.0
    """Duration of the turn model, beside a final pass."""


class Track:
    """A recording with the models' results. Not thread-safe."""

    def __init__(
        self,
        pcm: Float32,
        end: int,
        detector: asr.VoiceDetector,
        recognizer: asr.Transcriber,
        judge: asr.EndOfTurnModel,
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
        self._more_ms = 0
        self._words: dict[tuple[int, int, bool], Hypothesis] = {}
        self._log_odds: dict[tuple[int, int], float] = {}

    def judged_by(self, judge: asr.EndOfTurnModel, more_ms: int = 0) -> "Track":
        """The same track, judged by another turn model. `more_ms`: so much more of the silence
        behind the pause is judged, because the model was made to be asked later."""
        other = copy(self)
        other._judge, other._more_ms, other._log_odds = judge, more_ms, {}
        return other

    def words(self, job: DecodeJob, *, fallback: bool) -> Hypothesis:
        """Hypothesis of a job over this recording, decoded at most once."""
        place = job.first_sample, job.end_sample, fallback
        if place not in self._words:
            self._words[place] = self._recognizer.transcribe(job.pcm, fallback=fallback)
        return self._words[place]

    def log_odds(self, job: DecodeJob) -> float:
        """Log-odds of the turn model for a job, computed at most once."""
        place = job.first_sample, job.end_sample
        if place not in self._log_odds:
            more = samples_from_ms(self._more_ms)
            behind = self.frames.reshape(-1)[job.end_sample : job.end_sample + more]
            self._log_odds[place] = self._judge.log_odds(np.concatenate([job.pcm, behind]))
        return self._log_odds[place]


@dataclass(frozen=True, slots=True)
class Played:
    """Outcome of a simulated turn."""

    latency_ms: float | None
    """Time in ms from the last voiced sample to the first sound. None: cut in, or missed."""
    cut_in: bool
    reopened: bool
    """True if a reply was begun before the last voiced sample."""


def play(
    track: Track,
    listening: asr.ListenerConfig,
    rules: TurnRules,
    scale: float = 1.0,
    timing: Timing | None = None,
    decision: WaitMs | None = None,
) -> Played:
    """Play one turn up to the first sound of a reply, or to the end of the recording. `decision`:
    in place of the rules' own."""
    call = _TurnRun(track, listening, rules, scale, timing or Timing(), decision)
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
    """Voice detector that replays a track's probabilities: an `asr.VoiceDetector`."""

    def __init__(self, probabilities: list[float]) -> None:
        self._next = iter(probabilities)

    def probability(self, frame: Float32, state: asr.VadState) -> float:
        return next(self._next)


@dataclass(frozen=True, slots=True)
class _TrackRecognizer:
    """Recognizer of one job, with the track's result where it has one."""

    track: Track
    job: DecodeJob

    def transcribe(self, pcm: Float32, *, fallback: bool = True) -> Hypothesis:
        return self.track.words(self.job, fallback=fallback)


class _TurnRun:
    """Reply state of one turn."""

    def __init__(
        self,
        track: Track,
        listening: asr.ListenerConfig,
        rules: TurnRules,
        scale: float,
        timing: Timing,
        decision: WaitMs | None,
    ) -> None:
        self.audible_ns: int | None = None
        self.reopened = False
        self._track = track
        self._early = asr.FinalReuse()
        quiet = replace(listening, partial_interval_ms=NEVER_MS)
        listener = Listener(quiet, _Remembered(track.probabilities))
        self._call = VirtualCall(listener, rules, self._decode, self._do, decision)
        self._call.scale, self._call.sound_ms = scale, timing.sound_ms
        self._call.decode_ms = timing.final_ms
        self._timing = timing
        self._guess: tuple[TurnId, int] | None = None
        """Turn id of the guessed reply, and the time at which it is ready."""

    def hear(self, number: int) -> None:
        """Take frame `number` of the recording."""
        self._call.hear(self._track.frames[number])

    def _decode(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        words = self._early.recognize(_TrackRecognizer(self._track, job), job)
        return words, self._track.log_odds(job) if job.kind == "final" else 0.0

    def _do(self, command: cmd.Command) -> None:
        now_ns = self._call.now_ns
        match command:
            case _ if self.audible_ns is not None:
                pass  # the turn is over
            case cmd.GuessReply(turn):
                self._guess = turn, now_ns + round(self._timing.reply_ms * 1e6)
            case cmd.DropGuess():
                self._guess = None
            case cmd.StartReply(turn):
                self._start(turn)
            case cmd.ReleaseReply():
                self.audible_ns = now_ns

    def _start(self, turn: TurnId) -> None:
        now_ns = self._call.now_ns
        self.reopened |= now_ns < self._track.end * NS_PER_SAMPLE
        wait_ms = self._timing.reply_ms
        if self._guess is not None and self._guess[0] == turn:
            wait_ms = max(0.0, (self._guess[1] - now_ns) / 1e6)
        self._guess = None
        self._call.later(wait_ms, lambda: self._call.feed(ev.ReplyAudible(turn)))
