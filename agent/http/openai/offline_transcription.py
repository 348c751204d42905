"""Transcription of a file, piece by piece, at a lower priority than all calls.

Theory of operation: the calls' models do the work, so every step of it is one job of a stage that
waits behind all of the calls' jobs (`OFFLINE`), and is short: a second for the voice detector, one
decode of one piece for the recognizer. A call that comes while such a job runs waits for that one.
The file itself is decoded on a worker thread, the next piece only when the one before is
recognized. So when the client goes, at most one job is done in vain.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Final

import asr
from agent.stages.model_thread import OFFLINE, ModelThread
from agent.stages.stall_timeout import finished_on_thread
from asr.audio.files import FileLimits, read_blocks
from asr.speech_detection.file_segments import FilePiece, SpeechFinder, cut_into_pieces

from .segments import Passage, shifted

OFFLINE_TIMEOUT_S: Final = 60.0
"""Limit in s for a job and, before it begins, for the jobs of the calls. Busy calls leave a gap
every second; without one in a minute the machine is too busy for this work."""


class FileTranscription:
    """One recording. Belongs to one request."""

    def __init__(
        self,
        detector: ModelThread[asr.VoiceDetector],
        recognizer: ModelThread[asr.Recognizer],
        options: asr.TranscriptionOptions,
        *,
        with_words: bool,
    ) -> None:
        self._detector = detector
        self._recognizer = recognizer
        self._options = options
        self._with_words = with_words
        self._vad_state = asr.VadState()
        self.num_samples = 0
        """Samples of the recording so far, at 16 kHz."""

    async def passages(self, path: Path, limits: FileLimits) -> AsyncGenerator[Passage, None]:
        """Segments of the speech in a file, in order. Raises AudioError and StageError."""
        async with aclosing(_pieces(path, limits)) as pieces:
            async for piece in pieces:
                self.num_samples = piece.first_sample + len(piece.pcm)
                speech = await self._speech_in(piece)
                passage = None if speech is None else await self._recognized(speech)
                if passage is not None and passage.text:
                    yield passage

    async def _speech_in(self, piece: FilePiece) -> FilePiece | None:
        finder = SpeechFinder(piece, self._vad_state)
        more = True
        while more:
            more = await self._detector.call(
                finder.look, timeout_s=OFFLINE_TIMEOUT_S, priority=OFFLINE
            )
        return finder.speech()

    async def num_prompt_tokens(self) -> int:
        """Number of tokens of the client's prompt. Raises StageError."""
        if not self._options.prompt:
            return 0
        return await self._recognizer.call(
            lambda recognizer: recognizer.num_prompt_tokens(self._options),
            timeout_s=OFFLINE_TIMEOUT_S,
            priority=OFFLINE,
        )

    async def _recognized(self, speech: FilePiece) -> Passage:
        hypothesis = asr.Hypothesis("")
        steps = self._recognizer.iterate(
            lambda recognizer: recognizer.steps(speech.pcm, self._options),
            timeout_s=OFFLINE_TIMEOUT_S,
            priority=OFFLINE,
        )
        async with aclosing(steps):
            async for step in steps:
                hypothesis = step
        words: list[asr.TimedWord] = []
        if self._with_words:
            words = await self._recognizer.call(
                lambda recognizer: recognizer.word_times(
                    speech.pcm, hypothesis.tokens, self._options
                ),
                timeout_s=OFFLINE_TIMEOUT_S,
                priority=OFFLINE,
            )
        first = speech.first_sample
        return Passage(
            text=hypothesis.text,
            first_sample=first,
            end_sample=first + len(speech.pcm),
            tokens=hypothesis.tokens,
            avg_logprob=hypothesis.avg_logprob,
            no_speech_prob=hypothesis.no_speech_prob,
            words=shifted(words, first),
        )


async def _pieces(path: Path, limits: FileLimits) -> AsyncGenerator[FilePiece, None]:
    blocks = read_blocks(path, "file", limits)
    with closing(blocks):
        pieces = cut_into_pieces(blocks)
        while (piece := await finished_on_thread(partial(next, pieces, None))) is not None:
            yield piece
