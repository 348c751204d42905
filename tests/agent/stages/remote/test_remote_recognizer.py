"""A recognizer on another server: sessions, uploads, the recognizer in its place, failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import pytest

import asr
from agent.config.remote_models import RemoteModel
from agent.errors import StageError
from agent.stages.remote import api_server, recovery, remote_recognizer
from agent.stages.remote.api_server import ServerOptions
from agent.stages.remote.remote_error import RemoteError
from agent.stages.remote.remote_recognizer import LocalRecognizer, RemoteRecognizer
from agent.stages.remote.transcription_server import TranscriptionServer, Transport, wav_of
from tests.support.service.model_servers import WAIT_S, Answer, error, head, http, scripted_server
from tests.support.service.realtime_recognizer import (
    Mode,
    RealtimeRecognizer,
    realtime_recognizer,
    uploaded,
)

SECRET: Final = "sk-very-secret"
SHORT_S: Final = 0.5
"""Timeout of a server that is to be given up."""
AUDIO: Final = np.random.default_rng(5).uniform(-0.5, 0.5, 16_000 * 4).astype(np.float32)
HEARD: Final = uploaded(" From the upload. ")


def job(kind: Any, end: int = 16_000, voiced: int | None = 15_000) -> asr.DecodeJob:
    return asr.DecodeJob(kind, 1, 1, 0, AUDIO[:end], last_voiced_sample=voiced)


class Recognizing:
    """One call's recognizer with its server."""

    def __init__(
        self, recognizer: RemoteRecognizer, server: TranscriptionServer, peer: RealtimeRecognizer
    ) -> None:
        self.recognizer = recognizer
        self.server = server
        self.peer = peer
        self.local: list[str] = []
        """Kinds of the jobs that the recognizer of this process got."""

    async def text(self, kind: Any, *args: Any) -> str | None:
        async with asyncio.timeout(WAIT_S):
            hypothesis = await self.recognizer.decode(job(kind, *args), 0)
        return None if hypothesis is None else hypothesis.text

    async def ready(self) -> None:
        """Wait until the call has a session."""
        async with asyncio.timeout(WAIT_S):
            while self.recognizer._session._open is None:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)

    async def failure(self) -> StageError:
        with pytest.raises(StageError) as caught:
            await self.text("final")
        return caught.value


@asynccontextmanager
async def recognizing(
    *uploads: Answer,
    mode: Mode = "words",
    has_sessions: bool = True,
    transport: Transport = "auto",
    has_local: bool = False,
    timeout_s: float = WAIT_S,
) -> AsyncIterator[Recognizing]:
    async with realtime_recognizer(HEARD, *uploads, mode=mode, has_sessions=has_sessions) as peer:
        server = TranscriptionServer(
            RemoteModel(peer.http.url, "whisper"),
            ServerOptions(timeout_s, SECRET, section="asr"),
            "en",
            transport,
        )
        await server.start()  # takes the first answer
        made: Recognizing

        async def decode(job: asr.DecodeJob, priority: int) -> asr.Hypothesis:
            made.local.append(job.kind)
            return asr.Hypothesis("from here")

        local = LocalRecognizer(decode, lambda: True) if has_local else None
        made = Recognizing(RemoteRecognizer(server, local), server, peer)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(made.recognizer.run())
            try:
                yield made
            finally:
                running.cancel()
                peer.may_answer.set()
        await server.close()


async def test_words_come_while_the_caller_speaks_and_a_pause_is_a_commit() -> None:
    async with recognizing() as made:
        assert made.server.has_sessions
        await made.ready()
        words: list[str] = []
        for end in range(4_000, 40_000, 4_000):
            text = await made.text("partial", end)
            words += [] if text is None else [text]
            await asyncio.sleep(0)
        while not words:  # the answers are on their way
            await asyncio.sleep(0.001)
            text = await made.text("partial", 40_000)
            words += [] if text is None else [text]
        assert words[-1].startswith("word1")
        assert len(set(words)) == len(words), "only what is new is told"
        assert await made.text("final", 41_000) == "pass 1"
        assert made.peer.kinds[1:] == ["session.update", "append", "commit"]  # of the probe: one
        assert len(made.peer.http.bodies) == 1, "nothing was uploaded but the probe"
        assert made.server.problem is None


async def test_a_final_takes_the_words_of_the_early_pass() -> None:
    async with recognizing() as made:
        await made.ready()
        assert await made.text("early") == "pass 1"
        final = await made.recognizer.decode(job("final", 17_000), 0)
        assert final is not None
        assert (final.text, final.taken_over) == ("pass 1", True)
        assert await made.text("final", 20_000, 19_000) == "pass 2", "these are other words"
        assert made.peer.num_commits == 2


async def test_a_final_waits_for_the_early_pass_over_its_words() -> None:
    async with recognizing() as made:
        await made.ready()
        made.peer.may_answer.clear()
        async with asyncio.TaskGroup() as group:
            early = group.create_task(made.text("early"))
            await made.peer.committed.wait()
            final = group.create_task(made.text("final", 17_000))
            other = group.create_task(made.text("final", 20_000, 19_000))
            while made.peer.num_commits < 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            made.peer.may_answer.set()
        assert (early.result(), final.result(), other.result()) == ("pass 1", "pass 1", "pass 2")
        assert made.peer.num_commits == 2


async def test_a_pass_that_is_given_up_leaves_the_next_its_own_words() -> None:
    async with recognizing() as made:
        await made.ready()
        made.peer.may_answer.clear()
        async with asyncio.TaskGroup() as group:
            stale = group.create_task(made.text("final"))
            await made.peer.committed.wait()
            stale.cancel()
        made.peer.may_answer.set()
        assert await made.text("final", 20_000, 19_000) == "pass 2"
        assert made.peer.num_sessions == 2, "the probe's and the call's"


async def test_another_language_is_asked_for_in_a_session_of_its_own() -> None:
    async with recognizing() as made:
        await made.ready()
        assert await made.text("final") == "pass 1"
        made.recognizer.set_options(asr.TranscriptionOptions("de"))
        await made.ready()
        assert await made.text("final") == "pass 2", "the words of the other session are not reused"
        assert made.peer.num_sessions == 3, "the probe's, the English one, the German one"
        updates = [str(each) for each in made.peer.events if each["type"] == "session.update"]
        assert ["'language': 'de'" in each for each in updates] == [False, False, True]
    async with recognizing(has_sessions=False) as made:
        made.recognizer.set_options(asr.TranscriptionOptions("de"))
        assert await made.text("final") == "From the upload."
        assert b'name="language"\r\n\r\nde' in made.peer.http.bodies[-1]["upload"]


async def test_words_of_another_language_are_not_reused() -> None:
    async with recognizing(uploaded("English"), uploaded("German"), has_sessions=False) as made:
        async with asyncio.TaskGroup() as group:
            early = group.create_task(made.text("early"))
            await asyncio.sleep(0)
            assert not early.done()
            made.recognizer.set_options(asr.TranscriptionOptions("de"))
            final = group.create_task(made.text("final", 17_000))
        assert (early.result(), final.result()) == ("English", "German")
        assert made.peer.http.bodies[-1]["upload"].count(b"\r\n\r\nde\r\n") == 1
        later = await made.text("final", 17_500)
        assert later == "German", "the early pass that ended late is not remembered"


@pytest.mark.parametrize("mode", ["silent", "hangs up", "failed", "10 MB", "nonsense"])
async def test_an_upload_answers_where_the_session_does_not(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.01)
    monkeypatch.setattr(remote_recognizer, "SESSION_SHARE", 0.02)
    async with recognizing(mode=mode, timeout_s=20.0) as made:
        await made.ready()
        assert await made.text("final") == "From the upload."
        recording = made.peer.http.bodies[-1]["upload"]
        assert wav_of(AUDIO[:16_000]) in recording
        for field in (b'name="model"\r\n\r\nwhisper', b'name="language"\r\n\r\nen'):
            assert field in recording
        made.peer.mode = "words"
        monkeypatch.setattr(remote_recognizer, "SESSION_SHARE", 0.5)
        await made.ready()
        assert await made.text("final", 20_000, 19_000) == f"pass {made.peer.num_commits}"
        assert made.server.problem is None


async def test_without_sessions_the_pauses_are_uploaded_and_there_are_no_partials() -> None:
    async with recognizing(has_sessions=False) as made:
        assert not made.server.has_sessions
        assert await made.text("partial") is None
        assert await made.text("early") == "From the upload."
        assert await made.text("final", 17_000) == "From the upload."
        assert len(made.peer.http.bodies) == 2, "the probe, and the early pass"
        assert made.server.problem is None, "uploads do"


async def test_a_server_that_rejects_the_settings_of_a_session() -> None:
    async with recognizing(mode="refuses") as made:
        assert not made.server.has_sessions
        assert await made.text("final") == "From the upload."
        assert made.server.problem is None
    async with recognizing(mode="refuses", transport="realtime") as made:
        async with asyncio.timeout(WAIT_S):
            while made.server.problem is None:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
        assert made.server.problem == (
            "the recognition server opens no Realtime session: it reports: there is no such model"
        )
        assert await made.text("final") == "From the upload."


BROKEN: Final = {
    "wrong model": (error(404, "no such model"), "has no model 'whisper' at this address (404)"),
    "no key": (error(401, f"bad key {SECRET}"), "rejects the key of asr.remote_key_env"),
    "a bad request": (error(400, f"bad {SECRET}"), "answers with status 400: bad ***"),
    "full": (error(429, "slow down", "retry-after: 60"), "status 429: slow down"),
    "a page": (
        Answer([http(200, "text/html", b"<html>")], "keep"),
        "answers with text/html where application/json is due",
    ),
    "no JSON": (Answer([http(200, "application/json", b"{x")], "keep"), "not a JSON object"),
    "no text": (Answer([http(200, "application/json", b'{"text": 1}')], "keep"), "without a text"),
    "a line of 10 MB": (
        Answer([head("application/json"), b'{"text": "', *[b"x" * (1 << 20)] * 10], "close"),
        "not a JSON object",
    ),
    "gone at once": (Answer([], "close"), "broke the connection off"),
    "headers and nothing": (Answer([head("application/json")], "hang"), "sent no words within"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_fails_ends_the_pass_with_its_reason(name: str) -> None:
    answer, reason = BROKEN[name]
    async with recognizing(answer, transport="upload", timeout_s=SHORT_S) as made:
        caught = await made.failure()
        assert reason in caught.message
        assert caught.stage == "asr"
        for shown in (caught.message, made.server.problem or ""):
            assert SECRET not in shown
            assert "127.0.0.1" not in shown
        assert (made.server.problem is None) == (name == "a bad request")
        made.peer.http.answers = [HEARD]
        assert await made.text("final") == "From the upload.", "the next pause is recognized"
        assert made.server.problem is None


@pytest.mark.parametrize("name", BROKEN)
async def test_the_recognizer_of_this_process_answers_in_its_place(name: str) -> None:
    answer = BROKEN[name][0]
    async with recognizing(answer, transport="upload", has_local=True, timeout_s=SHORT_S) as made:
        assert await made.text("final") == "from here"
        before = len(made.peer.http.bodies)
        assert await made.text("early", 20_000, 19_000) == "from here"
        assert made.local == ["final", "early"]
        is_asked = name == "a bad request"
        assert (len(made.peer.http.bodies) > before) == is_asked, "one known to fail is not asked"


@pytest.mark.parametrize("has_local", [False, True])
async def test_garbage_of_a_server_is_no_words(has_local: bool) -> None:
    garbage = uploaded("\ufffd\x00" * 200)
    async with recognizing(garbage, transport="upload", has_local=has_local) as made:
        if has_local:
            assert await made.text("final") == "from here"
        else:
            assert "unreadable" in (await made.failure()).message
        made.peer.http.answers = [HEARD]
        assert await made.text("final", 20_000, 19_000) == "From the upload."


async def test_a_full_server_is_asked_again_when_it_says_so_soon() -> None:
    full = error(503, "full", "retry-after: 0")
    async with recognizing(full, error(500, "x"), HEARD, transport="upload") as made:
        assert await made.text("final") == "From the upload."
        assert len(made.peer.http.bodies) == 4


async def test_nobody_listens_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.01)
    monkeypatch.setattr(api_server, "PROBE_S", 0.01)
    async with recognizing(transport="upload") as made:
        made.peer.http.is_down = True
        assert "broke the connection off" in (await made.failure()).message
        assert made.server.is_down
        made.peer.http.is_down = False
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(made.server.watch())
            async with asyncio.timeout(WAIT_S):
                while made.server.problem is not None:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.001)
            watching.cancel()
        assert await made.text("final") == "From the upload."


async def test_a_redirect_takes_no_key_to_another_server() -> None:
    async with scripted_server() as other, realtime_recognizer(HEARD) as peer:
        peer.http.sockets_at = None
        peer.http.moved_to = f"{other.url.replace('http', 'ws')}/realtime"
        server = TranscriptionServer(
            RemoteModel(peer.http.url, "whisper"), ServerOptions(key=SECRET), "en", "realtime"
        )
        with pytest.raises(RemoteError, match="answers with a redirect: set"):
            async with server.session():
                raise AssertionError("there is no session")
        assert f"Bearer {SECRET}" in peer.http.heads[0]
        assert other.num_connections == 0
        await server.close()
