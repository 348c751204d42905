"""`/v1/audio/transcriptions`, asked by OpenAI's own client: real models, real recordings."""

import json
from io import BytesIO
from typing import Any, Final

import httpx
import numpy as np
import openai
import pytest
import soundfile

from asr.audio.files import read_file
from benchmarks.asr.scoring import normalized, word_errors
from tests.asr.test_files import RECORDINGS
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

TEXTS: Final = json.loads((RECORDINGS / "transcripts.json").read_text())
NAME: Final = "vm-nobodyavail.wav"
LONG: Final = ("auth-incorrect.wav", NAME, "all-circuits-busy-now.wav") * 2
GAP_S: Final = 0.5


def client(live: LiveServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{live.http}/v1", api_key="none", max_retries=0)


def recorded(*names: str) -> np.ndarray:
    """Recordings with silence before each, at 16 kHz."""
    gap = np.zeros(int(GAP_S * 16000), np.float32)
    return np.concatenate([part for name in names for part in (gap, read_file(RECORDINGS / name))])


def file_of(pcm: np.ndarray, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    file = BytesIO()
    soundfile.write(file, pcm, 16000, format=kind, subtype=subtype)
    return file.getvalue()


async def post(live: LiveServer, file: bytes | None, **fields: Any) -> httpx.Response:
    files = None if file is None else {"file": ("a", file)}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.post(f"{live.http}/v1/audio/transcriptions", data=fields, files=files)


def expected(*names: str) -> str:
    return " ".join(TEXTS[name] for name in names)


@pytest.mark.parametrize(
    ("name", "kind", "subtype"),
    [
        ("a.wav", "WAV", "PCM_16"),
        ("a.flac", "FLAC", "PCM_16"),
        ("a.mp3", "MP3", "MPEG_LAYER_III"),
        ("a.ogg", "OGG", "OPUS"),
    ],
)
async def test_a_recording_of_each_kind(
    live: LiveServer, name: str, kind: str, subtype: str
) -> None:
    async with client(live) as api:
        answer = await api.audio.transcriptions.create(
            model="whisper-1",
            file=(name, file_of(recorded(NAME), kind, subtype)),
            language="en",
            temperature=0.2,
        )
    assert normalized(answer.text) == normalized(TEXTS[NAME])
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens > 0


async def test_a_long_recording_comes_with_times_of_sentences_and_words(live: LiveServer) -> None:
    pcm = recorded(*LONG)
    async with client(live) as api:
        answer = await api.audio.transcriptions.create(
            model="whisper-1",
            file=("a.wav", file_of(pcm)),
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert answer.duration == pytest.approx(len(pcm) / 16000, abs=0.01)
    assert word_errors([expected(*LONG)], [answer.text]).rate < 0.1
    assert answer.words is not None
    assert answer.segments is not None
    assert " ".join(word.word for word in answer.words) == answer.text
    assert " ".join(segment.text for segment in answer.segments) == answer.text
    times = [time for word in answer.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= answer.duration
    begun = 0.0
    for name in LONG:  # each word is said while its recording is played
        ends = begun + len(recorded(name)) / 16000
        first = TEXTS[name].split()[0].strip(".,").lower()
        assert [
            word
            for word in answer.words
            if word.word.strip(".,").lower() == first and begun <= word.start < begun + 1.5
        ], (name, begun)
        begun = ends


async def test_a_stream_adds_up_to_the_whole(live: LiveServer) -> None:
    async with client(live) as api:
        file = ("a.wav", file_of(recorded(*LONG)))
        whole = await api.audio.transcriptions.create(model="x", file=file)
        stream = await api.audio.transcriptions.create(model="x", file=file, stream=True)
        events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) > 1
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert "".join(deltas) == done.text == whole.text
    assert done.usage is not None
    assert whole.usage is not None
    assert done.usage.to_dict() == whole.usage.to_dict()


async def test_text_and_subtitles(live: LiveServer) -> None:
    file = file_of(recorded(NAME))
    text = (await post(live, file, model="x", response_format="text")).text
    assert normalized(text) == normalized(TEXTS[NAME])
    srt = await post(live, file, response_format="srt")
    lines = srt.text.splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:00,")
    assert lines[2] == text.strip()
    vtt = await post(live, file, response_format="vtt")
    assert vtt.text.splitlines()[:2] == ["WEBVTT", ""]
    assert vtt.headers["content-type"].startswith("text/vtt")


async def test_non_speech_gets_no_text(live: LiveServer) -> None:
    """Whisper by itself answers the first with "you", the last with a whole sentence."""
    time = np.arange(16000 * 14) / 16000
    noise = np.random.default_rng(0).normal(0, 0.01, len(time))
    for pcm in (np.zeros(len(time)), noise, 0.3 * np.sin(2 * np.pi * 250 * time)):
        answer = await post(live, file_of(pcm), response_format="verbose_json")
        assert (answer.json()["text"], answer.json()["segments"]) == ("", [])
    async with client(live) as api:
        file = ("a.wav", file_of(np.zeros(100)))
        stream = await api.audio.transcriptions.create(model="x", file=file, stream=True)
        assert [event.type async for event in stream] == ["transcript.text.done"]


async def test_a_prompt_shows_how_to_spell(live: LiveServer) -> None:
    file = file_of(recorded(NAME))
    plain = (await post(live, file)).json()
    prompted = (await post(live, file, prompt="no capitals and no marks in here " * 8)).json()
    assert plain["text"] == TEXTS[NAME]
    assert prompted["text"] == TEXTS[NAME].lower().rstrip(".")
    assert plain["usage"]["input_token_details"]["text_tokens"] == 0
    assert prompted["usage"]["input_token_details"]["text_tokens"] > 5
    endless = await post(live, file, prompt="Words, " * 5000)
    assert endless.json()["usage"]["input_token_details"]["text_tokens"] == 223


@pytest.mark.parametrize(
    ("file", "fields", "param", "says"),
    [
        (None, {"model": "x"}, "body", "multipart/form-data"),
        (b"", {}, "file", "empty (0 bytes)"),
        (b"Dear Sir or Madam, this is no recording." * 9, {}, "file", "ffmpeg"),
        (b"\x1a\x45\xdf\xa3webm" * 99, {}, "file", "ffmpeg"),
        (b"RIFF\x00\x00\x00\x00WAVEjunk" * 9, {}, "file", "not readable as audio"),
        (file_of(recorded(NAME))[:9000], {}, "file", "cut short"),
        (file_of(np.zeros(0)), {}, "file", "no audio in it"),
        (file_of(np.zeros((100, 9))), {}, "file", "9 channels"),
        (b"RIFF", {"response_format": "xml"}, "response_format", "verbose_json"),
        (b"RIFF", {"response_format": "diarized_json"}, "response_format", "one of json"),
        (b"RIFF", {"stream": "maybe"}, "stream", "true or false"),
        (b"RIFF", {"stream": "true", "response_format": "srt"}, "response_format", "json or text"),
        (b"RIFF", {"temperature": "7"}, "temperature", "from 0 to 1"),
        (b"RIFF", {"temperature": "nan"}, "temperature", "from 0 to 1"),
        (b"RIFF", {"model": "m" * 300}, "model", "256 characters"),
        (b"RIFF", {"language": "de"}, "language", "it knows en"),
        (b"RIFF", {"include[]": "logprobs"}, "include", "not supported"),
        (b"RIFF", {"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "verbose"),
    ],
)
async def test_invalid_requests_are_refused_with_a_reason(
    live: LiveServer, file: bytes | None, fields: dict[str, str], param: str, says: str
) -> None:
    answer = await post(live, file, **fields)
    error = answer.json()["error"]
    assert answer.status_code == (415 if file is None else 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


async def test_text_field_in_place_of_the_file_is_refused(
    live: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        url = f"{live.http}/v1/audio/transcriptions"
        for files, says in (
            ({"file": (None, "words")}, "not a text field"),
            ({"model": (None, "x")}, "is missing"),
        ):
            answer = await http.post(url, files=files)
            assert answer.status_code == 400
            assert says in answer.json()["error"]["message"]
        content = {"content-type": "multipart/form-data"}
        answer = await http.post(url, content=b"no boundary", headers=content)
        assert answer.status_code == 400
        content = {"content-type": "multipart/form-data; boundary=x"}
        for body in (b"", b"--x\r\nContent-Disposition: form-data; name=file", b"junk" * 99):
            answer = await http.post(url, content=body, headers=content)
            assert (answer.status_code, answer.json()["error"]["type"]) == (
                400,
                "invalid_request_error",
            )
    strangers = [each for each in caplog.records if each.name.startswith("python_multipart")]
    assert not strangers, "who sends junk writes the log"
