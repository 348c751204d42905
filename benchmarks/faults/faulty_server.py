"""`halfsec serve` whose parts fail on command: stages, the event loop, the clock.

Run by the bench as `python -m benchmarks.faults.faulty_server serve ...`; commands come over its
control socket. The faults are put around the models' classes here, in a process that only the bench
starts, so that the service itself holds no way to break it.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import asr
from agent.__main__ import main
from asr.speech_detection.turn_model import TurnModel
from benchmarks.callers.control_socket import Json, RecordedLoop, listen
from llm_engine.core.engine_core import EngineCore
from tts.voices.engine import RawSpeech
from tts.voices.hibari import HibariEngine

HANG_S: Final = 120.0
"""Time in s that a hung call lasts, at most: longer than any deadline."""
HOWS: Final = ("hang", "raise", "die", "garbage")


class InjectedError(RuntimeError):
    """An error raised on command."""


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """A method of a model that fails on command."""

    kind: type
    name: str
    garbage: Callable[[Any], Any] | None
    """Turns a result into garbage of the same type; None: the method returns nothing that could
    be."""
    hits: Callable[[Json], bool] = lambda keywords: True
    """Picks the calls by their keyword arguments."""


def _noise(speech: RawSpeech) -> RawSpeech:
    samples = np.full(len(speech.samples), np.nan, np.float32)
    return replace(speech, samples=samples)


POINTS: Final[dict[str, FaultPoint]] = {
    "vad": FaultPoint(asr.SileroVad, "probability", lambda result: float("nan")),
    "asr": FaultPoint(
        asr.WhisperTranscriber,
        "transcribe",
        lambda result: replace(result, text="\ufffd\x00" * 2000, avg_logprob=float("nan")),
        lambda keywords: bool(keywords.get("fallback", True)),  # a final pass
    ),
    "turn": FaultPoint(TurnModel, "log_odds", lambda result: float("nan")),
    "llm": FaultPoint(EngineCore, "step", None),
    "tts": FaultPoint(HibariEngine, "speak", _noise),
}


class Faults:
    """The faults that are armed. Commands arrive on another thread than the models'."""

    def __init__(self) -> None:
        self.loop = RecordedLoop()
        self._armed: dict[str, tuple[str, int]] = {}
        """How each stage fails, and how many times more."""
        self._hits = dict.fromkeys(POINTS, 0)
        self._lock = threading.Lock()
        self._step_s = 0.0

    def install(self) -> None:
        """Put the faults around the models and the clock. Before the server starts."""
        self.loop.install()
        self._decode_finals()
        for stage, point in POINTS.items():
            self._wrap(stage, point)
        for name, unit in (("time", 1.0), ("time_ns", 1e9)):
            self._step_clock(name, unit)

    def handle(self, request: Json) -> Json:
        """`{"stage", "how", "times"}`, `{"block_s"}` or `{"step_s"}`: arm it. Returns how often
        each stage was hit. Raises ValueError, RuntimeError."""
        if "stage" in request:
            if request["how"] not in HOWS or request["stage"] not in POINTS:
                raise ValueError(f"no such fault: {request}")
            with self._lock:
                self._armed[request["stage"]] = request["how"], int(request.get("times", 1))
        if "block_s" in request:
            if self.loop.loop is None:
                raise RuntimeError("the server has no event loop")
            self.loop.loop.call_soon_threadsafe(time.sleep, float(request["block_s"]))
        if "step_s" in request:
            self._step_s = float(request["step_s"])
        return {"hits": dict(self._hits)}

    def _decode_finals(self) -> None:
        """Have a final decoded while a fault of the recognizer is armed: four in five take the
        words of an early pass over, and the fault would hit nothing."""
        known = asr.FinalReuse.known

        def known_now(reuse: asr.FinalReuse, job: asr.DecodeJob) -> asr.Hypothesis | None:
            with self._lock:
                is_armed = self._armed.get("asr", ("", 0))[1] > 0
            return None if is_armed else known(reuse, job)

        vars_of_class: Any = asr.FinalReuse
        vars_of_class.known = known_now

    def _step_clock(self, name: str, unit: float) -> None:
        """Put the step in front of a wall clock of the standard library, in its unit. Modules that
        have taken the function itself from `time` keep the true time."""
        real = getattr(time, name)
        whole = type(real())
        setattr(time, name, lambda: real() + whole(self._step_s * unit))

    def _wrap(self, stage: str, point: FaultPoint) -> None:
        original = getattr(point.kind, point.name)

        def method(*args: Any, **keywords: Any) -> Any:
            how = self._due(stage) if point.hits(keywords) else None
            if how == "hang":
                time.sleep(HANG_S)
            elif how == "raise":
                raise InjectedError(f"{stage} fails on command")
            elif how == "die":
                raise SystemExit(f"{stage} dies on command")
            result = original(*args, **keywords)
            if how == "garbage" and point.garbage is not None:
                return point.garbage(result)
            return result

        setattr(point.kind, point.name, method)

    def _due(self, stage: str) -> str | None:
        with self._lock:
            how, left = self._armed.get(stage, ("", 0))
            if not left:
                return None
            self._armed[stage] = how, left - 1
            self._hits[stage] += 1
            return how


def run(argv: list[str] | None = None) -> Any:
    """Run `halfsec` with the faults."""
    faults = Faults()
    faults.install()
    listen(faults.handle)
    return main(argv)


if __name__ == "__main__":
    sys.exit(run())
