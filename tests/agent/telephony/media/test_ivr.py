"""Menus that answer our calls: how they are known, and what is done then."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.calls.recording import Recorder
from agent.codec.g711 import mulaw_decode
from agent.config.layers import load_config
from agent.errors import ConfigError
from agent.session.api.settings import SemanticVad
from agent.session.ports.stage_ports import SpeechResult
from agent.telephony.announcements import NAVIGATE
from agent.telephony.media.amd import LONG_NS, MENU_NS, WATCH_NS, AnsweringMachineDetector
from agent.telephony.media.dtmf import DtmfDetector
from agent.telephony.media.ivr import Answering, answering
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from latency_budget.storage.call_records import CallRecord
from tests.agent.telephony.carriers.test_twilio import frame
from tests.agent.telephony.media.test_amd import quiet
from tests.agent.telephony.outbound.test_call_tools import calling
from tests.agent.telephony.test_call_detail_record import Kept
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

MESSAGE = "Please call us back."
MENU = "Thank you for calling Acme. For sales, press two. For support, press three."
SETTINGS = f"""
[telephony]
on_machine = "message"
machine_message = "{MESSAGE}"
on_menu = "navigate"
[agents.default]
instructions = "Ask when they open."
greeting = "Hello."
server_tools = ["phone:press_keys"]
"""
SECOND = 1_000_000_000


# --- words ---


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("For sales, press 2.", "menu"),
        ("Press one for English, para español, oprima el dos.", "menu"),
        ("If you know your party’s extension, dial it now.", "menu"),
        ("To speak to an operator push the pound key.", "menu"),
        ("Please listen carefully as our menu options have recently changed.", "menu"),
        ("Please enter your password followed by the # key.", "menu"),
        ("Press *.", "menu"),
        ("Press 3 to re-record your message.", "menu"),
        ("Your call is very important to us.", "menu"),
        ("This call may be recorded for training.", "menu"),
        ("All of our representatives are currently busy.", "menu"),
        ("Please leave a message after the tone, or press one for more options.", "mailbox"),
        ("Record your message AT THE BEEP!", "mailbox"),
        ("Anna is not available. To page her, press five.", None),
        ("Hello?", None),
        ("Miller and Sons, this is Ana speaking, what can I do for you?", None),
        ("Please hold on a second, there is somebody at the door.", None),
        ("I pressed the button for one hour. Press on, I say, for the two of us.", None),
        ("Do you want to leave a message?", None),
        ("", None),
    ],
)
def test_words_that_tell(words: str, shown: Answering | None) -> None:
    assert answering(words, is_monologue=False) == shown


def test_who_asks_to_wait_is_a_menu_only_in_a_monologue() -> None:
    words = "Thank you for calling. Please stay on the line for the next available clerk."
    assert answering(words, is_monologue=False) is None
    assert answering(words, is_monologue=True) == "menu"


# --- the detector ---


def test_a_menu_is_known_by_what_is_understood_so_far() -> None:
    amd = AnsweringMachineDetector("", 0, detects_menus=True)
    amd.speech_began(SECOND)
    amd.push_transcript("Thank you for calling Acme.", 3 * SECOND)
    assert amd.answered_by == ""
    amd.push_transcript("Thank you for calling Acme. For sales, press", 4 * SECOND)
    assert amd.answered_by == ""
    amd.push_transcript("Thank you for calling Acme. For sales, press two.", 5 * SECOND)
    assert (amd.answered_by, amd.is_machine) == ("menu", False)


def test_a_menu_is_a_machine_where_nobody_tells_them_apart() -> None:
    amd = AnsweringMachineDetector("", 0)
    amd.push_transcript(MENU, SECOND)
    assert (amd.answered_by, amd.is_machine) == ("menu", True)


def test_a_mailbox_is_known_by_its_words_before_its_length() -> None:
    amd = AnsweringMachineDetector("", 0, detects_menus=True)
    amd.speech_began(0)
    amd.push_transcript("Please leave a message after the tone.", 2 * SECOND)
    assert (amd.answered_by, amd.is_machine, amd.is_greeting_over) == ("machine", True, False)


def test_a_welcome_is_waited_for_where_menus_are_told_apart() -> None:
    amd = AnsweringMachineDetector("", 0, detects_menus=True)
    amd.speech_began(0)
    amd.push_audio(quiet(20), 8000, LONG_NS)
    assert not amd.is_machine
    amd.push_audio(quiet(20), 8000, MENU_NS)
    assert amd.is_machine


def test_a_monologue_asks_to_wait() -> None:
    amd = AnsweringMachineDetector("", 0, detects_menus=True)
    amd.speech_began(0)
    amd.push_transcript("Please hold.", LONG_NS - 1)
    assert not amd.is_menu
    amd.push_transcript("Please hold. Please hold.", LONG_NS)
    assert amd.is_menu


def test_a_person_who_is_known_and_a_call_that_goes_on_are_no_menu() -> None:
    for carriers_word, at_ns, answered_by in (("human", 0, "human"), ("", WATCH_NS, "")):
        amd = AnsweringMachineDetector(carriers_word, 0, detects_menus=True)
        amd.push_transcript(MENU, at_ns)
        assert (amd.answered_by, amd.is_machine) == (answered_by, False)


# --- in a call ---


def hold(
    tmp_path: Path,
    story: Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]],
    *replies: str | Calling,
    settings: str = SETTINGS,
    **parameters: str,
) -> tuple[TelephonyHarness, ScriptedCarrier, CallRecord]:
    """A call, and what is kept of it."""
    kept = Kept()
    made: list[tuple[TelephonyHarness, ScriptedCarrier]] = []

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(
            clock, tmp_path, *replies, settings=settings, calls={"store": kept}
        )
        carrier = await scene.call(lambda carrier: story(scene, carrier), parameters=parameters)
        made.append((scene, carrier))
        assert scene.is_empty

    play(main)
    (record,) = (each for each in kept if isinstance(each, CallRecord))
    return *made[0], record


def told_to_navigate(scene: TelephonyHarness) -> bool:
    return any(call == "system" and NAVIGATE in str(text) for call, text in scene.chat.calls)


async def offers(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    """As menus do, and hang up before anybody is asked whether he is there."""
    scene.ears.say(MENU)
    await asyncio.sleep(10)
    carrier.say(frame("stop"))


def test_an_agent_presses_what_a_menu_offers(tmp_path: Path) -> None:
    pressing = calling("", "press_keys", '{"keys": "3"}')
    scene, carrier, record = hold(tmp_path, offers, pressing, "Fine.", direction="outbound-api")
    (told,) = {text for call, text in scene.chat.calls if call == "system"}
    assert str(told).startswith("Ask when they open.")
    assert told_to_navigate(scene)
    assert scene.ears.detection == SemanticVad(eagerness="low")
    assert (record.answered_by, record.cause) == ("menu", "caller_hung_up")
    sound = mulaw_decode(bytes(carrier.heard))
    assert "".join(DtmfDetector(8000).push(sound)) == "3"


def test_the_announcement_of_a_recording_leaves_what_a_menu_has_changed(tmp_path: Path) -> None:
    """It is known while the announcement is spoken."""

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.hear(ev.SpeechStarted(1, 0))
        scene.ears.hear(SpeechResult(1, partial=(MENU, len(MENU))))
        await asyncio.sleep(1)
        detection = scene.ears.detection
        assert detection == SemanticVad(
            eagerness="low", interrupt_response=False, create_response=False
        )
        await asyncio.sleep(20)
        carrier.say(frame("stop"))

    recorded = f"[agent]\nrecord_dir = '{tmp_path / 'recordings'}'\n[telephony]"
    settings = SETTINGS.replace("[telephony]", f'{recorded}\nrecord = "announced"')
    made: list[TelephonyHarness] = []

    async def main(clock: ManualClock) -> None:
        parts = {"recorder": Recorder(tmp_path / "recordings", clock)}
        scene = TelephonyHarness(clock, tmp_path, settings=settings, calls=parts)
        made.append(scene)
        parameters = {"direction": "outbound-api"}
        await scene.call(lambda carrier: story(scene, carrier), parameters=parameters)

    play(main)
    assert made[0].ears.detection == SemanticVad(eagerness="low")


@pytest.mark.parametrize("on_menu", ["hang_up", "talk", "as_machine"])
def test_what_else_is_done_with_menus(tmp_path: Path, on_menu: str) -> None:
    settings = SETTINGS.replace('"navigate"', f'"{on_menu}"')
    scene, _, record = hold(
        tmp_path, offers, "We are.", settings=settings, direction="outbound-api"
    )
    assert record.answered_by == "menu"
    assert record.cause == ("caller_hung_up" if on_menu != "hang_up" else "machine")
    assert not told_to_navigate(scene)


def test_a_menu_is_left_no_message(tmp_path: Path) -> None:
    """Though the carrier takes it for a machine."""
    scene, carrier, record = hold(tmp_path, offers, "Sales.", answered_by="machine_start")
    assert (record.answered_by, record.cause) == ("menu", "caller_hung_up")
    assert told_to_navigate(scene)
    assert not carrier.heard


def test_words_of_an_utterance_that_goes_on_are_heeded(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.utterance = 1
        scene.ears.hear(ev.SpeechStarted(1, 0))
        scene.ears.hear(SpeechResult(1, partial=(MENU, len(MENU))))
        await carrier.until(lambda: carrier.closed)

    settings = SETTINGS.replace('"navigate"', '"hang_up"')
    _, carrier, record = hold(tmp_path, story, settings=settings, direction="outbound-api")
    assert (record.answered_by, record.cause) == ("menu", "machine")
    assert carrier.closed == (1000, "the agent hung up")


def test_machines_are_talked_to_and_menus_navigated(tmp_path: Path) -> None:
    settings = SETTINGS.replace('"message"', '"talk"')
    scene, _, record = hold(
        tmp_path, offers, "Three.", settings=settings, answered_by="machine_end_beep"
    )
    assert (record.answered_by, record.cause) == ("menu", "caller_hung_up")
    assert told_to_navigate(scene)


def test_who_calls_us_is_no_menu(tmp_path: Path) -> None:
    scene, _, record = hold(tmp_path, offers, "Hello.", direction="inbound")
    assert record.answered_by == ""
    assert not told_to_navigate(scene)


def test_nobody_navigates_without_keys() -> None:
    with pytest.raises(ConfigError, match="no agent can press keys") as refused:
        load_config(file_text='[telephony]\non_menu = "navigate"\n')
    assert refused.value.key == "telephony.on_menu"
