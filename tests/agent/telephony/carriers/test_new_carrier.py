"""A made-up carrier, one module's worth of code and one row of the table, gets a call through."""

import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest

from agent.calls.service import AdmittedCall, CallOver, CallService
from agent.codec.pcm import encode_audio
from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.session.api.settings import SessionSettings
from agent.telephony.carriers.carrier import TOKEN, Carrier
from agent.telephony.carriers.json_media_stream import FieldNames, JsonStream
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.carriers.webhook import (
    Answer,
    CallStatus,
    CarrierCall,
    SignatureError,
    Signed,
    WebhookRequest,
    call_status,
    json_answer,
    text_of,
)
from agent.telephony.transport import PhoneCall
from tests.support.telephony.telephony_server import (
    SALES,
    SETTINGS,
    ServerUnderTest,
    telephony_server,
)

SECRET: Final = "shared with Tincan"
CALLER_PCM: Final = np.arange(160, dtype=np.int16) * 100
AGENT_PCM: Final = np.arange(160, dtype=np.int16) * -100


# --- what the carrier's module would be ---


class Tincan(JsonStream):
    name = "Tincan"
    names = FieldNames(
        stream_id="stream",
        call_id="start.call",
        encoding="start.encoding",
        rate="start.rate",
        parameters="start.parameters",
    )

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        return [json.dumps({"event": "media", "media": {"payload": payload}})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "mark", "mark": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clear"})]


class TincanWebhook:
    methods: Sequence[str] = ("POST",)
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        made = hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(made, request.headers.get("x-tincan", "")):
            raise SignatureError("the X-Tincan is of another body or secret")
        return Signed(request.body, b"")

    def read(self, request: WebhookRequest) -> CarrierCall:
        fields = request.json
        return CarrierCall(text_of(fields, "call"), text_of(fields, "from"), text_of(fields, "to"))

    def status(self, request: WebhookRequest) -> CallStatus:
        return call_status(request.json, "call", "status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        return json_answer({"stream": stream_url, "parameters": {TOKEN: token}})

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        return json_answer({"say": words})


CARRIER: Final = Carrier(
    key="tincan",
    name=Tincan.name,
    media_stream=Tincan,
    webhook=TincanWebhook(),
    secret_setting="jambonz_webhook_secret_env",  # a real one has a setting of its own
)


# --- the call ---


class RepliesOnce:
    """A session that answers the first audio with audio."""

    def __init__(self, phone: PhoneCall) -> None:
        self._phone = phone
        self.heard: list[ask.Request] = []

    async def handle(self, request: ask.Request) -> None:
        self.heard.append(request)
        if len(self.heard) == 1:
            started = say.ReplyStarted("resp_1", ItemId("i"), None, "audio", SessionSettings())
            self._phone.notify(started)
            self._phone.notify(say.ReplyAudio("resp_1", AGENT_PCM, 8_000))


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerUnderTest]:
    monkeypatch.setenv("JAMBONZ_WEBHOOK_SECRET", SECRET)
    monkeypatch.setitem(CARRIERS, CARRIER.key, CARRIER)
    async with telephony_server(tmp_path, monkeypatch, SETTINGS) as made:
        yield made


async def asked(
    server: ServerUnderTest, secret: str = SECRET, path: str = "voice", **fields: str
) -> Any:
    body = json.dumps({"call": "c1", "from": "+15550100", "to": SALES, **fields}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    answer: httpx.Response = await server.http.post(
        f"/telephony/tincan/{path}", content=body, headers={"X-Tincan": signature}
    )
    return answer


def media(pcm: Any) -> str:
    payload = base64.b64encode(encode_audio(pcm, "pcm16")).decode()
    return json.dumps({"event": "media", "media": {"payload": payload}})


def start(parameters: dict[str, str]) -> str:
    described = {"call": "c1", "encoding": "l16", "rate": 8000, "parameters": parameters}
    return json.dumps({"event": "start", "stream": "s1", "start": described})


async def test_a_call_gets_through(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ask.Request] = []

    async def hold(desk: CallService, held: AdmittedCall, phone: PhoneCall) -> None:
        server.held.append(held)
        session: Any = RepliesOnce(phone)
        with contextlib.suppress(CallOver):
            await phone.serve(session)
        heard.extend(session.heard)
        await phone.end(CLOSE_NORMAL, "")

    monkeypatch.setattr(CallService, "hold", hold)
    answer = (await asked(server)).json()
    assert answer["stream"] == "wss://voice.example.com/telephony/tincan/stream"

    def replies(frame: str) -> str | None:
        is_mark = json.loads(frame)["event"] == "mark"
        return json.dumps({"event": "stop"}) if is_mark else None

    stream = await server.stream(
        "tincan", start(answer["parameters"]), media(CALLER_PCM), replies=replies
    )
    (held,) = server.held
    assert (held.start.agent, held.principal.kind) == ("sales", "carrier")
    (request,) = heard
    assert isinstance(request, ask.AppendAudio)
    assert request.rate_hz == 8_000
    assert np.array_equal(request.pcm, CALLER_PCM)
    sent = [each["text"] for each in stream.sent if each.get("text")]
    assert sent[0] == media(AGENT_PCM)


async def test_its_signature_and_its_token_are_needed(server: ServerUnderTest) -> None:
    assert (await asked(server, "another secret")).status_code == 403
    assert (await server.stream("tincan", start({}))).closed[0] == CLOSE_POLICY
    assert (await asked(server, path="status", status="completed")).status_code == 204
