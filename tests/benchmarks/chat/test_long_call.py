"""The bench of long calls: its script, its gates, and a call with a server of scripted replies."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.errors import BenchError
from agent.session.api.client_events import CreateItem, CreateResponse
from agent.session.api.conversation import ItemId, Message
from agent.session.api.server_events import Extension, ReplyEnded, ReplyStarted, ReplyText, Usage
from benchmarks.chat import long_call
from benchmarks.chat.long_call import (
    SCRIPT,
    LongCallResult,
    Turn,
    hold,
    missed_gates,
    read_script,
    table,
)
from tests.support.fakes.realtime_peer import SETTINGS, Peer, serving

CONDENSED = Extension(
    "halfsec.context", {"summary": "Miriam.", "messages": 4, "tokens_before": 90, "tokens": 40}
)


def record_of(*times_ms: float) -> LongCallResult:
    return LongCallResult([Turn(number, "?", "!", each) for number, each in enumerate(times_ms, 1)])


def test_the_script_tells_facts_early_and_asks_for_them_twice() -> None:
    script = read_script(SCRIPT)
    lines = script.turns(100)
    assert len(lines) == 100
    assert lines[1][0] == script.facts
    asked = [turn for turn, (_, question) in enumerate(lines, 1) if question is not None]
    assert asked == [60, 61, 62, 98, 99, 100]
    for question in script.questions:
        assert re.search(question.knows, script.facts)
        assert not re.search(question.knows, question.caller), "the question does not tell it"
        assert not any(re.search(question.knows, line) for line in script.talk)
    with pytest.raises(BenchError, match="at least 65"):
        script.turns(64)


def test_a_late_turn_misses_the_gate() -> None:
    record = record_of(900, 10, 90, 100, 100, 120, 149, 151)
    assert record.reference_ms == 100
    assert missed_gates(record) == ["turn 8: first token after 151 ms > 150"]
    assert "slowest after it: 1.51x" in table(record)


def test_a_forgotten_fact_misses_the_gate() -> None:
    record = record_of(*[100] * 8)
    record.turns[6].knows, record.turns[7].knows = True, False
    assert missed_gates(record) == ["turn 8: not known: '?', answered '!'"]
    assert "turn 7, known" in table(record)
    assert "turn 8, NOT KNOWN" in table(record)


async def answer_all(peer: Peer, reply_to: Callable[[int, str], str]) -> None:
    """Answers each typed message; in turn 3 the context is condensed, in turn 4 the reply is cut
    off by its limit."""
    turn, text = 0, ""
    while True:
        request = await peer.asked.get()
        match request:
            case CreateItem(item=Message(text=str(text))):
                pass
            case CreateResponse():
                turn += 1
                response, item = f"resp_{turn}", ItemId(f"item_{turn}")
                reply = reply_to(turn, text)
                if turn == 3:
                    await peer.say(CONDENSED)
                ended = ReplyEnded(response, "completed", None, reply, Usage(50, 40, 5))
                if turn == 4:
                    ended = replace(ended, status="incomplete", reason="max_output_tokens")
                await peer.say(
                    ReplyStarted(response, item, None, "text", SETTINGS),
                    ReplyText(response, reply),
                    ended,
                )
            case _:
                pass


async def test_a_call_is_held_turn_by_turn() -> None:
    script = read_script(SCRIPT)

    def reply_to(turn: int, text: str) -> str:
        return "You are Miriam." if text == script.questions[0].caller else f"Fine {turn}."

    async with serving() as peer, asyncio.TaskGroup() as group:
        answering = group.create_task(answer_all(peer, reply_to))
        record = await hold(peer.url, script.turns(65), gap_s=0)
        answering.cancel()
    assert [turn.turn for turn in record.turns] == list(range(1, 66))
    assert all(turn.first_token_ms > 0 for turn in record.turns)
    assert record.turns[4].reply == "Fine 5."
    assert {turn.computed_tokens for turn in record.turns} == {10}
    assert [turn.knows for turn in record.turns[59:]] == [True, False, False] * 2
    (condensed,) = record.condensed
    assert (condensed["after_turn"], condensed["summary"]) == (2, "Miriam.")
    assert len(missed_gates(record)) >= 4


async def test_a_call_that_ends_is_no_measurement() -> None:
    async with serving() as peer, asyncio.TaskGroup() as group:

        async def hang_up() -> None:
            await peer.asked.get()
            await (await peer.socket()).close(1000, "enough")

        group.create_task(hang_up())
        with pytest.raises(BenchError, match="turn 1"):
            await hold(peer.url, [("Hello", None)], gap_s=0)


def test_the_command_saves_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    @contextlib.contextmanager
    def own_server(arguments: list[str]) -> Iterator[SimpleNamespace]:
        started.append(arguments)
        yield SimpleNamespace(url="ws://nowhere")

    async def held(url: str, lines: list[object], gap_s: float) -> LongCallResult:
        return record_of(*[100.0] * (len(lines) - 1), 400.0)

    monkeypatch.setattr(long_call, "own_server", own_server)
    monkeypatch.setattr(long_call, "hold", held)
    out = tmp_path / "long.json"
    status = long_call.main(["--preset", "embedded", "--json", str(out)])
    assert status == 1
    assert "llm_engine.context=2048" in started[0]
    saved = json.loads(out.read_text(encoding="utf-8"))
    assert saved["missed"] == ["turn 100: first token after 400 ms > 150"]
    assert (saved["context"], saved["slowest_ratio"]) == (2048, 4.0)
    assert "GATE MISSED: turn 100" in capsys.readouterr().out
    assert long_call.main(["--turns", "5"]) == 2
    bad = tmp_path / "bad.toml"
    bad.write_text("talk = 1", encoding="utf-8")
    assert long_call.main(["--script", str(bad)]) == 2
    assert "is no script of a long call" in capsys.readouterr().err
