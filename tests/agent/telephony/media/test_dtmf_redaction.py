"""A caller's keys can be neither heard in the recording nor read in the records."""

import asyncio
import base64
import logging
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agent.calls.recording import Recorder
from agent.codec.g711 import mulaw_encode
from agent.session.ports.stage_ports import NoRecording
from agent.telephony.media import dtmf_redaction
from agent.telephony.media.dtmf import HIGH_HZ, LOW_HZ, sound_of
from agent.telephony.media.dtmf_redaction import RedactedRecording
from latency_budget.account.clock import ManualClock
from tests.agent.telephony.carriers.test_twilio import frame, media
from tests.agent.telephony.test_call_detail_record import Kept as Stored
from tests.support.service.live_call import recording
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

Int16 = npt.NDArray[np.int16]
RATE_HZ = 8_000
WINDOW = 64
"""Samples, 8 ms: a tone that is left for so long shows."""


class Kept(NoRecording):
    def __init__(self) -> None:
        self.pieces: list[tuple[Int16, int, int]] = []

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        self.pieces.append((pcm, rate_hz, at_ns))

    @property
    def sound(self) -> Int16:
        return np.concatenate([each[0] for each in self.pieces])


def tones_ms(sound: Int16) -> float:
    """For how long both tones of any key stand out of it."""
    angles = 2j * np.pi * np.outer((*LOW_HZ, *HIGH_HZ), np.arange(WINDOW)) / RATE_HZ
    filters = np.exp(-angles).T * (2 / WINDOW)
    count = 0
    for first in range(0, len(sound) - WINDOW, WINDOW // 2):
        window = sound[first : first + WINDOW] / 32768
        levels = np.abs(window @ filters)
        count += bool(levels[:4].max() > 0.02 and levels[4:].max() > 0.02)
    return count * 1000 * (WINDOW // 2) / RATE_HZ


def pressed(size: int, lead: int = 0) -> tuple[Int16, Int16]:
    """A number within silence, in pieces of so many samples: what went in, and what came out."""
    said = np.concatenate(
        [np.zeros(4000 + lead, np.int16), sound_of("4111", on_ms=60), np.zeros(4000, np.int16)]
    )
    kept = Kept()
    quiet = RedactedRecording(kept)
    for number, first in enumerate(range(0, len(said), size)):
        quiet.caller(said[first : first + size], RATE_HZ, number)
    assert [at_ns for _, _, at_ns in kept.pieces] == list(range(len(kept.pieces)))
    return said, kept.sound


@pytest.mark.parametrize("size", [160, 240, 800])
@pytest.mark.parametrize("lead", [0, 37, 80, 151])
def test_tones_of_keys_are_silenced_from_their_first_sample(size: int, lead: int) -> None:
    said, kept = pressed(size, lead)
    assert tones_ms(said) >= 4 * 50
    assert tones_ms(kept) <= 8, "not enough to know a key by"
    assert 0 < len(said) - len(kept) <= 40 * 8 + size, "and nothing moves"


def test_many_small_pieces_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    num_looks = 0
    length_ms = dtmf_redaction._ms

    def counted(piece: tuple[Int16, int, int]) -> float:
        nonlocal num_looks
        num_looks += 1
        return length_ms(piece)

    monkeypatch.setattr(dtmf_redaction, "_ms", counted)
    kept = Kept()
    quiet = RedactedRecording(kept)
    for number in range(1000):
        quiet.caller(np.zeros(1, np.int16), RATE_HZ, number)
    assert [at_ns for _, _, at_ns in kept.pieces] == list(range(1000 - 320))
    assert num_looks <= 4 * 1000


def test_a_voice_is_left_as_it_is() -> None:
    voice = recording("vm-nobodyavail", RATE_HZ)
    kept = Kept()
    quiet = RedactedRecording(kept)
    for first in range(0, len(voice), 160):
        quiet.caller(voice[first : first + 160], RATE_HZ, 0)
    sound = kept.sound
    assert np.array_equal(sound, voice[: len(sound)])


def test_who_else_hears_of_a_key_can_say_so() -> None:
    kept = Kept()
    quiet = RedactedRecording(kept)
    ones = np.ones(160, np.int16)
    for number in range(20):
        quiet.caller(ones, RATE_HZ, number)
        if number == 9:
            quiet.key_pressed()
    heard = [int(each[0].max()) for each in kept.pieces]
    assert heard[:7] == [1] * 7
    assert 0 in heard
    assert heard[-4:] == [1] * 4


@pytest.mark.parametrize("hears_keys", [False, True])
def test_a_recorded_call_has_no_keys(tmp_path: Path, hears_keys: bool) -> None:
    """Twilio tells of keys, and their tones may be in the sound as well."""
    settings = (
        f"[agent]\nrecord_dir = '{tmp_path / 'recordings'}'\n"
        f"[telephony]\nrecord = 'always'\nkey_tones = {str(hears_keys).lower()}\n"
    )
    digits = "4929"

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        said = np.concatenate([sound_of(digits), np.full(8000, 3000, np.int16)])
        for first in range(0, len(said), 160):
            piece = mulaw_encode(said[first : first + 160])
            carrier.say(media(base64.b64encode(piece).decode()))
            await asyncio.sleep(0.02)
        carrier.press(digits)
        await asyncio.sleep(5)
        carrier.say(frame("stop"))

    async def main(clock: ManualClock) -> None:
        recorder = Recorder(tmp_path / "recordings", clock)
        scene = TelephonyHarness(clock, tmp_path, settings=settings, calls={"recorder": recorder})
        await scene.call(lambda carrier: story(scene, carrier), silent=True)
        recorder.step()
        assert "4 9 2 9" in str(scene.chat.calls), "the model knows them"
        (path,) = recorder.directory.glob("*.wav")
        with wave.open(str(path)) as file:
            frames = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
        caller = frames[:, 0]
        assert np.abs(caller).max() > 2000, "the rest is there"
        assert tones_ms(caller) <= 4 * 8

    play(main)


def test_which_keys_were_pressed_is_kept_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where words are kept, too."""

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        carrier.press("4929#")
        await asyncio.sleep(5)
        scene.ears.say("And my name is Ann.")
        await asyncio.sleep(5)
        carrier.say(frame("stop"))

    kept = Stored()

    async def main(clock: ManualClock) -> None:
        settings = "[latency_budget]\nstore_texts = true\n"
        scene = TelephonyHarness(clock, tmp_path, settings=settings, calls={"store": kept})
        await scene.call(lambda carrier: story(scene, carrier))
        assert "4 9 2 9" in str(scene.chat.calls), "the model knows them"
        (trace,) = scene.calls.traces._traces.values()
        everything = "\n".join([*map(str, kept), *map(str, trace.lines()), caplog.text])
        assert "my name is Ann" in everything
        for spelling in ("4929", "4 9 2 9", "4, 9, 2, 9"):
            assert spelling not in everything

    with caplog.at_level(logging.DEBUG, "agent"):
        play(main)
