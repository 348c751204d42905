"""Replies that begin with a short clause: the prompt, the cut, and how the gain is measured."""

import json
from pathlib import Path

import pytest

from agent.cli import bench
from agent.config.presets import PRESETS
from agent.config.schema import AgentProfile, Example
from agent.config.sources import read_config
from agent.session.ports.stage_ports import ChatMessage
from agent.session.response.opening_clause import cutting, example_messages, shaped, without_opener
from benchmarks.voice.opening_clause import TimedAnswer, figures_of
from tests.support.models import model_path
from tts.text_chunker import TextChunker

REPLY = "Well, it depends. Some people sleep for eight hours, others for nine."


def pieces(by_clause: bool) -> list[str]:
    cutter = TextChunker(cutting(by_clause=by_clause))
    return [piece.text for piece in (*cutter.push(REPLY), *cutter.flush())]


def test_the_first_piece_is_a_clause_or_a_sentence() -> None:
    assert pieces(True)[0] == "Well,"
    assert pieces(False) == ["Well, it depends. ", REPLY.removeprefix("Well, it depends. ")]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Sure, boil some water.", "Boil some water."),
        ("Oh, that happens. A walk may help.", "That happens. A walk may help."),
        ("Good morning! How can I help you?", "Good morning! How can I help you?"),
        ("The capital of Italy is Rome.", "The capital of Italy is Rome."),
        ("In the summer it is warm, and dry.", "In the summer it is warm, and dry."),
        ("Sure,", "Sure,"),
        ("", ""),
    ],
)
def test_an_opening_word_can_be_left_out(text: str, plain: str) -> None:
    assert without_opener(text) == plain


def test_the_prompt_asks_for_a_first_clause_or_does_not() -> None:
    profile = AgentProfile(
        instructions="Be brief.",
        opening="Begin with a word.",
        examples=(Example("Tea?", "Sure, with milk."),),
    )
    asked, plain = (shaped(profile, by_clause=way) for way in (True, False))
    assert asked.instructions == "Be brief. Begin with a word."
    assert example_messages(asked) == (
        ChatMessage("user", "Tea?"),
        ChatMessage("assistant", "Sure, with milk."),
    )
    assert plain.instructions == "Be brief."
    assert example_messages(plain)[1].text == "With milk."
    assert shaped(AgentProfile(instructions="A."), by_clause=True).instructions == "A."


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_asks_for_a_first_clause(preset: str) -> None:
    config = read_config({"agent.preset": preset}, env={})
    _, profile = config.profile(None)
    assert profile.opening
    assert shaped(profile, by_clause=True).instructions.endswith(profile.opening)


def test_figures_are_medians_of_what_was_answered() -> None:
    answers = [
        TimedAnswer("A?", "Well, yes.", "Well,", 2, 30.0, 50.0),
        TimedAnswer("B?", "It is so.", "It is so.", 6, 90.0, 130.0),
        TimedAnswer("C?", "Sure, no.", "Sure,", 3, 40.0, 60.0),
        TimedAnswer("D?"),
    ]
    figures = figures_of(answers)
    assert (figures["answers"], figures["steps"]) == (4, {"mean": 2.75, "median": 2.5})
    assert figures["first_piece_ms"]["p50"] == 40.0
    assert figures["first_audible_ms"]["p99"] == 130.0


def test_a_real_model_is_asked_in_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_path("smollm2-135m-instruct")  # skips where it is not there
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "clause.json"
    assert bench.main(["clause", "--questions", "2", "--show", "--json", str(saved)]) == 0
    result = json.loads(saved.read_text())
    told = capsys.readouterr().out
    for name in ("whole", "without first-clause"):
        first, second = result["answers"][name]
        assert first["question"] in told
        assert repr(second["text"]) in told
        assert first["text"].startswith(first["first_piece"])
        assert first["num_steps"] > 0
        assert 0 < first["first_piece_ms"] < first["first_audible_ms"]
    whole, plain = (result["ways"][name]["steps"]["mean"] for name in result["ways"])
    assert whole < plain
