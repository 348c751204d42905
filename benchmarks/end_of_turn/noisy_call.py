"""One turn in noise, as a call in virtual time: what noise begins, delays, cuts and interrupts.

The call hears `LEAD_S` of the condition before the caller's recording and goes on after the last
word, until the answer has been heard for `HEARD_S`. Detector (with its automatic gain), recognizer,
sound model and turn-taking are those of a call (`simulated_call.py`); the language model's opinion
on the words is left out, and with it the regression that uses it. A pass takes a given time, so
that the same turns give the same result on a busy machine.

If an answer to mere noise is heard before the caller begins, the agent talks, and the caller has to
interrupt it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

import asr
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from asr.recognition.transcripts import DecodeJob, Hypothesis, PartialTranscript
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from latency_budget.account.turn import TurnId

from .simulated_call import NS_PER_SAMPLE, Float32, VirtualCall

LEAD_S: Final = 2.0
"""Time in s of the condition alone before the recording."""

MISSED_S: Final = 3.0
"""Time in s after the last word from which an answer is missed. The rules wait for 2 at most."""

HEARD_S: Final = 2.0
"""Time in s of an answer in which an interruption by noise is looked for."""

TAIL_S: Final = MISSED_S + HEARD_S
"""Time in s of the condition after the last word."""

ROOM_LEVEL: Final = 10 ** (-65 / 20)
"""Root mean square of the sound of a quiet room: 65 dB below full scale."""

EARLY_S: Final = 0.2
"""An utterance that begins earlier than this before the first voiced sample was begun by noise. A
detector in noise is at times a little early with the caller's own voice."""

REPLY_S: Final = 5.0
"""Length in s of an answer: longer than `HEARD_S`."""

PASS_MS: Final = 90.0
"""Duration in ms of a pass, see `evaluation.READY_MS`."""

FIRST_SOUND_MS: Final = 125.0
"""Time in ms from a final's words to the first sound, see `simulation.Timing`."""


@dataclass(frozen=True, slots=True)
class SpokenSpan:
    """Place of the caller's speech in a turn, in samples."""

    first: int
    """First voiced sample."""
    end: int
    """Sample after the last voiced one."""


@dataclass(frozen=True, slots=True)
class NoisyOutcome:
    """What came of one turn."""

    wait_ms: float | None
    """Time in ms from the last voiced sample to the first sound of the answer. None: cut in on, or
    missed."""
    cut_in: bool
    """An answer was heard between the caller's first and last voiced sample."""
    false_start: bool
    """Noise alone began an utterance before the caller spoke."""
    answered_noise: bool
    """An answer was heard before the caller spoke."""
    interrupted: bool
    """Noise alone stopped the answer."""

    @property
    def missed(self) -> bool:
        return self.wait_ms is None and not self.cut_in


class NoisyCall:
    """Call of one turn. Not thread-safe."""

    def __init__(
        self,
        span: SpokenSpan,
        listener: Listener,
        recognizer: asr.Transcriber,
        judge: asr.EndOfTurnModel,
        rules: TurnRules | None = None,
        pass_ms: float = PASS_MS,
    ) -> None:
        """`listener` makes no timed partials: they decide nothing here and take most of the
        time."""
        self._span = span
        self._recognizer = recognizer
        self._judge = judge
        self._early = asr.FinalReuse()
        self._call = VirtualCall(listener, rules or TurnRules(), self._decode, self._do)
        self._call.decode_ms = pass_ms
        self._call.on_partial = self._shown
        self._guess: tuple[TurnId, int] | None = None
        """Turn id of the guessed reply, and the time at which it is ready."""
        self._num_talks = 0
        self._heard_ns: int | None = None
        """First sound of the answer to the caller."""
        self._cut_in = self._false_start = self._answered_noise = self._interrupted = False

    def hear(self, pcm: Float32) -> NoisyOutcome:
        """Play a turn, float32 [n] at 16 kHz with `TAIL_S` behind its last voiced sample."""
        for frame in pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME):
            self._call.hear(frame)
            if self._is_over():
                break
        wait_ms = None
        if self._heard_ns is not None:
            wait_ms = (self._heard_ns - self._end_ns) / 1e6
        return NoisyOutcome(
            wait_ms, self._cut_in, self._false_start, self._answered_noise, self._interrupted
        )

    @property
    def _end_ns(self) -> int:
        return self._span.end * NS_PER_SAMPLE

    def _is_over(self) -> bool:
        if self._cut_in or self._interrupted:
            return True
        if self._heard_ns is None:
            return self._call.now_ns > self._end_ns + MISSED_S * 1e9
        return self._call.now_ns > self._heard_ns + HEARD_S * 1e9

    def _decode(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        words = self._early.recognize(self._recognizer, job)
        return words, self._judge.log_odds(job.pcm) if job.kind == "final" else 0.0

    def _shown(self, partial: PartialTranscript) -> None:
        if self._call.machine.checks_words:
            self._call.feed(ev.WordsHeard(partial.utterance, partial.text))

    def _do(self, command: cmd.Command) -> None:
        now_ns = self._call.now_ns
        match command:
            case cmd.AnnounceSpeech(at_sample=at_sample):
                self._false_start |= at_sample < self._span.first - EARLY_S * asr.RATE_HZ
            case cmd.GuessReply(turn):
                self._guess = turn, now_ns + round(FIRST_SOUND_MS * 1e6)
            case cmd.DropGuess():
                self._guess = None
            case cmd.StartReply(turn):
                self._start(turn)
            case cmd.ReleaseReply(turn):
                self._release(turn)
            case cmd.HoldReply() | cmd.CutReply() | cmd.ReopenTurn():
                self._num_talks += 1  # the reply in progress is not sent
                self._interrupted |= self._heard_ns is not None
            case cmd.ResumeReply(turn):
                self._talk(turn)

    def _start(self, turn: TurnId) -> None:
        wait_ms = FIRST_SOUND_MS
        if self._guess is not None and self._guess[0] == turn:
            wait_ms = max(0.0, (self._guess[1] - self._call.now_ns) / 1e6)
        self._guess = None
        self._call.later(wait_ms, lambda: self._call.feed(ev.ReplyAudible(turn)))

    def _release(self, turn: TurnId) -> None:
        now_ns = self._call.now_ns
        if now_ns < self._span.first * NS_PER_SAMPLE:
            self._answered_noise = True
        elif now_ns < self._end_ns:
            self._cut_in = True
        elif self._heard_ns is None and now_ns <= self._end_ns + MISSED_S * 1e9:
            self._heard_ns = now_ns
        self._talk(turn)

    def _talk(self, turn: TurnId) -> None:
        self._num_talks += 1
        number = self._num_talks

        def tell(event: ev.Event) -> None:
            if number == self._num_talks:
                self._call.feed(event)

        sent_ms = REPLY_S * 1000 - 400
        self._call.later(sent_ms, lambda: tell(ev.ReplySent(turn)))
        self._call.later(sent_ms + 400, lambda: tell(ev.ReplyPlayed(turn)))


def lengthened(pcm: Float32, span: SpokenSpan) -> tuple[Float32, SpokenSpan]:
    """A turn with `LEAD_S` before it and `TAIL_S` behind its last voiced sample, as quiet as a
    quiet room: no line is digitally silent."""
    lead = int(LEAD_S * asr.RATE_HZ)
    length = lead + span.end + int(TAIL_S * asr.RATE_HZ)
    length += -length % FRAME
    rng = np.random.default_rng(0)
    whole = (ROOM_LEVEL * rng.standard_normal(length)).astype(np.float32)
    kept = pcm[: length - lead]
    whole[lead : lead + len(kept)] = kept
    return whole, SpokenSpan(lead + span.first, lead + span.end)
