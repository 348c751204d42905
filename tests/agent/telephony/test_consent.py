"""Telephone calls are recorded where the settings say so, and not before the caller knows it."""

import asyncio
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from agent.calls.recording import Recorder
from agent.codec.g711 import mulaw_decode
from agent.telephony.media.dtmf import TONE_HZ
from latency_budget.account.clock import ManualClock
from latency_budget.storage.call_records import CallRecord
from tests.agent.telephony.carriers.test_twilio import frame
from tests.agent.telephony.test_call_detail_record import Kept
from tests.support.telephony.telephony_harness import (
    CHAR_S,
    ScriptedCarrier,
    TelephonyHarness,
    play,
)

GREETING = "Good day."
ANNOUNCED = "This call is recorded."
AGENT = f"[agents.default]\ngreeting = '{GREETING}'\n"

Story = Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]]


async def listens(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    await asyncio.sleep(8)
    carrier.say(frame("stop"))


def hold(
    tmp_path: Path, settings: str, story: Story = listens
) -> tuple[ScriptedCarrier, CallRecord, float | None]:
    """A call: what came of it, its record, and seconds of the agent in its recording."""
    made: list[tuple[ScriptedCarrier, CallRecord, float | None]] = []

    async def main(clock: ManualClock) -> None:
        recorder, kept = Recorder(tmp_path / "recordings", clock), Kept()
        parts = {"recorder": recorder, "store": kept}
        recorded = f"[agent]\nrecord_dir = '{recorder.directory}'\n"
        text = f"{recorded}[telephony]\n{settings}\n{AGENT}"
        scene = TelephonyHarness(clock, tmp_path, settings=text, calls=parts)
        carrier = await scene.call(lambda carrier: story(scene, carrier))
        recorder.step()
        (record,) = (each for each in kept if isinstance(each, CallRecord))
        made.append((carrier, record, agent_s(recorder.directory, record)))

    play(main)
    return made[0]


def agent_s(directory: Path, record: CallRecord) -> float | None:
    path = directory / f"{record.session}.wav"
    if not path.exists():
        assert record.recording is None
        return None
    assert record.recording == path.name
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
        return np.count_nonzero(sound[:, 1]) / int(file.getframerate())


def test_a_telephone_call_is_not_recorded_unless_the_settings_say_so(tmp_path: Path) -> None:
    carrier, _, recorded_s = hold(tmp_path, "")
    assert recorded_s is None
    assert len(carrier.heard) / 8000 == pytest.approx(len(GREETING) * CHAR_S)


def test_always_is_from_the_first_sound(tmp_path: Path) -> None:
    carrier, _, recorded_s = hold(tmp_path, 'record = "always"')
    assert recorded_s == pytest.approx(len(GREETING) * CHAR_S, abs=0.1)
    assert len(carrier.heard) / 8000 == pytest.approx(len(GREETING) * CHAR_S)


def test_the_caller_is_told_and_recorded_from_then_on(tmp_path: Path) -> None:
    carrier, _, recorded_s = hold(tmp_path, 'record = "announced"')
    assert len(carrier.heard) / 8000 == pytest.approx((len(ANNOUNCED) + len(GREETING)) * CHAR_S)
    assert recorded_s == pytest.approx(len(GREETING) * CHAR_S, abs=0.1)


def test_who_talks_over_the_announcement_hears_it_all_the_same(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        scene.ears.say("Hello? Is anybody there?")
        await listens(scene, carrier)

    carrier, _, recorded_s = hold(tmp_path, 'record = "announced"', story)
    assert len(carrier.heard) / 8000 == pytest.approx((len(ANNOUNCED) + len(GREETING)) * CHAR_S)
    assert recorded_s == pytest.approx(len(GREETING) * CHAR_S, abs=0.1)


def test_who_hangs_up_before_the_end_of_it_is_not_recorded(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        carrier.say(frame("stop"))

    assert hold(tmp_path, 'record = "announced"', story)[2] is None


def test_nobody_presses_it_away(tmp_path: Path) -> None:
    """The keys are taken behind it: they stop the greeting, and are answered."""
    kept: list[ScriptedCarrier] = []

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        await carrier.until(lambda: len(carrier.heard) > 4000)
        carrier.press("42#")
        await carrier.until(lambda: len(carrier.heard) / 8000 >= len(ANNOUNCED) * CHAR_S)
        assert "clear" not in carrier.events
        await asyncio.sleep(10)
        told = [text for who, text in scene.chat.calls if who == "user"]
        assert told == ["(I pressed 4 2 on my telephone.)"]
        kept.append(carrier)
        carrier.say(frame("stop"))

    _, record, recorded_s = hold(tmp_path, 'record = "announced"', story)
    assert kept, "all of it was so"
    assert recorded_s, "the answer"
    assert record.keys == 3


def test_a_tone_says_it_too(tmp_path: Path) -> None:
    carrier, _, recorded_s = hold(tmp_path, 'record = "announced"\nannouncement = ""')
    heard = mulaw_decode(bytes(carrier.heard))
    spectrum = np.abs(np.fft.rfft(heard[:4000]))
    assert int(np.argmax(spectrum)) * 2 == TONE_HZ
    assert recorded_s == pytest.approx(len(GREETING) * CHAR_S, abs=0.1)
