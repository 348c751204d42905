"""The service's application without models, driven over HTTP and WebSocket without a port."""

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import pytest
from starlette.types import Message
from twilio.request_validator import RequestValidator

from agent.calls.registry import CallRegistry
from agent.calls.service import AdmittedCall, CallService, CallTransport
from agent.calls.state_store.store import StateStore
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import KeyLimits
from agent.server.app import Application, create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages, Status
from agent.telephony.carriers.webhook import FORM
from latency_budget.account.clock import SystemClock, unix_ns
from tests.agent.telephony.carriers.test_twilio import CALL

PUBLIC: Final = "https://voice.example.com"
AUTH_TOKEN: Final = "0123456789abcdef0123456789abcdef"
TOKEN: Final = re.compile(r"ct[0-9a-f]{48}")
LOCAL_KEY: Final = "hl_000000000000_local"
SALES: Final = "+493012345"

SETTINGS: Final = f"""
[agent]
max_sessions = 2

[latency_budget]
admission = false

[telephony]
public_url = "{PUBLIC}"
numbers = {{ "{SALES}" = "sales" }}

[agents.sales]
greeting = "Sales, good morning."
"""


class ReadyStages(Stages):
    """Stages that report themselves ready without loading any model."""

    current_status: Status = "ready"

    @property
    def status(self) -> Status:
        return self.current_status


@dataclass(slots=True)
class Stream:
    """A carrier's end of a WebSocket."""

    sent: list[Message] = field(default_factory=list)
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    def say(self, frame: str) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "text": frame})

    @property
    def status(self) -> int:
        """The HTTP status of the handshake; 101 when accepted."""
        first = self.sent[0]
        return int(first["status"]) if "status" in first else 101

    @property
    def closed(self) -> tuple[int, str]:
        (close,) = [each for each in self.sent if each["type"] == "websocket.close"]
        return close["code"], close["reason"]


@dataclass
class ServerUnderTest:
    """The application under test. `held`: the calls that began, with agent and numbers."""

    app: Application
    config: Config
    stages: ReadyStages
    keys: KeyFile
    access: Authenticator
    http: httpx.AsyncClient
    held: list[AdmittedCall] = field(default_factory=list)

    @property
    def calls(self) -> CallRegistry:
        return self.app.calls

    async def key(self, name: str = "ana", **limits: Any) -> str:
        made = self.keys.add(name, KeyLimits(**limits), unix_ns() // 10**9)
        await self.access.refresh()
        return made

    async def twilio(
        self,
        path: str = "/telephony/twilio/voice",
        *,
        secret: str = AUTH_TOKEN,
        public: str = PUBLIC,
        **fields: str,
    ) -> httpx.Response:
        """Post a webhook signed as Twilio signs it and return the response."""
        form = {"CallSid": CALL, "From": "+15550100", "To": SALES, **fields}
        signature = RequestValidator(secret).compute_signature(public + path, form)
        return await self.post(path, form, {"X-Twilio-Signature": signature})

    async def post(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        kind = {"Content-Type": FORM}
        return await self.http.post(
            path, content=urlencode(form).encode(), headers={**kind, **(headers or {})}
        )

    async def stream(
        self,
        carrier: str,
        *frames: str,
        headers: Mapping[str, str] | None = None,
        replies: Callable[[str], str | None] | None = None,
    ) -> Stream:
        """A stream from handshake to close. `replies`: the carrier's frame in reply to one of ours,
        if any."""
        stream = Stream()
        named = {"host": "voice.example.com", **(headers or {})}
        path = f"/telephony/{carrier}/stream"
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "subprotocols": [],
            "client": ("192.0.2.7", 4711),
            "scheme": "wss",
            "extensions": {"websocket.http.response": {}},
        }
        stream.inbox.put_nowait({"type": "websocket.connect"})
        for frame in frames:
            stream.say(frame)

        async def send(message: Message) -> None:
            stream.sent.append(message)
            text = message.get("text")
            if replies is not None and text and (reply := replies(text)) is not None:
                stream.say(reply)
            if message["type"] == "websocket.close":
                stream.inbox.put_nowait({"type": "websocket.disconnect", "code": message["code"]})

        async with asyncio.timeout(120):
            await self.app.asgi(scope, stream.inbox.get, send)
        return stream


@asynccontextmanager
async def telephony_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str = SETTINGS,
    state_store: StateStore | None = None,
) -> AsyncIterator[ServerUnderTest]:
    """Start the application; every call ends as soon as it begins.

    Secrets are read from the environment at this moment.
    """
    config = load_config(file_text=settings)
    clock = SystemClock()
    stages = ReadyStages(config, ModelStore(tmp_path, {}), clock)
    keys = KeyFile(tmp_path / "keys.json")
    access = Authenticator(config, keys, clock, local_key=LOCAL_KEY, state_store=state_store)
    app = create_app(config, stages, clock, access=access, state_store=state_store)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC) as http:
        server = ServerUnderTest(app, config, stages, keys, access, http)

        of_another_server = CallService.hold

        async def hold(service: CallService, held: AdmittedCall, carrier: CallTransport) -> None:
            if held.reservation._calls is not app.calls:
                await of_another_server(service, held, carrier)
                return
            server.held.append(held)

        monkeypatch.setattr(CallService, "hold", hold)
        yield server
    app.twilio.close()
    await stages.close()


def logged_text(caplog: pytest.LogCaptureFixture) -> str:
    """The messages logged at INFO and above, one per line."""
    return "\n".join(
        record.getMessage() for record in caplog.records if record.levelno >= logging.INFO
    )


def token_in(answer: httpx.Response) -> str:
    """The call token in the response to a webhook."""
    assert answer.status_code == 200, answer.text
    (token,) = TOKEN.findall(answer.text)
    return str(token)


def basic(password: str) -> dict[str, str]:
    login = base64.b64encode(f"halfsec:{password}".encode()).decode()
    return {"Authorization": f"Basic {login}"}
