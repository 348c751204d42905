"""A carrier that the project does not know: one module's worth of code and one row."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.errors import CLOSE_POLICY
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId
from agent.session.api.settings import SessionSettings
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.json_media_stream import FieldNames, JsonStream
from agent.telephony.carriers.media_stream import Frame
from agent.telephony.carriers.registry import CARRIERS
from agent.telephony.carriers.webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookRequest,
    call_news,
    json_answer,
    text_of,
)
from agent.telephony.media_session import PhoneLine
from tests.support.telephony.phone_house import SALES, phone_house


class Acme(JsonStream):
    """Media stream of a made-up carrier."""

    name = "Acme"
    names = FieldNames(
        stream_id="start.stream",
        call_id="start.call",
        encoding="start.encoding",
        rate="start.rate",
        parameters="start.custom",
    )

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        return [json.dumps({"event": "media", "media": {"payload": payload}})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "mark", "mark": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clear"})]


class AcmeWebhook:
    """Webhook of a made-up carrier, which signs by a password of its own."""

    name = "Acme"
    methods: Sequence[str] = ("POST",)
    secret_setting = "plivo_auth_token_env"  # a setting of another carrier serves
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        if request.headers.get("x-acme-password") != secret:
            raise SignatureError("the x-acme-password is another")
        return request.body

    def read(self, request: WebhookRequest) -> CarrierCall:
        fields = request.json
        return CarrierCall(text_of(fields, "id"), text_of(fields, "from"), text_of(fields, "to"))

    def news(self, request: WebhookRequest) -> CallNews:
        return call_news(request.json, "id", "status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        return json_answer({"stream": stream_url, "custom": {"acme-token": token}})

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        return json_answer({"say": words})


ACME = Carrier(Acme, AcmeWebhook(), subprotocols=("acme.v1",), token_parameters=("acme-token",))
SETTINGS = """
[access]
require_key = "always"
[telephony]
public_url = "https://voice.example.com"
numbers = { "SALES" = "sales" }
[agents.default]
instructions = "Help."
[agents.sales]
instructions = "Sell."
""".replace("SALES", SALES)


def start(custom: dict[str, str]) -> str:
    described = {"stream": "s1", "call": "c1", "encoding": "PCMU", "rate": 8000, "custom": custom}
    return json.dumps({"event": "start", "start": described})


async def test_new_carrier_needs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its webhook is answered, its stream accepted by the token, and only by that."""
    monkeypatch.setitem(CARRIERS, "acme", ACME)
    monkeypatch.setenv("PLIVO_AUTH_TOKEN", "open sesame")
    async with phone_house(tmp_path, monkeypatch, SETTINGS) as server:
        asked = {"id": "c1", "from": "+15550100", "to": SALES}
        for password, status in (("wrong", 403), ("open sesame", 200)):
            answer = await server.http.post(
                "/telephony/acme/voice", json=asked, headers={"x-acme-password": password}
            )
            assert answer.status_code == status, answer.text
        connect = answer.json()
        assert connect["stream"] == "wss://voice.example.com/telephony/acme/stream"
        for _ in range(2):
            stream = await server.stream("acme", start(connect["custom"]))
        assert stream.closed[0] == CLOSE_POLICY, "a token is good once"
        (held,) = server.held
        assert held.start.agent == "sales"


def test_audio_of_a_new_carrier_goes_both_ways() -> None:
    line = PhoneLine(ACME.stream())
    assert line.open(start({"acme-token": "x"}))
    tone = (8000 * np.sin(np.arange(160) / 5)).astype(np.int16)
    coded = mulaw_encode(tone)
    media = {"payload": base64.b64encode(coded).decode()}
    (appended,) = line.receive(json.dumps({"event": "media", "media": media}))
    assert isinstance(appended, ask.AppendAudio)
    assert np.array_equal(appended.pcm, mulaw_decode(coded))

    item = ItemId("item_1")
    line.send(say.ReplyStarted("resp_1", item, None, "audio", SessionSettings()))
    line.send(say.ReplyAudio("resp_1", tone, 8_000))
    (frame,) = (json.loads(each) for each in line.frames() if "media" in str(each))
    assert base64.b64decode(frame["media"]["payload"]) == coded
