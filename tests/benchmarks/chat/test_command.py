"""Which dialogues `halfsec bench chat` holds, and what it refuses."""

import itertools
import json
from pathlib import Path

import httpx
import pytest

from agent.errors import BenchError
from benchmarks.chat.command import chosen, main
from benchmarks.chat.dialogue import Dialogue, DialogueTurn, Hesitation

PLAIN = (DialogueTurn("Hello?", max_words=9),)
HESITANT = (DialogueTurn("Hello there?", max_words=9, pauses=(Hesitation(6, 400),)),)
DIALOGUES = [
    Dialogue("f1", "facts", PLAIN),
    Dialogue("m1", "memory", PLAIN),
    Dialogue("f2", "facts", PLAIN),
    Dialogue("h1", "hesitant", HESITANT),
    Dialogue("f3", "facts", PLAIN),
]


def ids(
    *, only: list[str] | None = None, limit: int | None = None, by_voice: bool = False
) -> list[str]:
    return [each.id for each in chosen(DIALOGUES, only=only, limit=limit, by_voice=by_voice)]


def test_a_limit_is_one_of_each_category() -> None:
    assert ids(limit=1, by_voice=True) == ["f1", "m1", "h1"]
    assert ids(limit=2, only=["facts"]) == ["f1", "f2"]


def test_over_text_dialogues_that_need_a_voice_are_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ids() == ["f1", "m1", "f2", "f3"]
    assert capsys.readouterr().err == "1 dialogues need a voice and are skipped: add --voice\n"
    assert ids(by_voice=True) == ["f1", "m1", "f2", "h1", "f3"]
    assert ids(only=["facts"]) == ["f1", "f2", "f3"]
    assert capsys.readouterr().err == ""


def test_nothing_to_hold_is_an_error() -> None:
    with pytest.raises(BenchError, match="no dialogues to hold"):
        ids(only=["hesitant"])
    with pytest.raises(BenchError, match=r"'moon'.* facts, memory, hesitant"):
        ids(only=["moon"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("turn=[{caller='a | b', pause_ms=[]}]", "pause_ms"),
        ("turn=[{caller='a', interrupts_after_ms='x'}]", "interrupts_after_ms"),
    ],
)
def test_a_bad_file_ends_the_command_with_the_name_of_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[[dialogue]]\nid='a'\ncategory='b'\n{text}\n")
    assert main(["--voice", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"bench chat: {file}: dialogue 'a'")
    assert problem in message


def test_callers_have_another_voice_than_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--voice", "--set", "tts.voice=piper-joe", "--preset", "embedded"]) == 2
    assert "choose another tts.voice" in capsys.readouterr().err


@pytest.mark.parametrize(("failing", "code"), [({2}, 0), ({1, 2, 3}, 2)])
def test_an_error_of_the_server_does_not_end_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: set[int], code: int
) -> None:
    file, saved = tmp_path / "own.toml", tmp_path / "result.json"
    entry = "[[dialogue]]\nid='{}'\ncategory='b'\nturn=[{{caller='Hello?', max_words=9}}]\n"
    file.write_text("".join(map(entry.format, "xyz")))
    counter = itertools.count(1)

    def post(*_: object, **__: object) -> httpx.Response:
        request = httpx.Request("POST", "http://model/v1/chat/completions")
        if next(counter) in failing:
            return httpx.Response(503, text="busy", request=request)
        message = {"role": "assistant", "content": "Hello."}
        return httpx.Response(200, json={"choices": [{"message": message}]}, request=request)

    monkeypatch.setattr(httpx.Client, "post", post)
    assert main(["--url", "http://model/v1", "--json", str(saved), str(file)]) == code
    held = json.loads(saved.read_text())["dialogues"]
    assert [each["passed"] for each in held] == [n not in failing for n in (1, 2, 3)]
    assert "503: busy" in held[1]["turns"][0]["problems"][0]
