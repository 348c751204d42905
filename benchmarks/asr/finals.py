"""`halfsec bench asr DIR --finals`: time from the last word to the final transcript.

The listener hears each recording in virtual time, with a recognizer that does one pass at a time,
the most urgent first, as in a call. The duration of a pass is that on an idle machine (see `Cost`),
not the one just measured: the figures do not depend on other load, and differ between the listener
configurations only by what the listener does. Only passes whose words end up in a transcript are
really made.
"""

import heapq
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, last_voiced_sample, ms_from_samples, samples_from_ms
from asr.recognition.final_reuse import FinalReuse
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis
from asr.recognition.whisper import WhisperTranscriber, WindowPolicy
from asr.speech_detection.endpointing import SpeechPaused
from asr.speech_detection.vad import FRAME, SileroVad, VadState
from asr.stream.asr_stream import Listener
from asr.stream.utterance import ListenerConfig

from .scoring import normalized, word_errors

TAILS_MS: Final = (0, 32, 64, 96, 128, 192)
"""Lengths in ms of the audio behind the last voiced sample, for `tails`."""

CALIBRATED_ON: Final = 24
"""Number of recordings that `Cost` is measured on, each recognized once."""

PROMPT_TOKENS: Final = 3
"""Fixed cost of a pass, in tokens of decoding: prompt, keys and values, end of text."""

_URGENCY: Final = {"final": 0, "early": 1, "partial": 2, "segment": 2}
"""Priority of a job by its kind, the lowest number first, as in the service."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Duration of passes on an idle machine: the 10th percentile of those that were timed."""

    encode_ms_per_s: float
    """Time in ms of features and encoder, for each second of window."""
    decode_ms_per_token: float
    tokens_per_s: float
    """Mean number of tokens in a second of audio."""

    @classmethod
    def measured(cls, recognizer: WhisperTranscriber, audio: Sequence[Pcm]) -> "Cost":
        """Time one pass over each of `audio`, float32 [n] at 16 kHz. Blocks."""
        passes = [recognizer.transcribe(pcm, fallback=False) for pcm in audio]
        encode = [one.encode_ms / one.window_s for one in passes]
        decode = [one.decode_ms / (PROMPT_TOKENS + len(one.tokens)) for one in passes]
        tokens = sum(len(one.tokens) for one in passes) / sum(one.audio_s for one in passes)
        return cls(float(np.quantile(encode, 0.1)), float(np.quantile(decode, 0.1)), tokens)

    def of(self, pcm: Pcm) -> float:
        """Duration in ms of a pass over this audio."""
        audio_s = len(pcm) / RATE_HZ
        encode_ms = self.encode_ms_per_s * WindowPolicy().window_s(audio_s)
        return encode_ms + self.decode_ms_per_token * (PROMPT_TOKENS + self.tokens_per_s * audio_s)


@dataclass(frozen=True, slots=True)
class FinalTiming:
    """Final transcript of one turn under one listener configuration, and its time."""

    text: str
    ready_ms: float | None
    """Time in ms from the last voiced sample until the words of the last pause are known; None
    without a pause."""
    taken_over: bool
    """True if the last final reused the words of an early pass."""
    passes: dict[str, int]
    """Number of passes by kind of job."""
    recognizer_ms: float
    """Time in ms that the recognizer worked."""


class _Passes:
    """Recognizer that records its requests and decodes nothing: a pass's text is its number."""

    def __init__(self) -> None:
        self.asked: list[tuple[Pcm, bool]] = []

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        self.asked.append((pcm, fallback))
        return Hypothesis(f"#{len(self.asked) - 1}", tokens=(0,))


class _Remembering:
    """Voice detector that computes a recording's probabilities once and replays them."""

    def __init__(self, vad: SileroVad) -> None:
        self.known: list[float] = []
        self.heard = 0
        self._vad = vad

    def probability(self, frame: Pcm, state: VadState) -> float:
        if self.heard == len(self.known):
            self.known.append(self._vad.probability(frame, state))
        self.heard += 1
        return self.known[self.heard - 1]


@dataclass(slots=True)
class _ListenerRun:
    """Listener and recognizer of one recording, on a virtual clock in ms."""

    listener: Listener
    cost: Cost
    passes: _Passes = field(default_factory=_Passes)
    words: FinalReuse = field(default_factory=FinalReuse)
    waiting: list[tuple[int, int, DecodeJob]] = field(default_factory=list)
    free_at_ms: float = 0.0
    doing: tuple[DecodeJob, Hypothesis] | None = None
    done: dict[str, int] = field(default_factory=dict)
    busy_ms: float = 0.0
    final: tuple[FinalTranscript, DecodeJob, bool, float] | None = None
    """Newest final transcript, its job, whether it was taken over, and its time in ms."""
    count: int = 0

    def hear(self, frame: Pcm) -> None:
        """Feed a frame of 512 samples, and do the recognizer's work due by its end."""
        heard = self.listener.feed(frame)
        now_ms = ms_from_samples(self.listener.position)
        self._work(now_ms)
        for event in heard.events:
            if isinstance(event, SpeechPaused):
                job = self.listener.finalize(event.utterance, event.at_sample)
                self.waiting = [one for one in self.waiting if one[2].kind != "final"]
                heapq.heapify(self.waiting)
                self._ask(job)
        for job in heard.jobs:
            self._ask(job)
        self._work(now_ms)

    def _ask(self, job: DecodeJob | None) -> None:
        if job is not None:
            self.count += 1
            heapq.heappush(self.waiting, (_URGENCY[job.kind], self.count, job))

    def _work(self, now_ms: float) -> None:
        """Finish and begin the passes that are due by now."""
        while True:
            if self.doing is not None:
                if self.free_at_ms > now_ms:
                    return
                self._finish(*self.doing)
            if not self.waiting:
                self.free_at_ms = max(self.free_at_ms, now_ms)
                return
            _, _, job = heapq.heappop(self.waiting)
            hypothesis = self.words.recognize(self.passes, job)
            took_ms = 0.0 if hypothesis.taken_over else self.cost.of(job.pcm)
            if not hypothesis.taken_over:
                self.done[job.kind] = self.done.get(job.kind, 0) + 1
            self.busy_ms += took_ms
            self.free_at_ms += took_ms
            self.doing = job, hypothesis

    def _finish(self, job: DecodeJob, hypothesis: Hypothesis) -> None:
        self.doing = None
        for transcript in self.listener.complete(job, hypothesis):
            if isinstance(transcript, FinalTranscript):
                self.final = transcript, job, hypothesis.taken_over, self.free_at_ms


class FinalsBench:
    """Models, and the cost of a pass on this machine."""

    def __init__(self, recognizer: WhisperTranscriber, vad: SileroVad, cost: Cost) -> None:
        self._recognizer = recognizer
        self._vad = vad
        self._cost = cost

    def hear(self, pcm: Pcm, configs: Sequence[ListenerConfig]) -> list[FinalTiming]:
        """Run one recording, float32 [n] at 16 kHz, under each configuration."""
        end = last_voiced_sample(pcm)
        assert end is not None
        padded = np.concatenate([pcm, np.zeros(RATE_HZ - len(pcm) % FRAME, np.float32)])
        frames = padded[: len(padded) // FRAME * FRAME].reshape(-1, FRAME)
        remembering = _Remembering(self._vad)
        texts: dict[tuple[bytes, bool], str] = {}
        return [self._one(frames, end, config, remembering, texts) for config in configs]

    def _one(
        self,
        frames: Pcm,
        end: int,
        config: ListenerConfig,
        vad: _Remembering,
        texts: dict[tuple[bytes, bool], str],
    ) -> FinalTiming:
        vad.heard = 0
        call = _ListenerRun(Listener(config, vad), self._cost)
        for frame in frames:
            call.hear(frame)
        if call.final is None:
            return FinalTiming("", None, False, call.done, call.busy_ms)
        final, job, taken_over, at_ms = call.final
        ready_ms = at_ms - ms_from_samples(end + 1)

        def text(pcm: Pcm, fallback: bool) -> str:
            key = (pcm.tobytes(), fallback)
            if key not in texts:
                texts[key] = self._recognizer.transcribe(pcm, fallback=fallback).text
            return texts[key]

        parts = [text(*call.passes.asked[int(n)]) for n in re.findall(r"#(\d+)", final.text)]
        if taken_over and not parts[-1]:  # rejected by the fallback rules: the final is decoded
            parts[-1] = text(job.pcm, True)
            ready_ms += self._cost.of(job.pcm)
            taken_over = False
        return FinalTiming(
            " ".join(filter(None, parts)), ready_ms, taken_over, call.done, call.busy_ms
        )


def finals(
    paths: Sequence[Path],
    said: Sequence[str],
    recognizer: WhisperTranscriber,
    vad: SileroVad,
    early_ms: Sequence[int],
) -> dict[str, Any]:
    """Report with timed partials alone, and with early passes after each of `early_ms` of
    silence."""
    audio = [read_file(path) for path in paths]
    few = audio[:: max(1, len(audio) // CALIBRATED_ON)]
    cost = Cost.measured(recognizer, few)
    bench = FinalsBench(recognizer, vad, cost)
    ways = {f"early_ms {ms}" if ms else "timed partials alone": ms for ms in (0, *early_ms)}
    configs = [ListenerConfig(early_ms=ms) for ms in ways.values()]
    rows = [bench.hear(pcm, configs) for pcm in audio]
    base = [row[0].text for row in rows]
    return {
        "turns": len(audio),
        "cost": {
            "encode_ms_per_s_of_window": round(cost.encode_ms_per_s, 2),
            "decode_ms_per_token": round(cost.decode_ms_per_token, 2),
            "tokens_per_s": round(cost.tokens_per_s, 2),
        },
        "ways": {
            name: _summary([row[index] for row in rows], said, base)
            for index, name in enumerate(ways)
        },
    }


def tails(
    paths: Sequence[Path], said: Sequence[str], recognizer: WhisperTranscriber
) -> dict[str, Any]:
    """Word errors by the length in ms of the audio behind the last voiced sample."""
    report = {}
    audio = [read_file(path) for path in paths]
    for tail_ms in TAILS_MS:
        texts = []
        for pcm in audio:
            end = last_voiced_sample(pcm)
            assert end is not None
            texts.append(recognizer.transcribe(pcm[: end + 1 + samples_from_ms(tail_ms)]).text)
        report[str(tail_ms)] = _errors(said, texts)
    return report


def show(report: dict[str, Any]) -> None:
    """Print the results of `finals` and `tails`."""
    if "finals" in report:
        print("\ntime of the final transcript, ms after the last voiced sample")
    for name, way in report.get("finals", {"ways": {}})["ways"].items():
        passes = ", ".join(f"{kind} {each:.1f}" for kind, each in way["passes"].items())
        print(
            f"{name:20} p50 {way['ready_ms']['p50']:4.0f}  p90 {way['ready_ms']['p90']:4.0f}  "
            f"p95 {way['ready_ms']['p95']:4.0f}  taken over {way['taken_over']}  "
            f"recognizer {way['recognizer_ms']:.0f} ms a turn ({passes})  "
            f"WER {100 * way['wer']:.2f}%  other texts {way['other_texts']}"
        )
    for tail_ms, errors in report.get("tails_ms", {}).items():
        print(f"tail {tail_ms:>4} ms  WER {100 * errors['wer']:.2f}%  {errors}")


def _summary(
    heard: Sequence[FinalTiming], said: Sequence[str], base: Sequence[str]
) -> dict[str, Any]:
    ready = [one.ready_ms for one in heard if one.ready_ms is not None]
    quantiles = {f"p{q}": round(float(np.quantile(ready, q / 100)), 1) for q in (50, 90, 95)}
    kinds = sorted({kind for one in heard for kind in one.passes}, key=lambda kind: _URGENCY[kind])
    texts = [one.text for one in heard]
    others = sum(normalized(one) != normalized(two) for one, two in zip(texts, base, strict=True))
    return {
        "ready_ms": quantiles if ready else {},
        "no_final": len(heard) - len(ready),
        "taken_over": sum(one.taken_over for one in heard),
        "recognizer_ms": round(statistics.mean(one.recognizer_ms for one in heard), 1),
        "passes": {
            kind: round(statistics.mean(one.passes.get(kind, 0) for one in heard), 2)
            for kind in kinds
        },
        "other_texts": others,
        **_errors(said, texts),
    }


def _errors(said: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    errors = word_errors(said, texts)
    pairs = [(normalized(one), normalized(two)) for one, two in zip(said, texts, strict=True)]
    return {
        "wer": round(errors.rate, 5),
        "words": errors.words,
        "errors": errors.errors,
        "last_word_wrong": sum(one[-1:] != two[-1:] for one, two in pairs),
    }
