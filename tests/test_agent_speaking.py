"""The words that a voice keeps at hand, as the real voice says them."""

from pathlib import Path

import numpy as np
import pytest

import tts
from agent.reply import APOLOGY
from agent.speaking import Speaking, VoiceStage

OPENERS = ("One moment,", "Sure,")


def load() -> tts.Voice:
    return tts.load_voice("hibari", Path("nowhere"))


@pytest.mark.parametrize("rate_hz", [24_000, 8_000])
async def test_openers_are_kept_with_the_time_of_each_word(rate_hz: int) -> None:
    stage = VoiceStage("hibari", load, OPENERS)
    await stage.start()
    try:
        voice = Speaking(stage, rate_hz)
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
