"""A server with the latency of made-up turns, so that the dashboard is tested against figures known
to the turn.

It serves the real pages under the policy of the real service. A test says what there is, publishes
events, ends streams, and reads what was asked; the server runs in a thread of its own.
"""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from agent.http.static_files import Pages
from agent.server.app import SecurityHeaders
from tests.support.browser.fake_turns import Json, summary_of

WAIT_S: Final = 60.0
"""Timeout in s. Only a deadlock lasts that long; a slow machine does not."""

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
        """Key that opens the server; None: none is needed."""
        self.refusal: tuple[int, str] | None = None
        """Status and text of every answer, the pages apart; None: none is refused."""
        self.has_store = True
        self.asked: list[tuple[str, Json, Json]] = []
        """Path, query and headers of each request for data."""
        self.port = 0
        self.events: list[tuple[str, Json]] = []
        self.generation = 0
        """Generation of the streams: those of an earlier one have to end."""
        self.news = _News()
        self._is_held = False
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
        """Send an event to all open streams, and keep it for those that reconnect."""
        self.events.append((kind, data))
        self.news.tell()

    def end_streams(self) -> None:
        """End all streams, as the real ones end after some minutes."""
        self.generation += 1
        self.news.tell()

    def hold(self, is_held: bool) -> None:
        """Hold answers back, or release them."""
        self._is_held = is_held
        self.news.tell()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, WAIT_S):
                raise AssertionError(f"never happened: {what}")

    def wait_for_stream(self, number: int = 1) -> Json:
        """The headers with which the page asked for its stream of this number."""
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

        told = _Answers(self)
        data = {
            "/v1/sessions": told.sessions,
            "/v1/sessions/{session}/trace": told.trace,
            "/v1/sessions/{session}/recording": told.recording,
            "/v1/latency/summary": told.summary,
            "/v1/latency/turns": told.listed,
            "/v1/latency/refusals": told.refused,
            "/v1/latency/events": told.stream,
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
            await self.news.until(lambda: not self._is_held)
            if (
                self.key is not None
                and request.headers.get("authorization") != f"Bearer {self.key}"
            ):
                return _error(401, "This server needs a key.")
            if self.refusal is not None:
                return _error(*self.refusal)
            return answer(request)

        return serve


class _News:
    """Lets answers wait until a test has changed something."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def tell(self) -> None:
        for pulse, loop in list(self._waiting.items()):
            with contextlib.suppress(RuntimeError):  # its server has been stopped
                loop.call_soon_threadsafe(pulse.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        pulse = asyncio.Event()
        self._waiting[pulse] = asyncio.get_running_loop()
        try:
            while not condition():
                pulse.clear()
                if not condition():
                    await pulse.wait()
        finally:
            del self._waiting[pulse]


class _Answers:
    """Answers of the fake server's endpoints, from the data that it has at the moment."""

    def __init__(self, fake: FakeLatency) -> None:
        self._fake = fake

    def sessions(self, request: Request) -> Response:
        return JSONResponse({"sessions": self._fake.calls})

    def trace(self, request: Request) -> Response:
        text = self._fake.traces.get(request.path_params["session"])
        return _error(404, "There is no trace of this session.") if text is None else Response(text)

    def recording(self, request: Request) -> Response:
        sound = self._fake.recordings.get(request.path_params["session"])
        if sound is None:
            return _error(404, "This call was not recorded.")
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        return Response(sound[int(first) : int(last) + 1], 206, media_type="audio/wav")

    def refused(self, request: Request) -> Response:
        return JSONResponse({"refusals": self._fake.refusals, "total": len(self._fake.refusals)})

    def _wanted(self, request: Request) -> list[Json]:
        params = request.query_params
        return [
            turn
            for turn in self._fake.turns
            if params.get("session") in (None, turn["session"])
            and params.get("profile") in (None, turn["budget"]["profile"])
            and params.get("replica") in (None, turn["replica"])
        ]

    def listed(self, request: Request) -> Response:
        params = request.query_params
        if not self._fake.has_store and "since" in params:
            return _error(400, NO_STORE)
        before = int(params.get("before", 2**40))
        limit = int(params.get("limit", 100))
        found = [turn for turn in self._wanted(request) if turn["row"] < before]
        page = found[-limit:]
        if not self._fake.has_store or "since" not in params:
            return JSONResponse({"turns": page})
        cursor = page[0]["row"] if len(page) == limit else None
        known = [{**turn, "marks": None} for turn in page]
        return JSONResponse({"turns": known, "before": cursor})

    def summary(self, request: Request) -> Response:
        if not self._fake.has_store and "since" in request.query_params:
            return _error(400, NO_STORE)
        found = self._wanted(request)
        answer: Json = {
            "summary": summary_of(found),
            "profiles": {turn["budget"]["profile"]: {} for turn in self._fake.turns},
            "replicas": dict(Counter(turn["replica"] for turn in self._fake.turns)),
            "errors": [],
        }
        if request.query_params.get("histogram") == "1":
            answer["histograms"] = self._fake.histograms
        if "window" in request.query_params:
            answer["windows"] = self._fake.windows
        return JSONResponse(answer)

    def stream(self, request: Request) -> Response:
        seen = request.headers.get("last-event-id")
        there = len(self._fake.events)
        told = self._told(there if seen is None else min(int(seen), there))
        return StreamingResponse(told, media_type="text/event-stream")

    async def _told(self, next_place: int) -> AsyncIterator[str]:
        fake, generation = self._fake, self._fake.generation

        def is_over() -> bool:
            return fake.generation != generation

        yield ": hello\n\n"
        while not is_over():
            for kind, data in fake.events[next_place:]:
                next_place += 1
                yield f"id: {next_place}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
            await fake.news.until(partial(self._is_news, next_place, is_over))

    def _is_news(self, next_place: int, is_over: Callable[[], bool]) -> bool:
        return len(self._fake.events) > next_place or is_over()


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
