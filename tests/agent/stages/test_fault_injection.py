"""A stage made slower on purpose: nothing but slower."""

import time

import numpy as np
import pytest

from agent.stages.fault_injection import Rehearsal, SlowBackend, SlowRecognizer, SlowVoice
from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Plan, StepHandle, StepResult
from tests.support.fakes.llm_models import ScriptedBackend
from tests.support.fakes.recognizer import ScriptedRecognizer
from tts import SpeakablePiece, SpeechChunk

MS = 1_000_000


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("", Rehearsal()),
        ("asr+300", Rehearsal(asr_ms=300)),
        ("llmx3", Rehearsal(llm_factor=3)),
        ("ttsx12", Rehearsal(tts_factor=12)),
    ],
)
def test_settings(setting: str, found: Rehearsal) -> None:
    assert Rehearsal.of(setting) == found


def test_a_recognizer_sleeps_after_each_pass(slept: list[float]) -> None:
    inner = ScriptedRecognizer("hello")
    slow = SlowRecognizer(inner, 300)
    pcm = np.ones(16_000, np.float32)
    assert slow.transcribe(pcm) == inner.transcribe(pcm)
    assert slept == [0.3]


class TakesTime(ScriptedBackend):
    """20 ms for a step, one half of it at the launch."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(len)
        self.clock = clock

    def launch(self, plan: Plan) -> StepHandle:
        self.clock.advance_ms(10)
        return super().launch(plan)

    def collect(self, handle: StepHandle) -> StepResult:
        self.clock.advance_ms(10)
        return super().collect(handle)


def test_a_backend_sleeps_for_what_a_step_took(slept: list[float]) -> None:
    clock = ManualClock()
    inner = TakesTime(clock)
    slow = SlowBackend(inner, 3, clock)
    assert slow.layout is inner.layout
    slot, other = slow.open_slot(), slow.open_slot()
    slow.copy_prefix(slot, other, 0)
    slow.close_slot(other)
    assert list(inner.slots) == [slot]
    handle = slow.launch(Plan(()))
    clock.advance_ms(1000)  # what the engine does meanwhile is not the backend's time
    slow.collect(handle)
    assert slept == [0.04]
    assert slow.cache_bytes() == inner.cache_bytes()


class OneChunk:
    """A voice that takes 30 ms for its chunk."""

    name = "one"
    rate_hz = 24_000

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.warmed = False

    def synthesize(self, piece: SpeakablePiece, speed: float = 1.0):  # type: ignore[no-untyped-def]
        self.clock.advance_ms(30)
        yield SpeechChunk(np.zeros(10, np.int16), self.rate_hz, piece.span, (), is_last=True)

    def warm(self) -> None:
        self.warmed = True


def test_a_voice_sleeps_for_what_a_chunk_took(slept: list[float]) -> None:
    clock = ManualClock()
    voice = OneChunk(clock)
    slow = SlowVoice(voice, 2, clock)
    slow.warm()
    assert (voice.warmed, slow.name, slow.rate_hz) == (True, "one", 24_000)
    (chunk,) = slow.synthesize(SpeakablePiece("Hi.", (0, 3), 0))
    assert chunk.text_span == (0, 3)
    assert slept == [0.03, 0.0]
