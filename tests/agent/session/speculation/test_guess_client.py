"""A whole session on fake stages: what a client does while a reply is prepared in secret."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ROOT, ItemId, Message
from agent.session.api.settings import ResponseOptions, ServerVad
from agent.session.ports.stage_ports import ChatMessage
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from tests.support.session.guess_call import (
    change,
    end,
    ended,
    known,
    let_work,
    pause,
    remembering,
    said,
    told,
)
from tests.support.session.session_call import Call, call_with

pytestmark = pytest.mark.virtual_time

TEXT = ResponseOptions(output_modality="text")
REFUSED = StageError("llm", "too long", refused=True)


@pytest.fixture(autouse=True)
def every_sound_counts_as_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next thing the caller says is another message."""
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)


async def create(call: Call) -> None:
    await call.session.handle(
        ask.CreateItem(Message(ItemId("new"), "system", "text", "By the way"))
    )


async def insert(call: Call) -> None:
    item = Message(ItemId("new"), "user", "text", "Before all that")
    await call.session.handle(ask.CreateItem(item, ROOT))


async def delete(call: Call) -> None:
    first = next(iter(call.session.conversation))
    await call.session.handle(ask.DeleteItem(first.id))


async def truncate(call: Call) -> None:
    last = call.session.conversation.last_id()
    assert last is not None
    await call.session.handle(ask.TruncateItem(last, 250))


async def instruct(call: Call) -> None:
    await change(call, instructions="Be kind.")


async def limit(call: Call) -> None:
    await change(call, max_output_tokens=50)


async def retype(call: Call) -> None:
    await change(call, output_modality="text")


async def slow_down(call: Call) -> None:
    await change(call, turn_detection=ServerVad(silence_duration_ms=3000))


CHANGES = (create, insert, delete, truncate, instruct, limit, retype, slow_down)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: changes.__name__)
@pytest.mark.parametrize("is_early", [False, True], ids=["ready", "beginning"])
async def test_a_guess_that_the_client_outdates_is_begun_anew(
    changes: Callable[[Call], Awaitable[None]], is_early: bool
) -> None:
    async with remembering("One two three.", "Outdated.", "Fine.") as (call, chat):
        await pause(call, "Count.")
        await end(call)
        await call.until(say.ReplyEnded)
        if is_early:
            chat.hold = asyncio.Event()
        await pause(call, "And now?")
        await changes(call)
        await let_work()
        assert len(call.of(say.ReplyStarted)) == 1
        await end(call)
        if chat.hold is not None:
            chat.hold.set()
        await call.until(say.ReplyEnded, 2)
        answer = "Outdated." if is_early else "Fine."  # a reply that never began was not taken
        assert ended(call)[1] == ("completed", answer)
        assert known(chat) == said(call)
        assert [each.text.strip() for each in chat.asked[-1]] == [
            text for _, text in said(call)[:-1]
        ]
        assert chat.system == call.session.settings.instructions
        assert not call.of(say.Problem)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: changes.__name__)
async def test_a_dropped_guess_that_the_client_outdated_leaves_nothing(
    changes: Callable[[Call], Awaitable[None]],
) -> None:
    async with remembering("One two three.", "Outdated.", "Fine.") as (call, chat):
        await pause(call, "Count.")
        await end(call)
        await call.until(say.ReplyEnded)
        await pause(call, "And")
        await changes(call)
        call.ears.resume()
        await let_work()
        call.ears.words[2] = "And now?"
        call.ears.hear(ev.SpeechPaused(2, 9000))
        call.ears.hear(ev.SilenceGrew(2, 5000))
        await call.until(say.ReplyEnded, 2)
        assert ended(call)[1] == ("completed", "Fine.")
        assert known(chat) == said(call)


async def test_an_item_that_the_model_refuses_is_a_problem_and_the_turn_goes_on() -> None:
    async with remembering("Fine.") as (call, chat):
        chat.refusals = [REFUSED]
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "x" * 99)))
        await pause(call, "Hello?")
        assert call.of(say.Problem) == [say.Problem("too long", "invalid_value")]
        await end(call)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine.")]


@pytest.mark.parametrize(
    "options",
    [
        ResponseOptions(),
        ResponseOptions(instructions="Say banana."),
        TEXT,
        ResponseOptions(out_of_band=True),
        ResponseOptions(out_of_band=True, input=(Message(ItemId("x"), "user", "text", "Alone"),)),
    ],
    ids=["plain", "instructed", "text", "out of band", "own input"],
)
async def test_a_reply_that_the_client_asks_for_goes_first(options: ResponseOptions) -> None:
    async with remembering("Guessed.", "Asked for.", "Fine.", "Last.") as (call, chat):
        await pause(call, "Hello?")
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Asked for.")]
        await end(call)
        await call.until(say.ReplyEnded, 2)
        if options.out_of_band:  # the test has one chat for all
            assert chat.asked[1] in ((), (ChatMessage("user", "Alone"),))
        else:
            assert known(chat) == said(call)
        assert ended(call)[1] == ("completed", "Fine.")


async def test_a_commit_by_the_client_ends_the_guess() -> None:
    async with remembering("Guessed.", "Fine.") as (call, chat):
        await pause(call, "Hello?")
        del call.ears.words[1]
        await call.session.handle(ask.CommitAudio())
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await let_work()
        assert not call.of(say.ReplyStarted)
        call.ears.hear(ev.TranscriptReady(1, 2, "Hello?"))
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine.")]
        assert known(chat) == said(call) == [("user", "Hello?"), ("assistant", "Fine.")]


async def test_audio_that_is_thrown_away_takes_its_guess_along() -> None:
    async with remembering("Guessed.", "Fine.") as (call, chat):
        await pause(call, "Hello?")
        await call.session.handle(ask.ClearAudio())
        call.ears.say("Anybody?")
        await call.until(say.ReplyEnded)
        assert known(chat) == said(call) == [("user", "Anybody?"), ("assistant", "Fine.")]


async def test_a_cancel_finds_nothing_to_cancel_in_a_guess() -> None:
    async with call_with("Fine.") as call:
        await pause(call, "Hello?")
        await call.session.handle(ask.CancelResponse())
        assert [getattr(each, "code", "") for each in call.of(say.Problem)] == [
            "response_cancel_not_active"
        ]
        await end(call)
        await call.until(say.ReplyEnded)
        assert told(call) == [("user", "Hello?"), ("generate", 1)]
