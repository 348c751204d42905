"""A spoken reply that repeats itself without end is ended; what is repeated with reason is not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import ChatMessage
from agent.session.response.repetition import RepetitionGuard
from agent.session.response.task import LOOPING
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import FakeChat
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with

LIST = "Pack a hat, "
LOOP = LIST + "sunscreen, " * 80
PLAYED_S = 60.0
"""More than the first reply lasts."""
KEPT = LIST + ", ".join(["sunscreen"] * 12) + ","


def sentence_of(num_words: int) -> str:
    return " ".join(f"word{number}" for number in range(num_words)) + ". "


def kept(text: str, size: int | None = None) -> str:
    """What is left of a reply that comes whole, or in texts of this size."""
    guard, size = RepetitionGuard(), size or len(text)
    for begin in range(0, len(text), size):
        end = guard.push(text[begin : begin + size])
        if end is not None:
            return text[: begin + end]
    return text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP, KEPT),
        ("Well. " + "I can't. " * 40, "Well. " + " ".join(["I can't."] * 6)),
        ("You are right. " * 40, " ".join(["You are right."] * 5)),
        (
            "So: " + "I am sorry, I can not help. " * 9,
            "So: " + " ".join(["I am sorry, I can not help."] * 4),
        ),
        (sentence_of(25) * 9, sentence_of(25) * 3 + sentence_of(25).strip()),
        (sentence_of(48) * 4, sentence_of(48) * 3 + sentence_of(48).strip()),
        ("zero " * 400, " ".join(["zero"] * 40)),
        ("Ja! JA, ja. " * 30, "Ja! JA, ja. " * 3 + "Ja! JA, ja."),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 7, None])
def test_a_loop_ends_behind_a_whole_repetition(text: str, expected: str, size: int | None) -> None:
    assert kept(text, size) == expected


@pytest.mark.parametrize(
    "text",
    [
        "No, no, no. That is not it. ",
        "five five five five five five five five, and two more: five five. ",
        "It is four four one four four one four four one four four one four four one. ",
        "0000 0000 0000 0000, and once more: 0000 0000 0000 0000 ",
        "A A A A A B B B B B, spelled A A A A A B B B B B. ",
        "null null null null null null null null null null null null null null null ",
        "Let it be, let it be, let it be, let it be, whisper words of wisdom. ",
        "La la la la la la la la la. ",
        "Tick tock tick tock tick tock tick tock, goes the clock. ",
        "Press one. Press two. Press three. Press four. Press five. Press six. Press seven. ",
        "Ha ha ha ha ha! Very, very, very, very good. ",
        "The wheels on the bus go round and round, round and round, round and round. ",
    ],
)
def test_what_is_repeated_with_reason_stays(text: str) -> None:
    assert kept(text) == text


def test_of_the_judged_dialogues_it_ends_the_loop_alone() -> None:
    def texts(node: Any) -> list[str]:
        if isinstance(node, str):
            return [node + " "]
        children = node.values() if isinstance(node, dict) else node
        nested = [texts(each) for each in children if isinstance(each, str | dict | list)]
        return [text for found in nested for text in found]

    files = sorted((Path(benchmarks.__file__).parent / "results").glob("chat-*.json"))
    replies = {text for file in files for text in texts(json.loads(file.read_text("utf-8")))}
    assert len(replies) > 1000
    (ended,) = [text for text in replies if kept(text) != text]
    assert kept(ended).endswith("sunglasses, " + ", ".join(["sunscreen"] * 12) + ",")


def test_history_and_item_have_what_was_spoken() -> None:
    chat = RememberingChat([LOOP, "Yes."])

    async def story(clock: ManualClock) -> None:
        async with call_with(chat=chat, clock=clock) as call:
            call.ears.say("What do I pack?")
            await call.until(say.ReplyEnded)
            await asyncio.sleep(PLAYED_S)
            call.ears.say("And what else?")
            await call.until(say.ReplyEnded, 2)
            (first, _) = call.of(say.ReplyEnded)
            assert isinstance(first, say.ReplyEnded)
            assert (first.text, first.status) == (KEPT, "completed")
            items = [item for item in call.session.conversation if isinstance(item, Message)]
            assert [item.text for item in items] == [
                "What do I pack?",
                KEPT,
                "And what else?",
                "Yes.",
            ]
            texts = [each for each in call.notices if isinstance(each, say.ReplyText)]
            assert "".join(each.delta for each in texts) == f"{KEPT}Yes."

    virtual_time.run(story)
    assert chat.asked[-1] == (
        ChatMessage("user", "What do I pack?"),
        ChatMessage("assistant", KEPT),
        ChatMessage("user", "And what else?"),
    )
    assert ("truncate", len(KEPT)) in chat.calls
    assert not [call for call in chat.calls if call[0] == "reset"]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_client_with_extensions_is_told_once_and_within_the_response(ahead: bool) -> None:
    async def story(clock: ManualClock) -> None:
        chat = FakeChat([LOOP, "Yes."])
        async with call_with(chat=chat, clock=clock, ahead=ahead) as call:
            call.ears.say("What do I pack?")
            await call.until(say.ReplyEnded)
            await asyncio.sleep(PLAYED_S)
            call.ears.say("And what else?")
            await call.until(say.ReplyEnded, 2)
            extensions = [each for each in call.notices if isinstance(each, say.Extension)]
            (told,) = [each for each in extensions if each.type == "halfsec.notice"]
            assert told.fields == {"param": "response", "message": LOOPING}
            began, ended = call.of(say.ReplyStarted)[0], call.of(say.ReplyEnded)[0]
            place = call.notices.index
            assert place(began) < place(told) < place(ended)

    virtual_time.run(story)


def test_a_written_reply_is_not_watched() -> None:
    """It may be a table or code."""
    chat = FakeChat([LOOP])

    async def story(clock: ManualClock) -> None:
        settings = SessionSettings(output_modality="text")
        async with call_with(chat=chat, clock=clock, settings=settings) as call:
            call.ears.say("What do I pack?")
            (ended,) = await call.until(say.ReplyEnded)
            assert isinstance(ended, say.ReplyEnded)
            assert ended.text.strip() == LOOP.strip()

    virtual_time.run(story)
