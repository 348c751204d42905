"""Injected latency: one stage made slower on purpose, to see how the latency budget is enforced.

`latency_budget.rehearse` names stage and slowness: "asr+300" adds 300 ms to every pass of the
recognizer, "llmx3" and "ttsx3" make every step of the language model and every chunk of the voice
take three times as long. The stage's thread sleeps, so that the processor stays free and no other
stage is slowed.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import asr
import tts
from latency_budget.account.clock import Clock
from llm_engine.backends.base import Backend, Plan, StepHandle, StepResult
from llm_engine.backends.wrapper import BackendWrapper

_PARTS: Final = re.compile(r"(asr|llm|tts)[+x]([0-9]+)")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Injected latency of each stage. The default: none."""

    asr_ms: int = 0
    """Added to each pass of the recognizer."""
    llm_factor: int = 1
    """Duration of a step of the language model, as a multiple."""
    tts_factor: int = 1
    """Duration of a chunk of speech, as a multiple."""

    @classmethod
    def of(cls, setting: str) -> "Rehearsal":
        """Parse the setting; anything else than the three forms above is none."""
        parts = _PARTS.fullmatch(setting)
        if parts is None:
            return cls()
        stage, number = parts[1], int(parts[2])
        if stage == "asr":
            return cls(asr_ms=number)
        return cls(llm_factor=number) if stage == "llm" else cls(tts_factor=number)


class SlowRecognizer:
    """A recognizer whose `transcribe` takes `delay_ms` longer."""

    def __init__(self, recognizer: asr.Recognizer, delay_ms: int) -> None:
        self._recognizer = recognizer
        self._delay_ms = delay_ms

    @property
    def languages(self) -> tuple[str, ...]:
        return self._recognizer.languages

    def transcribe(
        self,
        pcm: asr.Pcm,
        *,
        fallback: bool = True,
        options: asr.TranscriptionOptions = asr.AS_LOADED,
    ) -> asr.Hypothesis:
        hypothesis = self._recognizer.transcribe(pcm, fallback=fallback, options=options)
        time.sleep(self._delay_ms / 1e3)
        return hypothesis

    def steps(
        self, pcm: asr.Pcm, options: asr.TranscriptionOptions = asr.AS_LOADED
    ) -> Iterator[asr.Hypothesis]:
        return self._recognizer.steps(pcm, options)

    def word_times(
        self,
        pcm: asr.Pcm,
        tokens: tuple[int, ...],
        options: asr.TranscriptionOptions = asr.AS_LOADED,
    ) -> list[asr.TimedWord]:
        return self._recognizer.word_times(pcm, tokens, options)

    def num_prompt_tokens(self, options: asr.TranscriptionOptions) -> int:
        return self._recognizer.num_prompt_tokens(options)

    def warm(self) -> None:
        self._recognizer.warm()


class SlowBackend(BackendWrapper):
    """Language model backend whose steps take `factor` times as long. One thread, the engine's."""

    def __init__(self, backend: Backend, factor: int, clock: Clock) -> None:
        super().__init__(backend)
        self._factor = factor
        self._clock = clock
        self._spent_ns = 0
        """Time spent in the launch of the step that is collected next."""

    def launch(self, plan: Plan) -> StepHandle:
        began_ns = self._clock.now_ns()
        handle = super().launch(plan)
        self._spent_ns = self._clock.now_ns() - began_ns
        return handle

    def collect(self, handle: StepHandle) -> StepResult:
        began_ns = self._clock.now_ns()
        result = super().collect(handle)
        spent_ns = self._spent_ns + self._clock.now_ns() - began_ns
        time.sleep((self._factor - 1) * spent_ns / 1e9)
        return result


class SlowVoice:
    """A voice whose chunks take `factor` times as long."""

    def __init__(self, voice: tts.Voice, factor: int, clock: Clock) -> None:
        self._voice = voice
        self._factor = factor
        self._clock = clock

    @property
    def name(self) -> str:
        return self._voice.name

    @property
    def rate_hz(self) -> int:
        return self._voice.rate_hz

    def synthesize(
        self, piece: tts.SpeakablePiece, speed: float = 1.0
    ) -> Iterator[tts.SpeechChunk]:
        chunks = self._voice.synthesize(piece, speed)
        while True:
            began_ns = self._clock.now_ns()
            chunk = next(chunks, None)
            time.sleep((self._factor - 1) * (self._clock.now_ns() - began_ns) / 1e9)
            if chunk is None:
                return
            yield chunk

    def warm(self) -> None:
        self._voice.warm()
