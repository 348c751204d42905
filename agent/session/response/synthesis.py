"""The pieces of one reply, spoken in their order."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from agent.session.ports.stage_ports import Speech, VoicePort
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from tts.text_chunker import SpeakablePiece

from .response import Reply

MAX_PIECES: Final = 4
"""Pieces cut but not yet spoken. The engine is faster than speech; more would only be thrown away
at a barge-in."""

AUDIBLE: Final = 327
"""1 % of full scale: the first sample above it is the first that a caller can hear."""

SILENCE_NS: Final = 2_000_000_000
"""After which somebody who was told to wait wonders whether the line is dead."""


class Run(Protocol):
    """What it needs to know of the reply, and tells."""

    reply: Reply
    voice: VoicePort
    is_ready: bool
    announced: asyncio.Event
    released: asyncio.Event
    flowing: asyncio.Event
    mark: Callable[[MarkName, int], None]
    on_own_sound: Callable[[], None]

    def audible(self) -> None: ...

    def release(self) -> None: ...

    def spoke(self) -> None: ...


class SynthesisQueue:
    """One reply's."""

    def __init__(self, run: Run, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._pieces: asyncio.Queue[tuple[SpeakablePiece | Speech, int] | None] = asyncio.Queue(
            MAX_PIECES
        )
        """What is to be spoken, or is speech already, and from where its characters count."""
        self._has_sounded = False
        """Something of what was generated could be heard."""

    async def put(self, piece: SpeakablePiece, base: int) -> None:
        """The next piece. Its characters count from `base`. Waits while too many do."""
        await self._pieces.put((piece, base))

    async def spoken(self) -> None:
        """Wait until all that was put is speech, or on its way there as such."""
        await self._pieces.join()

    async def finish(self) -> None:
        """Nothing more will be put."""
        await self._pieces.put(None)

    async def speak(self) -> None:
        """Speak until all is spoken. Raises StageError."""
        run, is_first = self._run, True
        while (queued := await self._pieces.get()) is not None:
            piece, base = queued
            if is_first:
                run.mark(MarkName.TTS_START, self._clock.now_ns())
                is_first = False
            elif run.is_ready:  # it may never be heard: what is ready is enough
                await run.released.wait()
                await run.flowing.wait()
            if isinstance(piece, Speech):
                self._queue(piece, base)
            else:
                async for speech in run.voice.speak(piece):
                    self._queue(speech, base)
            self._pieces.task_done()
        self._pieces.task_done()
        run.reply.playback.finish()
        if not run.is_ready:  # no sound that the machine could release
            await run.announced.wait()
            run.release()
        run.spoke()

    def _queue(self, speech: Speech, base: int) -> None:
        run = self._run
        run.reply.queue(speech, base)
        if not self._has_sounded and max_abs(speech.pcm) > AUDIBLE:
            self._has_sounded = True
            if run.is_ready:
                run.on_own_sound()
            else:
                run.mark(MarkName.FIRST_AUDIBLE_READY, self._clock.now_ns())
                run.audible()
        run.spoke()

    async def fill_silence(self, text: str) -> None:
        """Say these words, once, when the first sound is due and there is none, or when nothing has
        been heard for a while. The voice must have kept them."""
        reply = self._run.reply
        speech = await self._run.voice.opener(text) if text and reply.speaks else None
        while speech is not None:
            left_ns = self._silent_at_ns() - self._clock.now_ns()
            if left_ns <= 0:
                break
            await asyncio.sleep(left_ns / 1e9)
        if speech is None or self._pieces.full():
            return
        reply = self._run.reply
        gap = " " if reply.text[-1:].strip() else ""
        base = len(reply.text) + len(gap) - reply.opener_chars
        reply.text += gap + text
        if not self._run.is_ready:
            self._run.mark(MarkName.OPENER, self._clock.now_ns())
        self._pieces.put_nowait((speech, base))

    def _silent_at_ns(self) -> int:
        """When somebody who waits has waited for too long."""
        reply, now_ns = self._run.reply, self._clock.now_ns()
        playback = reply.playback
        left_ns = playback.lasts_until_ns(now_ns) - now_ns
        if left_ns > 0 or (reply.text.strip() and not playback.sent):
            return now_ns + left_ns + SILENCE_NS
        return playback.end_ns() + SILENCE_NS if playback.sent else reply.deadline.at_ns


def max_abs(pcm: npt.NDArray[np.int16]) -> int:
    """0 where there are no samples."""
    return max(int(pcm.max()), -int(pcm.min())) if pcm.size else 0
