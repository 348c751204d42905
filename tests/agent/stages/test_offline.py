"""Work beside the calls: what goes before it, when it stops, and how much of it is taken on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
import soundfile
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message

import asr
import tts
from agent.config.schema import Config
from agent.http import multipart
from agent.http.auth.principal import client_of
from agent.http.json_body import JsonBodies
from agent.http.openai import concurrency_limit
from agent.http.openai.speech import SpeechEndpoint
from agent.http.openai.transcriptions import Transcriptions
from agent.stages.model_thread import BACKGROUND, NORMAL, ModelThread
from agent.stages.registry import Stages
from agent.stages.speech_output import VoiceStage
from asr.speech_detection.file_segments import MAX_PIECE_S

WAIT_S: Final = 30
"""Only a hang takes so long."""

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
SPEECH: Final = "/v1/audio/speech"
FULL_STEPS: Final = 6
"""Of the recording below; of the text a few less."""
TEXT: Final = b'{"input": "One here. Two here. Three here. Four here. Five here. Six here."}'


class Gate:
    """Lets a model do one step at a time, and keeps account."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.may_pass = threading.Semaphore(0)
        self.done: list[str] = []

    def step(self, name: str) -> None:
        self.reached.release()
        assert self.may_pass.acquire(timeout=WAIT_S)
        self.done.append(name)


class GatedRecognizer:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def steps(self, pcm: asr.Pcm, options: asr.TranscriptionOptions) -> Iterator[asr.Hypothesis]:
        assert len(pcm) <= MAX_PIECE_S * asr.RATE_HZ
        self._gate.step("piece")
        yield asr.Hypothesis("word", (1,))


class Detector:
    def probability(self, frame: asr.Pcm, state: asr.VadState) -> float:
        return 1.0


class GatedVoice:
    name = "gated"
    rate_hz = 22_050

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.samples = 4000

    def synthesize(
        self, piece: tts.SpeakablePiece, speed: float = 1.0
    ) -> Iterator[tts.SpeechChunk]:
        self._gate.step("piece")
        pcm = np.ones(self.samples, np.int16)
        yield tts.SpeechChunk(pcm, self.rate_hz, piece.span, (), is_last=True)

    def warm(self) -> None:
        """Nothing to warm."""


class Service:
    """The two endpoints around models that do as they are told."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.detector: ModelThread[Any] = ModelThread("vad", Detector)
        self.recognizer: ModelThread[Any] = ModelThread("asr", lambda: GatedRecognizer(self.gate))
        self.gated_voice = GatedVoice(self.gate)
        self.voice = VoiceStage("gated", lambda: self.gated_voice)
        stages = cast(
            Stages,
            SimpleNamespace(
                status="ready",
                remote_asr=None,
                detector=self.detector,
                recognizer=self.recognizer,
                voice_stage=lambda name: self.voice,
            ),
        )
        speech = SpeechEndpoint(Config(), stages, JsonBodies(client_of))
        routes = [
            Route(TRANSCRIPTIONS, Transcriptions(Config(), stages).serve, methods=["POST"]),
            Route(SPEECH, speech.serve, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    def thread(self, path: str) -> ModelThread[Any]:
        return self.recognizer if path == TRANSCRIPTIONS else self.voice.thread


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    threads = [service.detector, service.recognizer, service.voice.thread]
    for thread in threads:
        await thread.start()
    yield service
    service.gate.may_pass.release(1000)
    for thread in threads:
        await thread.close()


class Client:
    """One request, as a server hands it to the application."""

    def __init__(self, service: Service, path: str, address: str = "192.0.2.99") -> None:
        self._address = address
        self._app = service.app
        self._path = path
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.status = 0
        self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self.num_read = 0

    async def ask(self, body: bytes, kind: bytes) -> None:
        """Until the application is done with the request."""
        self._incoming.put_nowait({"type": "http.request", "body": body})
        await self.call([(b"content-type", kind)])

    async def call(self, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "query_string": b"",
            "headers": headers,
            "client": (self._address, 50_000),
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        self.num_read += 1
        return await self._incoming.get()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    def go(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


def form(fields: dict[str, str], file: bytes) -> bytes:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return b"".join([*parts, head, file, b"\r\n--x--\r\n"])


FORM: Final = b"multipart/form-data; boundary=x"


def recording(seconds: float) -> bytes:
    file = BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, int(seconds * 8000))
    soundfile.write(file, noise, 8000, format="WAV", subtype="PCM_16")
    return file.getvalue()


def request(path: str, *, stream: bool) -> tuple[bytes, bytes]:
    """Body and content type of work that takes several steps."""
    if path == TRANSCRIPTIONS:
        fields = {"stream": "true"} if stream else {}
        return form(fields, recording(FULL_STEPS * MAX_PIECE_S)), FORM
    return TEXT, b"application/json"


async def until_waiting(stage: ModelThread[Any], count: int) -> None:
    """Until so many jobs wait; nothing tells of it."""
    while stage.waiting < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


CASES: Final = [(TRANSCRIPTIONS, True), (TRANSCRIPTIONS, False), (SPEECH, True)]


@pytest.mark.parametrize(("path", "stream"), CASES)
async def test_a_call_waits_for_one_step_at_most(service: Service, path: str, stream: bool) -> None:
    gate, stage = service.gate, service.thread(path)
    clients = [Client(service, path) for _ in range(2)]
    body, kind = request(path, stream=stream)

    async def for_a_call(priority: int) -> None:
        await stage.call(lambda _: gate.done.append("call"), timeout_s=WAIT_S, priority=priority)

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.ask(body, kind))
        assert await asyncio.to_thread(gate.reached.acquire, timeout=WAIT_S)
        await until_waiting(stage, 1)
        for priority in (NORMAL, BACKGROUND):
            group.create_task(for_a_call(priority))
        await until_waiting(stage, 3)
        gate.may_pass.release(100)
    assert gate.done[:3] == ["piece", "call", "call"]
    assert gate.done.count("piece") >= 2 * (FULL_STEPS - 1)
    assert [client.status for client in clients] == [200, 200]


@pytest.mark.parametrize(("path", "stream"), CASES)
async def test_work_for_a_client_that_went_stops_within_a_step(
    service: Service, path: str, stream: bool
) -> None:
    gate = service.gate
    client = Client(service, path)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(client.ask(*request(path, stream=stream)))
        assert await asyncio.to_thread(gate.reached.acquire, timeout=WAIT_S)
        gate.may_pass.release()
        assert await asyncio.to_thread(
            gate.reached.acquire, timeout=WAIT_S
        )  # the second step is under way
        client.go()
        await asking  # noticed at once
    gate.may_pass.release(100)
    await service.thread(path).call(lambda _: None, timeout_s=WAIT_S, priority=99)
    assert gate.done == ["piece", "piece"]


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, SPEECH])
async def test_request_above_the_limit_gets_a_retry_time(service: Service, path: str) -> None:
    gate = service.gate
    clients = [
        Client(service, path, f"192.0.2.{number}")
        for number in range(concurrency_limit.MAX_AT_ONCE)
    ]
    body, kind = request(path, stream=False)
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.ask(body, kind))
        await until_waiting(service.thread(path), concurrency_limit.MAX_AT_ONCE - 1)
        late = Client(service, path)
        await late.ask(body, kind)
        assert (late.status, late.headers[b"retry-after"]) == (503, b"2")
        assert b"try again" in late.body
        gate.may_pass.release(1000)
    assert {client.status for client in clients} == {200}
    again = Client(service, path)
    await again.ask(body, kind)
    assert again.status == 200


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, SPEECH])
async def test_one_client_leaves_places_to_others(service: Service, path: str) -> None:
    most = concurrency_limit.MAX_OF_ONE
    greedy = [Client(service, path, "192.0.2.1") for _ in range(most)]
    body, kind = request(path, stream=False)
    async with asyncio.TaskGroup() as group:
        for client in greedy:
            group.create_task(client.ask(body, kind))
        await until_waiting(service.thread(path), most - 1)
        late, other = Client(service, path, "192.0.2.1"), Client(service, path, "192.0.2.2")
        await late.ask(body, kind)
        assert (late.status, late.headers[b"retry-after"]) == (503, b"2")
        assert f"{most} of them are in progress".encode() in late.body
        group.create_task(other.ask(body, kind))
        await until_waiting(service.thread(path), most)
        service.gate.may_pass.release(1000)
    assert {client.status for client in (*greedy, other)} == {200}


@pytest.mark.parametrize("head", [b"", form({}, b"RIFF")[:60]])
async def test_an_upload_that_comes_too_slowly_frees_its_place(
    service: Service, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """It announces 20 MB, and sends nothing, or a little."""
    monkeypatch.setattr(multipart, "GRACE_S", 0.05)
    headers = [(b"content-type", FORM), (b"content-length", b"20000000")]
    slow = [Client(service, TRANSCRIPTIONS) for _ in range(concurrency_limit.MAX_OF_ONE)]
    for client in slow:
        client._incoming.put_nowait({"type": "http.request", "body": head, "more_body": True})
    await asyncio.gather(*(client.call(headers) for client in slow))
    assert [client.status for client in slow] == [408] * len(slow)
    assert all(b"came too slowly" in client.body for client in slow)
    service.gate.may_pass.release(1000)
    good = Client(service, TRANSCRIPTIONS)
    await good.ask(*request(TRANSCRIPTIONS, stream=False))
    assert good.status == 200


async def test_a_body_that_never_comes_takes_no_place_of_texts(service: Service) -> None:
    silent = [Client(service, SPEECH) for _ in range(2 * concurrency_limit.MAX_AT_ONCE)]
    headers = [(b"content-type", b"application/json")]
    async with asyncio.TaskGroup() as group:
        for client in silent:
            group.create_task(client.call(headers))
        while not all(client.num_read for client in silent):  # noqa: ASYNC110
            await asyncio.sleep(0)
        service.gate.may_pass.release(1000)
        good = Client(service, SPEECH)
        await good.ask(*request(SPEECH, stream=False))
        for client in silent:
            client.go()
    assert good.status == 200
    assert {client.status for client in silent} == {499}


@pytest.mark.parametrize("form_of", ["wav", "pcm", "mp3", "flac", "opus"])
async def test_a_text_without_words_is_refused_before_a_byte(
    service: Service, form_of: str
) -> None:
    client = Client(service, SPEECH)
    service.gated_voice.samples = 0
    service.gate.may_pass.release(1000)
    body = f'{{"input": "Hm. Hm.", "response_format": "{form_of}"}}'
    await client.ask(body.encode(), b"application/json")
    assert client.status == 400
    assert b"holds nothing that can be spoken" in client.body


async def test_an_endless_upload_is_read_to_the_limit_and_no_further(service: Service) -> None:
    piece = b"\x00" * (1 << 20)
    client = Client(service, TRANSCRIPTIONS)
    head = form({}, b"")[: -len(b"\r\n--x--\r\n")]
    for data in (head, *[piece] * 40):
        client._incoming.put_nowait({"type": "http.request", "body": data, "more_body": True})
    await client.call([(b"content-type", FORM)])
    assert client.status == 413
    assert client.num_read <= (multipart.MAX_FORM_BYTES >> 20) + 2


async def test_one_that_owns_up_to_its_length_is_not_read_at_all(service: Service) -> None:
    client = Client(service, TRANSCRIPTIONS)
    await client.call([(b"content-type", FORM), (b"content-length", b"99999999999")])
    assert (client.status, client.num_read) == (413, 0)


async def test_one_that_never_ends_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "UPLOAD_TIMEOUT_S", 0.05)
    client = Client(service, TRANSCRIPTIONS)
    await client.call([(b"content-type", FORM)])
    assert client.status == 408


async def test_disconnect_during_upload_leaves_nothing(service: Service) -> None:
    for _ in range(concurrency_limit.MAX_AT_ONCE + 1):
        client = Client(service, TRANSCRIPTIONS)
        client.go()
        await client.call([(b"content-type", FORM)])
        assert client.status == 499


@pytest.mark.parametrize(
    "fields",
    [{f"field{number}": "x" for number in range(99)}, {"prompt": "x" * 100_000}],
)
async def test_many_fields_or_a_large_one_are_refused(
    service: Service, fields: dict[str, str]
) -> None:
    client = Client(service, TRANSCRIPTIONS)
    await client.ask(form(fields, recording(1)), FORM)
    assert client.status == 400
    assert b'"param":"body"' in client.body


async def test_a_disk_that_is_full_is_said_to_be(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(self: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("starlette.datastructures.UploadFile.write", write)
    client = Client(service, TRANSCRIPTIONS)
    await client.ask(form({}, recording(1)), FORM)
    assert client.status == 503
    assert b"No space left" in client.body
