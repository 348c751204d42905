"""Speech recognition of one call: audio in; speech events, decode jobs and transcripts out.

Theory of operation
-------------------
No thread, no clock, no model. The owner runs the voice detector and the recognizer wherever it
likes, and hands their results in:

    append(audio)
    while (frame := next_frame()) is not None:
        output = take_probability(detector.probability(frame, state))
        ... recognize output.jobs, and hand each result to `complete`

So a barge-in (a third of a millisecond for 32 ms of audio) does not wait for a decode that takes
150 ms, a detector that hangs holds no lock of the stream's owner, and every decision is repeatable:
it depends on samples and on the order of calls.

*Final passes.* At a pause the owner calls `finalize`; if the caller goes on, the result is simply
not used. Results come late, so each job carries the number of its pass, and what is older than the
newest pass of its utterance is dropped and counted. An utterance may be ended while its last pass
is still running.

*Partials.* Every `partial_interval_ms` of new audio, while the caller is voiced, one at a time; and
as soon as the voice drops, so that a final may find its words known
(`asr/recognition/final_reuse.py`).

*Long utterances.* From `settle_after_s` on, the older part is cut off at its quietest place and
decoded once (`segment`); later passes see only the rest. So a final never takes longer than that of
a short utterance, and the audio kept is bounded, provided that jobs are completed. Where they are
not, the oldest audio is given up after `max_unsettled_s` and counted.

*Push-to-talk* (`endpointing=None`). Everything since the last commit or clear is one utterance,
at most `max_buffer_s` of it. The voice detector still runs: it tells an empty recording from
speech.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from asr.audio.conversion import finite
from asr.audio.samples import RATE_HZ, AudioFrame, Pcm, samples_from_ms
from asr.errors import AudioError, BufferFullError
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis, PartialTranscript
from asr.speech_detection.agc import AutomaticGain
from asr.speech_detection.echo_gate import EchoGate
from asr.speech_detection.endpointing import (
    Endpointer,
    EndpointEvent,
    EndpointingConfig,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from asr.speech_detection.energy_endpoint import EnergyEndpoint
from asr.speech_detection.vad import VadState, VoiceDetector

from .audio_buffer import AudioBuffer
from .utterance import ListenerConfig, Utterance


@dataclass(frozen=True, slots=True)
class ListenerOutput:
    """Speech events and decode jobs that some audio brought about."""

    events: tuple[EndpointEvent, ...] = ()
    jobs: tuple[DecodeJob, ...] = ()
    """One for a frame at most, never while another partial or segment is being decoded."""


@dataclass(frozen=True, slots=True)
class CommittedBuffer:
    """An utterance that the client ended by a commit."""

    utterance: int
    job: DecodeJob | None
    """None: nothing was said."""


@dataclass(slots=True)
class ListenerCounts:
    """Counters of dropped results and audio, and memory in use, for the metrics."""

    stale_results: int = 0
    """Results of jobs made stale by a newer job, the end of the utterance or a clear."""
    lost_samples: int = 0
    """Samples given up because `max_unsettled_s` was reached."""
    gap_samples: int = 0
    """Samples of silence filled in for missing audio."""
    repeated_samples: int = 0
    """Samples that came twice."""
    held_bytes: int = 0
    """Memory that the audio takes now, bytes."""
    peak_bytes: int = 0
    """The largest `held_bytes` so far."""


_MAX_ENDED: Final = 8
"""Ended utterances whose late final is still accepted. More than one is rare, so this is ample."""


class AsrStream:
    """State of one call. Not thread-safe: one thread, or one lock, owns it."""

    def __init__(self, config: ListenerConfig) -> None:
        self.counts = ListenerCounts()
        self._config = config
        self._audio = AudioBuffer()
        self._frame: Pcm | None = None
        """float32 [FRAME]: the frame whose probability `take_probability` awaits, as it came."""
        self._endpointer = Endpointer(config.endpointing or EndpointingConfig())
        self._energy = EnergyEndpoint()
        self._gain = AutomaticGain()
        self.echo = EchoGate()
        """Levels of the agent's own voice; the owner notes what is played."""
        self._loud_until = 0
        """Sample after the last loud one. In push-to-talk, where no pauses are looked for, every
        sample is loud."""
        self._floor = 0
        """First sample that may belong to the next utterance."""
        self._open: Utterance | None = None
        self._ended: dict[int, Utterance] = {}
        self._threshold = self._endpointer.config.speech_threshold
        self._keep_samples = _keep_samples(self._endpointer.config)
        """Length of the newest audio that is kept while no utterance is open."""
        self._pending: DecodeJob | None = None
        """The partial or segment that is being decoded."""

    @property
    def position(self) -> int:
        """Samples received so far."""
        return self._audio.end_sample

    def configure(
        self, endpointing: EndpointingConfig | None, settle_after_s: float | None = None
    ) -> None:
        """Use other thresholds, or push-to-talk (None), from the next frame on, and settle the
        older part of an utterance from so much undecoded audio on (None: as before).

        An open utterance goes on into push-to-talk. Out of it, uncommitted audio is cleared.
        """
        was_manual = self._config.endpointing is None
        self._config = replace(self._config, endpointing=endpointing)
        if settle_after_s is not None:
            self._config = replace(self._config, settle_after_s=settle_after_s)
        if self._open is not None:
            self._open.configure(self._config)
        if endpointing is not None:
            self._endpointer.configure(endpointing)
            self._threshold = endpointing.speech_threshold
            self._keep_samples = _keep_samples(endpointing)
            if was_manual:
                self.clear()

    def append(self, audio: AudioFrame | Pcm) -> None:
        """Take in float32 16 kHz mono audio of any length; NaN and infinities count as silence.

        An AudioFrame's position must continue the call: a small gap is filled with silence, what
        came before is skipped. Raises AudioError for a larger gap, and BufferFullError when
        push-to-talk holds `max_buffer_s`; nothing is taken in then.
        """
        self._audio.append(self._admit(audio))

    def next_frame(self) -> Pcm | None:
        """The oldest frame without a probability of speech, float32 [FRAME], raised by the
        automatic gain: what the voice detector is to see. None: less than a frame is left.

        The same frame until `take_probability` is called, so a detector that failed may be asked
        again.
        """
        if self._frame is None:
            self._frame = self._audio.next_frame()
        return None if self._frame is None else self._gain.apply(self._frame)

    def take_probability(self, probability: float) -> ListenerOutput:
        """Take in the voice detector's probability of speech, 0..1, for the frame that `next_frame`
        gave. At most one event and one job."""
        frame, self._frame = self._frame, None
        assert frame is not None, "take_probability before next_frame"
        events = self._detect(frame, probability)
        jobs: tuple[DecodeJob, ...] = ()
        if self._open is not None and self._pending is None:
            silence_samples = self._audio.end_of_frames - self._loud_until
            self._pending = self._open.due(probability, self._threshold, silence_samples)
            jobs = (self._pending,) if self._pending else ()
        self._forget()
        return ListenerOutput(events, jobs)

    def finalize(
        self, utterance: int, at_sample: int, revision: int | None = None
    ) -> DecodeJob | None:
        """Job of the final pass over an open utterance up to its pause at `at_sample`.

        Makes earlier passes stale. `revision` is the owner's count of passes; without it they are
        counted here. None: too little was voiced to be words, or the utterance is not open.
        """
        current = self._open
        if current is None or current.number != utterance:
            self.counts.stale_results += 1
            return None
        current.revision = current.revision + 1 if revision is None else revision
        current.awaits_final = False
        end = at_sample + samples_from_ms(self._config.tail_ms)
        is_voiced = current.is_voiced(end, self._threshold)
        if not is_voiced and not current.settled_text:
            return None
        current.awaits_final = True
        return current.job("final", end if is_voiced else current.unsettled, self._threshold)

    def complete(
        self, job: DecodeJob, hypothesis: Hypothesis
    ) -> tuple[PartialTranscript | FinalTranscript, ...]:
        """Take in the recognizer's result: at most one transcript, none for a stale job."""
        if self._pending is job:
            self._pending = None
        current = self._open
        if current is None or current.number != job.utterance:
            current = self._ended.get(job.utterance)
        if current is None or current.is_stale(job):
            self.counts.stale_results += 1
            return ()
        return current.take(job, hypothesis)

    def fail(self, job: DecodeJob) -> None:
        """Note that the recognizer failed at this job; others may follow."""
        if self._pending is job:
            self._pending = None
        if self._open is not None and job.kind == "final" and job.utterance == self._open.number:
            self._open.awaits_final &= job.revision != self._open.revision

    def end(self, utterance: int, *, was_echo: bool = False) -> None:
        """End the open utterance; its final may still be running. Other numbers are ignored.

        `was_echo`: the utterance was the agent's own voice.
        """
        current = self._open
        if current is None or current.number != utterance:
            return
        self._end_open(current, was_echo=was_echo)
        if self._config.endpointing is None:
            self._endpointer.reset()
        else:
            self._endpointer.end(utterance)

    @property
    def takes_commit(self) -> bool:
        """True if a commit ends an utterance: always in push-to-talk; elsewhere while one is
        open."""
        return self._config.endpointing is None or self._open is not None

    def commit_buffer(self) -> CommittedBuffer:
        """End the utterance on the client's commit, with a final pass over all of its audio.

        Nothing of that audio belongs to the next utterance, whatever the caller was doing.
        """
        number = self._endpointer.utterance
        job = None
        if self._open is not None:
            job = self.finalize(number, self.position)
            self._end_open(self._open, was_echo=False)
        self.clear()
        return CommittedBuffer(number, job)

    def clear(self) -> None:
        """Forget all audio that no commit has covered; results of running jobs become stale."""
        self._endpointer.reset()
        self.echo.speech_ended(was_echo=False)
        self._open = None
        self._floor = self.position

    # --- inside ---

    def _end_open(self, current: Utterance, *, was_echo: bool) -> None:
        self.echo.speech_ended(was_echo=was_echo)
        if not was_echo:
            self._energy.note_end()
        current.is_ended = True
        self._ended[current.number] = current
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._open = None

    def _admit(self, audio: AudioFrame | Pcm) -> Pcm:
        pcm = audio.pcm if isinstance(audio, AudioFrame) else audio
        if pcm.ndim != 1 or pcm.dtype != np.float32:
            raise AudioError(
                f"a speech stream takes float32 [n], got {pcm.dtype} {list(pcm.shape)}"
            )
        gap = audio.first_sample - self.position if isinstance(audio, AudioFrame) else 0
        if gap > self._config.max_gap_s * RATE_HZ:
            raise AudioError(
                f"audio jumps ahead by {gap / RATE_HZ:.1f} s; at most {self._config.max_gap_s:g} s "
                "can be missing"
            )
        if self._config.endpointing is None and self._open is not None:
            held_s = (self.position + gap + len(pcm) - self._open.began) / RATE_HZ
            if held_s > self._config.max_buffer_s:
                raise BufferFullError(
                    f"the audio buffer is full: {self._config.max_buffer_s:g} s without a commit; "
                    "commit or clear it"
                )
        pcm = finite(pcm)
        if gap > 0:
            self.counts.gap_samples += gap
            pcm = np.concatenate([np.zeros(gap, np.float32), pcm])
        elif gap < 0:
            self.counts.repeated_samples += min(-gap, len(pcm))
            pcm = pcm[-gap:]
        return pcm

    def _detect(self, frame: Pcm, probability: float) -> tuple[EndpointEvent, ...]:
        first = self._audio.end_of_frames
        self._audio.add_probability(probability)
        config = self._config.endpointing
        if config is None:
            self._loud_until = self._audio.end_of_frames
            if self._open is None:
                self._begin(None, self._floor)
            return ()
        is_speech = probability >= config.silence_threshold
        if not (is_speech or self._endpointer.is_open):
            self._energy.reset()
        num_loud = self._energy.loud_samples(frame, is_speech)
        if num_loud:
            self._loud_until = first + num_loud
        far = self.echo.level(first)
        if not far:
            self._gain.note(frame, probability)
        if far and self._endpointer.is_open:
            self.echo.speaks(frame, far)
        elif self._begins_no_speech(frame, far, is_speech):
            probability = 0.0
        events = self._endpointer.push(probability, first, num_loud=num_loud, is_overlap=bool(far))
        for event in events:
            if isinstance(event, SpeechStarted):
                self.echo.speech_began()
                preroll = samples_from_ms(config.preroll_ms)
                self._begin(event.at_sample, max(event.at_sample - preroll, self._floor))
            elif isinstance(event, SpeechPaused | SpeechResumed) and self._open is not None:
                self._open.is_pausing = isinstance(event, SpeechPaused)
                if self._open.is_pausing:
                    self._floor = event.at_sample + samples_from_ms(self._config.tail_ms)
        return events

    def _begins_no_speech(self, frame: Pcm, far: float, is_speech: bool) -> bool:
        """True if a frame outside an utterance is the agent's echo, or noise."""
        is_echo = bool(far) and self.echo.is_echo(frame, far, is_speech=is_speech)
        return is_echo or (self._energy.is_noise and not self._endpointer.is_open)

    def _begin(self, onset: int | None, began: int) -> None:
        began = max(began, self._audio.first_sample)
        self._open = Utterance(self._endpointer.utterance, onset, began, self._audio, self._config)

    def _forget(self) -> None:
        keep_from = self._audio.end_sample - self._keep_samples
        current = self._open
        if current is not None:
            config = self._config
            limit_s = config.max_unsettled_s if config.endpointing else config.max_buffer_s
            self.counts.lost_samples += current.shed(int(limit_s * RATE_HZ))
            keep_from = min(keep_from, current.unsettled)
        self._audio.forget_before(keep_from)
        self.counts.held_bytes = self._audio.room_bytes
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.counts.held_bytes)


def _keep_samples(endpointing: EndpointingConfig) -> int:
    return samples_from_ms(endpointing.preroll_ms + endpointing.min_speech_ms + 500)


class Listener(AsrStream):
    """An `AsrStream` that runs the voice detector itself, for programs with one thread."""

    def __init__(
        self,
        config: ListenerConfig,
        detector: VoiceDetector,
        suppress: Callable[[Pcm], Pcm] | None = None,
    ) -> None:
        """`suppress`: a noise suppressor, called with each frame once, in order. Detector, gain and
        energy endpointing hear what it returns, float32 [FRAME]; the recognizer hears the audio as
        it came."""
        super().__init__(config)
        self._detector = detector
        self._vad_state = VadState()
        self._suppress = suppress

    def next_frame(self) -> Pcm | None:
        if self._suppress is not None and self._frame is None:
            frame = self._audio.next_frame()
            self._frame = None if frame is None else self._suppress(frame)
        return super().next_frame()

    def feed(self, audio: AudioFrame | Pcm) -> ListenerOutput:
        """`append` audio and run the detector over every whole frame. Raises as `append` does."""
        pcm = self._admit(audio)
        outputs: list[ListenerOutput] = []
        for start in range(0, len(pcm), RATE_HZ):  # a second at a time bounds the memory
            self._audio.append(pcm[start : start + RATE_HZ])
            while (frame := self.next_frame()) is not None:
                probability = self._detector.probability(frame, self._vad_state)
                outputs.append(self.take_probability(probability))
        return ListenerOutput(
            tuple(event for output in outputs for event in output.events),
            tuple(job for output in outputs for job in output.jobs),
        )
