"""A server with the latency of made-up turns, so that the dashboard is tested against figures known
to the turn.

It serves the real pages under the policy of the real service. A test says what there is, publishes
events, ends streams, and reads what was asked; the server runs in a thread of its own.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from agent.pages import Pages
from agent.server import SecurityHeaders

from .fake_turns import Json, summary_of

WAIT_S: Final = 20.0
"""Only a deadlock lasts that long; a slow machine does not."""

NO_STORE: Final = "Older turns are not kept here: latency_budget.store is off in the settings."


class FakeLatency:
    """May be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.turns: list[Json] = []
        """Oldest first."""
        self.calls: list[Json] = []
        self.refusals: list[Json] = []
        self.windows: list[Json] = []
        self.histograms: Json = {}
        self.traces: dict[str, str] = {}
        self.recordings: dict[str, bytes] = {}
        self.readiness: tuple[int, Json] = (200, {"status": "ready", "stages": {}})
        self.key: str | None = None
        """What opens it; None: nothing is needed."""
        self.refusal: tuple[int, str] | None = None
        """What everything is answered with, the pages apart."""
        self.has_store = True
        self.asked: list[tuple[str, Json, Json]] = []
        """Path, query and headers of each request for data."""
        self.port = 0
        self._events: list[tuple[str, Json]] = []
        self._generation = 0
        self._is_held = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulses: set[asyncio.Event] = set()
        """One for each answer that waits, set when something has changed."""
        self._changed = threading.Condition()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def queries(self, path: str) -> list[Json]:
        return [query for each, query, _ in self.asked if each == path]

    def headers(self, path: str) -> list[Json]:
        return [headers for each, _, headers in self.asked if each == path]

    def publish(self, kind: str, **data: Any) -> None:
        """To all who listen, and whoever asks for what he missed."""
        self._events.append((kind, data))
        self._wake()

    def end_streams(self) -> None:
        """As the real ones end after some minutes."""
        self._generation += 1
        self._wake()

    def hold(self, is_held: bool) -> None:
        """Whether answers are to wait."""
        self._is_held = is_held
        self._wake()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, WAIT_S):
                raise AssertionError(f"never happened: {what}")

    def wait_for_stream(self, number: int = 1) -> Json:
        """The headers with which the page listened for the so-manieth time."""
        path = "/v1/latency/events"
        self.wait_for(lambda: len(self.headers(path)) >= number, f"stream {number}")
        return self.headers(path)[number - 1]

    def start(self) -> None:
        config = uvicorn.Config(
            self._app(),
            host="127.0.0.1",
            port=self.port,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = server = uvicorn.Server(config)
        socket = config.bind_socket()
        self.port = socket.getsockname()[1]
        self._thread = threading.Thread(target=server.run, args=([socket],), name="fake latency")
        self._thread.start()

    def stop(self) -> None:
        self.hold(False)
        self.end_streams()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
        self._server = self._thread = None

    def _app(self) -> Starlette:
        async def readyz(request: Request) -> Response:
            status, body = self.readiness
            return JSONResponse({"needs_key": self.key is not None, **body}, status_code=status)

        data = {
            "/v1/sessions": self._sessions,
            "/v1/sessions/{session}/trace": self._trace,
            "/v1/sessions/{session}/recording": self._recording,
            "/v1/latency/summary": self._summary,
            "/v1/latency/turns": self._listed,
            "/v1/latency/refusals": self._refused,
            "/v1/latency/events": self._stream,
        }
        routes = [Route(path, self._guarded(answer)) for path, answer in data.items()]
        return Starlette(
            routes=[Route("/readyz", readyz), *routes, Mount("/", Pages())],
            middleware=[Middleware(SecurityHeaders)],
        )

    def _guarded(self, answer: Callable[[Request], Response]) -> Any:
        async def serve(request: Request) -> Response:
            query = dict(parse_qsl(request.url.query))
            with self._changed:
                self.asked.append((request.url.path, query, dict(request.headers)))
                self._changed.notify_all()
            self._loop = asyncio.get_running_loop()
            await self._until(lambda: not self._is_held)
            if (
                self.key is not None
                and request.headers.get("authorization") != f"Bearer {self.key}"
            ):
                return _error(401, "This server needs a key.")
            if self.refusal is not None:
                return _error(*self.refusal)
            return answer(request)

        return serve

    def _sessions(self, request: Request) -> Response:
        return JSONResponse({"sessions": self.calls})

    def _trace(self, request: Request) -> Response:
        text = self.traces.get(request.path_params["session"])
        return _error(404, "There is no trace of this session.") if text is None else Response(text)

    def _recording(self, request: Request) -> Response:
        sound = self.recordings.get(request.path_params["session"])
        if sound is None:
            return _error(404, "This call was not recorded.")
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        return Response(sound[int(first) : int(last) + 1], 206, media_type="audio/wav")

    def _refused(self, request: Request) -> Response:
        return JSONResponse({"refusals": self.refusals, "total": len(self.refusals)})

    def _wanted(self, request: Request) -> list[Json]:
        params = request.query_params
        return [
            turn
            for turn in self.turns
            if params.get("session") in (None, turn["session"])
            and params.get("profile") in (None, turn["budget"]["profile"])
        ]

    def _listed(self, request: Request) -> Response:
        params = request.query_params
        if not self.has_store and "since" in params:
            return _error(400, NO_STORE)
        before = int(params.get("before", 2**40))
        limit = int(params.get("limit", 100))
        found = [turn for turn in self._wanted(request) if turn["row"] < before]
        page = found[-limit:]
        if not self.has_store or "since" not in params:
            return JSONResponse({"turns": page})
        cursor = page[0]["row"] if len(page) == limit else None
        known = [{**turn, "marks": None} for turn in page]
        return JSONResponse({"turns": known, "before": cursor})

    def _summary(self, request: Request) -> Response:
        if not self.has_store and "since" in request.query_params:
            return _error(400, NO_STORE)
        found = self._wanted(request)
        answer: Json = {
            "summary": summary_of(found),
            "profiles": {turn["budget"]["profile"]: {} for turn in self.turns},
            "errors": [],
        }
        if request.query_params.get("histogram") == "1":
            answer["histograms"] = self.histograms
        if "window" in request.query_params:
            answer["windows"] = self.windows
        return JSONResponse(answer)

    def _stream(self, request: Request) -> Response:
        seen = request.headers.get("last-event-id")
        first = len(self._events) if seen is None else min(int(seen), len(self._events))
        return StreamingResponse(
            self._told(first, self._generation), media_type="text/event-stream"
        )

    async def _told(self, next_place: int, generation: int) -> AsyncIterator[str]:
        yield ": hello\n\n"
        while generation == self._generation:
            for kind, data in self._events[next_place:]:
                next_place += 1
                yield f"id: {next_place}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
            seen = next_place
            await self._until(
                lambda: len(self._events) > seen or self._generation != generation  # noqa: B023
            )

    async def _until(self, condition: Callable[[], bool]) -> None:
        pulse = asyncio.Event()
        self._pulses.add(pulse)
        while not condition():
            pulse.clear()
            await pulse.wait()
        self._pulses.discard(pulse)

    def _wake(self) -> None:
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        for pulse in self._pulses:
            pulse.set()


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
