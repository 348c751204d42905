"""Streaming transcriber: speech to text in one object, for programs with one thread.

The voice agent does not use this: it runs detector and recognizer on threads of their own and
decides by the words when a turn is over. Here a fixed silence ends an utterance.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asr.audio.conversion import Resampler
from asr.audio.samples import RATE_HZ, Pcm
from asr.load import load_recognizer, load_voice_detector
from asr.recognition.final_reuse import FinalReuse
from asr.recognition.recognizer import Transcriber
from asr.recognition.transcripts import DecodeJob, FinalTranscript, PartialTranscript
from asr.speech_detection.endpointing import EndpointEvent, SilenceGrew, SpeechPaused, SpeechStarted
from asr.speech_detection.vad import FRAME, VoiceDetector

from .asr_stream import Listener
from .utterance import ListenerConfig

AsrEvent = EndpointEvent | PartialTranscript | FinalTranscript


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """Settings of the division into utterances."""

    listener: ListenerConfig = field(default_factory=ListenerConfig)
    end_silence_ms: int = 500
    """Silence that ends an utterance. Shorter cuts sentences at commas, longer only delays."""

    def __post_init__(self) -> None:
        if self.listener.endpointing is None:
            raise ValueError("a stream is divided at its silences: endpointing cannot be None")


class StreamingTranscriber:
    """One stream of audio to text. Not thread-safe; `feed` blocks while something is decoded.

    Any cut of the same audio gives the same events: `feed` works through it in the detector's
    frames. Order of calls: `feed` any number of times, `flush` at the end; then the next stream
    may begin.
    """

    def __init__(
        self,
        recognizer: Transcriber,
        detector: VoiceDetector,
        config: StreamingConfig | None = None,
    ) -> None:
        self._recognizer = recognizer
        self._detector = detector
        self._config = config or StreamingConfig()
        self._resampler: Resampler | None = None
        self._begin()

    @classmethod
    def load(
        cls,
        recognizer_path: Path | str,
        vad_path: Path | str,
        *,
        threads: int = 2,
        config: StreamingConfig | None = None,
    ) -> "StreamingTranscriber":
        """Load both models. Raises ModelError when one is missing or damaged."""
        detector = load_voice_detector(vad_path)
        return cls(load_recognizer(recognizer_path, threads=threads), detector, config)

    def feed(self, pcm: npt.NDArray[Any], rate_hz: int = RATE_HZ) -> list[AsrEvent]:
        """Take in int16 or float audio, [n] or [n, channels], of any length; returns its events.

        The rate may change between calls. Raises AudioError for audio of an impossible rate, shape
        or type, and what the recognizer raises: the rest of the audio and its events are lost
        then, and the stream goes on behind it.
        """
        events: list[AsrEvent] = []
        if self._resampler is None or self._resampler.rate_hz != rate_hz:
            previous, self._resampler = self._resampler, Resampler(rate_hz)
            if previous is not None:
                events += self._listen(previous.flush())
        return events + self._listen(self._resampler.push(pcm))

    def flush(self) -> list[AsrEvent]:
        """End the audio: end the open utterance and forget everything."""
        events = self._listen(self._resampler.flush()) if self._resampler is not None else []
        # The last frame may be incomplete.
        events += self._listen(np.zeros(-self._listener.position % FRAME, np.float32))
        if self._utterance is not None:
            self._finalize(self._listener.position)
            events += self._end()
        self._begin()
        return events

    def _begin(self) -> None:
        self._listener = Listener(self._config.listener, self._detector)
        self._early = FinalReuse()
        self._resampler = None
        self._utterance: int | None = None
        self._final: FinalTranscript | None = None

    def _listen(self, pcm: Pcm) -> list[AsrEvent]:
        events: list[AsrEvent] = []
        start = 0
        while start < len(pcm):
            # Up to the end of a frame, so that what is decided does not depend on the cut.
            end = start + FRAME - self._listener.position % FRAME
            output = self._listener.feed(pcm[start:end])
            start = end
            for event in output.events:
                events.append(event)
                events += self._follow(event)
            for job in output.jobs:
                events += self._run(job)
        return events

    def _follow(self, event: EndpointEvent) -> list[AsrEvent]:
        """Decode at a pause; keep the result until the silence is long enough."""
        match event:
            case SpeechStarted():
                self._utterance = event.utterance
                self._final = None
            case SpeechPaused():
                self._finalize(event.at_sample)
            case SilenceGrew() if event.silence_ms >= self._config.end_silence_ms:
                return self._end()
        return []

    def _finalize(self, at_sample: int) -> None:
        assert self._utterance is not None
        self._final = None
        job = self._listener.finalize(self._utterance, at_sample)
        if job is not None:
            for transcript in self._run(job):
                assert isinstance(transcript, FinalTranscript)
                self._final = transcript

    def _end(self) -> list[AsrEvent]:
        assert self._utterance is not None
        self._listener.end(self._utterance)
        final, self._final, self._utterance = self._final, None, None
        return [final] if final is not None and final.text else []

    def _run(self, job: DecodeJob) -> list[AsrEvent]:
        try:
            hypothesis = self._early.recognize(self._recognizer, job)
        except BaseException:
            self._listener.fail(job)
            raise
        return list(self._listener.complete(job, hypothesis))
