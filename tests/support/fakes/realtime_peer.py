"""A server of one scripted call, for clients: real sockets on loopback, the real dialect."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.typing import Subprotocol

from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import Request, UpdateSession
from agent.session.api.server_events import Notice, Problem, SessionCreated, SessionUpdated
from agent.session.api.settings import SessionSettings

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
