"""A voice on another server, and the voice of this process that speaks in its place.

A piece whose speech fails before its first sound is spoken by the other voice; so are all pieces
while the server is known to fail. After the first sound, and without another voice, the reply fails
as it does with a voice of this process that fails: the caller hears the apology, which was
synthesized at the start, in this voice if the server worked then, else in the other one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np

import tts
from agent.errors import StageError
from agent.session.ports.stage_ports import APOLOGY, Speech
from tts.word_times import WordTime

from .api_server import PROBE_S
from .remote_error import RemoteError
from .speech_server import SpeechServer
from .streamed_speech import Pace, StreamedSpeech

KEPT_RATE_HZ: Final = 24_000
"""Rate at which speech is kept."""


@dataclass(frozen=True, slots=True)
class LocalVoice:
    """The voice of this process that speaks where the server does not."""

    speak: Callable[[tts.SpeakablePiece, int, float], AsyncGenerator[Speech, None]]
    """Speech of a piece at an output rate and a speed. Raises StageError."""
    is_ready: Callable[[], bool]
    kept_speech: Callable[[str], Sequence[tts.SpeechChunk]]


class RemoteVoice:
    """One voice on another server, and its pre-synthesized texts. Belongs to one event loop."""

    def __init__(
        self,
        server: SpeechServer,
        openers: Sequence[str] = (),
        local: LocalVoice | None = None,
        apologies: Sequence[str] = (APOLOGY,),
    ) -> None:
        self.name = server.voice.name
        self.converted: dict[tuple[str, int], Speech] = {}
        """Openers at the output rates that were requested (two at most), by text and Hz."""
        self._server = server
        self._local = local
        self._pace = Pace()
        self._missing = list(dict.fromkeys((*apologies, *openers)))
        """Texts that are not kept yet."""
        self._keeping = asyncio.Lock()
        """Held while kept texts are synthesized: at the start, or by `watch`."""
        self._kept: dict[str, Sequence[tts.SpeechChunk]] = {}

    @property
    def problem(self) -> str | None:
        """Why the server can't be used at present; None: it can."""
        return self._server.problem

    async def start(self) -> None:
        """Synthesize the kept texts. A server that does not answer is no failure of this service:
        `problem` says so."""
        async with self._keeping:
            while self._missing:
                text = self._missing[0]
                try:
                    self._kept[text] = await self._synthesized(text)
                except RemoteError:
                    return
                del self._missing[0]
        self.converted.clear()  # they may be the other voice's

    async def watch(self) -> None:
        """Check the server until cancelled; once it works, synthesize what is missing."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.watch())
            while True:
                await asyncio.sleep(PROBE_S)
                if self._missing and self._server.problem is None:
                    await self.start()

    async def close(self) -> None:
        await self._server.close()

    def kept_speech(self, text: str) -> Sequence[tts.SpeechChunk]:
        """Speech of a pre-synthesized text; empty where there is none."""
        if text in self._kept or self._local is None:
            return self._kept.get(text, ())
        return self._local.kept_speech(text)

    async def speak(
        self, piece: tts.SpeakablePiece, rate_hz: int, speed: float = 1.0
    ) -> AsyncGenerator[Speech, None]:
        """Speak a piece at an output rate and a speed. Raises StageError."""
        if not any(map(str.isalnum, piece.text)):
            return
        local = self._local if self._local is not None and self._local.is_ready() else None
        failure: RemoteError | None = None
        if local is None or self._server.problem is None:  # it is watched, and may recover
            has_begun = False
            try:
                spoken = self._by_server(piece, rate_hz, speed, is_last_resort=local is None)
                async with aclosing(spoken):
                    async for speech in spoken:
                        yield speech
                        has_begun = True
                return
            except RemoteError as error:
                failure = error
            if has_begun or local is None:
                raise StageError("tts", f"The speech server {failure.reason}.") from failure
        async with aclosing(local.speak(piece, rate_hz, speed)) as spoken:
            async for speech in spoken:
                yield speech

    async def _by_server(
        self, piece: tts.SpeakablePiece, rate_hz: int, speed: float, *, is_last_resort: bool
    ) -> AsyncGenerator[Speech, None]:
        """Raises RemoteError."""
        streamed = StreamedSpeech(piece.text, piece.span[0], rate_hz, self._pace, speed)
        sounds = self._server.speak(piece.text.strip(), speed, is_last_resort=is_last_resort)
        async with aclosing(sounds):
            async for samples, its_rate_hz in sounds:
                if (speech := streamed.push(samples, its_rate_hz)) is not None:
                    yield speech
        if streamed.is_silent:
            raise self._server.failed("sent nothing but silence")
        yield streamed.finish()

    async def _synthesized(self, text: str) -> Sequence[tts.SpeechChunk]:
        """A text as one chunk. Raises RemoteError."""
        piece = tts.SpeakablePiece(text, (0, len(text)), 0)
        spoken = self._by_server(piece, KEPT_RATE_HZ, 1.0, is_last_resort=True)
        async with aclosing(spoken):
            parts = [speech async for speech in spoken]
        words: list[WordTime] = []
        first_sample = 0
        for part in parts:
            for word in part.words:
                end = first_sample + word.end_sample
                words.append(WordTime((0, word.char_end), end, end, True))
            first_sample += len(part.pcm)
        pcm = np.concatenate([part.pcm for part in parts])
        return [tts.SpeechChunk(pcm, KEPT_RATE_HZ, (0, len(text)), tuple(words), True)]
