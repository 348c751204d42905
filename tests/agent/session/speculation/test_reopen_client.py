"""A re-opened turn on fake stages: what the client does before the second half is known."""

from collections.abc import Awaitable, Callable

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ROOT, ItemId, Message
from agent.session.api.settings import ResponseOptions
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from tests.support.fakes.stages import FakeChat
from tests.support.session.guess_call import change, known, let_work, remembering, said
from tests.support.session.reopen_call import (
    FIRST,
    LONG,
    SECOND,
    WHOLE,
    answered,
    ask_first,
    go_on,
    last_asked,
    say_rest,
    type_after,
)
from tests.support.session.session_call import Call

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_caller_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is said before the reply has been played goes on with the message before it."""
    monkeypatch.setattr(reopening, "REOPEN_NS", 1 << 60)


async def type_first(call: Call) -> None:
    item = Message(ItemId("note"), "system", "text", "Before all that")
    await call.session.handle(ask.CreateItem(item, ROOT))


async def type_between(call: Call) -> None:
    first = next(iter(call.session.conversation))
    item = Message(ItemId("note"), "user", "text", "I mean")
    await call.session.handle(ask.CreateItem(item, first.id))


async def delete_first(call: Call) -> None:
    await call.session.handle(ask.DeleteItem(next(iter(call.session.conversation)).id))


async def delete_reply(call: Call) -> None:
    last = call.session.conversation.last_id()
    assert last is not None
    await call.session.handle(ask.DeleteItem(last))


async def truncate_reply(call: Call) -> None:
    """As stock clients do when they hear that the caller speaks."""
    last = call.session.conversation.last_id()
    assert last is not None
    await call.session.handle(ask.TruncateItem(last, 400))
    assert isinstance(call.notices[-1], say.ItemTruncated)


async def instruct(call: Call) -> None:
    await change(call, instructions="Be kind.")


async def ask_for_text(call: Call) -> None:
    await change(call, output_modality="text")


def named(value: object) -> str:
    return getattr(value, "__name__", "")


MERGED = [("user", WHOLE)]

CHANGES: list[tuple[Callable[[Call], Awaitable[None]], list[tuple[str, str]]]] = [
    (type_after, [("user", FIRST), ("user", "By the way"), ("user", SECOND)]),
    (type_first, [("system", "Before all that"), *MERGED]),
    (type_between, [("user", FIRST), ("user", "I mean"), ("user", SECOND)]),
    (delete_first, [("user", SECOND)]),
    (delete_reply, MERGED),
    (truncate_reply, MERGED),
    (instruct, MERGED),
    (ask_for_text, MERGED),
]
WHENS = ("in speech", "warmed up", "in the pause")


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize(("changes", "asked"), CHANGES, ids=named)
async def test_what_the_client_changes_between_the_halves(
    changes: Callable[[Call], Awaitable[None]], asked: list[tuple[str, str]], when: str
) -> None:
    async with remembering(LONG, "Ten.", "Ten.") as (call, chat):
        await chat.warmed.wait()
        await ask_first(call, chat)
        await go_on(call)
        if when != "in the pause":
            await changes(call)
        if when == "warmed up":
            chat.warmed.clear()
            call.ears.hear(SpeechResult(2, partial=("In", 0)))
            await chat.warmed.wait()
        number = call.ears.utterance
        call.ears.words[number] = SECOND
        call.ears.hear(ev.SpeechPaused(number, 0))
        await let_work()
        if when == "in the pause":
            await changes(call)
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await answered(call, "Ten.", 2)
        assert last_asked(chat) == asked
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, 3)
        assert last_asked(chat)[: len(asked)] == asked
        assert known(chat) == said(call)
        assert chat.system == call.session.settings.instructions


AFTERWARDS: list[tuple[Callable[[Call], Awaitable[None]], list[tuple[str, str]]]] = [
    (type_first, [("system", "Before all that"), *MERGED]),
    (type_between, [("user", FIRST), ("user", "I mean"), ("user", SECOND)]),
    (delete_first, [("user", SECOND)]),
]


@pytest.mark.parametrize(("changes", "asked"), AFTERWARDS, ids=named)
async def test_what_the_client_changes_when_the_whole_was_said(
    changes: Callable[[Call], Awaitable[None]], asked: list[tuple[str, str]]
) -> None:
    async with remembering(LONG, "Ten.", "Yes.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        await changes(call)
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await answered(call, "Yes.", 3)
        assert last_asked(chat) == [*asked, ("assistant", "Ten.")]
        assert known(chat) == said(call)


async def test_a_reply_that_the_client_asks_for_answers_the_first_half() -> None:
    async with remembering(LONG, "Ten.", "In Paris: nine.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, 2)
        assert last_asked(chat) == [("user", FIRST)]
        await say_rest(call, SECOND)
        await answered(call, "In Paris: nine.", 3)
        assert last_asked(chat) == [("user", FIRST), ("assistant", "Ten."), ("user", SECOND)]
        assert known(chat) == said(call)


async def test_a_reply_out_of_band_leaves_the_turn_open() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        alone = (Message(ItemId("x"), "user", "text", "Alone"),)
        options = ResponseOptions(output_modality="text", out_of_band=True, input=alone)
        call.chat = FakeChat(["Aside."])
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyEnded, 2)
        call.chat = chat
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 3)
        assert last_asked(chat) == [("user", WHOLE)]


@pytest.mark.parametrize("words", [SECOND, " ", None], ids=["words", "no words", "unknown"])
async def test_the_client_commits_the_second_half(words: str | None) -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        call.ears.utterance -= 1  # the fake ears count a commit as an utterance
        await call.session.handle(ask.CommitAudio())
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        number = call.ears.utterance
        if words is None:
            call.ears.hear(ev.TranscriptFailed(number, 1))
        else:
            call.ears.hear(ev.TranscriptReady(number, 1, words))
        await answered(call, "Ten.", 2)
        assert last_asked(chat) == (MERGED if words == SECOND else [("user", FIRST)])
        assert known(chat) == said(call)


async def test_a_half_that_was_deleted_before_its_words_were_known() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        call.ears.utterance -= 1
        await call.session.handle(ask.CommitAudio())
        await delete_reply(call)  # the last item: the second half
        call.ears.hear(ev.TranscriptReady(call.ears.utterance, 1, SECOND))
        await let_work()
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await answered(call, "Ten.", 2)
        assert known(chat) == said(call) == [("user", FIRST), ("assistant", "Ten.")]
