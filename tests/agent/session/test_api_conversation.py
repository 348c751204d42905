"""Items in order: what clients add, change, look up and delete."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.errors import ClientError
from agent.session.api.conversation import (
    MAX_ITEMS,
    ROOT,
    ConversationItems,
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
)

A, B, C, GONE = ItemId("a"), ItemId("b"), ItemId("c"), ItemId("gone")


def said(item_id: ItemId, text: str | None = "Hello.") -> Message:
    return Message(item_id, "user", "audio", text)


def of(*item_ids: ItemId) -> ConversationItems:
    conversation = ConversationItems()
    for item_id in item_ids:
        conversation.add(said(item_id))
    return conversation


def order(conversation: ConversationItems) -> list[ItemId]:
    return [item.id for item in conversation]


def test_new_conversation_is_empty() -> None:
    conversation = ConversationItems()
    assert (len(conversation), list(conversation), conversation.last_id()) == (0, [], None)
    assert A not in conversation


@pytest.mark.parametrize(
    ("after", "previous", "expected"),
    [
        (None, B, [A, B, C]),
        (A, A, [A, C, B]),
        (B, B, [A, B, C]),
        (ROOT, None, [C, A, B]),
    ],
)
def test_item_is_added_where_it_is_wanted(
    after: ItemId | None, previous: ItemId | None, expected: list[ItemId]
) -> None:
    conversation = of(A, B)
    assert conversation.add(said(C), after) == previous
    assert order(conversation) == expected
    assert conversation.last_id() == expected[-1]


@pytest.mark.parametrize("after", [None, ROOT])
def test_first_item_has_none_before_it(after: ItemId | None) -> None:
    assert ConversationItems().add(said(A), after) is None


def test_taken_id_is_refused() -> None:
    conversation = of(A)
    with pytest.raises(ClientError, match="'a' exists already") as raised:
        conversation.add(said(A, "Another."))
    assert (raised.value.code, raised.value.param) == ("item_create_duplicate_item_id", "item.id")
    assert list(conversation) == [said(A)]


def test_unknown_predecessor_is_refused() -> None:
    conversation = of(A)
    with pytest.raises(ClientError, match="'gone' to put this one after") as raised:
        conversation.add(said(B), GONE)
    assert (raised.value.code, raised.value.param) == ("item_not_found", "previous_item_id")
    assert B not in conversation


def test_full_conversation_takes_no_more_until_something_is_deleted() -> None:
    conversation = of(*(ItemId(str(number)) for number in range(MAX_ITEMS)))
    with pytest.raises(ClientError, match="at most 1000 items; delete some") as raised:
        conversation.add(said(A))
    assert raised.value.code == "conversation_full"
    conversation.delete(ItemId("500"))
    conversation.add(said(A))
    assert len(conversation) == MAX_ITEMS


def test_deleted_item_is_not_found() -> None:
    conversation = of(A, B)
    conversation.delete(A)
    for attempt in (
        lambda: conversation.get(A),
        lambda: conversation.delete(A),
        lambda: conversation.update(said(A)),
        lambda: conversation.set_text(A, "Hi.", "completed"),
    ):
        with pytest.raises(ClientError, match="no item 'a' in this conversation") as raised:
            attempt()
        assert (raised.value.code, raised.value.param) == ("item_not_found", "item_id")
    assert order(conversation) == [B]


def test_deleted_id_may_be_used_again() -> None:
    conversation = of(A, B)
    conversation.delete(A)
    assert conversation.add(said(A)) == B
    assert order(conversation) == [B, A]


def test_update_keeps_the_place() -> None:
    conversation = of(A, B)
    call: Item = FunctionCall(A, "call_1", "weather", "{}", "in_progress")
    conversation.update(call)
    assert list(conversation) == [call, said(B)]


def test_reply_is_truncated_to_the_played_text() -> None:
    conversation = ConversationItems()
    reply = Message(A, "assistant", "audio", "It is ten past four.", "in_progress")
    conversation.add(reply)
    conversation.set_text(A, "It is ten", "incomplete")
    assert conversation.get(A) == replace(reply, text="It is ten", status="incomplete")


def test_late_transcript_fills_its_message() -> None:
    conversation = ConversationItems()
    conversation.add(said(A, None))
    conversation.set_text(A, "", "completed")
    assert conversation.get(A) == said(A, "")


@pytest.mark.parametrize("item", [FunctionCall(A, "c", "f", "{}"), FunctionOutput(A, "c", "4")])
def test_only_messages_have_text(item: Item) -> None:
    conversation = ConversationItems()
    conversation.add(item)
    with pytest.raises(ClientError, match="'a' is no message") as raised:
        conversation.set_text(A, "Hi.", "completed")
    assert raised.value.code == "item_not_a_message"
    assert conversation.get(A) is item


class AgainstList(RuleBasedStateMachine):
    """A conversation does what a plain list of items does."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = ConversationItems()
        self.items: list[Message] = []
        self.added = 0

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.added += 1
        item = said(ItemId(str(self.added)))
        index = data.draw(st.integers(0, len(self.items)))
        before = self.items[index - 1].id if index else None
        assert self.conversation.add(item, before or ROOT) == before
        self.items.insert(index, item)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.items) - 1))
        self.conversation.delete(self.items.pop(index).id)

    @precondition(lambda self: self.items)
    @rule(data=st.data(), text=st.none() | st.text())
    def change(self, data: st.DataObject, text: str | None) -> None:
        index = data.draw(st.integers(0, len(self.items) - 1))
        self.conversation.set_text(self.items[index].id, text, "completed")
        self.items[index] = replace(self.items[index], text=text)

    @invariant()
    def same(self) -> None:
        assert list(self.conversation) == self.items
        assert len(self.conversation) == len(self.items)
        assert self.conversation.last_id() == (self.items[-1].id if self.items else None)
        assert all(self.conversation.get(item.id) == item for item in self.items)


TestAgainstList = AgainstList.TestCase
TestAgainstList.settings = settings(max_examples=50, deadline=None, derandomize=True)
