"""Speech as bad microphones and bad networks bring it, to the real service."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from agent.session import session
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    WIRE_HZ,
    call_to,
    overlap,
    recording,
    silence,
    to_int16,
    transcript,
)

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

Sound = Any
HEARD: Final = "conversation.item.input_audio_transcription.completed"
SAID: Final = "all-circuits-busy-now"


def at_level(db: float) -> Callable[[Sound], Sound]:
    """Root mean square below full scale."""

    def scaled(sound: Sound) -> Sound:
        return sound / np.sqrt(np.mean(sound**2)) * 10 ** (db / 20)

    return scaled


def with_holes(sound: Sound) -> Sound:
    """40 ms of each second never come: the audio closes up over them."""
    second = WIRE_HZ
    return np.concatenate(
        [sound[at : at + int(0.96 * second)] for at in range(0, len(sound), second)]
    )


SPOILT: Final[dict[str, Callable[[Sound], Sound]]] = {
    "a strong voice on an offset": lambda sound: sound + 0.3,
    "a faint voice on an offset": lambda sound: 0.1 * sound + 0.3,
    "at -50 dB": at_level(-50),
    "20 dB too loud": lambda sound: np.clip(10 * sound, -1, 1),
    "with holes": with_holes,
}


@pytest.mark.parametrize("how", SPOILT)
async def test_spoilt_speech_is_a_turn(live: LiveServer, how: str) -> None:
    sound = np.concatenate([silence(0.5), recording(SAID), silence(2.5)]) / 32768
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        await call.append(to_int16(SPOILT[how](sound)), piece_ms=20)
        heard = await call.until(HEARD)
        await call.response()
    assert overlap(transcript(SAID), heard["transcript"]) >= 0.6, heard["transcript"]
    assert len(call.of("input_audio_buffer.committed")) == 1


async def test_speech_that_comes_in_bursts_and_late_is_one_turn(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """700 ms at a time, each as late as it is long; the last one in the middle of the silence."""
    assert session.STALL_NS > 700_000_000
    # A busy machine may take longer between two bursts, which is no network that is gone.
    monkeypatch.setattr(session, "STALL_NS", 1 << 60)
    pcm = np.concatenate([recording(SAID), silence(2.1)])
    burst = int(0.7 * WIRE_HZ)
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        for at in range(0, len(pcm), burst):
            await asyncio.sleep(0.7)
            await call.append(pcm[at : at + burst], piece_ms=20)
        heard = await call.until(HEARD)
        await call.response()
    assert overlap(transcript(SAID), heard["transcript"]) >= 0.6, heard["transcript"]
    assert len(call.of("input_audio_buffer.committed")) == 1


async def test_audio_that_stops_in_mid_word_is_a_turn(live: LiveServer) -> None:
    """A client that is muted, or whose network is gone, sends no silence."""
    async with call_to(live.url) as call:
        await call.update(output_modalities=["text"], max_output_tokens=4)
        await call.append(recording(SAID)[: int(1.5 * WIRE_HZ)])
        heard = await call.until(HEARD)
        await call.response()
    assert heard["transcript"]


async def test_stereo_is_refused_by_name(live: LiveServer) -> None:
    """The wire carries one channel; a client with two says which, or mixes them."""
    async with call_to(live.url) as call:
        form = {"type": "audio/pcm", "rate": WIRE_HZ, "channels": 2}
        session = {"type": "realtime", "audio": {"input": {"format": form}}}
        await call.send("session.update", session=session)
        error = await call.problem()
        assert error["param"] == "session.audio.input.format.channels"
        await call.prove_alive()
