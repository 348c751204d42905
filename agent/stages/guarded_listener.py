"""A call's listener, and which thread may touch it.

Theory of operation: all work on a listener is done by the detector's owner thread, one job at a
time. But a thread whose detector hangs can't be killed: it is given up, another one takes its
place, and should the first ever come back it must not go on with a listener that the second is
using. So the listener is touched under a lock, which is let go only while the detector works (the
one place that may hang), and whoever takes the lock after that looks whether the listener is still
his. If not, he leaves without having changed anything.

What was tried: a new listener after each hang. It forgets the caller's open utterance, and numbers
the next one as the first.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

import asr
from agent.errors import ClientError

PIECE: Final = 512
"""Samples taken in at a time: a frame of the detector brings at most one event, so a detector that
fails takes no event with it."""

Answer = TypeVar("Answer")
Audio = tuple[npt.NDArray[np.int16], int]
"""int16 mono, and its rate in Hz."""


Played = tuple[int, list[float]]
"""The agent's voice: microphone sample at which it is played, and the levels of its frames."""


class GivenUpError(Exception):
    """This thread hung, and another one has the listener now."""


class GuardedListener:
    """Belongs to one call. `use` and `take_in` run on the detector's owner thread."""

    def __init__(self, config: asr.ListenerConfig) -> None:
        self.listener: Final = asr.Listener(config, self)
        self._lock = threading.Lock()
        self._model: asr.VoiceDetector | None = None
        """The one that the stage has at the moment: a stage that was restarted has another one."""
        self._user: object | None = None
        """Whose turn it is; another object for each."""
        self._resampler: tuple[int, asr.Resampler] | None = None
        self._offset = asr.DcBlocker()

    def use(self, model: asr.VoiceDetector, question: Callable[[], Answer]) -> Answer:
        """Do something with the listener."""
        with self._lock:
            self._user, self._model = object(), model
            return question()

    def take_in(
        self,
        model: asr.VoiceDetector,
        batch: Sequence[Audio],
        heard: list[asr.ListenerOutput],
        played: Sequence[Played] = (),
    ) -> None:
        """Feed audio to the listener, and what the agent said meanwhile. What it hears is appended
        to `heard` as it comes, so that it is there even where the detector fails. Raises
        ClientError where there is no room."""

        def feed() -> None:
            for first_sample, levels in played:
                self.listener.far_end.played(first_sample, levels)
            pcm = np.concatenate([self._converted(*each) for each in batch])
            for start in range(0, len(pcm), PIECE):
                heard.append(self.listener.feed(pcm[start : start + PIECE]))  # noqa: PERF401

        try:
            self.use(model, feed)
        except asr.AudioError as error:
            raise ClientError(f"{error}.", code="input_audio_buffer_full") from error

    def give_up(self) -> None:
        """Whoever has the listener is not waited for any more. On any thread."""
        with self._lock:
            self._user = None

    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        """The listener's detector: as `asr.VoiceDetector`. Raises GivenUpError."""
        user, model = self._user, self._model
        assert model is not None
        private = replace(state)
        self._lock.release()
        try:
            probability = model.probability(frame, private)
        finally:
            self._lock.acquire()
        if self._user is not user:
            raise GivenUpError
        state.lstm, state.context = private.lstm, private.context
        return probability

    def _converted(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> npt.NDArray[np.float32]:
        """To float32 at 16 kHz without an offset, as one stream."""
        if self._resampler is None or self._resampler[0] != rate_hz:
            self._resampler = (rate_hz, asr.Resampler(rate_hz))
        return self._offset.push(self._resampler[1].push(pcm))
