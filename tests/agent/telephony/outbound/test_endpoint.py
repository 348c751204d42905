"""`halfsec call`, from the command to Twilio's REST API and back to the stream; Twilio's side is a
double that speaks its HTTP, below its official library."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import requests
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError, ProtocolError

from agent.__main__ import main as halfsec
from agent.calls.service import AdmittedCall, CallService
from agent.cli import call
from agent.http import json_body
from agent.http.auth.cli_credentials import CliCredentials
from agent.http.auth.principal import ANYONE
from agent.telephony.media.amd import AnsweringMachineDetector
from agent.telephony.outbound.order import DialError, number_of
from agent.telephony.transport import PhoneCall
from tests.agent.telephony.carriers.test_twilio import start
from tests.support.telephony.outbound_calls import HERE, TwilioApi, ordered, token_of
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    LOCAL_KEY,
    PUBLIC,
    SALES,
    SETTINGS,
    ServerUnderTest,
    basic,
    logged_text,
)

MACHINE = "machine_message = 'Call us.'\n"
STATUS = "/telephony/twilio/status"

pytest_plugins = ["tests.support.telephony.dialing_fixtures"]


@pytest.fixture
def server(dialing_server: ServerUnderTest) -> ServerUnderTest:
    return dialing_server


async def test_a_call_is_placed_and_its_stream_is_known(
    server: ServerUnderTest, twilio: TwilioApi, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ordered(server)
    assert answer.status_code == 201, answer.text
    assert answer.json() == {
        "call": "CA1",
        "status": "queued",
        "to": "+493099999",
        "from": SALES,
        "agent": "sales",
    }
    (order,) = twilio.orders
    assert (order["To"], order["From"], order["Timeout"]) == ("+493099999", SALES, 60)
    assert order["TimeLimit"] == 3630
    assert "MachineDetection" not in order
    assert order["StatusCallback"] == f"{PUBLIC}{STATUS}"
    assert order["StatusCallbackEvent"] == ["completed"]
    (stream,) = ElementTree.fromstring(order["Twiml"]).iter("Stream")
    assert stream.attrib == {"url": "wss://voice.example.com/telephony/twilio/stream"}
    token = stream[0].attrib["value"]
    other = await server.stream("twilio", start(callSid="CA2", customParameters={"token": token}))
    assert "for this call" in other.closed[1]
    await server.stream("twilio", start(callSid="CA1", customParameters={"token": token}))
    assert [held.start.agent for held in server.held] == ["sales"]
    assert re.search("from '[^']*45' to '[^']*99'", logged_text(caplog))
    everything = "\n".join(record.getMessage() for record in caplog.records)
    assert token not in everything
    assert AUTH_TOKEN not in everything


@pytest.mark.parametrize(
    ("on_machine", "detection"), [("hang_up", "Enable"), ("message", "DetectMessageEnd")]
)
async def test_twilio_tells_of_a_machine_while_the_call_goes_on(
    start_server: Any,
    twilio: TwilioApi,
    monkeypatch: pytest.MonkeyPatch,
    on_machine: str,
    detection: str,
) -> None:
    watches: list[AnsweringMachineDetector] = []
    settings = SETTINGS.replace("[telephony]", f'[telephony]\n{MACHINE}on_machine = "{on_machine}"')
    async with start_server(settings) as server:
        assert (await ordered(server)).status_code == 201
        (order,) = twilio.orders
        assert (order["MachineDetection"], order["AsyncAmd"]) == (detection, "true")
        assert order["AsyncAmdStatusCallback"] == f"{PUBLIC}{STATUS}"

        async def hold(desk: CallService, held: AdmittedCall, phone: PhoneCall) -> None:
            amd = phone._plan.amd
            assert amd is not None
            for call_id in ("CA2", "CA1"):
                assert not amd.is_machine
                news = {"CallSid": call_id, "AnsweredBy": "machine_end_beep"}
                forged = await server.post(STATUS, news, basic(key))
                assert forged.status_code == 204
                assert not amd.is_machine, "a key is no carrier"
                assert (await server.twilio(STATUS, **news)).status_code == 204
            watches.append(amd)

        key = await server.key()
        monkeypatch.setattr(CallService, "hold", hold)
        parameters = {"token": token_of(twilio.orders[0])}
        await server.stream("twilio", start(callSid="CA1", customParameters=parameters))
        (amd,) = watches
        assert (amd.is_machine, amd.is_greeting_over) == (True, True)
        late = await server.twilio(STATUS, CallSid="CA1", AnsweredBy="human")
        assert late.status_code == 204, "the call is over"


async def test_the_agent_is_that_of_the_number_unless_one_is_named(server: ServerUnderTest) -> None:
    assert (await ordered(server, {"to": "+493099999"})).json()["agent"] == "sales"
    other = {"to": "+493099999", "from": "+15550100"}
    assert (await ordered(server, other)).json()["agent"] == "default"


@pytest.mark.parametrize("status", ["no-answer", "busy", "failed", "canceled", "completed"])
async def test_a_call_that_nobody_takes_gives_its_line_back(
    server: ServerUnderTest, status: str
) -> None:
    for _ in range(3):
        placed = [(await ordered(server)).json()["call"] for _ in range(2)]
        assert (await ordered(server)).status_code == 503
        for call_id in placed:
            await server.twilio(STATUS, CallSid=call_id, CallStatus=status)


async def test_an_open_server_wants_a_key_for_this_all_the_same(
    start_server: Any, twilio: TwilioApi
) -> None:
    settings = SETTINGS + '[access]\nrequire_key = "never"\n'
    async with start_server(settings) as server:
        assert await server.access.identify(None) is ANYONE
        answer = await ordered(server, headers={})
        assert (answer.status_code, twilio.orders) == (401, [])
        assert "cost money" in answer.text
        assert (await ordered(server)).status_code == 201


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({}, "to"),
        ({"to": "0301234"}, "to"),
        ({"to": "+0301234567"}, "to"),
        ({"to": "+49"}, "to"),
        ({"to": 4930999999}, "to"),
        ({"to": "+4930999999999999"}, "to"),
        ({"to": "sip:a@b"}, "to"),
        ({"to": "+493099999", "from": "Ana"}, "from"),
        ({"to": "+493099999", "agent": "sale"}, "agent"),
        ({"to": "+493099999", "agent": ["sales"]}, "agent"),
        ({"to": "+493099999", "url": "http://x"}, "url"),
        ([], "body"),
        ("+493099999", "body"),
    ],
)
async def test_bad_orders(
    server: ServerUnderTest, twilio: TwilioApi, order: Any, field: str
) -> None:
    answer = await ordered(server, order)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert not twilio.orders


async def test_bodies_of_all_endpoints_share_their_room(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "MAX_HELD_BYTES", 2000)
    is_held, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b" " * 990
        is_held.set()
        await goes_on.wait()
        yield b"[]"

    headers = {**HERE, "Content-Type": "application/json"}
    secret = server.http.post("/v1/realtime/client_secrets", content=slow(), headers=headers)
    async with asyncio.TaskGroup() as group:
        other = group.create_task(secret)
        await is_held.wait()
        answer = await ordered(server)
        assert (answer.status_code, "no room beside yours" in answer.text) == (503, True)
        goes_on.set()
    assert other.result().status_code == 400, "it was read to its end"
    assert (await ordered(server)).status_code == 201


async def test_without_a_number_to_show_it_says_what_to_set(start_server: Any) -> None:
    async with start_server(SETTINGS.replace("numbers = {", "# ")) as server:
        answer = await ordered(server)
        assert answer.json()["error"]["param"] == "from"
        assert "telephony.calls_from" in answer.text
    settings = SETTINGS.replace("numbers = {", 'calls_from = "+15550100"\n# ')
    async with start_server(settings) as server:
        assert (await ordered(server)).json()["from"] == "+15550100"


async def test_a_server_without_a_public_address_calls_nobody(start_server: Any) -> None:
    async with start_server(SETTINGS.replace("public_url", "# ")) as server:
        server.http.base_url = httpx.URL("http://localhost")
        answer = await ordered(server)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_configured")


async def test_what_is_missing_is_named(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWILIO_ACCOUNT_SID")
    async with start_server(SETTINGS) as server:
        answer = await ordered(server)
        assert answer.status_code == 503
        assert "lacks TWILIO_ACCOUNT_SID of" in answer.text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with start_server(SETTINGS) as server:
        assert "pip install 'halfsec[phone]'" in (await ordered(server)).text


@pytest.mark.parametrize(
    ("refusal", "broken", "words"),
    [
        (
            {"status": 400, "code": 21211, "message": "The 'To' number is\nnot valid."},
            None,
            "Twilio refused the call: Unable to create record: The 'To' number is not valid. "
            "(https://www.twilio.com/docs/errors/21211)",
        ),
        (
            {"status": 401, "code": 20003, "message": "Authenticate"},
            None,
            "TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN",
        ),
        ({"status": 503, "message": "down"}, None, "(status 503)"),
        (None, requests.ConnectionError("no route"), "Twilio can't be reached: no route"),
        (None, requests.Timeout(), "Twilio can't be reached: Timeout"),
        (None, requests.ConnectTimeout("late"), "Twilio can't be reached: late"),
        (
            None,
            requests.ConnectionError(MaxRetryError(HTTPConnectionPool("x"), "/", OSError("down"))),
            "Twilio can't be reached: down",
        ),
    ],
)
async def test_what_twilio_says_is_said_in_a_line(
    server: ServerUnderTest, twilio: TwilioApi, refusal: Any, broken: Exception | None, words: str
) -> None:
    twilio.refusal, twilio.broken = refusal, broken
    answer = await ordered(server)
    assert answer.status_code == 502
    message = answer.json()["error"]["message"]
    assert words in message
    assert "\n" not in message
    twilio.refusal = twilio.broken = None
    for _ in range(server.config.agent.max_sessions):
        assert (await ordered(server)).status_code == 201, "what failed holds no line"


@pytest.mark.parametrize(
    "broken",
    [
        requests.ReadTimeout("Read timed out."),
        requests.ConnectionError(ProtocolError("Connection aborted.", OSError())),
    ],
)
async def test_an_order_that_twilio_may_have_taken_keeps_its_line(
    server: ServerUnderTest, twilio: TwilioApi, broken: Exception
) -> None:
    twilio.broken = broken
    answer = await ordered(server)
    assert (answer.status_code, "may ring all the same" in answer.text) == (504, True)
    token = token_of(twilio.lost[0])
    twilio.broken = None
    assert [(await ordered(server)).status_code for _ in range(2)] == [201, 503]
    await server.stream("twilio", start(callSid="CA9", customParameters={"token": token}))
    assert len(server.held) == 1


async def test_numbers_are_not_logged(
    server: ServerUnderTest, twilio: TwilioApi, caplog: pytest.LogCaptureFixture
) -> None:
    message = "The number +49 30 99999 (+493099999) is not verified."
    twilio.refusal = {"status": 400, "code": 21219, "message": message}
    assert message in (await ordered(server)).json()["error"]["message"]
    assert "The number ...99 (...99) is not verified. (https://www" in logged_text(caplog)
    assert "errors/21219)" in logged_text(caplog)


async def test_calls_that_ring_count_as_lines(server: ServerUnderTest, twilio: TwilioApi) -> None:
    answers = [await ordered(server) for _ in range(3)]
    assert [each.status_code for each in answers] == [201, 201, 503]
    assert answers[2].json()["error"]["code"] == "busy"
    key = {"Authorization": f"Bearer {await server.key()}"}
    assert (await server.http.get("/v1/realtime", headers=key)).status_code == 503
    assert "<Reject" in (await server.twilio()).text, "nor for those who call us"
    token = token_of(twilio.orders[0])
    await server.stream("twilio", start(callSid="CA1", customParameters={"token": token}))
    assert (await ordered(server)).status_code == 201, "one is over"
    server.calls.draining = True
    assert (await ordered(server)).json()["error"]["code"] == "draining"


async def test_outbound_calls_do_not_count_for_the_address_of_the_carrier(
    start_server: Any, twilio: TwilioApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(SETTINGS + "[access]\ncalls_per_address = 1\n") as server:
        for _ in range(2):
            assert (await ordered(server)).status_code == 201
        streams = {
            call_id: start(callSid=call_id, customParameters={"token": token_of(order)})
            for call_id, order in zip(("CA1", "CA2"), twilio.orders, strict=True)
        }
        kinds: list[str] = []

        async def hold(service: CallService, held: AdmittedCall, phone: PhoneCall) -> None:
            kinds.append(held.principal.kind)
            if len(kinds) == 1:
                await server.stream("twilio", streams["CA2"])

        monkeypatch.setattr(CallService, "hold", hold)
        await server.stream("twilio", streams["CA1"])
        assert kinds == ["local", "local"], "two at once, from one address"


# --- the command ---


@pytest.fixture
async def served(server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch) -> ServerUnderTest:
    """`halfsec call` reaches the server."""
    loop = asyncio.get_running_loop()

    def answer(request: httpx.Request) -> httpx.Response:
        asked = server.http.post(request.url.path, content=request.content, headers=request.headers)
        told = asyncio.run_coroutine_threadsafe(asked, loop).result(30)
        return httpx.Response(told.status_code, content=told.content)

    whole = httpx.Client

    def client(**options: Any) -> httpx.Client:
        return whole(**{**options, "transport": httpx.MockTransport(answer)})

    monkeypatch.setattr(httpx, "Client", client)
    monkeypatch.setattr(call, "entry_here", lambda config, key: CliCredentials(key or LOCAL_KEY))
    monkeypatch.setattr(call, "entry_at", lambda url, key: CliCredentials(key))
    return server


async def test_the_command_calls(
    served: ServerUnderTest, twilio: TwilioApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(halfsec, ["call", "+49 30 99999", "--agent", "sales"]) == 0
    assert capsys.readouterr().out == (
        f"Calling +493099999 from {SALES}: sales speaks when it is answered. "
        "Twilio's call CA1 is queued.\n"
    )
    arguments = ["call", "+493099999", "--from", "+15550100", "--json"]
    assert await asyncio.to_thread(halfsec, arguments) == 0
    assert json.loads(capsys.readouterr().out)["from"] == "+15550100"
    assert [order["From"] for order in twilio.orders] == [SALES, "+15550100"]


async def test_the_command_says_in_a_line_why_not(
    served: ServerUnderTest, twilio: TwilioApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in [
        (["110"], "The number must be a telephone number with its country"),
        (["+493099999", "--from", "me"], "--from must be a telephone number"),
        (["+493099999", "--agent", "sail"], "there is no agent 'sail'"),
        (["+493099999", "--url", "ws://localhost:1", "--key", "hs_x"], "This key is unknown"),
    ]:
        assert await asyncio.to_thread(halfsec, ["call", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not twilio.orders


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.ConnectError("refused"), "halfsec serve"),
        (httpx.Response(200, text="<html>"), "is no halfsec"),
        (httpx.Response(201, json=[]), "is no halfsec"),
        (httpx.Response(404, json={}), "answered 404"),
    ],
)
def test_without_a_server_it_says_so(
    reply: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, content=reply.content)

    whole = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "Client", lambda **_: whole)
    with pytest.raises(DialError, match=words):
        call.order_call("ws://localhost:1/v1/realtime", CliCredentials(), {"to": "+1"})


def test_numbers() -> None:
    assert number_of("+49 (30) 12/34-5.6") == "+4930123456"
    for wrong in ("+49 30 123456x", "", None, "++4930123456", "+４９３０１２３４５６"):
        assert number_of(wrong) is None
