"""Words said over a reply: does it go on, and how long is it gone?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from agent.client import events as ev
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.signals.backchannels import WORDS, Backchannel, recorded, synthesized
from benchmarks.signals.recordings import TurnRecording
from benchmarks.voice.backchannel_metric import Aside, Asides, Client, aside_figures
from benchmarks.voice.harness import CallerPlan, HeldCall, converse
from benchmarks.voice.report import figures_of, missed_backchannels, show
from tests.support.session.scripted_call import (
    MS,
    RATE_HZ,
    Scene,
    Script,
    audio,
    done,
    heard,
    loud,
    speech,
    started,
)

# 400 ms of speech are frames 0..19; the reply comes with frame 29, at 605 ms, and is heard for two
# seconds. Words are said over it from 1005 on, frame 49.
REPLY: Script = {29: [started(), audio(loud(2000))]}


RECORDING = TurnRecording(Path("1.wav"), speech(400), RATE_HZ, None)


def text(delta: str, number: int = 1) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyText(f"r{number}", f"i{number}", delta, now)


def understood(now: int) -> ev.ClientEvent:
    return ev.Transcript("u2", "Yeah.", now)


def duck(now: int) -> ev.ClientEvent:
    return ev.Duck("i1", now)


def unduck(now: int) -> ev.ClientEvent:
    return ev.Unduck("i1", now)


def report(turn: int) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.TurnReport({"turn": turn, "stages": {}}, now)


class Spoken:
    """One recording, its answer, and words said over that."""

    def __init__(self, script: Script, client: Client) -> None:
        self.scene = Scene({**REPLY, **script}, extensions=client == "ducks")
        self.asides = Asides(client)
        self.exchange: SpokenTurn

    async def run(self) -> Aside:
        scene = self.scene
        scene.caller = SimulatedCaller(
            scene.call, clock=scene.clock, sleep=scene.sleep, on_event=self.asides.note
        )
        async with scene.running() as caller:
            self.exchange = caller.say(speech(400), RATE_HZ)
            await caller.wait_until(lambda now_ns: now_ns >= 1000 * MS, 9.0)
            reply = caller.loudspeaker.reply_heard(scene.clock.now_ns())
            assert reply == "r1"
            self.asides.begin("yeah", reply, caller.loudspeaker)
            caller.say(speech(200), RATE_HZ, is_aside=True)
            await caller.wait_quiet(6.0)
            self.asides.settle()
        (aside,) = self.asides.all
        return aside


async def test_a_stock_client_hears_the_rest_in_another_response() -> None:
    script: Script = {
        58: [heard, done(1, "cancelled", "turn_detected")],
        80: [started(2), audio(np.zeros(480, np.int16), 2), audio(loud(500), 2), done(2)],
    }
    spoken = Spoken(script, "stock")
    aside = await spoken.run()
    assert aside.was_kept
    # Silent from frame 58, 1185 ms, to 20 ms behind frame 80, 1625.
    assert aside.gone_ms == 460.0
    assert spoken.scene.caller.exchanges == [spoken.exchange]
    assert spoken.exchange.replies == ["r1", "r2"]
    assert spoken.exchange.e2e_ear_ms == 200.0
    assert spoken.exchange.stopped_ms is None


async def test_what_is_understood_of_it_and_the_answer_to_that_are_not_the_exchanges() -> None:
    script: Script = {
        58: [heard, done(1, "cancelled", "turn_detected"), report(1)],
        80: [understood, started(2), audio(loud(500), 2), done(2), report(2)],
    }
    spoken = Spoken(script, "stock")
    aside = await spoken.run()
    assert (aside.was_kept, aside.gone_ms, aside.understood) == (False, None, "Yeah.")
    assert spoken.exchange.caller_text == ""
    assert [each["turn"] for each in spoken.exchange.reports] == [1]


@pytest.mark.parametrize(
    "rest",
    [
        {},
        {80: [started(2), audio(loud(500), 2), done(2, "cancelled", "turn_detected")]},
        {80: [started(2), done(2)]},
        {80: [started(2), text("And so on.", 2), done(2)]},
    ],
    ids=["nothing more", "stopped again", "no sound", "words without sound"],
)
async def test_a_reply_that_is_not_heard_to_its_end_was_stopped(rest: Script) -> None:
    stop: Script = {58: [heard, done(1, "cancelled", "turn_detected")]}
    aside = await Spoken({**stop, **rest}, "stock").run()
    assert (aside.was_kept, aside.gone_ms) == (False, None)


async def test_a_rest_without_words_is_nothing_that_was_missed() -> None:
    script: Script = {
        58: [heard, done(1, "cancelled", "turn_detected")],
        80: [started(2), text("!", 2), done(2)],
    }
    aside = await Spoken(script, "stock").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 0.0)


async def test_two_stops_add_up() -> None:
    script: Script = {
        55: [heard, done(1, "cancelled", "turn_detected")],
        60: [started(2), audio(loud(900), 2)],
        70: [heard, done(2, "cancelled", "turn_detected")],
        90: [started(3), audio(loud(500), 3), done(3)],
    }
    aside = await Spoken(script, "stock").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 100.0 + 400.0)


async def test_a_client_that_ducks_hears_it_all() -> None:
    script: Script = {55: [duck], 70: [unduck], 72: [duck], 75: [unduck, done()]}
    aside = await Spoken(script, "ducks").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 300.0 + 60.0)


async def test_a_reply_that_is_never_turned_up_again() -> None:
    """It begins at 605 ms and lasts for 2000; from 1125 on it is quiet."""
    aside = await Spoken({55: [duck], 75: [done()]}, "ducks").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 2605.0 - 1125.0)


async def test_words_over_a_reply_that_was_sent_before() -> None:
    script: Script = {29: [started(), audio(loud(2000)), done()], 55: [duck], 70: [unduck]}
    aside = await Spoken(script, "ducks").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 300.0)


async def test_words_that_nobody_noticed_took_nothing_away() -> None:
    aside = await Spoken({75: [done()]}, "ducks").run()
    assert (aside.was_kept, aside.gone_ms) == (True, 0.0)


async def test_a_reply_that_was_over_by_itself_was_heard() -> None:
    """What is made of the words after that is another matter."""
    script: Script = {75: [done()], 140: [heard], 150: [understood, started(2), done(2)]}
    aside = await Spoken(script, "ducks").run()
    assert (aside.was_kept, aside.understood) == (True, "Yeah.")


@pytest.mark.parametrize(("loud_ms", "was_kept"), [(1000, True), (1800, False)])
async def test_the_silence_behind_a_whole_reply_is_no_loss(loud_ms: int, was_kept: bool) -> None:
    """It begins at 605 ms and lasts for two seconds, some of them silent; frame 85 is at 1725."""
    rest = np.zeros(RATE_HZ * (2000 - loud_ms) // 1000, np.int16)
    script: Script = {29: [started(), audio(loud(loud_ms)), audio(rest), done()], 85: [heard]}
    script[90] = [understood, started(2), audio(loud(60), 2), done(2)]
    aside = await Spoken(script, "ducks").run()
    assert aside.was_kept == was_kept


async def test_a_client_that_ducks_is_stopped_for_good() -> None:
    script: Script = {
        55: [duck],
        75: [heard, done(1, "cancelled", "turn_detected")],
        90: [understood, started(2), audio(loud(300), 2), done(2)],
    }
    spoken = Spoken(script, "ducks")
    aside = await spoken.run()
    assert (aside.was_kept, aside.gone_ms, aside.asked) == (False, None, False)
    assert (spoken.exchange.ducked_ms, spoken.exchange.silenced_ms) == (None, None)


async def test_an_answer_to_a_question_is_told_apart() -> None:
    script: Script = {
        29: [started(), text("Shall I? "), audio(loud(2000))],
        55: [heard, done(1, "cancelled", "turn_detected")],
        90: [understood, started(2), audio(loud(300), 2), done(2)],
    }
    asked = await Spoken(script, "stock").run()
    assert (asked.was_kept, asked.asked) == (False, True)
    assert aside_figures([asked])["stock"]["kept_rate"] is None


def asides_of(client: Client, *outcomes: tuple[bool, bool, float | None]) -> list[Aside]:
    made = []
    for was_kept, asked, gone_ms in outcomes:
        one = Aside("yeah", client, "r1")
        one.was_kept, one.asked, one.gone_ms = was_kept, asked, gone_ms
        made.append(one)
    return made


def test_figures_and_gate_are_by_kind_of_client(capsys: pytest.CaptureFixture[str]) -> None:
    stock = asides_of("stock", (True, False, 700.0), (False, False, None), (False, True, None))
    ducks = asides_of("ducks", (True, True, 0.0), (True, False, 500.0))
    calls = [HeldCall([], asides=stock), HeldCall([], asides=ducks)]
    figures = figures_of(calls)
    found = figures["backchannels"]
    counts = ("said", "kept", "stopped", "answers", "kept_rate")
    assert [found["stock"][name] for name in counts] == [3, 1, 1, 1, 0.5]
    assert [found["ducks"][name] for name in counts] == [2, 2, 0, 0, 1.0]
    assert found["ducks"]["gone_ms"]["p95"] == 500.0
    assert len(found["stock"]["each"]) == 3
    assert missed_backchannels(figures, None) == []
    assert missed_backchannels(figures, 50) == []
    assert missed_backchannels(figures, 60) == ["GATE MISSED: replies kept (stock) 50.0 % < 60 %"]
    nothing: dict[str, Any] = {"backchannels": {}}
    assert missed_backchannels(nothing, 0) == ["GATE MISSED: replies kept (none said) - % < 0 %"]
    named: dict[str, Any] = {"machine": "M", "date": "D", "server": None, "compared": {}}
    show({**named, **figures})
    printed = capsys.readouterr().out
    assert "3 backchannels, client stock: 1 replies went on" in printed
    assert "turned down for" in printed


async def test_when_words_are_said_is_random_but_always_over_a_reply() -> None:
    """The reply is heard from 605 to 2605 ms; nothing is said over some of them."""
    begins: set[int | None] = set()
    for seed in range(12):
        scene = Scene({**REPLY, 100: [done()]})
        asides = Asides("ducks")
        sound = Backchannel("yeah", loud(60), RATE_HZ)
        async with scene.running() as caller:
            plan = CallerPlan(aside_seed=seed, backchannels=[sound])
            await converse(caller, asides, [RECORDING], plan)
        said = [at_ms for at_ms, pcm in scene.call.frames if (pcm == 5000).any()]
        assert len(said) == 3 * len(asides.all)
        begins |= {said[0]} if said else {None}
    assert None in begins
    times = [at_ms for at_ms in begins if at_ms is not None]
    assert 900 < min(times) < max(times) <= 2605
    assert len(times) > 5


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_said_over_a_reply_that_is_over(seed: int) -> None:
    scene = Scene({29: [started(), audio(loud(100)), done()]})
    asides = Asides("ducks")
    plan = CallerPlan(aside_seed=seed, backchannels=[Backchannel("yeah", loud(60), RATE_HZ)])
    async with scene.running() as caller:
        await converse(caller, asides, [RECORDING], plan)
    assert asides.all == []


def test_recordings_of_a_folder_are_named_for_their_words(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "mm-hmm.wav", speech(300), RATE_HZ)
    soundfile.write(tmp_path / "a long story.wav", speech(2100), RATE_HZ)
    (tmp_path / "notes.txt").write_text("no sound")
    source, sounds = recorded(tmp_path)
    assert source == f"recorded ({tmp_path})"
    assert [each.words for each in sounds] == ["mm-hmm"]
    with pytest.raises(BenchError, match="no recording of at most 2 s"):
        recorded(tmp_path / "nowhere")


@pytest.mark.models
def test_synthesized_ones_are_short_and_can_be_heard() -> None:
    source, sounds = synthesized()
    assert "hibari" in source
    assert [each.words for each in sounds] == list(WORDS)
    for each in sounds:
        assert 0.2 < len(each.pcm) / each.rate_hz < 1.5
        assert np.abs(each.pcm).max() > 3000
