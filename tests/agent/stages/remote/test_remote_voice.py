"""A voice on another server: streams, cancels, tries, failures, and the voice in its place.

The other side is a server that sends whatever bytes a test gives it; the voice of this process is
the real one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import tts
from agent.config.remote_models import RemoteModel
from agent.errors import StageError
from agent.session.ports.stage_ports import APOLOGY, Speech
from agent.stages.remote import api_server, recovery
from agent.stages.remote import remote_voice as remote_voice_module
from agent.stages.remote.api_server import ServerOptions
from agent.stages.remote.remote_voice import LocalVoice, RemoteVoice
from agent.stages.remote.speech_server import SpeechServer
from agent.stages.speech_output import VoiceStage, VoiceStream
from tests.agent.stages.remote.test_pcm_reader import wav
from tests.agent.stages.remote.test_streamed_speech import tone
from tests.support.service.model_servers import (
    WAIT_S,
    Answer,
    ScriptedServer,
    error,
    head,
    http,
    scripted_server,
)

SECRET: Final = "sk-very-secret"
SHORT_S: Final = 0.5
"""Timeout of a server that is to be given up."""

PIECE: Final = tts.SpeakablePiece("Good morning, how are you?", (10, 36), 0)
SOUND: Final = tone(1.2, 24_000)
PCM: Final = SOUND.astype("<i2").tobytes()
HALF: Final = len(PCM) // 2 + 1  # in the middle of a sample


def whole(data: bytes = PCM, kind: str = "audio/pcm") -> Answer:
    return Answer([http(200, kind, data)], "keep")


@cache
def hibari() -> tts.Voice:
    return tts.load_voice("hibari", Path("nowhere"))


@asynccontextmanager
async def speaking(
    *answers: Answer, local: bool = False, openers: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[tuple[RemoteVoice, ScriptedServer]]:
    """A voice on a server; with `local` hibari speaks in its place."""
    stage = VoiceStage("hibari", hibari, openers)
    stand_in = None
    if local:
        await stage.start()
        stand_in = LocalVoice(
            stage.speak, lambda: stage.thread.model is not None, stage.kept_speech
        )
    async with scripted_server(*answers) as scripted:
        server = SpeechServer(
            RemoteModel(scripted.url, "nova"),
            ServerOptions(section="tts", key=SECRET, **options),
            "tts-1",
            24_000,
        )
        voice = RemoteVoice(server, openers, stand_in)
        try:
            yield voice, scripted
        finally:
            await voice.close()
            if local:
                await stage.thread.close()


async def said(voice: RemoteVoice, rate_hz: int = 24_000) -> list[Speech]:
    async with asyncio.timeout(WAIT_S):
        return [speech async for speech in VoiceStream(voice, rate_hz).speak(PIECE)]


async def said_into(heard: list[Speech], voice: RemoteVoice) -> None:
    """As `said`, also as far as it came."""
    async for speech in voice.speak(PIECE, 24_000):
        heard.append(speech)  # noqa: PERF401


def samples(speech: list[Speech]) -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.concatenate([each.pcm for each in speech])


async def test_a_piece_is_one_request_and_its_speech_comes_as_it_is() -> None:
    body, headers = {"instructions": "Calmly."}, {"X-Tenant": "t-2"}
    async with speaking(whole(), extra_body=body, headers=headers) as (voice, scripted):
        speech = await said(voice)
        assert np.array_equal(samples(speech), SOUND)
        assert (speech[0].span[0], speech[-1].span[1]) == PIECE.span
        assert scripted.bodies == [
            {
                "model": "tts-1",
                "voice": "nova",
                "response_format": "pcm",
                "instructions": "Calmly.",
                "input": PIECE.text,
            }
        ]
        assert f"Bearer {SECRET}" in scripted.heads[0]
        assert "t-2" in scripted.heads[0]
        await said(voice)
        assert scripted.num_connections == 1, "the connection is kept"


async def test_the_speed_is_sent_and_the_times_of_words_follow_it() -> None:
    """The first piece has an unknown pace, so its times are the estimate alone."""
    ends = []
    for speed in (1.0, 1.5):
        async with speaking(whole()) as (voice, scripted):
            speech = [each async for each in VoiceStream(voice, 24_000, speed).speak(PIECE)]
            (body,) = scripted.bodies
            assert body.get("speed") == (None if speed == 1.0 else speed)
            ends.append(speech[0].words[0].end_sample if speech[0].words else len(speech[0].pcm))
            assert voice._pace.chars_per_s == pytest.approx(
                15 + (len(PIECE.text) / (1.2 * speed) - 15) / 4
            )
    assert ends[1] < ends[0]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (whole(wav(SOUND, 24_000), "audio/wav"), 1.2),
        (whole(wav(SOUND, 24_000)), 1.2),  # though PCM was asked for
        (whole(wav(SOUND, 48_000), "application/octet-stream"), 0.6),
        (whole(PCM, "audio/pcm; rate=12000"), 2.4),
        (Answer([head("audio/pcm"), PCM[:HALF], PCM[HALF:]]), 1.2),
    ],
)
async def test_audio_of_other_kinds_and_rates(answer: Answer, seconds: float) -> None:
    async with speaking(answer) as (voice, _):
        for rate_hz in (24_000, 8_000):
            assert len(samples(await said(voice, rate_hz))) == round(seconds * rate_hz)


async def test_text_without_a_word_asks_for_nothing() -> None:
    async with speaking(whole()) as (voice, scripted):
        piece = tts.SpeakablePiece(" ... ", (0, 5), 0)
        assert [speech async for speech in voice.speak(piece, 24_000)] == []
        assert scripted.bodies == []


async def test_speech_is_heard_before_the_rest_is_there_and_cancelled_with_the_stream() -> None:
    async with speaking(Answer([head("audio/pcm"), PCM], "hang"), timeout_s=WAIT_S) as (
        voice,
        scripted,
    ):
        spoken = VoiceStream(voice, 24_000).speak(PIECE)
        async with asyncio.timeout(WAIT_S):
            async with aclosing(spoken):
                first = await anext(spoken)
                assert len(first.pcm)
                assert not scripted.given_up.is_set()
            await scripted.given_up.wait()
        assert voice.problem is None, "a barge-in is no failure of the server"


def chunked(*pieces: bytes) -> Answer:
    """An answer in these chunks."""
    lines = ("HTTP/1.1 200 OK", "content-type: audio/pcm", "transfer-encoding: chunked", "", "")
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return Answer(["\r\n".join(lines).encode() + body], "keep")


async def test_tiny_pieces_are_gathered_and_others_are_heard_as_they_come() -> None:
    tiny = [PCM[at : at + 2] for at in range(0, 4900, 2)]
    usual = [PCM[:1000], PCM[1000:2000], PCM[2000:2100]]
    async with speaking(chunked(*tiny), chunked(*usual)) as (voice, _):
        for pieces, sizes in ((tiny, [240] * 10 + [50]), (usual, [500, 500, 50])):
            found = [each async for each, _ in voice._server.speak("Hello", is_last_resort=True)]
            assert [len(each) for each in found] == sizes
            assert np.concatenate(found).astype("<i2").tobytes() == b"".join(pieces)


BROKEN: Final = {
    "wrong model": (error(404, "no such voice"), "has no voice 'nova' at this address (404)"),
    "no key": (error(401, f"bad key {SECRET}"), "rejects the key of tts.remote_key_env"),
    "a bad request": (error(400, f"bad {SECRET}"), "answers with status 400: bad ***"),
    "full": (error(429, "slow down", "retry-after: 60"), "status 429: slow down"),
    "moved": (
        Answer([http(307, "text/plain", b"", "location: http://user:pass@127.0.0.1/")], "keep"),
        "answers with a redirect: set tts.voice to where it leads",
    ),
    "JSON": (whole(b'{"audio": 1}', "application/json"), "answers with application/json where"),
    "a line of 10 MB": (
        Answer([head("application/json"), b'{"x": "', *[b"x" * (1 << 20)] * 10], "close"),
        "answers with application/json where",
    ),
    "MP3": (whole(b"ID3\x04" + bytes(900), "audio/mpeg"), "audio/mpeg where audio/pcm is due"),
    "MP3 in disguise": (whole(b"ID3\x04" + bytes(900)), "sent MP3 where PCM was asked for"),
    "a rate of no speech": (whole(PCM, "audio/pcm; rate=8"), "sent audio of 8 Hz"),
    "nothing": (whole(b""), "sent no audio"),
    "silence": (whole(bytes(20_000)), "sent nothing but silence"),
    "gone at once": (Answer([], "close"), "broke the connection off"),
    "headers and nothing": (Answer([head("audio/pcm")], "hang"), "sent no sound within 0.5 s"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_fails_ends_the_reply_with_its_reason(name: str) -> None:
    answer, reason = BROKEN[name]
    async with speaking(answer, timeout_s=SHORT_S) as (voice, scripted):
        with pytest.raises(StageError) as caught:
            await said(voice)
        assert reason in caught.value.message
        assert caught.value.stage == "tts"
        for shown in (caught.value.message, voice.problem or ""):
            for hidden in (SECRET, "127.0.0.1", "pass@"):
                assert hidden not in shown
        assert (voice.problem is None) == (name == "a bad request")
        scripted.answers = [whole()]
        assert np.array_equal(samples(await said(voice)), SOUND), "the next piece is spoken"
        assert voice.problem is None


@pytest.mark.parametrize("name", BROKEN)
async def test_the_voice_of_this_process_speaks_in_its_place(name: str) -> None:
    async with speaking(BROKEN[name][0], local=True, timeout_s=SHORT_S) as (voice, scripted):
        speech = await said(voice)
        assert (speech[0].span[0], speech[-1].span[1]) == PIECE.span
        assert len(samples(speech)) > 12_000
        before = len(scripted.bodies)
        assert len(await said(voice)) == len(speech)
        is_asked = name == "a bad request"
        assert (len(scripted.bodies) > before) == is_asked, "one known to fail is not waited for"


async def test_tries_come_before_the_first_byte_only() -> None:
    full = error(503, "full", "retry-after: 0")
    async with speaking(full, error(500, "x"), whole()) as (voice, scripted):
        assert np.array_equal(samples(await said(voice)), SOUND)
        assert len(scripted.bodies) == 3
    gone = Answer([head("audio/pcm"), PCM[:HALF]], "hang")
    async with speaking(gone, whole(), local=True, timeout_s=SHORT_S) as (voice, scripted):
        heard: list[Speech] = []
        with pytest.raises(StageError, match=r"sent nothing for 0\.5 s in the middle of speech"):
            await said_into(heard, voice)
        assert heard
        assert np.array_equal(samples(heard), SOUND[: len(samples(heard))]), "no other voice"
        assert len(scripted.bodies) == 1
        assert voice.problem is not None


async def test_kept_texts_are_in_this_voice_or_in_the_other() -> None:
    async with speaking(whole(), openers=("One moment,",)) as (voice, scripted):
        await voice.start()
        assert [body["input"] for body in scripted.bodies] == [APOLOGY, "One moment,"]
        stream = VoiceStream(voice, 24_000)
        opener, apology = await stream.opener("One moment,"), await stream.apology()
        assert opener is not None
        assert apology is not None
        assert np.array_equal(opener.pcm, SOUND)
        assert opener.span == (0, len("One moment,"))
        assert [word.char_end for word in opener.words] == [3, 11]
        assert (apology.span, apology.words) == ((0, 0), ())
        assert len(scripted.bodies) == 2
    async with speaking(error(500, "x"), local=True, openers=("One moment,",)) as (voice, scripted):
        await voice.start()
        assert "status 500" in (voice.problem or "")
        stream = VoiceStream(voice, 24_000)
        opener = await stream.opener("One moment,")
        assert opener is not None
        assert not np.array_equal(opener.pcm, SOUND)
        assert await stream.apology() is not None
        scripted.answers = [whole()]
        await voice.start()
        again = await stream.opener("One moment,")
        assert again is not None
        assert np.array_equal(again.pcm, SOUND)


async def test_a_server_that_comes_back_speaks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (api_server, remote_voice_module):
        monkeypatch.setattr(module, "PROBE_S", 0.01)
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.01)
    async with speaking(error(500, "x"), local=True) as (voice, scripted):
        await voice.start()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(voice.watch())
            assert voice.problem is not None
            scripted.answers = [whole()]
            async with asyncio.timeout(WAIT_S):
                while len(voice.kept_speech(APOLOGY)[0].pcm) != len(SOUND):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            watching.cancel()
        assert voice.problem is None
        assert np.array_equal(samples(await said(voice)), SOUND)


async def test_kept_texts_are_each_spoken_once_though_two_start_them() -> None:
    """The watch looks for missing ones while a slow server still works on the first."""
    sounds = [tone(0.2 * number, 24_000).astype("<i2").tobytes() for number in (1, 2, 3)]
    answers = [whole(sound) for sound in sounds]
    async with speaking(*answers, openers=("Sure.", "Okay.")) as (voice, scripted):
        await asyncio.gather(voice.start(), voice.start())
        lengths = [
            sum(len(chunk.pcm) for chunk in voice.kept_speech(text))
            for text in (APOLOGY, "Sure.", "Okay.")
        ]
        assert lengths == sorted(lengths)
        assert len(set(lengths)) == 3
        assert len(scripted.bodies) == 3
