"""Call in virtual time: the real listener and turn-taking machine on the audio's clock.

A frame arrives when its last sample was spoken, and work (a decode, a reply) completes after its
duration on that clock. The recognizer does one job after the other, as its thread does: a final
that is due behind an early pass waits for it. Nothing is awaited, so an hour of audio takes
as long as its detector and its decodes. The owner of a call carries out the machine's commands.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

import asr
from agent.config.schema import Config
from agent.config.sources import read_config
from agent.errors import BenchError
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.end_of_turn_model import Evidence, PauseHistory
from agent.turn_taking.machine import TurnTaking
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis, PartialTranscript
from asr.speech_detection.vad import FRAME
from asr.stream.asr_stream import Listener
from latency_budget.account.clock import SystemClock

NS_PER_SAMPLE: Final = 1_000_000_000 // asr.RATE_HZ

Float32 = npt.NDArray[np.float32]

WaitMs = Callable[[Evidence], float]
"""Decision: from the evidence about a pause to the silence in ms after which the turn is over."""

SpeechModels = tuple[asr.VoiceDetector, asr.Transcriber, asr.EndOfTurnModel]
"""Models that hear a caller: detector, recognizer and end-of-turn model."""


def load_models(config: Config | None = None) -> SpeechModels:
    """Load the models of these settings; of those that are in force, without any. Raises
    BenchError."""
    from agent.stages.load_progress import Conversion
    from agent.stages.loading import Loading  # imports the stages: takes seconds
    from agent.stages.model_store.catalogue import ModelStore

    config, clock = config or read_config(), SystemClock()
    load = Loading(config, ModelStore(), clock, Conversion(config.llm_engine.model, clock))
    try:
        return load.detector(), load.recognizer(), load.turn_model()
    except asr.ModelError as error:
        raise BenchError(str(error)) from None


class PauseEvidence:
    """Evidence about the present pause, from the machine's events, as the machine keeps it."""

    def __init__(self) -> None:
        self.asked: tuple[int, int] | None = None
        """Utterance and revision whose words and sound are awaited; results of others are stale."""
        self._words = ""
        self._sound: float | None = None
        self._silence_ms = 0
        self._own = PauseHistory()

    @property
    def evidence(self) -> Evidence:
        return Evidence(self._words, self._sound, self._own.quantile_ms)

    def take(self, event: ev.Event) -> None:
        match event:
            case ev.SpeechPaused():
                self._words, self._sound, self._silence_ms = "", None, 0
            case ev.SilenceGrew(_, silence_ms):
                self._silence_ms = silence_ms
            case ev.SpeechResumed():
                self._own.add(self._silence_ms)
                self._words, self._sound = "", None
            case ev.TranscriptReady(utterance, revision, text):
                if (utterance, revision) == self.asked:
                    self._words = text
            case ev.PauseJudged(utterance, revision, log_odds):
                if (utterance, revision) == self.asked:
                    self._sound = log_odds


class VirtualCall:
    """A session without models' threads, timers and transport. Not thread-safe."""

    def __init__(
        self,
        listener: Listener,
        rules: TurnRules,
        decode: Callable[[DecodeJob], tuple[Hypothesis, float]],
        do: Callable[[cmd.Command], None],
        decision: WaitMs | None = None,
    ) -> None:
        """`decode` returns the words and the turn model's log-odds. `do` receives every command
        except the listener's. `decision`: in place of the rules' own, which get its silence before
        each event."""
        self.machine: Final = TurnTaking(rules)
        self.now_ns = 0
        self.scale = 1.0
        """Divisor of the silence that the machine receives."""
        self.decode_ms: float | None = None
        """Duration in ms of a decode; None: its measured one. Reused words take no time."""
        self.sound_ms = 25.0
        """Duration in ms of the turn model, beside a final pass."""
        self.on_partial: Callable[[PartialTranscript], None] = lambda partial: None
        self._rules = rules
        self._decision = decision
        self._pause = PauseEvidence()
        self._listener = listener
        self._decode = decode
        self._do = do
        self._num_frames = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._recognizer_free_ns = 0
        self._paused_at: int | None = None
        """Start of the current pause; None while the caller speaks."""

    def hear(self, frame: Float32) -> None:
        """Carry out the work due before the end of this frame of 512 samples, then take it."""
        self._num_frames += 1
        frame_ns = self._num_frames * FRAME * NS_PER_SAMPLE
        while self._step(frame_ns):
            pass
        self.now_ns = frame_ns
        heard = self._listener.feed(frame)
        for event in heard.events:
            self._pass_on(event)
        for job in heard.jobs:
            self._start(job, lambda final: None)

    def feed(self, event: ev.Event) -> None:
        """Feed an event from the owner, who carries out the commands."""
        if self._decision is not None:
            self._pause.take(event)
            self._require(self._decision(self._pause.evidence))
        self._carry_out(self.machine.apply(event, self.now_ns))

    def _require(self, silence_ms: float) -> None:
        """Change the rules to this silence."""
        rules = replace(self._rules, silence_ms=math.ceil(silence_ms))
        if rules != self._rules:
            self._rules = rules
            self._carry_out(self.machine.apply(ev.RulesChanged(rules), self.now_ns))

    def later(self, ms: float, happen: Callable[[], None]) -> None:
        """Call `happen` after `ms` of the call's clock, unless the call is over by then."""
        self._at(self.now_ns + round(ms * 1e6), happen)

    def _at(self, at_ns: int, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_ns, self._count, happen))

    def _step(self, until_ns: int) -> bool:
        """Carry out the next timed event up to `until_ns`; False if there is none."""
        timer_ns = self.machine.next_deadline_ns()
        due_ns = self._due[0][0] if self._due else None
        if timer_ns is not None and timer_ns <= until_ns and (due_ns is None or timer_ns < due_ns):
            self.now_ns = max(self.now_ns, timer_ns)
            self._carry_out(self.machine.on_timer(self.now_ns))
            return True
        if due_ns is None or due_ns > until_ns:
            return False
        self.now_ns, _, happen = heapq.heappop(self._due)
        happen()
        return True

    def _pass_on(self, event: asr.EndpointEvent) -> None:
        match event:
            case asr.SpeechStarted(utterance, at_sample):
                self._paused_at = None
                self.feed(ev.SpeechStarted(utterance, at_sample))
            case asr.SpeechPaused(utterance, at_sample):
                self._paused_at = at_sample
                self.feed(ev.SpeechPaused(utterance, at_sample))
            case asr.SpeechResumed(utterance, at_sample):
                self._paused_at = None
                self.feed(ev.SpeechResumed(utterance, at_sample))
            case asr.SilenceGrew(utterance, silence_ms):
                self.feed(ev.SilenceGrew(utterance, int(silence_ms / self.scale)))

    def _carry_out(self, commands: tuple[cmd.Command, ...]) -> None:
        for command in commands:
            match command:
                case cmd.Transcribe(utterance, revision):
                    self._transcribe(utterance, revision)
                    continue
                case cmd.CommitUtterance(utterance) | cmd.DropUtterance(utterance):
                    self._listener.end(utterance)
            self._do(command)

    def _transcribe(self, utterance: int, revision: int) -> None:
        self._pause.asked = utterance, revision
        end = self._listener.position if self._paused_at is None else self._paused_at
        job = self._listener.finalize(utterance, end, revision)
        if job is None:
            self.later(0, lambda: self.feed(ev.TranscriptReady(utterance, revision, "")))
            return
        log_odds = self._start(
            job, lambda final: self.feed(ev.TranscriptReady(utterance, revision, final.text))
        )
        judged = ev.PauseJudged(utterance, revision, log_odds)
        self.later(self.sound_ms, lambda: self.feed(judged))

    def _start(self, job: DecodeJob, final: Callable[[FinalTranscript], None]) -> float:
        words, log_odds = self._decode(job)
        took_ms = self.decode_ms
        if took_ms is None or words.taken_over:
            took_ms = words.encode_ms + words.decode_ms
        begins_ns = max(self.now_ns, self._recognizer_free_ns)
        self._recognizer_free_ns = begins_ns + round(took_ms * 1e6)

        def ready() -> None:
            for transcript in self._listener.complete(job, words):
                if isinstance(transcript, FinalTranscript):
                    final(transcript)
                else:
                    self.on_partial(transcript)

        self._at(self._recognizer_free_ns, ready)
        return log_odds
