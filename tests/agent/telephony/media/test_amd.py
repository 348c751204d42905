"""Machines that answer our calls: how they are known, and what is left with them."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from agent.codec.g711 import mulaw_encode
from agent.config.layers import load_config
from agent.errors import ConfigError
from agent.telephony.announcements import BEEP_S
from agent.telephony.media.amd import (
    LONG_NS,
    WATCH_NS,
    AnsweringMachineDetector,
    BeepDetector,
    Int16,
)
from agent.telephony.media.dtmf import KEYS, sound_of
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import frame, media
from tests.support.telephony.telephony_harness import (
    CHAR_S,
    SILENCE,
    ScriptedCarrier,
    TelephonyHarness,
    play,
)

MESSAGE = "Please call us back."
LEAVES = f"""
[telephony]
on_machine = "message"
machine_message = "{MESSAGE}"
[agents.default]
greeting = "Hello, this is Hibari."
"""
HANGS_UP = LEAVES.replace('"message"', '"hang_up"')


def tone(hz: float, ms: int, level: float = 0.2, rate_hz: int = 8000) -> Int16:
    time_s = np.arange(rate_hz * ms // 1000) / rate_hz
    return (32767 * level * np.sin(2 * np.pi * hz * time_s)).astype(np.int16)


def quiet(ms: int, rate_hz: int = 8000) -> Int16:
    return np.zeros(rate_hz * ms // 1000, np.int16)


# --- beeps ---


@pytest.mark.parametrize("hz", [800, 950, 1000, 1200, 1400])
@pytest.mark.parametrize("rate_hz", [8000, 16000])
def test_a_beep_is_heard_at_its_end(hz: int, rate_hz: int) -> None:
    sound = np.concatenate([quiet(100, rate_hz), tone(hz, 400, 0.1, rate_hz), quiet(200, rate_hz)])
    pieces = [sound[first : first + 160] for first in range(0, len(sound), 160)]
    ear = BeepDetector(rate_hz)
    heard = [ear.push(piece) for piece in pieces]
    assert heard.count(True) == 1
    assert heard.index(True) * 160 / rate_hz >= 0.5


@pytest.mark.parametrize(
    "sound",
    [
        tone(1000, 100),
        tone(440, 1000),
        tone(2100, 1000),
        tone(1000, 1000, 0.005),
        sound_of(KEYS, on_ms=400),
        sum((tone(150 * n, 1000, 0.1) for n in range(1, 12)), quiet(1000)),
        np.random.default_rng(1).normal(0, 3000, 16000).astype(np.int16),
    ],
    ids=["short", "ringing", "fax", "faint", "keys", "vowel", "noise"],
)
def test_what_is_no_beep(sound: Int16) -> None:
    assert not BeepDetector(8000).push(np.concatenate([sound, quiet(200)]))


# --- machines ---


@pytest.mark.parametrize(
    ("answered_by", "is_machine", "is_greeting_over"),
    [
        ("", False, False),
        ("human", False, False),
        ("unknown", False, False),
        ("fax", True, False),
        ("machine_start", True, False),
        ("machine_end_beep", True, True),
        ("machine_end_silence", True, True),
    ],
)
def test_what_carriers_say(answered_by: str, is_machine: bool, is_greeting_over: bool) -> None:
    amd = AnsweringMachineDetector(answered_by, 0)
    assert (amd.is_machine, amd.is_greeting_over) == (is_machine, is_greeting_over)


def test_who_speaks_on_and_on_is_a_machine() -> None:
    amd = AnsweringMachineDetector("", 0)
    amd.speech_began(10**9)
    amd.push_audio(quiet(20), 8000, 10**9 + LONG_NS - 1)
    assert not amd.is_machine
    amd.push_audio(quiet(20), 8000, 10**9 + LONG_NS)
    assert amd.is_machine
    assert not amd.is_greeting_over


@pytest.mark.parametrize("is_person", [True, False])
def test_who_pauses_or_is_known_is_not(is_person: bool) -> None:
    amd = AnsweringMachineDetector("human" if is_person else "", 0)
    amd.speech_began(10**9)
    if not is_person:
        amd.speech_ended()
        amd.speech_began(2 * 10**9)
    amd.push_audio(quiet(20), 8000, 3 * 10**9 + LONG_NS)
    assert not amd.is_machine


def test_a_beep_tells_for_a_while() -> None:
    beep = np.concatenate([tone(1000, 300), quiet(100)])
    for at_ns, is_machine in ((0, True), (WATCH_NS, False)):
        amd = AnsweringMachineDetector("", 0)
        amd.push_audio(beep, 8000, at_ns)
        assert (amd.is_machine, amd.is_greeting_over) == (is_machine, is_machine)


# --- in a call ---


def payload(pcm: Int16) -> str:
    return media(base64.b64encode(mulaw_encode(pcm)).decode())


def hold(
    tmp_path: Path,
    story: Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]],
    settings: str = LEAVES,
    **parameters: str,
) -> tuple[float, ScriptedCarrier, float]:
    """A call: after how many seconds it ended, and how many of the agent were played."""
    made: list[tuple[float, ScriptedCarrier, float]] = []

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, settings=settings)
        began_ns = clock.now_ns()
        carrier = await scene.call(lambda carrier: story(scene, carrier), parameters=parameters)
        assert scene.is_empty
        lasted_s = (clock.now_ns() - began_ns) / 1e9
        made.append((lasted_s, carrier, len(carrier.heard) / 8000))

    play(main)
    return made[0]


async def nothing(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    pass


async def greets(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    """As machines do: on and on, and a beep."""
    scene.ears.utterance += 1
    scene.ears.hear(ev.SpeechStarted(scene.ears.utterance, 0))
    for _ in range(10):
        carrier.say(media(SILENCE))  # what it says, the fake ears are told
        await asyncio.sleep(1)
    scene.ears.words[scene.ears.utterance] = "Leave a message after the beep."
    scene.ears.hear(ev.SpeechPaused(scene.ears.utterance, 160_000))
    scene.ears.hear(ev.SilenceGrew(scene.ears.utterance, 5000))
    carrier.say(payload(tone(1000, 400)))
    carrier.say(payload(quiet(200)))


def test_a_message_is_left_behind_the_beep(tmp_path: Path) -> None:
    lasted_s, carrier, heard_s = hold(tmp_path, greets, direction="outbound-api")
    assert carrier.closed == (1000, "the agent hung up")
    assert lasted_s == pytest.approx(10 + len(MESSAGE) * CHAR_S, abs=1)
    assert heard_s < 1 + len(MESSAGE) * CHAR_S, "nothing else, but for the greeting's first words"


def test_a_message_is_left_at_once_where_the_greeting_is_over(tmp_path: Path) -> None:
    lasted_s, carrier, heard_s = hold(tmp_path, nothing, answered_by="machine_end_beep")
    assert carrier.closed == (1000, "the agent hung up")
    assert heard_s == pytest.approx(len(MESSAGE) * CHAR_S)
    assert lasted_s < len(MESSAGE) * CHAR_S + 2


def test_a_machine_does_not_interrupt_the_message(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 8000)
        scene.ears.say("To listen to your message press one.")

    _, carrier, heard_s = hold(tmp_path, story, answered_by="machine_end_beep")
    assert heard_s == pytest.approx(len(MESSAGE) * CHAR_S)
    assert "clear" not in carrier.events


def test_a_beep_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    lasted_s, _, heard_s = hold(tmp_path, nothing, answered_by="machine_start")
    assert heard_s == pytest.approx(len(MESSAGE) * CHAR_S)
    assert lasted_s == pytest.approx(BEEP_S + len(MESSAGE) * CHAR_S, abs=1)


def test_a_machine_is_hung_up_on(tmp_path: Path) -> None:
    for parameters in ({"answered_by": "machine_start"}, {"answered_by": "fax"}):
        lasted_s, carrier, heard_s = hold(tmp_path, nothing, HANGS_UP, **parameters)
        assert carrier.closed == (1000, "the agent hung up")
        assert (heard_s, lasted_s < 2) == (0, True)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        (LEAVES.replace('"message"', '"talk"'), {"answered_by": "machine_start"}),
        (LEAVES, {"answered_by": "human", "direction": "outbound"}),
        (LEAVES, {"direction": "inbound"}),
        (LEAVES, {}),
    ],
)
def test_people_are_talked_to(tmp_path: Path, settings: str, parameters: dict[str, str]) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await greets(scene, carrier)
        await asyncio.sleep(5)
        assert carrier.closed is None
        carrier.say(frame("stop"))

    _, carrier, _ = hold(tmp_path, story, settings, **parameters)
    assert carrier.closed == (1000, "the carrier ended the stream")


def test_a_message_without_words_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="machine_message is empty") as refused:
        load_config(file_text='[telephony]\non_machine = "message"\n')
    assert refused.value.key == "telephony.machine_message"
