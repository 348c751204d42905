"""Tools that act on the telephone call in progress, in virtual time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from twilio.http import HttpClient
from twilio.http.response import Response

from agent.cli import doctor
from agent.codec.g711 import mulaw_decode
from agent.config.layers import load_config
from agent.config.telephony import TelephonySettings
from agent.errors import ConfigError, StageError
from agent.http.auth.principal import ANYONE, Principal
from agent.session.api.conversation import ModelCall
from agent.telephony.call_tools import SAY_GOODBYE
from agent.telephony.carriers.plivo import Plivo
from agent.telephony.carriers.vonage import Vonage
from agent.telephony.media.dtmf import DtmfDetector
from agent.telephony.media_session import PhoneLine
from agent.telephony.outbound.transfer import (
    NOT_SET_UP,
    REFUSED,
    TransferError,
    TransferOrder,
    TwilioTransfer,
)
from agent.telephony.outbound.twilio_account import TwilioAccount
from latency_budget.account.clock import ManualClock, unix_ns
from tests.agent.telephony.carriers.test_twilio import CALL, frame
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import (
    CHAR_S,
    ScriptedCarrier,
    TelephonyHarness,
    play,
)

SETTINGS = """
[telephony]
transfers = { sales = "+493012345", "the workshop" = "+4930999" }
idle_prompt_ms = 0
idle_hangup_ms = 0
[agents.default]
server_tools = ["phone:hang_up", "phone:transfer", "phone:press_keys"]
"""

Story = Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]]


def calling(text: str, name: str, arguments: str = "{}") -> Calling:
    return Calling(text, (ModelCall(name, arguments),))


def hold(
    tmp_path: Path,
    story: Story,
    *replies: str | Exception | Calling,
    move: Any = None,
    principal: Principal = ANYONE,
    **how: Any,
) -> tuple[TelephonyHarness, ScriptedCarrier]:
    kept: list[tuple[TelephonyHarness, ScriptedCarrier]] = []

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, *replies, settings=SETTINGS)
        scene.sockets._transfers = {} if move is None else {"Twilio": move}
        scene.principal = principal
        carrier = await scene.call(lambda carrier: story(scene, carrier), **how)
        assert scene.is_empty
        kept.append((scene, carrier))

    play(main)
    return kept[0]


async def asks(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    scene.ears.say("That is all.")


def results(scene: TelephonyHarness) -> list[object]:
    return [text for who, text in scene.chat.calls if who == "tool"]


def seconds(carrier: ScriptedCarrier) -> float:
    """Of the agent that were played."""
    return len(carrier.heard) / 8000


# --- hang up ---


def test_the_agent_hangs_up_when_its_farewell_was_heard(tmp_path: Path) -> None:
    said = "Goodbye then."
    _, carrier = hold(tmp_path, asks, calling(said, "hang_up"))
    assert carrier.closed == (1000, "the agent hung up")
    assert seconds(carrier) == pytest.approx(len(said) * CHAR_S)


def test_an_agent_that_has_said_nothing_says_goodbye_first(tmp_path: Path) -> None:
    said = "Have a nice day."
    scene, carrier = hold(tmp_path, asks, calling("", "hang_up"), said)
    assert results(scene) == [SAY_GOODBYE]
    assert carrier.closed == (1000, "the agent hung up")
    assert seconds(carrier) == pytest.approx(len(said) * CHAR_S)


def test_an_agent_that_can_not_say_goodbye_hangs_up_all_the_same(tmp_path: Path) -> None:
    broken = StageError("llm", "the model is gone")
    _, carrier = hold(tmp_path, asks, calling("", "hang_up"), broken)
    assert carrier.closed == (1000, "the agent hung up")


def test_who_interrupts_the_farewell_stays_on_the_line(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("That is all.")
        await carrier.until(lambda: len(carrier.heard) > 4000)
        scene.ears.say("No, wait, one more thing.")
        await asyncio.sleep(20)
        assert carrier.closed is None
        carrier.say(frame("stop"))

    scene, _ = hold(tmp_path, story, calling("Goodbye then.", "hang_up"), "Yes?")
    assert "No, wait, one more thing." in str(scene.chat.calls)
    scene, _ = hold(tmp_path, story, calling("", "hang_up"), "Goodbye for now.", "Yes?")
    assert "No, wait, one more thing." in str(scene.chat.calls)


def test_marks_that_never_come_back_are_not_waited_for_for_long(tmp_path: Path) -> None:
    _, carrier = hold(tmp_path, asks, calling("Goodbye then.", "hang_up"), plays=False)
    assert carrier.closed == (1000, "the agent hung up")


# --- transfer ---


class Move:
    """Takes calls over, or does not."""

    def __init__(self, error: str = "", *, waits: bool = False) -> None:
        """`waits`: until the test says `settle`."""
        self.moved: list[tuple[str, str]] = []
        self.handovers: list[TransferOrder] = []
        self.is_done = asyncio.Event()
        self._error = error
        self._waits = waits
        self.moving: asyncio.Future[None] | None = None

    def __call__(self, handover: TransferOrder) -> "asyncio.Future[None]":
        self.moved.append((handover.call_id, handover.number))
        self.handovers.append(handover)
        self.moving = asyncio.get_running_loop().create_future()
        if not self._waits:
            self.settle()
        self.is_done.set()
        return self.moving

    def settle(self) -> None:
        assert self.moving is not None
        if self._error:
            self.moving.set_exception(TransferError(self._error))
        else:
            self.moving.set_result(None)


def test_a_call_is_transferred_to_whom_the_settings_name(tmp_path: Path) -> None:
    move, said = Move(), "I connect you."
    scene, carrier = hold(tmp_path, asks, calling(said, "transfer", '{"to": "sales"}'), move=move)
    assert move.moved == [(CALL, "+493012345")]
    assert seconds(carrier) == pytest.approx(len(said) * CHAR_S), "that was heard before"
    assert carrier.closed == (1000, "transferred to sales")
    (handed,) = move.handovers
    assert handed.agent == "default"
    assert 3600 - 60 < handed.remaining_s < 3600, "of the longest call"
    told = str(scene.chat.calls)
    assert "the workshop" in told
    assert "4930" not in told, "the model never gets to know numbers"


def test_a_call_that_a_key_names_is_not_transferred(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be another's call. The agent gets to know, and the operator reads why."""
    move = Move()

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Sales, please.")
        await asyncio.sleep(20)
        carrier.say(frame("stop"))

    wanted = calling("I connect you.", "transfer", '{"to": "sales"}')
    sales = Principal("sales", "jwt", key_id="jwt:1")
    scene, _ = hold(tmp_path, story, wanted, "I can't.", move=move, principal=sales)
    assert move.moved == []
    (result,) = results(scene)
    assert str(result) == f"Error: {REFUSED}; the caller is still with you"
    (warned,) = [each for each in caplog.messages if "can't be transferred" in each]
    assert warned.endswith("(halfsec keys add NAME --dials)")


def test_the_carrier_may_take_a_transferred_call_off_by_itself(tmp_path: Path) -> None:
    move = Move()

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Sales, please.")
        await move.is_done.wait()
        carrier.say(frame("stop"))

    wanted = calling("I connect you.", "transfer", '{"to": "sales"}')
    _, carrier = hold(tmp_path, story, wanted, move=move)
    assert carrier.closed == (1000, "the carrier ended the stream")


def test_a_long_farewell_is_heard_to_its_end(tmp_path: Path) -> None:
    names = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Greta", "Henry", "Ida", "Jack")
    said = "".join(f"{name} thanks you very much for your call, and goodbye. " for name in names)
    _, carrier = hold(tmp_path, asks, calling(said.strip(), "hang_up"))
    assert carrier.closed == (1000, "the agent hung up")
    assert seconds(carrier) > 60


@pytest.mark.parametrize(
    ("arguments", "move", "told"),
    [
        ('{"to": "+1900555"}', Move(), "can be transferred to sales, the workshop, and nobody"),
        ('{"to": 7}', Move(), "'to' is a text"),
        ("[]", Move(), "'to' is a text"),
        ("{", Move(), "no JSON"),
        ('{"to": "sales"}', Move("the line is cut"), "the line is cut; the caller is still with"),
        ('{"to": "sales"}', None, "by Twilio can't be transferred"),
    ],
)
def test_a_call_that_is_not_transferred_goes_on(
    tmp_path: Path, arguments: str, move: Move | None, told: str
) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Sales, please.")
        await asyncio.sleep(20)
        assert carrier.closed is None
        carrier.say(frame("stop"))

    wanted = calling("One moment.", "transfer", arguments)
    scene, carrier = hold(tmp_path, story, wanted, "I am sorry.", move=move)
    (result,) = results(scene)
    assert told in str(result)
    assert str(result).startswith("Error: ")
    assert carrier.closed == (1000, "the carrier ended the stream")
    if move is not None and move.moved:
        assert move.moved == [(CALL, "+493012345")]


class Http(HttpClient):  # type: ignore[misc]
    """Twilio's REST API."""

    def __init__(self, status: int = 200, error: Exception | None = None) -> None:
        super().__init__(logging.getLogger("twilio"), False)
        self.asked: list[dict[str, Any]] = []
        self._status = status
        self._error = error

    def request(self, method: str, uri: str, **how: Any) -> Response:
        self.asked.append({"method": method, "uri": uri, **how})
        if self._error is not None:
            raise self._error
        problem = '{"message": "+49 3012345 is no number", "code": 21211}'
        body = '{"sid": "CA1"}' if self._status == 200 else problem
        return Response(self._status, body)


def transfer_by(http: Http, settings: TelephonySettings | None = None) -> TwilioTransfer:
    settings = settings or TelephonySettings()
    return TwilioTransfer(settings, TwilioAccount(settings, http))


def handover(call_id: str = CALL) -> TransferOrder:
    return TransferOrder(call_id, "+493012345", "front desk", 1799.5)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", "AC1")
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "secret")


@pytest.mark.usefixtures("account")
async def test_twilio_is_asked_to_dial() -> None:
    http = Http()
    await transfer_by(http)(handover())
    (asked,) = http.asked
    assert asked["method"] == "POST"
    assert asked["uri"].endswith(f"/Accounts/AC1/Calls/{CALL}.json")
    assert asked["auth"] == ("AC1", "secret")
    (dial,) = ElementTree.fromstring(asked["data"]["Twiml"])
    assert (dial.tag, dial.text) == ("Dial", "+493012345")
    assert dial.attrib == {"timeout": "25", "timeLimit": "1799"}


@pytest.mark.usefixtures("account")
async def test_a_call_is_handed_on_to_an_address_of_sip() -> None:
    http, desk = Http(), "sip:desk@pbx.example.com"
    await transfer_by(http)(replace(handover(), number=desk))
    (dial,) = ElementTree.fromstring(http.asked[0]["data"]["Twiml"])
    assert [(each.tag, each.text) for each in dial] == [("Sip", desk)]


@pytest.mark.usefixtures("account")
async def test_twilio_is_told_whom_to_ask_when_nobody_answers() -> None:
    settings = TelephonySettings(public_url="https://voice.example.com", transfer_ring_s=12)
    http, now_s = Http(), unix_ns() // 10**9
    await transfer_by(http, settings)(handover())
    (dial,) = ElementTree.fromstring(http.asked[0]["data"]["Twiml"])
    assert (dial.attrib["timeout"], dial.attrib["method"]) == ("12", "POST")
    action = urlsplit(dial.attrib["action"])
    assert action._replace(query="").geturl() == "https://voice.example.com/telephony/twilio/voice"
    asked = dict(parse_qsl(action.query))
    assert asked.pop("agent") == "front desk"
    assert now_s <= int(asked.pop("until")) - 1799 <= now_s + 60
    assert not asked


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("http", [Http(404), Http(error=ConnectionError("secret"))])
async def test_twilio_refuses(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TransferError, match=REFUSED):
        await transfer_by(http)(handover())
    assert "Twilio did not transfer a call" in caplog.text
    for hidden in ("secret", "AC1", "3012345"):
        assert hidden not in caplog.text


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("call_id", ["../IncomingPhoneNumbers/PN1", "CA1?To=+1", "", "CA1/../x"])
async def test_an_id_that_a_stranger_made_up_reaches_nothing_else(call_id: str) -> None:
    http = Http()
    with pytest.raises(TransferError, match=REFUSED):
        await transfer_by(http)(handover(call_id))
    assert http.asked == []


async def test_without_credentials_nobody_is_transferred(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MY_SID", raising=False)
    settings = TelephonySettings(twilio_account_sid_env="MY_SID")
    with pytest.raises(TransferError, match=NOT_SET_UP):
        await transfer_by(Http(), settings)(handover())
    assert "environment lacks MY_SID" in caplog.text


@pytest.mark.usefixtures("account")
def test_the_doctor_says_what_transfers_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def findings() -> dict[str, tuple[str, str]]:
        config = load_config(file_text=SETTINGS)
        return {each.name: (each.verdict, each.value) for each in doctor._tools(config)}

    assert findings()["phone:transfer"] == ("ok", "calls of Twilio's")
    assert findings()["agents.default"][1] == "phone:hang_up, phone:transfer, phone:press_keys"
    monkeypatch.delenv("TWILIO_AUTH_TOKEN")
    verdict, value = findings()["phone:transfer"]
    assert verdict == "note"
    assert "environment lacks TWILIO_AUTH_TOKEN of" in value


# --- keys ---


def keys_in(carrier: ScriptedCarrier) -> str:
    return "".join(DtmfDetector().push(mulaw_decode(bytes(carrier.heard))))


def test_keys_are_pressed_behind_what_was_said(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Press one for sales.")
        await asyncio.sleep(30)
        carrier.say(frame("stop"))

    pressing = calling("Hello.", "press_keys", '{"keys": "1 2-#"}')
    scene, carrier = hold(tmp_path, story, pressing, "Done.")
    assert results(scene) == ["Pressed: 1 2 #"]
    assert keys_in(carrier) == "12#"
    tones_s = seconds(carrier) - (len("Hello.") + len("Done.")) * CHAR_S
    assert tones_s == pytest.approx(3 * 0.2)


@pytest.mark.parametrize("keys", ["", "call me", "1" * 21])
def test_what_is_no_key_is_not_pressed(tmp_path: Path, keys: str) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Press one for sales.")
        await asyncio.sleep(30)
        carrier.say(frame("stop"))

    pressing = calling("Hello.", "press_keys", f'{{"keys": "{keys}"}}')
    scene, carrier = hold(tmp_path, story, pressing, "Done.")
    assert results(scene) == ["Error: keys are 1 to 20 of 0-9, * and #"]
    assert keys_in(carrier) == ""


def test_a_carrier_that_sends_keys_itself_is_told_them() -> None:
    line = PhoneLine(Plivo())
    media = {"encoding": "audio/x-mulaw", "sampleRate": 8000}
    ids = '"streamId": "s", "callId": "c"'
    encoding = str(media).replace("'", '"')
    assert line.open(f'{{"event": "start", "start": {{{ids}, "mediaFormat": {encoding}}}}}')
    assert line.send_keys("12#") == 0
    assert line.frames() == ['{"event": "sendDTMF", "dtmf": "12#"}']


def test_tones_have_the_rate_of_the_line() -> None:
    line = PhoneLine(Vonage())
    assert line.open('{"event":"websocket:connected","content-type":"audio/l16;rate=16000"}')
    assert line.send_keys("5") == pytest.approx(0.2)
    sound = np.frombuffer(b"".join(line.frames()), "<i2")  # type: ignore[arg-type]
    assert DtmfDetector(16_000).push(sound) == ["5"]


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('[agents.default]\nserver_tools = ["phone:dance"]', "phone:hang_up, phone:transfer"),
        ('[agents.default]\nserver_tools = ["phone:transfer"]', "telephony.transfers is empty"),
    ],
)
def test_what_can_not_be_done_to_a_call_is_no_setting(settings: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        load_config(file_text=settings)
    assert refused.value.key == "agents.default.server_tools"
