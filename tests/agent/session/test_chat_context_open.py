"""Synchronization of a user's message that goes on."""

import asyncio

import pytest

from agent.session.api.conversation import FunctionCall, ItemId, Message
from agent.session.context.chat_messages import joined, messages_of
from agent.session.ports.stage_ports import ChatMessage
from tests.agent.session.test_chat_context import REFUSED, Talk

FIRST, SECOND = ItemId("first"), ItemId("second")


async def reopened(*, settled: bool = True) -> Talk:
    """The model was asked "one", and the reply to it never was."""
    talk = Talk()
    talk.item(FIRST, "user", "one")
    talk.context.said("one")
    if settled:
        await talk.settled()
    talk.context.reopened(FIRST)
    return talk


def rest(talk: Talk, text: str) -> None:
    """The other half, as it is committed."""
    talk.conversation.add(Message(SECOND, "user", "audio", text, continues=talk.context.open_item))
    talk.context.said(text, goes_on=True)


async def test_both_halves_are_sent_as_one_message() -> None:
    talk = await reopened()
    assert await talk.settled() == [("take back", None)]
    rest(talk, " two ")
    assert await talk.settled() == [("user", "one two")]


async def test_half_not_yet_sent_to_the_model() -> None:
    talk = await reopened(settled=False)
    rest(talk, "two")
    assert await talk.settled() == [("user", "one"), ("take back", None), ("user", "one two")]


async def test_unjoined_half_is_resent_once() -> None:
    talk = await reopened()
    talk.context.stays()
    talk.context.stays()
    assert await talk.settled() == [("take back", None), ("user", "one")]


async def test_a_rest_without_words_leaves_the_half() -> None:
    talk = await reopened()
    rest(talk, " ")
    assert await talk.settled() == [("take back", None), ("user", "one")]


async def test_another_message_comes_behind_the_half() -> None:
    talk = await reopened()
    talk.context.said("something else")
    assert await talk.settled() == [
        ("take back", None), ("user", "one"), ("user", "something else")
    ]  # fmt: skip
    assert (talk.context.open_item, talk.context.open_text) == (None, "")


async def test_an_item_without_words_ends_nothing() -> None:
    talk = await reopened()
    talk.add("a", "user", " ")
    assert talk.context.open_text == "one"


async def test_a_third_half_goes_on_with_both() -> None:
    talk = await reopened()
    rest(talk, "two")
    await talk.settled()
    talk.context.reopened(SECOND)
    assert talk.context.open_text == "one two"
    talk.context.said("three", goes_on=True)
    assert await talk.settled() == [("take back", None), ("user", "one two three")]


async def test_what_is_not_the_last_message_is_not_gone_on_with() -> None:
    talk = Talk()
    talk.item(FIRST, "user", "one")
    talk.context.said("one")
    talk.add("a", "user", "a note")
    talk.context.reopened(FIRST)
    talk.context.said("two", goes_on=True)
    assert await talk.settled() == [("user", "one"), ("user", "a note"), ("user", "two")]


async def test_a_guess_at_the_whole_is_adopted_with_the_whole() -> None:
    talk = await reopened()
    talk.chat.gate.set()
    await talk.context.suppose("two")
    rest(talk, "two")
    assert talk.context.adopt()
    assert talk.chat.calls[-2:] == [("take back", None), ("user", "one two")]
    assert await talk.settled() == []


async def test_a_guess_at_the_whole_that_is_withdrawn_leaves_the_half_open() -> None:
    talk = await reopened()
    talk.chat.gate.set()
    await talk.context.suppose("two")
    talk.context.withdraw()
    await talk.context.suppose("two or three")
    talk.context.withdraw()
    rest(talk, "two or four")
    assert await talk.settled() == [("take back", None), ("user", "one two or four")]
    assert ("user", "one two or three") in talk.chat.calls


async def test_a_note_while_the_whole_is_supposed_parts_the_halves() -> None:
    talk = await reopened()
    await talk.settled()
    talk.chat.gate.clear()
    talk.chat.asked.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.context.suppose("two"))
        await talk.chat.asked.wait()
        talk.add("a", "user", "a note")
        talk.chat.gate.set()
    rest(talk, "two")
    assert talk.chat.calls[-1] == ("user", "one two")
    assert await talk.settled() == [
        ("take back", None), ("user", "one"), ("user", "a note"), ("user", "two")
    ]  # fmt: skip
    assert [each.text for each in messages_of(talk.conversation)] == ["one", "a note", "two"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_history_taken_anew_leaves_the_open_half_out(is_deleted: bool) -> None:
    talk = Talk()
    talk.add("a", "system", "before")
    talk.item(FIRST, "user", "one")
    talk.context.said("one")
    await talk.settled()
    talk.context.reopened(FIRST)
    talk.conversation.delete(FIRST if is_deleted else ItemId("a"))
    talk.context.edited()
    kept = (("system", "before"),) if is_deleted else ()
    assert await talk.settled() == [("reset", kept)]
    rest(talk, "two")
    assert await talk.settled() == [("user", "two" if is_deleted else "one two")]


async def test_half_sent_during_a_history_reset_follows_it() -> None:
    talk = await reopened()
    talk.context.edited()
    talk.chat.gate.clear()
    talk.chat.asked.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.context.settle())
        await talk.chat.asked.wait()
        talk.context.stays()
        talk.chat.gate.set()
    assert talk.chat.calls[-2:] == [("reset", ()), ("user", "one")]


async def test_taking_back_that_is_cancelled_is_done_by_the_next_one() -> None:
    talk = Talk()
    talk.add("a", "user", "zero")
    talk.item(FIRST, "user", "one")
    talk.context.said("one")
    await talk.cut_off()
    talk.context.reopened(FIRST)
    rest(talk, "two")
    assert await talk.settled() == [
        ("user", "zero"), ("user", "one"), ("take back", None), ("user", "one two")
    ]  # fmt: skip


async def test_what_the_model_refused_is_not_taken_back_in_place_of_another() -> None:
    talk = Talk()
    talk.add("a", "user", "zero")
    await talk.settled()
    talk.item(FIRST, "user", "one")
    talk.context.said("one")
    talk.chat.refusals = [REFUSED]
    with pytest.raises(type(REFUSED)):
        await talk.settled()
    talk.context.reopened(FIRST)
    assert await talk.settled() == [("reset", (("user", "zero"),))]


def test_halves_are_one_message_where_nothing_was_said_between() -> None:
    first = Message(FIRST, "user", "audio", "one ")
    unheard = Message(ItemId("reply"), "assistant", "audio", "", "incomplete")
    second = Message(SECOND, "user", "audio", "two", continues=FIRST)
    third = Message(ItemId("third"), "user", "audio", "three", continues=SECOND)
    call = FunctionCall(ItemId("call"), "c", "look", "{}")
    other = Message(FIRST, "assistant", "audio", "A client may use an id again.")
    whole = ChatMessage("user", "one two three")
    assert messages_of([first, unheard, second, third]) == [whole]
    assert len(messages_of([first, call, second])) == 3
    assert len(messages_of([second, third])) == 1
    assert len(messages_of([other, second])) == 2


@pytest.mark.parametrize(
    ("halves", "whole"),
    [(("a ", " b"), "a b"), (("", " b"), " b"), (("a ", ""), "a"), (("", ""), "")],
)
def test_halves_are_joined_by_one_space(halves: tuple[str, str], whole: str) -> None:
    assert joined(*halves) == whole
