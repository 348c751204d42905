"""Dialogues over voice: tools, replies and interruptions of a call, and calls with the service."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.client import events as ev
from agent.errors import BenchError
from benchmarks.chat import voice_contestant
from benchmarks.chat.caller_voice import CallerVoice
from benchmarks.chat.command import main
from benchmarks.chat.dialogue import read_dialogues
from benchmarks.chat.domains import DOMAINS
from benchmarks.chat.voice_contestant import (
    DomainRun,
    ReplyLog,
    VoiceContestant,
    interruption,
    spoken_errors,
)
from tests.benchmarks.chat.test_caller_voice import BurstVoice
from tests.support.models import model_path
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]


def done(response_id: str, text: str, reason: str | None = None) -> ev.ReplyDone:
    status = "completed" if reason is None else "cancelled"
    return ev.ReplyDone(response_id, status, reason, text, None, {}, 0)


def test_words_of_answers_that_the_caller_broke_off_are_not_judged() -> None:
    log = ReplyLog()
    log.note(done("r1", "It's", "turn_detected"))
    log.note(done("r2", " It's Rome. "))
    log.note(done("r3", ""))
    log.note(done("r4", "Bye."))
    replies = ["r1", "r2", "r3", "r4", "unknown"]
    assert log.text(replies, with_broken=False) == "It's Rome. Bye."
    assert log.text(replies, with_broken=True) == "It's It's Rome. Bye."


def test_a_reply_is_owed_from_a_call_until_it_begins() -> None:
    log = ReplyLog()
    assert not log.owes_reply
    log.note(ev.FunctionCall("r1", "i1", "c1", "fly", "{}", 0))
    log.note(done("r1", ""))
    assert log.owes_reply
    log.note(ev.ReplyStarted("r2", 0))
    assert not log.owes_reply


async def test_a_call_is_run_once_in_a_turn_and_counts_for_its_line() -> None:
    run = DomainRun(DOMAINS["home"])
    set_timer, get_weather = run.handler("set_timer"), run.handler("get_weather")
    assert set_timer.__name__ == "set_timer"
    run.begin_line()
    assert json.loads(await set_timer(minutes=5)) == {"timer": 5}
    assert json.loads(await set_timer(minutes=5)) == {"timer": 5}
    assert "error" in json.loads(await get_weather())
    run.begin_line()
    await set_timer(minutes=5)
    assert run.calls == [
        [("set_timer", {"minutes": 5}), ("get_weather", {})],
        [("set_timer", {"minutes": 5})],
    ]
    assert run.state["timers"] == [5, 5]
    assert DOMAINS["home"].state["timers"] == []


@pytest.mark.parametrize(
    ("heard", "silenced_ms", "left_ms", "outcome"),
    [
        (None, None, None, "late"),
        ("r1", 300.0, 310.0, "obeyed"),
        ("r1", None, 900.0, "ended"),
        ("r1", None, None, "ended"),
        ("r1", None, 4000.0, "ignored"),
    ],
)
def test_what_becomes_of_an_answer_that_is_talked_over(
    heard: str | None, silenced_ms: float | None, left_ms: float | None, outcome: str
) -> None:
    assert interruption(heard, silenced_ms, left_ms) == outcome


@pytest.mark.parametrize(
    ("line", "heard", "errors"),
    [
        ("I owe you five dollars, okay?", "I owe you $5. OK.", 0),
        ("Book a table for four.", "Book a table for", 1),
        ("Order 1180.", "order 1180", 0),
        ("Well, um, at seven p.m., for Haddad.", "Well at 7 p.m. for HADDAD.", 0),
        ("Hello.", "", 1),
    ],
)
def test_word_errors_are_of_what_is_spoken(line: str, heard: str, errors: int) -> None:
    pytest.importorskip("jiwer")
    assert spoken_errors(line, heard).errors == errors


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jiwer")
    monkeypatch.setattr(voice_contestant, "CONNECT_S", 0.0)
    file = tmp_path / "own.toml"
    file.write_text("[[dialogue]]\nid='a'\ncategory='b'\nturn=[{caller='Hello.'}]\n")
    (dialogue,) = read_dialogues([file])
    voice = CallerVoice(BurstVoice())
    with pytest.raises(BenchError, match=r"127\.0\.0\.1"):
        VoiceContestant("ws://127.0.0.1:9/v1/realtime", voice).hold(dialogue)


TALK = """
[[dialogue]]
id = "capital"
category = "talk"
turn = [{ caller = "What is the capital | of Spain?", pause_ms = [300], expect = ['madrid'] }]
"""

LIGHT = """
[[dialogue]]
id = "light"
category = "tools"
domain = "home"
[[dialogue.turn]]
caller = "Please tell me a long story about a dog and a cat."
[[dialogue.turn]]
caller = "Stop, please turn on the light in the kitchen."
interrupts_after_ms = 1000
[dialogue.state]
lights = { kitchen = 'on' }
"""


def held(live: LiveServer, folder: Path, text: str) -> tuple[int, dict[str, Any]]:
    """Exit status of the command over voice, and its result."""
    pytest.importorskip("piper")
    pytest.importorskip("jiwer")
    model_path("piper-joe")
    file, result = folder / "own.toml", folder / "result.json"
    file.write_text(text)
    status = main(
        ["--voice", str(file), "--url", live.url, "--json", str(result), "--preset", "embedded"]
    )
    return status, json.loads(result.read_text())


@pytest.mark.models
@pytest.mark.slow
def test_a_question_is_heard_answered_and_judged(live: LiveServer, tmp_path: Path) -> None:
    """The service's example has this answer, so that even the smallest model knows it."""
    status, result = held(live, tmp_path, TALK)
    (dialogue,) = result["dialogues"]
    (turn,) = dialogue["turns"]
    assert status == 0
    assert dialogue["errors"] == []
    assert "spain" in turn["spoken"]["heard"].casefold()
    assert turn["reply"]
    assert dialogue["passed"] == (not turn["problems"])
    assert turn["problems"] == [] or "lacks madrid" in turn["problems"]
    assert result["voice"]["turns"] == 1
    assert result["voice"]["unanswered"] == 0


@pytest.mark.models
@pytest.mark.slow
def test_an_answer_is_interrupted_and_the_state_decides(live: LiveServer, tmp_path: Path) -> None:
    _, result = held(live, tmp_path, LIGHT)
    (dialogue,) = result["dialogues"]
    story, command = dialogue["turns"]
    assert dialogue["errors"] == []
    assert story["reply"], "the part that was heard"
    assert command["spoken"]["interruption"] in ("obeyed", "ended", "late")
    assert dialogue["num_history_checked"] >= 1
    assert dialogue["history_problems"] == []
    state = "off"
    for name, given in story["calls"] + command["calls"]:
        state = given["state"] if name == "set_light" and given["room"] == "kitchen" else state
    assert (dialogue["state_problem"] == "") == (state == "on")
