"""One utterance over the agent, as a call in virtual time: does the reply go on or stop?

The agent speaks; `AT_S` after its first sound, and a drawn part of a word later, a clip is said.
Detector, listener, partial passes, recognizer and turn-taking are those of a call
(`benchmarks/end_of_turn/simulated_call.py`), and the detector knows that the agent is audible, as
with a client that reports its playback. A pass takes `PASS_MS`, so that a busy machine gives the
same result. The client removes the echo; of the agent's reply there are words with their times.

A reply is *kept* if it was never stopped for good, and nothing that was said became a message. It
*stopped* if it was cut: `reacted_ms` is the time from the first voiced sample until it fell silent
or was turned down, `stopped_ms` until it was given up.
"""

import random
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

import asr
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Caller
from asr.recognition.transcripts import DecodeJob, Hypothesis, PartialTranscript
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from benchmarks.end_of_turn.simulated_call import (
    NS_PER_SAMPLE,
    Float32,
    SpeechModels,
    VirtualCall,
)
from latency_budget.account.turn import TurnId

from .clips import Clip

Client = Literal["stock", "ducks"]
PASS_MS: Final = 150.0
"""Duration in ms of a pass over a short utterance, beside a reply that is being made."""

FIRST_SOUND_MS: Final = 125.0

AT_S: Final = (0.9, 2.5)
"""Onset of the clip after the reply's first sound in s, uniform. Earlier speech re-opens a turn
(`agent/turn_taking/reopening.py`)."""

TAIL_S: Final = 4.0
"""Length of the call in s after the clip, at most."""

SETTLED_S: Final = 1.2
"""The same where nothing is open: a clip that has not been noticed by then will not be."""

NOISE: Final = 10 ** (-60 / 20)
"""RMS of the room's tone."""

LEVEL: Final = 10 ** (-26 / 20)
"""RMS of the loudest tenth of a clip, of which recordings differ by 20 dB and synthetic voices by
none: loudness is no feature that this bench could judge."""

AGENT_LEVEL: Final = 0.1

REPLIES: Final = (
    "We are open from nine to five on weekdays and from ten to two on Saturdays. On Sundays and on "
    "holidays we are closed, but you can always reach us by mail.",
    "Your order left our house on Monday and it should arrive within three days. You will get a "
    "message with the number of the parcel as soon as it is at the post office near you.",
    "There are two ways to do that. The first one is the app on your phone, where you tap on your "
    "name and then on settings. The second one is our page, which has the same menu on the left.",
)
"""Replies that ask nothing."""

QUESTION: Final = "I have found a table for four people on Friday evening. Shall I book it?"
"""A reply that an answer is expected to."""

WORDS_PER_S: Final = 2.8


@dataclass(frozen=True, slots=True)
class Overlapped:
    """What came of a clip said over a reply."""

    clip: Clip
    client: Client
    is_answer: bool
    """It was said over the end of a question."""
    kept: bool
    stopped: bool
    noticed: bool
    """The detector took it for speech."""
    reacted_ms: float | None
    stopped_ms: float | None
    gone_ms: float
    """Time for which a reply that was kept was silent or turned down."""
    words: tuple[str, ...]
    """Words recognized, of every final pass."""
    partials: tuple[str, ...]
    """Words recognized before, while the machine asked for them."""
    messages: tuple[str, ...]
    """Messages of the caller's."""


class OverlapCall:
    """Call of one clip. Not thread-safe."""

    def __init__(
        self,
        clip: Clip,
        client: Client,
        models: SpeechModels,
        rng: random.Random,
        *,
        is_answer: bool = False,
        words_only: bool = False,
    ) -> None:
        """`words_only`: the length of the clip is no evidence."""
        detector, self._recognizer, self._judge = models
        self._clip, self._client, self._is_answer = clip, client, is_answer
        self._sound = _levelled(clip.pcm)
        self._reply = QUESTION if is_answer else rng.choice(REPLIES)
        self._reply_s = len(self._reply.split()) / WORDS_PER_S
        self._after_s = self._reply_s - 0.1 if is_answer else rng.uniform(*AT_S)
        self._noise = np.random.default_rng(rng.randrange(1 << 30))
        self._listener = Listener(asr.ListenerConfig(), detector)
        rules = TurnRules(ducks=client == "ducks", weighs_length=not words_only)
        self._call = VirtualCall(self._listener, rules, self._decode, self._do)
        self._call.decode_ms = PASS_MS
        self._call.on_partial = self._shown
        self._early = asr.FinalReuse()
        self._talk = 0
        self._audible_ns: int | None = None
        """First sound of the reply, or of its rest."""
        self._passed_s = 0.0
        """Length of the reply that was played before that."""
        self._onset: int | None = None
        """First sample of the clip."""
        self._gone_ns: int | None = None
        self._gone_ms = 0.0
        self._reacted_ms: float | None = None
        self._stopped_ms: float | None = None
        self._is_cut = self._noticed = False
        self._words: list[str] = []
        self._partials: list[str] = []
        self._messages: list[str] = []

    def run(self) -> Overlapped:
        """Hold the call."""
        self._call.feed(ev.ReplyRequested(caller_has_spoken=True))
        number, end = 0, int((self._reply_s + TAIL_S) * asr.RATE_HZ)
        while number * FRAME < end:
            if self._onset is not None:
                is_open = self._call.machine.caller is not Caller.QUIET
                tail_s = TAIL_S if is_open else SETTLED_S
                end = self._onset + len(self._clip.pcm) + int(tail_s * asr.RATE_HZ)
            self._call.hear(self._frame(number))
            number += 1
        return Overlapped(
            self._clip,
            self._client,
            self._is_answer,
            not self._is_cut and not self._messages and self._gone_ns is None,
            self._is_cut,
            self._noticed,
            self._reacted_ms,
            self._stopped_ms,
            self._gone_ms,
            tuple(self._words),
            tuple(self._partials),
            tuple(self._messages),
        )

    def _frame(self, number: int) -> Float32:
        first = number * FRAME
        frame = self._noise.normal(0.0, NOISE, FRAME).astype(np.float32)
        if self._audible_ns is not None:
            self._listener.echo.played(first, [AGENT_LEVEL])
            if self._onset is None:
                audible = self._audible_ns // NS_PER_SAMPLE
                self._onset = audible + int(self._after_s * asr.RATE_HZ)
        if self._onset is not None:
            at = first - self._onset
            piece = self._sound[max(0, at) : max(0, at + FRAME)]
            begin = max(0, -at)
            frame[begin : begin + len(piece)] += piece
        return frame

    def _decode(self, job: DecodeJob) -> tuple[Hypothesis, float]:
        words = self._early.recognize(self._recognizer, job)
        if job.kind == "final":
            self._words.append(words.text)
        elif not words.text:
            self._call.later(PASS_MS, lambda: self._show(job.utterance, ""))
        return words, self._judge.log_odds(job.pcm) if job.kind == "final" else 0.0

    def _shown(self, partial: PartialTranscript) -> None:
        self._show(partial.utterance, partial.text)

    def _show(self, utterance: int, text: str) -> None:
        if self._call.machine.checks_words:
            self._partials.append(text)
            self._call.feed(ev.WordsHeard(utterance, text))

    def _do(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartReply(turn) if turn == 1:
                self._call.later(FIRST_SOUND_MS, lambda: self._call.feed(ev.ReplyAudible(turn)))
            case cmd.ReleaseReply(turn) if turn == 1:
                self._send(turn)
            case cmd.HoldReply(turn) | cmd.DuckReply(turn):
                self._falls_silent(turn, is_held=isinstance(command, cmd.HoldReply))
            case cmd.ResumeReply(turn) | cmd.UnduckReply(turn):
                self._goes_on()
                if isinstance(command, cmd.ResumeReply):
                    self._send(turn)
            case cmd.CutReply(turn) if turn == 1:
                self._talk += 1
                self._is_cut, self._audible_ns = True, None
                self._stopped_ms = self._since_onset_ms
            case cmd.CommitUtterance(_, text) if text is not None:
                self._messages.append(text)

    def _falls_silent(self, turn: TurnId, *, is_held: bool) -> None:
        self._noticed = True
        if self._reacted_ms is None:
            self._reacted_ms = self._since_onset_ms
        self._gone_ns = self._call.now_ns
        heard, left = self._heard()
        if is_held:
            self._talk += 1
            self._passed_s, self._audible_ns = self._played_s, None
        self._call.feed(ev.ReplyStands(turn, heard, left))

    def _goes_on(self) -> None:
        if self._gone_ns is not None:
            self._gone_ms += (self._call.now_ns - self._gone_ns) / 1e6
            self._gone_ns = None

    @property
    def _since_onset_ms(self) -> float | None:
        if self._onset is None:
            return None
        return (self._call.now_ns - self._onset * NS_PER_SAMPLE) / 1e6

    @property
    def _played_s(self) -> float:
        now_s = 0.0
        if self._audible_ns is not None:
            now_s = (self._call.now_ns - self._audible_ns) / 1e9
        return min(self._reply_s, self._passed_s + now_s)

    def _heard(self) -> tuple[str, str]:
        words = self._reply.split()
        num = int(len(words) * self._played_s / self._reply_s)
        left = " ".join(words[num:])
        return " ".join(words[:num]), f" {left}" if left else ""

    def _send(self, turn: TurnId) -> None:
        """The rest of the reply is sent and played, unless it is cut or held."""
        self._talk += 1
        number = self._talk
        self._audible_ns = self._call.now_ns

        def tell(event: ev.Event) -> None:
            if number == self._talk:
                if isinstance(event, ev.ReplyPlayed):
                    self._audible_ns, self._passed_s = None, self._reply_s
                    self._goes_on()
                self._call.feed(event)

        left_ms = 1000 * (self._reply_s - self._passed_s)
        self._call.later(max(0.0, left_ms - 400), lambda: tell(ev.ReplySent(turn)))
        self._call.later(left_ms, lambda: tell(ev.ReplyPlayed(turn, self._reply)))


def _levelled(pcm: Float32) -> Float32:
    size = asr.RATE_HZ // 100
    rms = np.sqrt(np.mean(pcm[: len(pcm) // size * size].reshape(-1, size) ** 2, axis=1))
    loud = float(np.quantile(rms, 0.9)) if len(rms) else 0.0
    return pcm * np.float32(LEVEL / loud) if loud else pcm
