"""`/v1/audio/speech`, asked by OpenAI's own client, and heard by the recognizer: real models."""

import base64
import json
from tempfile import NamedTemporaryFile
from typing import Any, Final

import httpx
import numpy as np
import openai
import pytest
import soundfile

from agent.http.openai.offline_synthesis import pieces_of
from agent.http.openai.speech_request import MAX_INPUT_CHARS
from benchmarks.asr.scoring import normalized
from tests.support.service.live import LiveServer
from tts.text.normalize import join_words, spoken_words
from tts.voice import split_sentences

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

TEXT: Final = "The meeting begins on Monday morning. Please bring your umbrella and your books."
RATE_HZ: Final = 24_000


def client(live: LiveServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{live.http}/v1", api_key="none", max_retries=0)


async def post(live: LiveServer, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.post(f"{live.http}/v1/audio/speech", json=body)


async def heard(live: LiveServer, name: str, data: bytes) -> str:
    async with client(live) as api:
        answer = await api.audio.transcriptions.create(model="whisper-1", file=(name, data))
    return answer.text


def samples_of(data: bytes) -> np.ndarray:
    """Of a file: libsndfile reads MP3 from nothing else."""
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        samples, rate_hz = soundfile.read(file.name)
    assert (samples.ndim, rate_hz) == (1, RATE_HZ)
    return np.asarray(samples)


@pytest.mark.parametrize(
    ("form", "media_type"),
    [
        (None, "audio/mpeg"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
    ],
)
async def test_synthesized_speech_is_recognized(
    live: LiveServer, form: Any, media_type: str
) -> None:
    """The whole way: text to speech in each format, and back to text."""
    async with client(live) as api:
        answer = await api.audio.speech.create(
            model="gpt-4o-mini-tts",
            voice="alloy",
            input=TEXT,
            instructions="Speak like a pirate.",
            **({"response_format": form} if form else {}),
        )
    assert answer.response.headers["content-type"] == media_type
    data = answer.content
    assert normalized(await heard(live, "a", data)) == normalized(TEXT)
    raw = await post(live, input=TEXT, response_format="pcm")
    num_samples = len(raw.content) // 2
    assert abs(len(samples_of(data)) - num_samples) < 0.1 * RATE_HZ


async def test_audio_streams_from_the_first_chunk(live: LiveServer) -> None:
    async with client(live) as api:
        speaking = api.audio.speech.with_streaming_response.create(
            model="tts-1", voice="nova", input=TEXT * 5, response_format="wav"
        )
        async with speaking as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            parts = [part async for part in answer.iter_bytes()]
    assert len(parts) > 3
    assert parts[0][:4] == b"RIFF"
    assert max(map(len, parts)) < sum(map(len, parts)) / 3
    assert np.abs(samples_of(b"".join(parts))).max() > 0.05


async def test_audio_as_server_sent_events(live: LiveServer) -> None:
    plain = await post(live, input=TEXT, response_format="pcm")
    answer = await post(live, input=TEXT, response_format="pcm", stream_format="sse")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    *deltas, done = events
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == plain.content
    seconds = len(plain.content) / 2 / RATE_HZ
    tokens = done["usage"]
    assert done["type"] == "speech.audio.done"
    assert tokens["input_tokens"] == len(TEXT)
    assert tokens["output_tokens"] == pytest.approx(50 * seconds, abs=1)
    assert tokens["total_tokens"] == tokens["input_tokens"] + tokens["output_tokens"]


async def test_speed_and_voices(live: LiveServer) -> None:
    lengths = []
    for speed in (0.5, 1, 1.5):
        answer = await post(live, input=TEXT, response_format="pcm", speed=speed)
        lengths.append(len(answer.content))
    assert 1.7 < lengths[0] / lengths[1] < 2.3
    assert 1.3 < lengths[1] / lengths[2] < 1.7
    voices: tuple[Any, ...] = ("hibari", {"id": "hibari"}, "cedar", None, "")
    for voice in voices:
        answer = await post(live, input="Hi.", voice=voice, response_format="pcm")
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "input", "missing"),
        ({"input": ""}, "input", "empty"),
        ({"input": " \n"}, "input", "empty"),
        ({"input": "🎉 ... 🎉"}, "input", "nothing that can be spoken"),
        ({"input": "a" * (MAX_INPUT_CHARS + 1)}, "input", "4096 are allowed"),
        ({"input": ["a"]}, "input", "a string"),
        ({"input": "Hi.", "response_format": "aac"}, "response_format", "mp3, opus"),
        ({"input": "Hi.", "voice": "bob"}, "voice", "hibari"),
        ({"input": "Hi.", "voice": {"id": 3}}, "voice.id", "a string"),
        ({"input": "Hi.", "speed": 5}, "speed", "0.25 to 4"),
        ({"input": "Hi.", "speed": True}, "speed", "0.25 to 4"),
        ({"input": "Hi.", "stream_format": "xml"}, "stream_format", "audio or sse"),
        ({"input": "Hi.", "model": 7}, "model", "a string"),
    ],
)
async def test_invalid_requests_are_refused_with_a_reason(
    live: LiveServer, body: dict[str, Any], param: str, says: str
) -> None:
    answer = await post(live, **body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


async def test_lone_surrogate_is_refused(live: LiveServer) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        answer = await http.post(
            f"{live.http}/v1/audio/speech",
            content=b'{"input": "Hi \\ud800"}',
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 400
    assert "surrogate" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["0" * 4096, "1777777 " * 512, "ha" * 2000, "$1.99" * 800])
def test_synthesis_steps_are_bounded(text: str) -> None:
    """A call would wait for it. Numbers are the longest when spoken."""
    lengths = [
        len(join_words(sentence))
        for piece in pieces_of(text)
        for sentence in split_sentences(spoken_words(piece.text))
    ]
    assert max(lengths) <= 500
    quarter = [len(word) for piece in pieces_of(text, 0.25) for word in piece.text.split()]
    assert max(quarter) <= 10


async def test_any_script_and_any_characters_are_handled(live: LiveServer) -> None:
    """What the voice has no sounds for is left out, or refused; the calls' voice stays as it is."""
    thread = live.stages.threads()["voice hibari"]
    before = thread.restarts
    for text in (
        "你好",
        "Привет",
        "a\x00b",
        "<|im_start|>system",
        "ha" * 2000,
        "$1e999",
        "\u202e x",
    ):
        answer = await post(live, input=text, response_format="pcm")
        assert answer.status_code in (200, 400), (text, answer.text)
    assert thread.restarts == before
