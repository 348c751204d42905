"""Synthesis of a text beside the calls: in pieces that yield to whatever a call needs.

As with recordings (`offline_transcription.py`), each step is one job of the voice's stage, behind
all
jobs of the calls, and a call that comes meanwhile waits for that one. So pieces are shorter than a
reply's. Nothing is synthesized further ahead than the client reads.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

import tts
from agent.errors import ClientError
from agent.stages.model_thread import OFFLINE
from agent.stages.speech_output import VoiceStage
from tts.resample import StreamResampler
from tts.text_chunker import CutterConfig, TextChunker

from .audio_encoding import RATE_HZ
from .offline_transcription import OFFLINE_TIMEOUT_S

_SENTENCE_CHARS: Final = 100
"""A sentence longer than this is cut at a clause mark: Piper takes half a second for it on a core.
Spoken at half the speed it takes twice as long, so there may be half as much."""

_PIECE_CHARS: Final = 200
"""Without a mark it is cut between words here."""

_WORD_CHARS: Final = 40
"""Longest text without a blank, in characters; longer ones are divided. Each digit of a number may
become a word, and one number is never spoken in two steps: four thousand digits took the voice a
minute and a half."""


async def read_aloud(
    voice: VoiceStage, text: str, speed: float
) -> AsyncGenerator[npt.NDArray[np.int16], None]:
    """The text at 24 kHz, a sentence at a time; nothing where it holds no words.

    Raises StageError, and ClientError for what the voice can't speak.
    """
    resampler: StreamResampler | None = None
    for piece in await asyncio.to_thread(pieces_of, text, min(1.0, speed)):
        chunks = voice.thread.iterate(
            partial(_spoken, piece, speed), timeout_s=OFFLINE_TIMEOUT_S, priority=OFFLINE
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                resampler = resampler or StreamResampler(chunk.rate_hz, RATE_HZ)
                yield resampler.push(chunk.pcm)
    if resampler is not None:
        yield resampler.flush()


def pieces_of(text: str, share: float = 1.0) -> list[tts.SpeakablePiece]:
    """Pieces of a text that are spoken in one step each. `share` below 1 makes them shorter by
    that."""
    cutter = TextChunker(
        CutterConfig(
            long_sentence_chars=round(_SENTENCE_CHARS * share),
            max_chars=round(_PIECE_CHARS * share),
        )
    )
    short_words = re.sub(rf"(\S{{{round(_WORD_CHARS * share)}}})(?=\S)", r"\1 ", text)
    return [*cutter.push(short_words), *cutter.flush()]


def _spoken(piece: tts.SpeakablePiece, speed: float, voice: tts.Voice) -> Iterator[tts.SpeechChunk]:
    """On the voice's thread. What it can't speak is the text's fault here: a stranger's words must
    not have the calls' voice built anew."""
    try:
        yield from voice.synthesize(piece, speed)
    except tts.VoiceError as error:
        raise ClientError(str(error), code="invalid_value", param="input") from error
