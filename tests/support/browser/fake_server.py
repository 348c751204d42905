"""A scripted voice server, so that the page is tested against answers known to the sample.

It serves the real page under the strictest policy the page promises to work with, and on
`/v1/realtime` runs the test's script: a coroutine that sends frames and waits for what the page
sends. Script and page run in their own threads; a test waits on conditions, never for time.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent.http.static_files import Pages
from agent.webrtc.offer import read_offer
from benchmarks.callers.browser import RECORDER_WORKLET
from tests.support.browser.fake_peer_call import FakePeerCall

WEB_DEMO = Path(__file__).resolve().parents[3] / "web_demo"
POLICY = "default-src 'self'"

WIRE_RATE_HZ = 24_000
DELTA_SAMPLES = WIRE_RATE_HZ // 10
"""100 ms of audio in one frame."""

WAIT_S = 60.0
"""Timeout in s. Only a deadlock lasts that long; a slow machine does not."""

Event = dict[str, Any]

NO_WEBRTC: Event = {"code": "webrtc_not_installed", "message": "Calls by WebRTC need the extra."}
Pcm = npt.NDArray[np.int16]
Script = Callable[["FakeCall"], Awaitable[None]]
PeerScript = Callable[["FakePeerCall"], Awaitable[None]]
Caller = TypeVar("Caller")


class FakeCall:
    """One connection of the page. `send` and `until` are for scripts, the rest for tests."""

    def __init__(self, socket: WebSocket, changed: threading.Condition) -> None:
        self.offered: list[str] = list(socket.scope["subprotocols"])
        self.query = socket.url.query
        self.events: list[Event] = []
        """Everything the page sent except audio, in order."""
        self._socket = socket
        self._changed = changed
        self._audio = bytearray()
        self._pulse = asyncio.Event()
        self._num_sent = 0

    @property
    def audio(self) -> Pcm:
        """The caller's audio so far, as the page sent it: int16 [n] at 24 kHz."""
        return np.frombuffer(bytes(self._audio), dtype="<i2")

    def of_type(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    async def send(self, kind: str, **fields: Any) -> None:
        self._num_sent += 1
        event = {"type": kind, "event_id": f"event_{self._num_sent}", **fields}
        await self._socket.send_text(json.dumps(event))

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for something the page sends."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._pulse.clear()
                await self._pulse.wait()

    async def until_event(self, kind: str, count: int = 1) -> Event:
        await self.until(lambda: len(self.of_type(kind)) >= count)
        return self.of_type(kind)[count - 1]

    async def close(self, code: int, reason: str = "") -> None:
        await self._socket.close(code, reason)

    async def receive_all(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                event = json.loads(await self._socket.receive_text())
                with self._changed:
                    if event["type"] == "input_audio_buffer.append":
                        self._audio += base64.b64decode(event["audio"], validate=True)
                    else:
                        self.events.append(event)
                    self._changed.notify_all()
                self._pulse.set()


async def reply(
    call: FakeCall,
    item_id: str,
    pieces: list[tuple[str, Pcm]],
    delta_samples: int = DELTA_SAMPLES,
) -> None:
    """A whole spoken reply, each text just before the audio that speaks it."""
    response_id = f"resp_{item_id}"
    await begin_reply(call, item_id)
    for text, pcm in pieces:
        await say(call, item_id, text, pcm, delta_samples)
    ids = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
    await call.send("response.output_audio.done", **ids)
    transcript = "".join(text for text, _ in pieces)
    await call.send("response.output_audio_transcript.done", **ids, transcript=transcript)
    await end_reply(call, item_id, "completed")


async def begin_reply(call: FakeCall, item_id: str) -> None:
    response_id = f"resp_{item_id}"
    await call.send("response.created", response={"id": response_id, "status": "in_progress"})
    item = {"id": item_id, "type": "message", "role": "assistant", "content": []}
    await call.send(
        "response.output_item.added", response_id=response_id, output_index=0, item=item
    )
    await call.send("conversation.item.added", item=item)


async def say(
    call: FakeCall, item_id: str, text: str, pcm: Pcm, delta_samples: int = DELTA_SAMPLES
) -> None:
    """One piece of a reply. In a single delta (`delta_samples`) none of its audio can be late."""
    ids = {"response_id": f"resp_{item_id}", "item_id": item_id}
    place = {"output_index": 0, "content_index": 0}
    await call.send("response.output_audio_transcript.delta", **ids, **place, delta=text)
    for start in range(0, len(pcm), delta_samples):
        audio = base64.b64encode(pcm[start : start + delta_samples].tobytes()).decode()
        await call.send("response.output_audio.delta", **ids, **place, delta=audio)


async def end_reply(call: FakeCall, item_id: str, status: str) -> None:
    output = [{"id": item_id, "type": "message", "role": "assistant", "content": []}]
    response = {"id": f"resp_{item_id}", "status": status, "output": output}
    await call.send("response.done", response=response)


async def hear(call: FakeCall, item_id: str, words: str) -> None:
    """The caller's sentence: it begins, firms up, ends, and is transcribed."""
    await call.send("input_audio_buffer.speech_started", item_id=item_id, audio_start_ms=0)
    await call.send(
        "halfsec.partial", item_id=item_id, text=words, stable_chars=words.rfind(" ") + 1
    )
    await call.send("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=1000)
    await call.send("input_audio_buffer.committed", item_id=item_id, previous_item_id=None)
    await transcribe(call, item_id, words)


async def obey(call: FakeCall) -> None:
    """Takes every setting, for as long as the connection lasts."""
    session: Event = {"type": "realtime"}
    for count in itertools.count(1):
        update = await call.until_event("session.update", count)
        session = _merged(session, update["session"])
        await call.send("session.updated", session=session)


def _merged(old: Event, new: Event) -> Event:
    both = {**old, **new}
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            both[name] = _merged(old[name], value)
    return both


async def transcribe(call: FakeCall, item_id: str, words: str) -> None:
    await call.send(
        "conversation.item.input_audio_transcription.completed",
        item_id=item_id,
        content_index=0,
        transcript=words,
        usage={"type": "duration", "seconds": 1.0},
    )


class FakeServer:
    """Serves from a thread of its own; may be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.script: Script = _listen_only
        self.readiness: tuple[int, Event] = (200, {"status": "ready", "stages": {}})
        self.calls: list[FakeCall] = []
        self.full = False
        """Refuse sockets before they open, as a server without a free line does."""
        self.num_refused = 0
        self.refusal: tuple[int, Event, dict[str, str]] | None = None
        """Status, error and headers of the answer to a request for the reason; None: there is no
        answer."""
        self.num_offers = 0
        """Calls by WebRTC that were asked for."""
        self.peer_script: PeerScript | None = None
        """Script of calls by WebRTC; None: they are refused."""
        self.peer_calls: list[FakePeerCall] = []
        """Those that were connected."""
        self.hung_up: list[str] = []
        """Paths of calls that the page gave up."""
        self.models: list[Event] = []
        self.session: Event = {}
        """Fields of a new session, beside its id and type."""
        self.resumed: Event | None = None
        """Answer to a connection with a token; None: it gets another call."""
        self.traces: dict[str, str] = {}
        """Traces of sessions, by name."""
        self.trace_keys: list[str | None] = []
        """Keys with which traces were asked for."""
        self.script_errors: list[BaseException] = []
        self.port = 0
        self._changed = threading.Condition()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Waits for something the page sends. Raises AssertionError naming `what`."""
        with self._changed:
            if not self._changed.wait_for(condition, WAIT_S):
                raise AssertionError(f"the page never sent {what}")

    def wait_for_call(self, count: int = 1) -> FakeCall:
        self.wait_for(lambda: len(self.calls) >= count, f"connection {count}")
        return self.calls[count - 1]

    def start(self) -> None:
        config = uvicorn.Config(
            self._app(),
            host="127.0.0.1",
            port=self.port,
            ws="websockets-sansio",
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = server = uvicorn.Server(config)
        socket = config.bind_socket()
        socket.listen()  # connections wait until the thread accepts them; they would be refused
        self.port = socket.getsockname()[1]
        self._thread = threading.Thread(target=server.run, args=([socket],), name="fake server")
        self._thread.start()

    def stop(self) -> None:
        for call in self.peer_calls:
            call.end()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
        self._server = self._thread = None

    def _app(self) -> Starlette:
        async def readyz(request: Request) -> Response:
            status, body = self.readiness
            return JSONResponse(body, status_code=status)

        async def recorder(request: Request) -> Response:
            return FileResponse(RECORDER_WORKLET)

        async def models(request: Request) -> Response:
            return JSONResponse({"object": "list", "data": self.models})

        async def why(request: Request) -> Response:
            status, error, headers = self.refusal or (404, {}, {})
            return JSONResponse({"error": error}, status, headers)

        async def calls(request: Request) -> Response:
            offer = (await request.body()).decode()
            assert "m=audio" in offer
            self.num_offers += 1
            if self.peer_script is None:
                return JSONResponse({"error": NO_WEBRTC}, status_code=501)
            call = FakePeerCall(self._changed)
            answer = await call.peer.answer(read_offer(offer))
            location = {"Location": f"/v1/realtime/calls/rtc_{self.num_offers}"}
            carry = BackgroundTask(self._peer_call, call, self.peer_script)
            return Response(answer, 201, location, "application/sdp", carry)

        async def hang_up(request: Request) -> Response:
            self.hung_up.append(request.url.path)
            return Response(status_code=200)

        async def trace(request: Request) -> Response:
            self.trace_keys.append(request.headers.get("authorization"))
            text = self.traces.get(request.path_params["session"])
            return Response(text or "{}", status_code=404 if text is None else 200)

        routes = [
            Route("/readyz", readyz),
            Route("/v1/models", models),
            Route("/v1/realtime", why),
            Route("/v1/realtime/calls", calls, methods=["POST"]),
            Route("/v1/realtime/calls/{call}/hangup", hang_up, methods=["POST"]),
            Route("/v1/sessions/{session}/trace", trace),
            Route("/recorder-worklet.js", recorder),
            WebSocketRoute("/v1/realtime", self._realtime),
            Mount("/", Pages()),
        ]
        return Starlette(routes=routes, middleware=[Middleware(_Policy)])

    async def _realtime(self, socket: WebSocket) -> None:
        if self.full:
            self.num_refused += 1
            await socket.close()
            return
        call = FakeCall(socket, self._changed)
        await socket.accept(subprotocol="halfsec.v1")
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        session = {"id": "sess_1", "type": "realtime", **self.session}
        if "resume=" in call.query and self.resumed is not None:
            await call.send("session.updated", session=session)
            await call.send("halfsec.resumed", session="sess_1", **self.resumed)
        else:
            await call.send("session.created", session=session)
        async with _running(self.script, call, self.script_errors):
            await call.receive_all()

    async def _peer_call(self, call: FakePeerCall, script: PeerScript) -> None:
        try:
            assert await call.peer.wait_connected()
            with self._changed:
                self.peer_calls.append(call)
                self._changed.notify_all()
            session = {"id": "sess_rtc", "type": "realtime", **self.session}
            await call.send("session.created", session=session)
            async with _running(script, call, self.script_errors):
                await call.peer.closed.wait()
                call.changed()
        finally:
            await call.peer.close()


async def _listen_only(call: FakeCall) -> None:
    """The script of a server that never says a word."""


@contextlib.asynccontextmanager
async def _running(
    script: Callable[[Caller], Awaitable[None]], call: Caller, errors: list[BaseException]
) -> AsyncIterator[None]:
    async def run() -> None:
        try:
            await script(call)
        except (WebSocketDisconnect, RuntimeError):
            pass  # the page has gone: what it still sent is what the test looks at
        except (AssertionError, TimeoutError) as error:
            errors.append(error)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run())
        yield
        task.cancel()


class _Policy:
    """Adds the Content-Security-Policy under which the page must work."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(b"content-security-policy", POLICY.encode())]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self._app(scope, receive, send_with_policy)
