"""Dialogues are held with a chat endpoint as a client with tools holds them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.errors import BenchError
from benchmarks.chat.contestant import TextContestant
from benchmarks.chat.dialogue import Dialogue, read_dialogues

TASK = """
[[dialogue]]
id = "limit"
category = "tasks"
domain = "bank"
turn = [{ caller = "Set my limit to 800.", expect = ['800'] }]
state = { daily_limit = 800 }
"""


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: str, arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Endpoint:
    """A chat endpoint with scripted answers."""

    def __init__(self, answers: Sequence[dict[str, Any]]) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": self._answers.pop(0)}]})


def contestant(handler: Callable[[httpx.Request], httpx.Response]) -> TextContestant:
    transport = httpx.MockTransport(handler)
    return TextContestant(
        "http://model/v1", "m", "Be brief.", [("Hi.", "Hello.")], transport=transport
    )


@pytest.fixture
def task(tmp_path: Path) -> Dialogue:
    file = tmp_path / "task.toml"
    file.write_text(TASK)
    (dialogue,) = read_dialogues([file])
    return dialogue


def test_calls_are_run_and_the_state_decides(task: Dialogue) -> None:
    endpoint = Endpoint([called("set_daily_limit", '{"amount": 800}'), said("It's 800 now.")])
    record = contestant(endpoint).hold(task)
    assert record.is_passed
    first, second = endpoint.asked
    assert [each["role"] for each in first["messages"]] == ["system", "user", "assistant", "user"]
    assert len(first["tools"]) == 4
    assert second["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": '{"daily_limit": 800}',
    }


def test_words_alone_do_not_pass_a_task(task: Dialogue) -> None:
    record = contestant(Endpoint([said("I have set it to 800.")])).hold(task)
    assert not record.is_passed
    assert not record.turns[0].problems
    assert "500" in record.state_problem


@pytest.mark.parametrize("arguments", ["[1]", "{", "{}", '{"amount": 1, "amount": {}}'])
def test_wrong_arguments_are_answered_with_an_error(task: Dialogue, arguments: str) -> None:
    endpoint = Endpoint([called("transfer_money", arguments), said("That's 800.")])
    assert not contestant(endpoint).hold(task).is_passed
    assert "error" in endpoint.asked[1]["messages"][-1]["content"]


def test_a_repeated_call_is_not_run_again_and_ends_the_calls(task: Dialogue) -> None:
    call = called("set_daily_limit", '{"amount": 800}')
    endpoint = Endpoint([call, call, said("It's 800.")])
    record = contestant(endpoint).hold(task)
    assert record.is_passed
    assert len(record.turns[0].calls) == 1
    assert [each["tool_choice"] for each in endpoint.asked] == ["auto", "auto", "none"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (httpx.Response(401, text="no key"), "401: no key"),
        (httpx.Response(503, text="busy"), "503: busy"),
        (httpx.Response(200, text="<html>"), "not answer as a chat endpoint"),
        (httpx.Response(200, json={"choices": []}), "not answer as a chat endpoint"),
        (httpx.Response(200, json={"choices": [{"message": "Hi"}]}), "not answer as a chat"),
        (
            httpx.Response(200, json={"choices": [{"message": {"tool_calls": [{"id": "c"}]}}]}),
            "not answer as a chat",
        ),
        (httpx.Response(200, json={"choices": [{"message": {"content": 1}}]}), "must be a string"),
        (
            httpx.Response(200, json={"choices": [{"message": called("transfer_money", {})}]}),
            "must be strings",
        ),
        (httpx.ReadTimeout("too late"), "too late"),
    ],
)
def test_a_bad_answer_fails_its_dialogue_and_no_other(
    task: Dialogue, answer: httpx.Response | httpx.HTTPError, problem: str
) -> None:
    endpoint = Endpoint([called("set_daily_limit", '{"amount": 800}'), said("It's 800 now.")])
    bad = [answer]

    def handler(request: httpx.Request) -> httpx.Response:
        if not bad:
            return endpoint(request)
        first = bad.pop()
        if isinstance(first, httpx.HTTPError):
            raise first
        return first

    made = contestant(handler)
    record = made.hold(task)
    (turn,) = record.turns
    assert problem in turn.problems[0]
    assert not record.is_passed
    assert not record.calls_right
    assert made.hold(task).is_passed


def test_a_server_that_cannot_be_reached_ends_the_command(task: Dialogue) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(BenchError, match="can't be reached"):
        contestant(handler).hold(task)


def test_an_address_that_is_none_ends_the_command(task: Dialogue) -> None:
    made = TextContestant("nowhere", "m", "Be brief.")
    with pytest.raises(BenchError, match="can't be reached"):
        made.hold(task)
    made.close()
