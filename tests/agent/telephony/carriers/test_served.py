"""Every carrier: its webhook, signed as it signs, the token in the answer, and the stream that the
token opens."""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import jwt
import pytest

from agent.calls.service import AdmittedCall, CallService
from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.telephony.carriers.media_stream import StreamStarted
from agent.telephony.carriers.plivo import Plivo
from agent.telephony.carriers.vonage import Vonage
from agent.telephony.carriers.webhook import FORM
from agent.telephony.webhooks import CLOSED_WORDS
from latency_budget.account.clock import unix_ns
from tests.agent.telephony.carriers.test_webhooks import TELNYX_KEY, VONAGE_SECRET
from tests.support.telephony.telephony_server import (
    PUBLIC,
    SALES,
    ServerUnderTest,
    basic,
    logged_text,
    token_in,
)

pytest_plugins = ["tests.support.telephony.phone_fixtures"]

# --- every carrier: webhook, token, stream ---


@dataclass(frozen=True)
class CarrierCase:
    """How one asks, and how it begins its stream: with the token where it hands it on."""

    name: str
    request: Any
    start: Any


def form_of(**fields: str) -> bytes:
    return urlencode(fields).encode()


def plivo_request(**fields: str) -> httpx.Request:
    body = {"CallUUID": "u1", "From": "15550100", "To": SALES[1:], **fields}
    form = "".join(name + body[name] for name in sorted(body))
    signed = f"{PUBLIC}/telephony/plivo/voice?{form}.77"
    made = hmac.new(b"plivo's", signed.encode(), hashlib.sha256).digest()
    headers = {
        "X-Plivo-Signature-V3": base64.b64encode(made).decode(),
        "X-Plivo-Signature-V3-Nonce": "77",
        "Content-Type": FORM,
    }
    return httpx.Request("POST", "", headers=headers, content=form_of(**body))


def telnyx_request(age_s: int = 0) -> httpx.Request:
    at, body = str(unix_ns() // 10**9 - age_s), form_of(CallSid="v3:x", From="+15550100", To=SALES)
    headers = {
        "telnyx-timestamp": at,
        "telnyx-signature-ed25519": base64.b64encode(
            TELNYX_KEY.sign(f"{at}|".encode() + body)
        ).decode(),
        "Content-Type": FORM,
    }
    return httpx.Request("POST", "", headers=headers, content=body)


def vonage_event(**fields: str) -> httpx.Request:
    body = json.dumps(fields).encode()
    claims = {"iat": unix_ns() // 10**9, "payload_hash": hashlib.sha256(body).hexdigest()}
    headers = {"Authorization": f"Bearer {jwt.encode(claims, VONAGE_SECRET, 'HS256')}"}
    return httpx.Request("POST", "", headers=headers, content=body)


def vonage_request(age_s: int = 0) -> httpx.Request:
    claims = {"iat": unix_ns() // 10**9 - age_s, "iss": "Vonage", "jti": "1"}
    headers = {"Authorization": f"Bearer {jwt.encode(claims, VONAGE_SECRET, 'HS256')}"}
    query = urlencode({"uuid": "aaa", "from": "15550100", "to": SALES[1:]})
    return httpx.Request("GET", f"?{query}", headers=headers)


def vonage_post(age_s: int = 0) -> httpx.Request:
    body = json.dumps({"uuid": "aaa", "from": "15550100", "to": SALES[1:]}).encode()
    claims = {
        "iat": unix_ns() // 10**9 - age_s,
        "payload_hash": hashlib.sha256(body).hexdigest(),
    }
    headers = {"Authorization": f"Bearer {jwt.encode(claims, VONAGE_SECRET, 'HS256')}"}
    return httpx.Request("POST", "", headers=headers, content=body)


def jambonz_request(age_s: int = 0, **fields: str) -> httpx.Request:
    at = str(unix_ns() // 10**9 - age_s)
    told = {"call_sid": "s1", "from": "+15550100", "to": SALES, **fields}
    body = json.dumps(told).encode()
    made = hmac.new(b"jambonz'", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"Jambonz-Signature": f"t={at},v1={made}", "Content-Type": "application/json"}
    return httpx.Request("POST", "", headers=headers, content=body)


def plivo_start(token: str) -> str:
    described = {
        "callId": "u1",
        "streamId": "s",
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
    }
    return json.dumps({"event": "start", "start": described, "extra_headers": f"token={token}"})


def telnyx_start(token: str) -> str:
    described = {
        "call_control_id": "v3:x",
        "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        "custom_parameters": {"token": token},
    }
    return json.dumps({"event": "start", "stream_id": "s", "start": described})


def vonage_start(token: str) -> str:
    first = {"event": "websocket:connected", "content-type": "audio/l16;rate=8000"}
    return json.dumps({**first, "call_uuid": "aaa", "token": token})


def jambonz_start(token: str) -> str:
    return json.dumps(
        {
            "callSid": "s1",
            "sampleRate": 8000,
            "mixType": "mono",
            "direction": "inbound",
            "token": token,
        }
    )


CARRIERS = [
    CarrierCase("plivo", plivo_request, plivo_start),
    CarrierCase("telnyx", telnyx_request, telnyx_start),
    CarrierCase("vonage", vonage_request, vonage_start),
    CarrierCase("jambonz", jambonz_request, jambonz_start),
]


async def asked(server: ServerUnderTest, carrier: str, request: httpx.Request) -> httpx.Response:
    url = f"/telephony/{carrier}/voice{request.url}"
    return await server.http.request(
        request.method, url, headers=request.headers, content=request.content
    )


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
async def test_a_token_opens_the_stream_of_its_call(
    server: ServerUnderTest, carrier: CarrierCase, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await asked(server, carrier.name, carrier.request())
    token = token_in(answer)
    assert f"wss://voice.example.com/telephony/{carrier.name}/stream" in answer.text
    assert "?" not in answer.text.removeprefix("<?")
    refused = await server.stream(carrier.name, carrier.start("ct" + "0" * 48))
    assert refused.closed[0] == CLOSE_POLICY
    await server.stream(carrier.name, carrier.start(token))
    (held,) = server.held
    assert (held.start.agent, held.principal.kind) == ("sales", "carrier")
    assert re.search("from '[^']*00' to '[^']*45'", logged_text(caplog)), (
        "the stream need not tell them"
    )
    assert token not in logged_text(caplog)


@pytest.mark.parametrize("make", [telnyx_request, vonage_request, jambonz_request])
async def test_a_webhook_of_the_past_is_refused(server: ServerUnderTest, make: Any) -> None:
    name = make.__name__.removesuffix("_request")
    assert (await asked(server, name, make())).status_code == 200
    for age_s in (400, -400):
        answer = await asked(server, name, make(age_s))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "signature_wrong")
        assert "Is the clock right?" in answer.text


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
async def test_who_sends_a_recorded_question_again_gets_no_other_token(
    server: ServerUnderTest, carrier: CarrierCase
) -> None:
    """Changed where it is not signed: Plivo signs what the form says, in any order; of the others
    the query is anybody's."""
    request = carrier.request()
    token = token_in(await asked(server, carrier.name, request))
    await server.stream(carrier.name, carrier.start(token))
    content, query = request.content, {**dict(request.url.params), "uuid": "bbb"}
    if carrier.name == "plivo":
        content, query = b"&".join(reversed(content.split(b"&"))), {}
    headers = [(k, v) for k, v in request.headers.items() if k != "content-length"]
    answer = await server.http.request(
        request.method,
        f"/telephony/{carrier.name}/voice",
        params=query,
        headers=headers,
        content=content,
    )
    assert token_in(answer) == token, "which is used up"


@pytest.mark.parametrize("make", [telnyx_request, vonage_post, jambonz_request])
async def test_a_question_whose_body_equals_a_status_is_answered(
    server: ServerUnderTest, make: Callable[[int], httpx.Request]
) -> None:
    """These carriers don't sign the address. A status that was recorded is refused there, and a
    question that was recorded has no effect where statuses are taken."""
    carrier = make.__name__.partition("_")[0]
    status, question = make(9), make(4)

    async def post(endpoint: str, sent: httpx.Request) -> httpx.Response:
        address = f"/telephony/{carrier}/{endpoint}"
        return await server.http.post(address, headers=sent.headers, content=sent.content)

    assert (await post("status", status)).status_code == 204
    assert (await post("voice", status)).status_code == 204, "recorded"
    token = token_in(await post("voice", question))
    for sent in (question, status):
        assert (await post("status", sent)).status_code == 204
    assert token_in(await post("voice", question)) == token


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
async def test_a_body_or_query_that_was_changed_is_refused(
    server: ServerUnderTest, carrier: CarrierCase
) -> None:
    request = carrier.request()
    if request.method == "GET":
        request.headers["authorization"] += "x"
    changed = httpx.Request(
        request.method, request.url, headers=request.headers, content=request.content
    )
    content = request.content.replace(b"15550100", b"15550101")
    assert content != request.content or request.method == "GET"
    answer = await server.http.request(
        changed.method,
        f"/telephony/{carrier.name}/voice{changed.url}",
        headers=[(k, v) for k, v in changed.headers.items() if k != "content-length"],
        content=content,
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "signature_wrong")


async def test_their_news_of_a_call_are_taken_where_they_are_signed(
    server: ServerUnderTest,
) -> None:
    """Vonage's Event URL, and jambonz' webhook for the status of calls."""
    token_in(await asked(server, "vonage", vonage_request()))
    token_in(await asked(server, "jambonz", jambonz_request()))
    assert "sip:decline" in (await asked(server, "jambonz", jambonz_request(call_sid="s2"))).text
    for name, news in [
        ("vonage", vonage_event(uuid="aaa", status="completed")),
        ("jambonz", jambonz_request(call_sid="s1", call_status="no-answer")),
    ]:
        path = f"/telephony/{name}/status"
        forged = await server.http.post(path, content=news.content, headers={"Content-Type": "x"})
        assert forged.status_code == 403
        answer = await server.http.post(path, content=news.content, headers=news.headers)
        assert (answer.status_code, answer.content) == (204, b"")
    for number in (3, 4):
        token_in(await asked(server, "jambonz", jambonz_request(call_sid=f"s{number}")))


async def test_no_line_is_kept_for_a_call_that_is_over_when_it_is_asked_about(
    server: ServerUnderTest,
) -> None:
    """Plivo asks again where its application has no address for hang-ups, jambonz never: there it
    is somebody who sends news of a call again as a question."""
    for name, request in [
        ("plivo", plivo_request(CallStatus="completed")),
        ("jambonz", jambonz_request(call_sid="s9", call_status="completed")),
    ]:
        answer = await asked(server, name, request)
        assert (answer.status_code, answer.content) == (204, b"")
    for number in (1, 2):
        assert token_in(await server.twilio(CallSid=f"CA{number}")), "of two lines"


@pytest.mark.parametrize("carrier", CARRIERS[1:], ids=lambda carrier: carrier.name)
async def test_a_recorded_status_opens_no_call(
    server: ServerUnderTest, carrier: CarrierCase
) -> None:
    """These carriers sign time and body, and no address."""
    request = carrier.request()
    answers = [
        await server.http.request(
            request.method,
            f"/telephony/{carrier.name}/{path}{request.url}",
            headers=request.headers,
            content=request.content,
        )
        for path in ("status", "voice")
    ]
    assert [(each.status_code, each.content) for each in answers] == [(204, b"")] * 2


async def test_a_recorded_web_token_ends_no_other_call(server: ServerUnderTest) -> None:
    """Vonage signs no query: `payload_hash` is of a body."""
    recorded = vonage_request()
    token = token_in(await asked(server, "vonage", recorded))
    for path in ("status", "voice"):
        answer = await server.http.get(
            f"/telephony/vonage/{path}?uuid=aaa&status=completed", headers=recorded.headers
        )
        assert (answer.status_code, answer.content) == (204, b"")
    stream = await server.stream("vonage", vonage_start(token))
    assert stream.closed[0] == CLOSE_NORMAL


async def test_vonages_stream_is_told_what_call_it_is(server: ServerUnderTest) -> None:
    """What its first message says is what the NCCO gave it: two calls are not taken for one."""
    answer = await asked(server, "vonage", vonage_request())
    (action,) = answer.json()
    (endpoint,) = action["endpoint"]
    assert (action["action"], endpoint["type"]) == ("connect", "websocket")
    assert len(json.dumps(endpoint["headers"])) < 512
    first = {"event": "websocket:connected", "content-type": endpoint["content-type"]}
    (started,) = Vonage().receive(json.dumps({**first, **endpoint["headers"]}))
    assert isinstance(started, StreamStarted)
    assert (started.call_id, started.caller, started.called) == ("aaa", "15550100", SALES[1:])


async def test_streams_that_tell_no_id_are_not_one_call(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"authorization": basic(await server.key())["Authorization"]}
    frame = json.dumps({"event": "websocket:connected", "content-type": "audio/l16;rate=8000"})

    async def hold(desk: CallService, held: AdmittedCall, carrier: object) -> None:
        server.held.append(held)
        if len(server.held) == 1:  # the second comes while the first lasts
            await server.stream("vonage", frame, headers=key)

    monkeypatch.setattr(CallService, "hold", hold)
    await server.stream("vonage", frame, headers=key)
    assert len(server.held) == 2


async def test_exotel_is_told_where_to_stream(server: ServerUnderTest) -> None:
    key = basic(await server.key())
    path = f"/telephony/exotel/voice?CallSid=c1&CallFrom=15550100&CallTo={SALES[1:]}"
    answer = await server.http.get(path, headers=key)
    url = urlsplit(answer.json()["url"])
    assert (url.scheme, url.hostname, url.path) == (
        "wss",
        "voice.example.com",
        "/telephony/exotel/stream",
    )
    token = {"authorization": basic(url.password or "")["Authorization"]}
    described = {
        "stream_sid": "s",
        "call_sid": "c1",
        "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000"},
    }
    frame = json.dumps({"event": "start", "stream_sid": "s", "start": described})
    for _ in range(2):
        stream = await server.stream("exotel", frame, headers=token)
    assert stream.closed[0] == CLOSE_POLICY, "it is used up"
    assert [held.start.agent for held in server.held] == ["sales"]
    server.stages.current_status = "warming"
    busy = await server.http.get(path, headers=key)
    assert (busy.status_code, busy.json()) == (503, {"error": CLOSED_WORDS})


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ("token=ct12,a=b", {"token": "ct12", "a": "b"}),
        ("{X-PH-token=ct12, a=b}", {"X-PH-token": "ct12", "a": "b"}),
        ('{"token": "ct12", "n": 1}', {"token": "ct12"}),
        ("{}", {}),
        ("nothing", {}),
        (None, {}),
    ],
)
def test_plivos_headers_come_in_several_spellings(
    headers: str | None, parameters: dict[str, str]
) -> None:
    frame = {**json.loads(plivo_start("")), "extra_headers": headers}
    (started,) = Plivo().receive(json.dumps(frame))
    assert isinstance(started, StreamStarted)
    assert started.parameters == parameters
