"""Speech output: the service's voices, each on its owner thread or another server, with
pre-synthesized openers."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

import numpy as np

import tts
from agent.errors import StageError
from agent.session.ports.playback import HeardWord
from agent.session.ports.stage_ports import APOLOGY, Speech
from tts.resample import StreamResampler

from .model_thread import NORMAL, URGENT, ModelThread

VOICE_TIMEOUT_S: Final = 8.0
"""A sentence of 20 words takes 0.3 s with the slower voice. This long, something hangs."""


class SpeechSource(Protocol):
    """One voice, shared by all calls: on a thread of this process, or on another server
    (`remote/remote_voice.py`)."""

    converted: dict[tuple[str, int], Speech]
    """Openers at the output rates that were requested (two at most), by text and Hz."""

    def speak(
        self, piece: tts.SpeakablePiece, rate_hz: int, speed: float = 1.0
    ) -> AsyncGenerator[Speech, None]:
        """Speak a piece at an output rate; `speed` 1.5 is half as fast again as the voice itself.
        Raises StageError."""
        ...

    def kept_speech(self, text: str) -> Sequence[tts.SpeechChunk]:
        """Speech of a pre-synthesized text; empty where there is none."""
        ...


class VoiceStage:
    """One voice on its owner thread, and its pre-synthesized texts."""

    def __init__(
        self,
        name: str,
        load: Callable[[], tts.Voice],
        openers: Sequence[str] = (),
        apologies: Sequence[str] = (APOLOGY,),
        *,
        only_computes: bool = False,
    ) -> None:
        """`only_computes`: as for `ModelThread`."""
        self.name = name
        self.thread: ModelThread[tts.Voice] = ModelThread("tts", load, only_computes=only_computes)
        self.kept: dict[str, list[tts.SpeechChunk]] = {}
        """Speech of the apologies and the openers, by text."""
        self.converted: dict[tuple[str, int], Speech] = {}
        """Openers at the output rates that were requested (two at most), by text and Hz."""
        self._poison = ""
        """Text that the voice failed at, and failed at again."""
        self._texts = tuple(dict.fromkeys((*apologies, *openers)))

    async def start(self) -> None:
        """Load the voice and synthesize the kept texts. Raises what loading raised."""
        await self.thread.start()
        for text in self._texts:
            piece = tts.SpeakablePiece(text, (0, len(text)), 0)
            self.kept[text] = await self.thread.call(
                partial(_synthesized, piece), timeout_s=VOICE_TIMEOUT_S
            )

    def kept_speech(self, text: str) -> Sequence[tts.SpeechChunk]:
        return self.kept.get(text, ())

    async def speak(
        self, piece: tts.SpeakablePiece, rate_hz: int, speed: float = 1.0
    ) -> AsyncGenerator[Speech, None]:
        """Speak a piece. The first of a reply goes before later ones of others, whose callers have
        audio to hear.

        A voice that fails before there is any speech is rebuilt, and speaks the piece then; not a
        text that it failed at twice. Raises StageError where it fails again, or later.
        """

        def start(voice: tts.Voice) -> Iterator[Speech]:
            return _converted(voice.synthesize(piece, speed), rate_hz)

        priority = NORMAL if piece.index else URGENT
        for is_last in (False, True):
            restarts, has_begun = self.thread.restarts, False
            speeches = self.thread.iterate(start, timeout_s=VOICE_TIMEOUT_S, priority=priority)
            try:
                async with aclosing(speeches):
                    async for speech in speeches:
                        has_begun = True
                        yield speech
                return
            except StageError:
                if is_last and not has_begun:
                    self._poison = piece.text
                is_rebuilt = self.thread.restarts > restarts and self.thread.may_retry
                if is_last or has_begun or not is_rebuilt or piece.text == self._poison:
                    raise


class VoiceStream:
    """A `VoicePort`: one voice at one output rate and speed, for one reply. Openers and the apology
    are kept at the voice's own speed."""

    def __init__(self, source: SpeechSource, rate_hz: int, speed: float = 1.0) -> None:
        self._source = source
        self._rate_hz = rate_hz
        self._speed = speed

    async def speak(self, piece: tts.SpeakablePiece) -> AsyncGenerator[Speech, None]:
        """Speak a piece. Raises StageError."""
        speeches = self._source.speak(piece, self._rate_hz, self._speed)
        async with aclosing(speeches):
            async for speech in speeches:
                yield speech

    async def opener(self, text: str) -> Speech | None:
        known = self._source.converted.get((text, self._rate_hz))
        if known is None and (known := self._kept(text, (0, len(text)))) is not None:
            self._source.converted[text, self._rate_hz] = known
        return known

    async def apology(self, text: str = APOLOGY) -> Speech | None:
        return self._kept(text, (0, 0))

    def _kept(self, text: str, span: tuple[int, int]) -> Speech | None:
        """A kept text as one stretch of speech; without a span it has no word times."""
        parts = list(_converted(iter(self._source.kept_speech(text)), self._rate_hz))
        if not parts:
            return None
        words: list[HeardWord] = []
        first_sample = 0
        for part in parts:
            words += [HeardWord(w.char_end, w.end_sample + first_sample) for w in part.words]
            first_sample += len(part.pcm)
        pcm = np.concatenate([part.pcm for part in parts])
        return Speech(pcm, span, tuple(words) if any(span) else ())


def _synthesized(piece: tts.SpeakablePiece, voice: tts.Voice) -> list[tts.SpeechChunk]:
    return list(voice.synthesize(piece))


def _converted(chunks: Iterator[tts.SpeechChunk], rate_hz: int) -> Iterator[Speech]:
    """Chunks at the output rate. They begin and end in silence, so each is resampled by itself."""
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
