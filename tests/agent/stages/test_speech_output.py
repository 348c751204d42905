"""The words that a voice keeps at hand, as the real voice says them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tts
from agent.errors import StageError
from agent.session.ports.stage_ports import APOLOGY
from agent.stages.speech_output import VoiceStage, VoiceStream

OPENERS = ("One moment,", "Sure,")


def load() -> tts.Voice:
    return tts.load_voice("hibari", Path("nowhere"))


@pytest.mark.parametrize("rate_hz", [24_000, 8_000])
async def test_openers_are_kept_with_the_time_of_each_word(rate_hz: int) -> None:
    stage = VoiceStage("hibari", load, OPENERS)
    await stage.start()
    try:
        voice = VoiceStream(stage, rate_hz)
        opener = await voice.opener("One moment,")
        assert opener is not None
        assert opener.span == (0, len("One moment,"))
        assert [word.char_end for word in opener.words] == [3, 10]
        assert 0 < opener.words[0].end_sample < opener.words[1].end_sample <= len(opener.pcm)
        assert 0.2 < len(opener.pcm) / rate_hz < 2.0
        assert np.abs(opener.pcm).max() > 1000
        assert await voice.opener("One moment,") is opener
        assert await voice.opener("Two moments,") is None
        apology = await voice.apology()
        assert apology is not None
        assert (apology.span, apology.words) == ((0, 0), ())
        assert len(apology.pcm) > len(opener.pcm)
        assert list(stage.kept) == [APOLOGY, *OPENERS]
    finally:
        await stage.thread.close()


async def test_a_faster_voice_says_the_same_words_in_less_time() -> None:
    stage = VoiceStage("hibari", load)
    await stage.start()
    text = "Please call Anna at half past four, will you?"
    piece = tts.SpeakablePiece(text, (0, len(text)), 0)
    try:
        lengths = []
        for speed in (0.5, 1.0, 1.5):
            spoken = [each async for each in VoiceStream(stage, 8_000, speed).speak(piece)]
            words = [word for each in spoken for word in each.words]
            assert [word.char_end for word in words][-1] == len(text) - 1
            ends = [word.end_sample for word in words]
            assert ends == sorted(ends)
            num_samples = sum(len(each.pcm) for each in spoken)
            assert num_samples // 2 < ends[-1] <= num_samples
            lengths.append(num_samples)
        assert lengths[0] > 1.5 * lengths[1] > 1.5 * 1.2 * lengths[2]
    finally:
        await stage.thread.close()


class Recited:
    """A voice that says when it may, and notes what it said."""

    name = "recited"
    rate_hz = 24_000

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun = threading.Event()
        self.said: list[str] = []

    def synthesize(
        self, piece: tts.SpeakablePiece, speed: float = 1.0
    ) -> Iterator[tts.SpeechChunk]:
        self.begun.set()
        self.may_go_on.wait(30)
        self.said.append(piece.text)
        yield tts.SpeechChunk(np.zeros(240, np.int16), 24_000, piece.span, (), is_last=True)

    def warm(self) -> None:
        """Nothing to warm."""


async def test_first_audio_has_priority_over_later_audio() -> None:
    recited = Recited()
    stage = VoiceStage("recited", lambda: recited)
    await stage.thread.start()

    async def speak(text: str, index: int) -> None:
        piece = tts.SpeakablePiece(text, (0, len(text)), index)
        async for _ in VoiceStream(stage, 24_000).speak(piece):
            pass

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(speak("under way", 1))
            await asyncio.to_thread(recited.begun.wait, 30)
            group.create_task(speak("later", 2))
            group.create_task(speak("first", 0))
            while stage.thread.waiting < 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            recited.may_go_on.set()
    finally:
        await stage.thread.close()
    assert recited.said == ["under way", "first", "later"]


class Failing:
    """A voice that raises at these pieces, by number of all attempts, after so many chunks."""

    name = "failing"
    rate_hz = 24_000

    def __init__(self, fails_at: dict[int, int]) -> None:
        self.fails_at = fails_at
        self.num_attempts = 0

    def synthesize(
        self, piece: tts.SpeakablePiece, speed: float = 1.0
    ) -> Iterator[tts.SpeechChunk]:
        self.num_attempts += 1
        num_chunks = self.fails_at.get(self.num_attempts)
        for index in range(2):
            if index == num_chunks:
                raise RuntimeError("out of order")
            pcm = np.full(240, index, np.int16)
            yield tts.SpeechChunk(pcm, 24_000, piece.span, (), is_last=index == 1)

    def warm(self) -> None:
        """Nothing to warm."""


async def spoken(voice: Failing) -> tuple[list[int], int]:
    """Chunks that came of a piece, until an error or the end, and the restarts of the stage."""
    stage = VoiceStage("failing", lambda: voice)
    await stage.thread.start()
    piece = tts.SpeakablePiece("Hello.", (0, 6), 0)
    chunks = []
    try:
        async for speech in VoiceStream(stage, 24_000).speak(piece):
            chunks.append(int(speech.pcm[0]))  # noqa: PERF401 - those before an error count
    except StageError:
        chunks.append(-1)
    finally:
        await stage.thread.close()
    return chunks, stage.thread.restarts


async def test_a_voice_that_fails_at_once_is_rebuilt_and_speaks_the_piece() -> None:
    assert await spoken(Failing({1: 0})) == ([0, 1], 1)


async def test_a_voice_that_fails_twice_is_an_error() -> None:
    assert await spoken(Failing({1: 0, 2: 0})) == ([-1], 2)


async def test_speech_that_was_sent_is_not_said_again() -> None:
    assert await spoken(Failing({1: 1})) == ([0, -1], 1)


async def test_a_text_that_a_voice_failed_at_twice_is_not_tried_twice_again() -> None:
    """It would rebuild the voice of all calls each time."""
    voice = Failing(dict.fromkeys(range(1, 9), 0))
    stage = VoiceStage("failing", lambda: voice)
    await stage.thread.start()
    attempts = []
    try:
        for text in ("Hello.", "Hello.", "Good morning."):
            with pytest.raises(StageError):
                async for _ in stage.speak(tts.SpeakablePiece(text, (0, len(text)), 0), 24_000):
                    pass
            attempts.append(voice.num_attempts)
    finally:
        await stage.thread.close()
    assert attempts == [2, 3, 5]
