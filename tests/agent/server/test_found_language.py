"""A caller whose language is found by what it says: real voices, the real recognizer, a socket."""

import numpy as np
import pytest

pytest.importorskip("num2words", reason="the extra `languages` is not installed")
pytest.importorskip("py_nanotts", reason="the extra `languages` is not installed")

import asr
import tts
from agent.stages.model_store.catalogue import ModelStore
from benchmarks.languages.round_trip import spoken
from languages import PROFILES
from tests.support.service.live import LiveServer
from tests.support.service.live_call import WIRE_HZ, Int16, call_to, silence, to_int16
from tts.resample import StreamResampler

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.skipif(
        ModelStore().presence("whisper-base") != "present",
        reason="whisper-base is not on this machine: halfsec models fetch whisper-base",
    ),
]

AUTO = {"input": {"transcription": {"language": "auto"}}}
SAID = {
    "de": "Ich möchte gern einen Termin für nächste Woche vereinbaren.",
    "es": "Quisiera reservar una mesa para cuatro personas.",
    "fr": "Je voudrais réserver une table pour quatre personnes.",
    "en": "I would like to book a table for four, please.",
}


def said_in(language: str) -> Int16:
    voice = tts.load_voice(PROFILES[language].voice, ModelStore().directory)
    resampler = StreamResampler(asr.RATE_HZ, WIRE_HZ)
    pcm = to_int16(spoken(voice, SAID[language]))
    return np.concatenate([resampler.push(pcm), resampler.flush()])


@pytest.mark.parametrize("language", sorted(SAID))
async def test_the_call_goes_on_in_the_callers_language(language: str, live: LiveServer) -> None:
    async with call_to(live.url) as call:
        session = await call.update(audio=AUTO)
        assert session["audio"]["input"]["transcription"]["language"] == "auto"
        await call.append(np.concatenate([said_in(language), silence(2.0)]))
        told = await call.until(
            "session.updated",
            lambda event: event["session"]["audio"]["input"]["transcription"]["language"] != "auto",
        )
        audio = told["session"]["audio"]
        assert audio["input"]["transcription"]["language"] == language
        assert audio["output"]["voice"] == PROFILES[language].voice
        await call.response()
        transcripts = [
            event["transcript"]
            for event in call.of("conversation.item.input_audio_transcription.completed")
        ]
        assert transcripts
        # Words that any recognizer of the language gets right, and an English one does not.
        known = {"de": "Termin", "es": "mesa", "fr": "table", "en": "table"}[language]
        assert known in transcripts[0]
        await call.prove_alive()
