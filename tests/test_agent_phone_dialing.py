"""`halfsec call`, from the command to Twilio's REST API and back to the stream; Twilio's side is a
double that speaks its HTTP, below its official library."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import requests
from twilio.http import HttpClient
from twilio.http.response import Response
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError

from agent import cli_call, phone_routes
from agent.__main__ import main as halfsec
from agent.call_order import DialError, number_of
from agent.entry import Entry
from agent.principal import ANYONE
from agent.telephony_settings import TelephonySettings
from agent.twilio_dialer import TwilioDialer

from .phone_house import AUTH_TOKEN, LOCAL_KEY, SALES, SETTINGS, House, phone_house, told
from .test_agent_wire_twilio import start

ACCOUNT = "AC00000000000000000000000000000000"
HERE = {"Authorization": f"Bearer {LOCAL_KEY}"}
ORDER = {"to": "+49 (30) 999-99", "agent": "sales"}


@dataclass
class TwilioApi(HttpClient):  # type: ignore[misc]
    """Takes orders, as https://www.twilio.com/docs/voice/api/call-resource has it."""

    orders: list[dict[str, Any]] = field(default_factory=list)
    refusal: dict[str, Any] | None = None
    broken: Exception | None = None

    def request(self, method: str, url: str, **asked: Any) -> Response:
        if self.broken is not None:
            raise self.broken
        assert (method, asked["auth"]) == ("POST", (ACCOUNT, AUTH_TOKEN))
        assert url == f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}/Calls.json"
        if self.refusal is not None:
            return Response(self.refusal["status"], json.dumps(self.refusal))
        self.orders.append(asked["data"])
        return Response(201, json.dumps({"sid": f"CA{len(self.orders)}", "status": "queued"}))


@pytest.fixture
def twilio() -> TwilioApi:
    return TwilioApi()


@pytest.fixture
def open_house(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    twilio: TwilioApi,
) -> Callable[[str], Any]:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", ACCOUNT)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)

    def dialer(settings: TelephonySettings) -> TwilioDialer:
        return TwilioDialer(settings, twilio)

    monkeypatch.setattr(phone_routes, "TwilioDialer", dialer)
    return lambda settings: phone_house(tmp_path, monkeypatch, settings)


@pytest.fixture
async def house(open_house: Any) -> AsyncIterator[House]:
    async with open_house(SETTINGS) as made:
        yield made


async def ordered(
    house: House, order: Any = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    wish = ORDER if order is None else order
    return await house.http.post(
        "/telephony/calls", json=wish, headers=HERE if headers is None else headers
    )


async def test_a_call_is_placed_and_its_stream_is_known(
    house: House, twilio: TwilioApi, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ordered(house)
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
    (stream,) = ElementTree.fromstring(order["Twiml"]).iter("Stream")
    assert stream.attrib == {"url": "wss://voice.example.com/telephony/twilio/stream"}
    token = stream[0].attrib["value"]
    await house.stream("twilio", start(customParameters={"token": token}))
    assert [held.start.agent for held in house.held] == ["sales"]
    assert re.search("from '[^']*45' to '[^']*99'", told(caplog))
    everything = "\n".join(record.getMessage() for record in caplog.records)
    assert token not in everything
    assert AUTH_TOKEN not in everything


async def test_the_agent_is_that_of_the_number_unless_one_is_named(house: House) -> None:
    assert (await ordered(house, {"to": "+493099999"})).json()["agent"] == "sales"
    other = {"to": "+493099999", "from": "+15550100"}
    assert (await ordered(house, other)).json()["agent"] == "default"


async def test_who_shows_no_key_calls_nobody(house: House, twilio: TwilioApi) -> None:
    assert (await ordered(house, headers={})).status_code == 401
    wrong = await ordered(house, headers={"Authorization": "Bearer hs_x"})
    assert wrong.status_code == 401
    bounded = {"Authorization": f"Bearer {await house.key(agents=('sales',))}"}
    assert (await ordered(house, headers=bounded)).status_code == 403
    assert not twilio.orders
    key = {"Authorization": f"Bearer {await house.key('other')}"}
    assert (await ordered(house, headers=key)).status_code == 201


async def test_an_open_server_wants_a_key_for_this_all_the_same(
    open_house: Any, twilio: TwilioApi
) -> None:
    settings = SETTINGS + '[access]\nrequire_key = "never"\n'
    async with open_house(settings) as house:
        assert await house.access.identify(None) is ANYONE
        answer = await ordered(house, headers={})
        assert (answer.status_code, twilio.orders) == (401, [])
        assert "cost money" in answer.text
        assert (await ordered(house)).status_code == 201


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
async def test_bad_orders(house: House, twilio: TwilioApi, order: Any, field: str) -> None:
    answer = await ordered(house, order)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert not twilio.orders


async def test_without_a_number_to_show_it_says_what_to_set(open_house: Any) -> None:
    async with open_house(SETTINGS.replace("numbers = {", "# ")) as house:
        answer = await ordered(house)
        assert answer.json()["error"]["param"] == "from"
        assert "telephony.calls_from" in answer.text
    settings = SETTINGS.replace("numbers = {", 'calls_from = "+15550100"\n# ')
    async with open_house(settings) as house:
        assert (await ordered(house)).json()["from"] == "+15550100"


async def test_a_server_without_a_public_address_calls_nobody(open_house: Any) -> None:
    async with open_house(SETTINGS.replace("public_url", "# ")) as house:
        house.http.base_url = httpx.URL("http://localhost")
        answer = await ordered(house)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_configured")


async def test_what_is_missing_is_named(open_house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWILIO_ACCOUNT_SID")
    async with open_house(SETTINGS) as house:
        answer = await ordered(house)
        assert answer.status_code == 503
        assert "lacks TWILIO_ACCOUNT_SID of" in answer.text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with open_house(SETTINGS) as house:
        assert "pip install -e '.[phone]'" in (await ordered(house)).text


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
        (
            None,
            requests.ConnectionError(MaxRetryError(HTTPConnectionPool("x"), "/", OSError("down"))),
            "Twilio can't be reached: down",
        ),
    ],
)
async def test_what_twilio_says_is_said_in_a_line(
    house: House, twilio: TwilioApi, refusal: Any, broken: Exception | None, words: str
) -> None:
    twilio.refusal, twilio.broken = refusal, broken
    answer = await ordered(house)
    assert answer.status_code == 502
    message = answer.json()["error"]["message"]
    assert words in message
    assert "\n" not in message
    twilio.refusal = twilio.broken = None
    for _ in range(house.config.agent.max_sessions):
        assert (await ordered(house)).status_code == 201, "what failed holds no line"


async def test_calls_that_ring_count_as_lines(house: House, twilio: TwilioApi) -> None:
    answers = [await ordered(house) for _ in range(3)]
    assert [each.status_code for each in answers] == [201, 201, 503]
    assert answers[2].json()["error"]["code"] == "busy"
    token = ElementTree.fromstring(twilio.orders[0]["Twiml"])[0][0][0].attrib["value"]
    await house.stream("twilio", start(customParameters={"token": token}))
    assert (await ordered(house)).status_code == 201, "one is over"
    house.calls.draining = True
    assert (await ordered(house)).json()["error"]["code"] == "draining"


# --- the command ---


@pytest.fixture
async def served(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """`halfsec call` reaches the house."""
    loop = asyncio.get_running_loop()

    def answer(request: httpx.Request) -> httpx.Response:
        asked = house.http.post(request.url.path, content=request.content, headers=request.headers)
        told = asyncio.run_coroutine_threadsafe(asked, loop).result(30)
        return httpx.Response(told.status_code, content=told.content)

    whole = httpx.Client

    def client(**options: Any) -> httpx.Client:
        return whole(**{**options, "transport": httpx.MockTransport(answer)})

    monkeypatch.setattr(httpx, "Client", client)
    monkeypatch.setattr(cli_call, "entry_here", lambda config, key: Entry(key or LOCAL_KEY))
    monkeypatch.setattr(cli_call, "entry_at", lambda url, key: Entry(key))
    return house


async def test_the_command_calls(
    served: House, twilio: TwilioApi, capsys: pytest.CaptureFixture[str]
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
    served: House, twilio: TwilioApi, capsys: pytest.CaptureFixture[str]
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
        cli_call.order_call("ws://localhost:1/v1/realtime", Entry(), {"to": "+1"})


def test_numbers() -> None:
    assert number_of("+49 (30) 12/34-5.6") == "+4930123456"
    for wrong in ("+49 30 123456x", "", None, "++4930123456", "+４９３０１２３４５６"):
        assert number_of(wrong) is None
