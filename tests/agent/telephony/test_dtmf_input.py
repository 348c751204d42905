"""Keys of a call: what they cost, how fast they may come, and what they do not stop."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.session.api import client_events as ask
from agent.session.session import Session
from agent.telephony.dtmf_input import KEYS_PER_S, PhoneKeys
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import frame
from tests.agent.telephony.test_transport import QUIET, hold, messages
from tests.support.telephony.telephony_harness import CHAR_S, ScriptedCarrier, TelephonyHarness

MESSAGE = "Please call us back."
LEAVES_A_MESSAGE = (
    "[telephony]\non_machine = 'message'\nidle_prompt_ms = 0\nidle_hangup_ms = 0\n"
    f"machine_message = '{MESSAGE}'\n"
)


class Asked:
    """In place of a session: keeps what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answered = asyncio.Event()

    async def handle(self, request: ask.Request) -> None:
        self.requests.append(request)
        if isinstance(request, ask.CreateResponse):
            self.answered.set()


def keys_of(asked: Asked, clock: ManualClock) -> PhoneKeys:
    session = SimpleNamespace(id="sess_1", handle=asked.handle)
    return PhoneKeys(cast(Session, session), clock)


async def test_what_keys_make_the_session_do_is_told_to_whoever_counts_it() -> None:
    asked = Asked()
    keys = keys_of(asked, ManualClock())
    told = [request for key in "42#" for request in await keys.press(key)]
    assert told == asked.requests
    kinds = [type(each) for each in told]
    assert kinds == [ask.CancelResponse, ask.CancelResponse, ask.CreateItem, ask.CreateResponse]


async def test_keys_that_come_faster_than_anybody_presses_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, clock = Asked(), ManualClock()
    keys = keys_of(asked, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            await keys.press("1")
    entries = [each for each in asked.requests if isinstance(each, ask.CreateItem)]
    assert not entries, "32 keys would be one"
    assert keys.num_dropped == 200 - KEYS_PER_S
    assert len(caplog.records) == 1
    for _ in range(100):  # ten a second, as a dialer does
        clock.advance_ms(100)
        await keys.press("2")
    assert keys.num_dropped == 200 - KEYS_PER_S


async def test_a_terminator_too_late_stops_nothing() -> None:
    asked, clock = Asked(), ManualClock()
    keys = keys_of(asked, clock)
    for key in "4#":
        await keys.press(key)
    before = len(asked.requests)
    clock.advance_ms(1000)
    assert await keys.press("#") == []
    assert len(asked.requests) == before
    clock.advance_ms(10_000)
    await keys.press("#")
    (_, item, _) = asked.requests[before:]
    assert item.item.text == "(I pressed # on my telephone.)"


async def test_keys_that_waited_come_in_their_order() -> None:
    asked = Asked()
    keys = keys_of(asked, ManualClock())
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(keys.keep_time())
        with keys.held():
            for key in "12":
                assert await keys.press(key) == []
            await asyncio.sleep(0)
            assert asked.requests == []
        for key in "3#":
            await keys.press(key)
        await asked.answered.wait()
        keeping.cancel()
    (item,) = (each for each in asked.requests if isinstance(each, ask.CreateItem))
    assert item.item.text == "(I pressed 1 2 3 on my telephone.)"  # type: ignore[union-attr]


def test_no_key_stops_what_is_left_with_a_machine(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        carrier.press("1#")

    _, carrier = hold(
        tmp_path, story, settings=LEAVES_A_MESSAGE, parameters={"answered_by": "machine_end_beep"}
    )
    assert len(carrier.heard) / 8000 == pytest.approx(len(MESSAGE) * CHAR_S)
    assert "clear" not in carrier.events
    assert carrier.closed == (1000, "the agent hung up")


def test_a_flood_of_keys_does_not_drown_the_call(tmp_path: Path) -> None:
    passed_s: list[float] = []

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        began_ns = scene.clock.now_ns()
        carrier.press("1#" * 300)
        await asyncio.sleep(10)
        passed_s.append((scene.clock.now_ns() - began_ns) / 1e9)
        scene.ears.say("Hello?")
        before = len(carrier.heard)
        await carrier.until(lambda: len(carrier.heard) > before + 800)
        carrier.say(frame("stop"))

    scene, carrier = hold(tmp_path, story, settings=QUIET)
    entries = [each for each in messages(scene, "user") if "pressed" in str(each)]
    assert 0 < len(entries) <= KEYS_PER_S * (passed_s[0] + 1)
    assert messages(scene, "user")[-1] == "Hello?"
    assert carrier.closed == (1000, "the carrier ended the stream")
