"""The Python client against real sockets on loopback, served by the dialect itself."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.typing import Subprotocol

from agent import client_events as ev
from agent.client import Call, connect, wait_ready
from agent.client_errors import CallEndedError, ConnectError, handshake_error
from agent.conversation import ItemId
from agent.notices import (
    Extension,
    Notice,
    Problem,
    ReplyAudio,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    SessionCreated,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
    Usage,
)
from agent.requests import AppendAudio, Request, UpdateSession
from agent.settings import SessionSettings
from agent.wire.realtime import RealtimeProtocol
from latency_budget.clock import ManualClock

PCM = (np.sin(np.arange(480) / 5) * 8000).astype(np.int16)
SETTINGS = SessionSettings(voice="v", output_encoding="pcmu")

Refuse = Callable[[HttpRequest], Response | None]


class Peer:
    """A server of one scripted call: greets, notes what is asked, says what the test lets it."""

    def __init__(self, refuse: Refuse | None = None) -> None:
        self.asked: asyncio.Queue[Request | Problem] = asyncio.Queue()
        self.requests: list[HttpRequest] = []
        self.greeting: Notice = SessionCreated("sess_1", SETTINGS)
        self.url = ""
        self._refuse = refuse
        self._socket: asyncio.Future[ServerConnection] | None = None
        self._protocol: RealtimeProtocol | None = None

    async def say(self, *notices: Notice) -> None:
        socket = await self.socket()
        assert self._protocol is not None
        for notice in notices:
            for frame in self._protocol.send(notice):
                await socket.send(frame)

    async def socket(self) -> ServerConnection:
        if self._socket is None:
            self._socket = asyncio.get_running_loop().create_future()
        return await self._socket

    async def handle(self, socket: ServerConnection) -> None:
        extensions = socket.subprotocol == "halfsec.v1"
        self._protocol = RealtimeProtocol(SETTINGS, model="m", extensions=extensions)
        if self._socket is None or self._socket.done():
            self._socket = asyncio.get_running_loop().create_future()
        self._socket.set_result(socket)
        await self.say(self.greeting)
        async for frame in socket:
            for request in self._protocol.receive(frame):
                self.asked.put_nowait(request)
                if isinstance(request, UpdateSession):
                    await self.say(SessionUpdated(request.settings))

    def process(self, _: ServerConnection, request: HttpRequest) -> Response | None:
        self.requests.append(request)
        return None if self._refuse is None else self._refuse(request)


@asynccontextmanager
async def serving(
    refuse: Refuse | None = None, subprotocols: tuple[str, ...] = ("halfsec.v1", "realtime")
) -> AsyncIterator[Peer]:
    peer = Peer(refuse)
    names = [Subprotocol(name) for name in subprotocols]
    async with serve(
        peer.handle, "127.0.0.1", 0, subprotocols=names or None, process_request=peer.process
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        peer.url = f"ws://127.0.0.1:{port}/v1/realtime"
        yield peer


def answer(status: HTTPStatus, message: str = "", **headers: str) -> Response:
    body = json.dumps({"error": {"message": message}}).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status.value, status.phrase, Headers(fields), body)


async def take(call: Call, count: int) -> list[ev.ClientEvent]:
    events: list[ev.ClientEvent] = []
    async for event in call.events():
        events.append(event)
        if len(events) == count:
            break
    return events


async def test_the_call_opens_with_the_servers_session() -> None:
    async with serving() as peer, connect(peer.url, model="anna", api_key="k-1") as call:
        assert call.session_id == "sess_1"
        assert call.session["audio"]["output"]["voice"] == "v"
        assert call.extensions
    (request,) = peer.requests
    assert request.path == "/v1/realtime?model=anna"
    assert request.headers["Authorization"] == "Bearer k-1"
    assert "Sec-WebSocket-Extensions" not in request.headers


async def test_an_address_without_a_path_means_the_voice_socket() -> None:
    async with serving() as peer:
        async with connect(peer.url.replace("ws:", "http:").removesuffix("/v1/realtime")):
            pass
        async with connect(peer.url + "?model=a", model="b"):
            pass
    assert [r.path for r in peer.requests] == ["/v1/realtime", "/v1/realtime?model=b"]


async def test_extensions_are_off_where_the_server_does_not_take_them_up() -> None:
    async with serving(subprotocols=()) as peer, connect(peer.url) as call:
        assert not call.extensions
    async with serving() as peer, connect(peer.url, extensions=False) as call:
        assert not call.extensions
        assert peer.requests[0].headers["Sec-WebSocket-Protocol"] == "realtime"


async def test_everything_that_happens_in_a_turn_becomes_an_event() -> None:
    u, a, r = ItemId("item_u"), ItemId("item_a"), "resp_1"
    clock = ManualClock(7)
    async with serving() as peer, connect(peer.url, clock=clock) as call:
        await peer.say(
            SpeechStarted(u, 100),
            Extension("halfsec.partial", {"item_id": u, "text": "hel", "stable_chars": 2}),
            SpeechStopped(u, 900),
            TranscriptDelta(u, "hello"),
            TranscriptCompleted(u, "hello", 0.8),
            ReplyStarted(r, a, u, "audio", SETTINGS),
            ReplyText(r, "Hi."),
            ReplyAudio(r, np.zeros(160, np.int16), 8000),
            ReplyEnded(r, "cancelled", "turn_detected", "Hi", Usage(3, 1, 2)),
            Extension("halfsec.turn", {"turn": {"turn": 1}}),
            Problem("No.", "invalid_value", param="p", event_id="e"),
            TranscriptFailed(u, "Gone."),
            Extension("halfsec.unheard_of", {}),
        )
        events = await take(call, 12)
    audio = events[7]
    assert isinstance(audio, ev.ReplyAudio)
    assert (audio.response_id, audio.item_id, audio.rate_hz, audio.at_ns) == (r, a, 8000, 7)
    assert audio.pcm.tolist() == [0] * 160
    done = events[8]
    assert isinstance(done, ev.ReplyDone)
    assert (done.status, done.reason, done.text) == ("cancelled", "turn_detected", "Hi")
    assert done.usage["total_tokens"] == 5
    del events[7:9]
    assert events == [
        ev.SpeechStarted(u, 100, 7),
        ev.PartialTranscript(u, "hel", 2, 7),
        ev.SpeechStopped(u, 900, 7),
        ev.TranscriptDelta(u, "hello", 7),
        ev.Transcript(u, "hello", 7),
        ev.ReplyStarted(r, 7),
        ev.ReplyText(r, a, "Hi.", 7),
        ev.TurnReport({"turn": 1}, 7),
        ev.ServerError("No.", "invalid_value", "p", "e", 7),
        ev.ServerError("Gone.", "transcription_failed", None, None, 7),
    ]


async def test_audio_is_sent_as_it_is_and_in_the_format_of_the_session() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_audio(PCM, 24_000)
        await call.update(audio={"input": {"format": {"type": "audio/pcma"}}})
        await call.send_audio(PCM, 8_000)
        (changed,) = await take(call, 1)
        sent = [await peer.asked.get() for _ in range(3)]
    assert isinstance(sent[0], AppendAudio)
    assert isinstance(sent[2], AppendAudio)
    assert (sent[0].rate_hz, sent[0].pcm.tolist()) == (24_000, PCM.tolist())
    assert sent[2].rate_hz == 8_000
    assert np.abs(sent[2].pcm.astype(int) - PCM).max() < 300
    assert isinstance(changed, ev.SessionUpdated)
    assert call.session["audio"]["input"]["format"] == {"type": "audio/pcma"}


async def test_other_rates_are_resampled_as_one_stream() -> None:
    second = (np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000) * 8000).astype(np.int16)
    async with serving() as peer, connect(peer.url) as call:
        for first in range(0, len(second), 320):
            await call.send_audio(second[first : first + 320], 16_000)
        await call.commit_audio()
        parts = []
        while isinstance(request := await peer.asked.get(), AppendAudio):
            assert request.rate_hz == 24_000
            parts.append(request.pcm)
    heard = np.concatenate(parts)
    assert abs(len(heard) - 24_000) <= 1
    spectrum = np.abs(np.fft.rfft(heard[2000:22_000]))
    assert spectrum.argmax() == round(440 * 20_000 / 24_000)


async def test_long_audio_goes_in_several_frames_and_wrong_audio_not_at_all() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_audio(np.zeros(60_000, np.int16), 24_000)
        sizes = [len((await peer.asked.get()).pcm) for _ in range(3)]  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="int16"):
            await call.send_audio(np.zeros(10), 24_000)  # type: ignore[arg-type]
    assert sizes == [24_000, 24_000, 12_000]


async def test_each_method_sends_its_event() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.send_text("hello")
        await call.cancel()
        await call.truncate("item_a", 40)
        await call.report_playback("item_a", 20)
        await call.create_reply(instructions="Sing.")
        names = [type(await peer.asked.get()).__name__ for _ in range(6)]
    assert names == [
        "CreateItem",
        "CreateResponse",
        "CancelResponse",
        "TruncateItem",
        "PlaybackReport",
        "CreateResponse",
    ]


async def test_the_end_of_the_call_is_the_last_event() -> None:
    async with serving() as peer, connect(peer.url, clock=ManualClock(5)) as call:
        await (await peer.socket()).close(1012, "restarting")
        assert [event async for event in call.events()] == [ev.Closed(1012, "restarting", 5)]
        with pytest.raises(CallEndedError, match="1012"):
            await call.send_text("anyone?")


async def test_frames_that_can_not_be_read_are_errors_not_exceptions() -> None:
    frames = ["nonsense", "[]", "{}", '{"type":5}', '{"type":"response.done"}', '{"type":"new"}']
    async with serving() as peer, connect(peer.url) as call:
        for frame in frames:
            await (await peer.socket()).send(frame)
        await (await peer.socket()).close()
        *events, closed = [event async for event in call.events()]
    assert isinstance(closed, ev.Closed)
    assert [e.code for e in events if isinstance(e, ev.ServerError)] == ["invalid_frame"] * 5


async def failure(url: str, **options: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        async with connect(url, **options):
            pass
    return caught.value


async def test_nobody_there() -> None:
    async with serving() as peer:
        url = peer.url
    assert "make run" in str(await failure(url))


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://a/b", "ws://", "ws://h:x/", "ws://["])
async def test_addresses_that_are_none(url: str) -> None:
    assert "is no address" in str(await failure(url))


async def test_tls_to_a_server_without_it() -> None:
    async with serving() as peer:
        error = await failure(peer.url.replace("ws:", "wss:"))
    assert "secure" in str(error)


async def test_a_server_that_is_none_of_the_web() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "does not speak HTTP" in str(await failure(f"ws://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ssl.SSLCertVerificationError(1, "self-signed"), "not to be trusted"),
        (TimeoutError(), "does not answer"),
        (OSError(-2, "Name or service not known"), "No connection"),
    ],
)
def test_other_failures_are_told_apart(error: Exception, words: str) -> None:
    assert words in str(handshake_error("wss://host", error))


async def test_refused_for_want_of_a_key() -> None:
    async with serving(lambda _: answer(HTTPStatus.UNAUTHORIZED, "Send a key.")) as peer:
        error = await failure(peer.url)
    assert error.status == 401
    assert "Send a key." in str(error)


async def test_something_else_answers() -> None:
    async with serving(lambda _: answer(HTTPStatus.NOT_FOUND)) as peer:
        error = await failure(peer.url)
    assert "HTTP 404" in str(error)


async def test_a_server_that_warms_up_says_when_to_come_back() -> None:
    busy = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Still warming.", Retry_After="7")
    async with serving(lambda _: busy) as peer:
        error = await failure(peer.url)
    assert (error.status, error.retry_after_s) == (503, 7.0)
    assert "Still warming. Try again in 7 s." in str(error)


async def test_waiting_until_it_is_warm() -> None:
    answers = [
        answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="0"),
        answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="0"),
        None,
    ]
    async with serving(lambda _: answers.pop(0)) as peer, connect(peer.url, wait_s=5.0) as call:
        assert call.session_id == "sess_1"
    assert not answers


async def test_waiting_no_longer_than_was_said() -> None:
    busy = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Warming.", Retry_After="30")
    async with serving(lambda _: busy) as peer:
        error = await failure(peer.url, wait_s=5.0)
    assert len(peer.requests) == 1
    assert error.status == 503


async def test_a_server_that_hangs_up_or_complains_at_once() -> None:
    async with serving() as peer:
        peer.greeting = Problem("No such agent.", "model_not_found")
        assert "No such agent." in str(await failure(peer.url))
    async with serving() as peer:
        peer.greeting = SpeechStarted(ItemId("i"), 0)
        assert "dialect" in str(await failure(peer.url))


def ready_after(refusals: int) -> httpx.MockTransport:
    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal refusals
        assert str(request.url) == "http://host:1/readyz"
        refusals -= 1
        if refusals == 0:
            raise httpx.ConnectError("refused")
        if refusals > 0:
            return httpx.Response(503, json={"status": "warming"})
        return httpx.Response(200, json={"status": "ready"})

    return httpx.MockTransport(respond)


async def test_readiness_is_polled() -> None:
    answer_ = await wait_ready("ws://host:1/v1/realtime", poll_s=0.0, transport=ready_after(3))
    assert answer_ == {"status": "ready"}


async def test_readiness_that_never_comes() -> None:
    transport = ready_after(10)
    with pytest.raises(ConnectError, match="warming"):
        await wait_ready("http://host:1", 0.0, transport=transport, clock=ManualClock())


def test_audio_on_the_wire_is_base64_without_breaks() -> None:
    delta = base64.b64encode(PCM.astype("<i2").tobytes()).decode()
    ids = {"response_id": "r", "item_id": "i"}
    frame = json.dumps({"type": "response.output_audio.delta", "delta": delta, **ids})
    event = ev.EventReader().read(frame, 3)
    assert isinstance(event, ev.ReplyAudio)
    assert (event.pcm.tolist(), event.rate_hz) == (PCM.tolist(), 24_000)
