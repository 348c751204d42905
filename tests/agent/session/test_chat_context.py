"""Synchronization of the model's history: cancelled, refused, edited in the middle of a reply."""

import asyncio
from collections.abc import Sequence

import pytest

from agent.errors import StageError
from agent.session.api.conversation import ConversationItems, ItemId, Message, Role
from agent.session.api.settings import Truncation
from agent.session.context.chat_context import MAX_PENDING, ChatContext
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.stage_ports import ChatMessage
from tests.support.fakes.stages import FakeChat


class SlowChat(FakeChat):
    """Notes what it is told only when the gate opens, as an engine does that is asked first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.faults: list[StageError] = []

    async def _take(self) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        await self._take()
        await super().set_system(text, examples)

    async def commit(self, message: ChatMessage) -> None:
        await self._take()
        await super().commit(message)

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        await self._take()
        await super().reset(messages, summary)

    async def truncate_reply(self, num_chars: int) -> None:
        await self._take()
        await super().truncate_reply(num_chars)


REFUSED = StageError("llm", "too long", refused=True)
BROKEN = StageError("llm", "the engine is closed")


class Talk:
    def __init__(self) -> None:
        self.chat = SlowChat()
        self.conversation = ConversationItems()
        self.context = ChatContext(self.chat, self.conversation, "Be brief.")

    def item(self, name: str, role: Role, text: str | None) -> Message:
        item = Message(ItemId(name), role, "text", text)
        self.conversation.add(item)
        return item

    def add(self, name: str, role: Role, text: str) -> None:
        self.context.added(self.item(name, role, text))

    async def settled(self, instructions: str | None = None) -> list[tuple[str, object]]:
        """What the model is told when it answers at once."""
        self.chat.gate.set()
        before = len(self.chat.calls)
        await self.context.settle(instructions)
        return self.chat.calls[before:]

    async def cut_off(self, instructions: str | None = None) -> None:
        """A reply that is cancelled while the model is told."""
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(self.context.settle(instructions))
            await self.chat.asked.wait()
            settling.cancel()
        self.chat.asked.clear()


async def test_cancelled_sync_is_completed_by_the_next_one() -> None:
    talk = Talk()
    talk.add("a", "user", "one")
    talk.add("b", "user", "two")
    await talk.cut_off()
    assert await talk.settled() == [("user", "one"), ("user", "two")]
    assert await talk.settled() == []


async def test_cancelled_edit_is_sent_by_the_next_sync() -> None:
    talk = Talk()
    talk.item("a", "user", "one")
    talk.context.edited()
    await talk.cut_off()
    talk.add("b", "user", "two")
    assert await talk.settled() == [("reset", (("user", "one"), ("user", "two")))]


async def test_too_many_changes_are_the_whole_conversation_anew() -> None:
    talk = Talk()
    words = [f"word {number}" for number in range(MAX_PENDING + 1)]
    for number, text in enumerate(words[:-1]):
        talk.add(f"item_{number}", "user", text)
    assert len(talk.context._pending) == MAX_PENDING
    talk.add("last", "user", words[-1])
    assert len(talk.context._pending) == 0
    assert await talk.settled() == [("reset", tuple(("user", text) for text in words))]
    talk.add("more", "user", "more")
    assert await talk.settled() == [("user", "more")]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_instructions_of_one_response_do_not_stick(cancelled: bool) -> None:
    talk = Talk()
    if cancelled:
        await talk.cut_off("Say banana.")
        assert await talk.settled() == []
    else:
        assert await talk.settled("Say banana.") == [("system", "Say banana.")]
        assert await talk.settled() == [("system", "Be brief.")]


async def test_an_update_during_a_response_with_its_own_instructions_counts() -> None:
    talk = Talk()
    await talk.settled("Say banana.")
    talk.context.instructions = "Be kind."
    assert await talk.settled() == [("system", "Be kind.")]


async def test_failed_message_is_sent_again_and_refused_message_is_not() -> None:
    talk = Talk()
    talk.add("a", "user", "one")
    talk.chat.gate.set()
    talk.chat.faults = [BROKEN, REFUSED]
    with pytest.raises(StageError, match="closed"):
        await talk.context.settle()
    with pytest.raises(StageError, match="too long"):
        await talk.context.settle()
    assert await talk.settled() == []


async def test_refused_instructions_leave_the_old_ones() -> None:
    talk = Talk()
    talk.context.instructions = "x" * 99
    talk.chat.gate.set()
    talk.chat.faults = [REFUSED]
    with pytest.raises(StageError):
        await talk.context.settle()
    assert await talk.settled() == []


async def test_an_edit_in_mid_reply_keeps_the_reply() -> None:
    talk = Talk()
    talk.add("a", "user", "one")
    talk.add("b", "user", "two")
    await talk.settled()
    talk.item("reply", "assistant", None)
    talk.conversation.delete(ItemId("a"))
    talk.context.edited()
    talk.conversation.set_text(ItemId("reply"), "An answer.", "completed")
    talk.add("c", "user", "three")
    whole = (("user", "two"), ("assistant", "An answer."), ("user", "three"))
    assert await talk.settled() == [("reset", whole)]


async def test_message_added_during_a_reset_is_sent_after_it() -> None:
    talk = Talk()
    talk.item("a", "user", "one")
    talk.context.edited()
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.context.settle())
        await talk.chat.asked.wait()
        talk.add("b", "user", "two")
        talk.chat.gate.set()
    assert talk.chat.calls == [("reset", (("user", "one"),)), ("user", "two")]


async def test_a_cut_is_corrected_until_the_model_has_made_it() -> None:
    talk = Talk()
    talk.item("reply", "assistant", "One two three.")
    talk.context.answering()
    talk.context.reply_cut(3)
    talk.context.reply_cut(7)
    assert await talk.settled() == [("truncate", 7)]
    talk.context.reply_cut(3)
    assert await talk.settled() == [("truncate", 3)]
    talk.context.reply_cut(7)  # the model has only three characters left
    assert await talk.settled() == [("reset", (("assistant", "One two three."),))]


async def test_a_late_cut_does_not_hit_another_message_of_the_agents() -> None:
    talk = Talk()
    talk.item("reply", "assistant", "One two three.")
    talk.context.answering()
    talk.add("mine", "assistant", "By the way.")
    await talk.settled()
    talk.conversation.set_text(ItemId("reply"), "One", "incomplete")
    talk.context.reply_cut(3)
    assert await talk.settled() == [("reset", (("assistant", "One"), ("assistant", "By the way.")))]


# --- words that may become a message ---


async def supposed(talk: Talk, text: str) -> None:
    talk.chat.gate.set()
    await talk.context.suppose(text)


async def test_confirmed_speculative_message_is_sent_once() -> None:
    talk = Talk()
    await supposed(talk, "one")
    talk.context.said("one")
    assert talk.context.adopt()
    talk.context.said("one")  # the same words again are another message
    assert await talk.settled() == [("user", "one")]


async def test_dropped_speculative_message_is_withdrawn_first() -> None:
    talk = Talk()
    await supposed(talk, "one")
    talk.add("a", "system", "By the way.")
    assert not talk.context.adopt()
    talk.context.said("one")
    assert await talk.settled() == [
        ("take back", None), ("system", "By the way."), ("user", "one")
    ]  # fmt: skip


async def test_speculative_message_is_resent_after_changed_instructions() -> None:
    talk = Talk()
    await supposed(talk, "one")
    talk.context.instructions = "Be kind."
    talk.context.said("one")
    assert not talk.context.adopt()
    talk.context.withdraw()
    assert await talk.settled() == [
        ("system", "Be kind."), ("take back", None), ("user", "one")
    ]  # fmt: skip


async def test_cancelled_speculation_sends_nothing() -> None:
    talk = Talk()
    async with asyncio.TaskGroup() as group:
        supposing = group.create_task(talk.context.suppose("one"))
        await talk.chat.asked.wait()
        supposing.cancel()
        talk.context.withdraw()
    talk.context.said("one two")
    assert await talk.settled() == [("user", "one two")]


async def test_what_changes_while_it_is_supposed_comes_after_it_is_taken_back() -> None:
    talk = Talk()
    talk.item("reply", "assistant", "One two three.")
    talk.context.answering()
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.context.suppose("one"))
        await talk.chat.asked.wait()
        talk.context.reply_cut(3)
        talk.add("a", "user", "Hello")
        talk.chat.gate.set()
    assert talk.chat.calls == [("user", "one")]
    assert await talk.settled() == [("take back", None), ("truncate", 3), ("user", "Hello")]


async def test_an_edit_while_something_is_supposed_needs_no_taking_back() -> None:
    talk = Talk()
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.context.suppose("one"))
        await talk.chat.asked.wait()
        talk.context.edited()
        talk.chat.gate.set()
    talk.context.withdraw()
    assert await talk.settled() == [("reset", ())]


async def test_a_cut_of_a_reply_without_words_leaves_the_one_before() -> None:
    talk = Talk()
    talk.item("reply", "assistant", None)
    talk.context.answering()
    words: list[str] = []
    talk.context.reply_cut(0, lambda: bool(words))
    assert await talk.settled() == []
    talk.context.answering()
    talk.context.reply_cut(0, lambda: bool(words))
    words.append("late")  # from a model that was being stopped
    assert await talk.settled() == [("truncate", 0)]


async def test_an_idle_prefill_tries_once_what_is_refused_until_it_is_shorter() -> None:
    talk = Talk()
    talk.chat.gate.set()
    told: list[StageError] = []
    prefill = IdlePrefill(talk.context, lambda: True, told.append)
    talk.context.truncation = Truncation(is_disabled=True)
    talk.add("a", "user", "one")
    talk.context.edited()
    talk.chat.faults = [REFUSED] * 2
    for number in (1, 2):
        assert not await prefill.catch_up()
        assert len(told) == number
        assert talk.context.is_edited
        assert not prefill._wanted.is_set(), "the client has to change something first"
    assert await prefill.catch_up()
    talk.add("b", "user", "two")
    talk.chat.faults = [REFUSED]
    assert not await prefill.catch_up()
    assert prefill._wanted.is_set(), "what was refused is left out from now on"
