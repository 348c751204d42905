"""The voices of the service, each on its owner thread, and the apology that each keeps at hand."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Final

import numpy as np

import tts
from tts.resample import StreamResampler

from .playback import HeardWord
from .ports import Speech
from .reply import APOLOGY
from .stage_thread import StageThread

VOICE_TIMEOUT_S: Final = 8.0
"""A sentence of 20 words takes 0.3 s with the slower voice. This long, something hangs."""


class VoiceStage:
    """One voice on its thread."""

    def __init__(self, name: str, load: Callable[[], tts.Voice]) -> None:
        self.name = name
        self.thread: StageThread[tts.Voice] = StageThread("tts", load)
        self.apology: list[tts.SpeechChunk] = []

    async def start(self) -> None:
        """Load the voice and let it say the apology. Raises what loading raised."""
        await self.thread.start()
        piece = tts.SpeakablePiece(APOLOGY, (0, len(APOLOGY)), 0)
        self.apology = await self.thread.call(
            lambda voice: list(voice.synthesize(piece)), timeout_s=VOICE_TIMEOUT_S
        )


class Speaking:
    """A `VoicePort`: one voice at one output rate, for one reply."""

    def __init__(self, stage: VoiceStage, rate_hz: int) -> None:
        self._stage = stage
        self._rate_hz = rate_hz

    async def speak(self, piece: tts.SpeakablePiece) -> AsyncGenerator[Speech, None]:
        """Raises StageError."""

        def start(voice: tts.Voice) -> Iterator[Speech]:
            return _converted(voice.synthesize(piece), self._rate_hz)

        speeches = self._stage.thread.iterate(start, timeout_s=VOICE_TIMEOUT_S)
        async with aclosing(speeches):
            async for speech in speeches:
                yield speech

    async def apology(self) -> Speech | None:
        parts = list(_converted(iter(self._stage.apology), self._rate_hz))
        if not parts:
            return None
        return Speech(np.concatenate([part.pcm for part in parts]), (0, 0), ())


def _converted(chunks: Iterator[tts.SpeechChunk], rate_hz: int) -> Iterator[Speech]:
    """At the output rate. Chunks begin and end in silence, so each is resampled by itself."""
    for chunk in chunks:
        pcm = chunk.pcm
        if chunk.rate_hz != rate_hz:
            resampler = StreamResampler(chunk.rate_hz, rate_hz)
            pcm = np.concatenate([resampler.push(pcm), resampler.flush()])
        ratio = rate_hz / chunk.rate_hz
        words = tuple(
            HeardWord(word.text_span[1], round(word.end_sample * ratio))
            for word in chunk.word_times
        )
        yield Speech(pcm, chunk.text_span, words)
