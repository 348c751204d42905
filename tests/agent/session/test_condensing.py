"""Condensing of long calls: when it begins, gives way and comes again; what it covers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import StageError
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    ConversationItems,
    FunctionCall,
    FunctionOutput,
    ItemId,
    Message,
    ModelCall,
    Role,
)
from agent.session.context.chat_context import ChatContext, _same_speakers
from agent.session.context.chat_messages import told
from agent.session.context.condensing import (
    IDLE_MS,
    MAX_SUMMARY_TOKENS,
    MIN_ROOM_TOKENS,
    MIN_SUMMARY_TOKENS,
    RECENT_SHARE,
    RETRY_MS,
    START_SHARE,
    CondensingAttempts,
    CondensingCounts,
    goal_of,
)
from agent.session.context.condensing_scheduler import IdleCondensing
from agent.session.ports.stage_ports import (
    ChatMessage,
    Condensed,
    CondensingGoal,
    ContextUse,
)
from latency_budget.account.clock import ManualClock
from latency_budget.account.marks import MarkName
from latency_budget.reporting.trace import read_trace
from tests.support.fakes.stages import FakeChat
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with

MS = 1_000_000
FULL = ContextUse(length=4096, num_fixed=400, num_turns=3000, num_reserved=96)
DONE = Condensed(("My name is Ada.",), 0, ("user", "assistant"), 3400, 1700)
EMPTY = replace(DONE, roles=())
"""Of a conversation without items."""
BROKEN = StageError("llm", "the cache is full of calls")


# --- the decision ---


def test_it_is_due_at_a_share_of_the_room() -> None:
    room = FULL.length - FULL.num_fixed - FULL.num_reserved
    start = int(START_SHARE * room) + 1
    assert goal_of(replace(FULL, num_turns=start - 2)) is None
    goal = goal_of(replace(FULL, num_turns=start))
    assert goal == CondensingGoal(int(RECENT_SHARE * room), MAX_SUMMARY_TOKENS)


@given(
    st.integers(256, 20_000), st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 8192)
)
def test_a_goal_leaves_room_for_turns(length: int, fixed: int, turns: int, reserved: int) -> None:
    goal = goal_of(ContextUse(length, fixed, turns, reserved))
    room = length - fixed - reserved
    if goal is None:
        assert room < MIN_ROOM_TOKENS or turns < START_SHARE * room
        return
    assert MIN_SUMMARY_TOKENS <= goal.max_summary_tokens <= MAX_SUMMARY_TOKENS
    assert goal.max_kept_tokens + goal.max_summary_tokens < 0.75 * START_SHARE * room


def test_attempts_wait_for_idleness_and_after_a_failure() -> None:
    clock, attempts = ManualClock(), CondensingAttempts()
    assert attempts.due_ns() is None
    attempts.idle(clock.now_ns())
    began_ns = clock.now_ns()
    assert attempts.due_ns() == began_ns + IDLE_MS * MS
    clock.advance_ms(100)
    attempts.idle(clock.now_ns())
    assert attempts.due_ns() == began_ns + IDLE_MS * MS, "it has been idle all along"
    attempts.busy()
    assert attempts.due_ns() is None
    attempts.idle(clock.now_ns())
    assert attempts.due_ns() == clock.now_ns() + IDLE_MS * MS
    attempts.failed(clock.now_ns())
    assert attempts.due_ns() == clock.now_ns() + RETRY_MS * MS
    clock.advance_ms(2 * RETRY_MS)
    attempts.busy()
    attempts.idle(clock.now_ns())
    assert attempts.due_ns() == clock.now_ns() + IDLE_MS * MS


# --- the scheduler ---


class Idling:
    """A scheduler over a fake chat, and what it reports."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.chat = FakeChat()
        self.chat.use = FULL
        self.is_idle = False
        self.done: list[Condensed] = []
        self.counts = CondensingCounts()
        self.context = ChatContext(self.chat, ConversationItems(), "Be brief.")
        self.condensing = IdleCondensing(
            self.context, clock, lambda: self.is_idle, self.done.append, self.counts
        )

    def turn(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.condensing.look()

    @property
    def attempts(self) -> list[str]:
        return [name for name, _ in self.chat.calls]


@asynccontextmanager
async def idling(clock: ManualClock) -> AsyncIterator[Idling]:
    own = Idling(clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(own.condensing.run())
        yield own
        running.cancel()


def test_it_begins_after_some_idleness() -> None:
    async def test(clock: ManualClock) -> None:
        async with idling(clock) as own:
            own.chat.condensed = [EMPTY]
            own.turn(is_idle=True)
            await asyncio.sleep((IDLE_MS - 10) / 1000)
            assert own.attempts == []
            own.turn(is_idle=False)
            await asyncio.sleep(60)
            assert own.attempts == []
            own.turn(is_idle=True)
            await asyncio.sleep((IDLE_MS + 10) / 1000)
            assert own.attempts == ["condense"]
            assert own.done == [EMPTY]
            assert own.counts == CondensingCounts(begun=1, done=1)

    virtual_time.run(test)


def test_a_turn_ends_it_and_it_comes_again() -> None:
    async def test(clock: ManualClock) -> None:
        async with idling(clock) as own:
            own.chat.condensing = asyncio.Event()
            own.turn(is_idle=True)
            await asyncio.sleep(1)
            assert own.attempts == ["condense"]
            own.turn(is_idle=False)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert own.attempts == ["condense", "condense cancelled"]
            assert own.done == []
            own.chat.condensing.set()
            own.chat.condensed = [EMPTY]
            own.turn(is_idle=True)
            await asyncio.sleep(1)
            assert own.done == [EMPTY]
            assert own.counts == CondensingCounts(begun=2, done=1, abandoned=1)

    virtual_time.run(test)


def test_a_failure_is_tried_again_later() -> None:
    async def test(clock: ManualClock) -> None:
        async with idling(clock) as own:
            own.chat.condensed = [BROKEN, BROKEN, EMPTY]
            own.turn(is_idle=True)
            await asyncio.sleep(RETRY_MS / 1000)
            assert own.attempts == ["condense"]
            await asyncio.sleep(2 * RETRY_MS / 1000)
            assert own.attempts == ["condense"] * 3
            assert own.done == [EMPTY]
            assert own.counts == CondensingCounts(begun=3, done=1, failed=2)

    virtual_time.run(test)


@pytest.mark.parametrize("use", [None, replace(FULL, num_turns=500)])
def test_without_need_nothing_is_done(use: ContextUse | None) -> None:
    async def test(clock: ManualClock) -> None:
        async with idling(clock) as own:
            own.chat.use = use
            for _ in range(5):
                own.turn(is_idle=True)
                await asyncio.sleep(1)
            assert own.attempts == []

    virtual_time.run(test)


# --- what the summary covers ---


class Known:
    """A conversation of three exchanges, known to a fake model."""

    def __init__(self) -> None:
        self.items = ConversationItems()
        self.chat = FakeChat()
        self.chat.use = FULL
        self.context = ChatContext(self.chat, self.items, "Be brief.")
        for number in range(3):
            self.add("user", f"question {number}")
            self.add("assistant", f"answer {number}")

    def add(self, role: Role, text: str) -> None:
        item_id = ItemId(f"item_{len(self.items)}")
        self.items.add(Message(item_id, role, "text", text))

    async def condense(self, done: Condensed = DONE) -> None:
        await self.context.settle()
        self.chat.condensed = [done]
        assert await self.context.condense(CondensingGoal(100, 64)) == done

    async def anew(self) -> list[tuple[str, object]]:
        """Requests with which the model takes the conversation anew."""
        self.chat.calls.clear()
        self.context.edited()
        await self.context.settle()
        return self.chat.calls


def told_from(number: int) -> tuple[tuple[str, str], ...]:
    return tuple(
        pair
        for each in range(number, 3)
        for pair in (("user", f"question {each}"), ("assistant", f"answer {each}"))
    )


async def test_taken_anew_the_model_gets_the_summary_and_the_rest() -> None:
    own = Known()
    await own.condense()
    assert own.context.summary == DONE.summary
    assert await own.anew() == [("reset", told_from(1)), ("summary", DONE.summary)]
    again = replace(DONE, summary=("I am Ada.", "I like tea."))
    await own.condense(again)
    assert await own.anew() == [("reset", told_from(2)), ("summary", again.summary)]


async def test_messages_dropped_before_it_count() -> None:
    own = Known()
    await own.condense(replace(DONE, num_left_out=2))
    assert await own.anew() == [("reset", told_from(2)), ("summary", DONE.summary)]


async def test_without_an_item_that_it_covers_there_is_no_summary() -> None:
    own = Known()
    await own.condense()
    own.items.delete(ItemId("item_0"))
    assert await own.anew() == [("reset", (("assistant", "answer 0"), *told_from(1)))]
    assert own.context.summary == ()
    assert await own.anew() == [("reset", (("assistant", "answer 0"), *told_from(1)))]


async def test_without_a_later_item_the_summary_stays() -> None:
    own = Known()
    await own.condense()
    own.items.delete(ItemId("item_5"))
    assert await own.anew() == [("reset", told_from(1)[:-1]), ("summary", DONE.summary)]


async def test_where_it_is_not_known_what_it_covers_all_is_taken_anew() -> None:
    own = Known()
    with pytest.raises(StageError, match="what the summary covers"):
        await own.condense(replace(DONE, roles=("user", "user")))
    assert own.context.is_edited
    own.chat.calls.clear()
    await own.context.settle()
    assert own.chat.calls == [("reset", told_from(0))]


@pytest.mark.parametrize("num_calls", [1, 2])
@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_result_that_comes_after_its_call_was_condensed_leaves_the_summary(
    *, num_calls: int, is_taken_over: bool
) -> None:
    """It stands in its own place, behind its call once more: model servers refuse a result without
    its call. Of two calls, the other's result was there in time."""
    own = Known()
    calls = [FunctionCall(ItemId(f"call_{n}"), f"id_{n}", f"tool_{n}", "{}") for n in (1, 2)]
    for each in calls[:num_calls]:
        own.items.add(each, ItemId("item_1" if each is calls[0] else "call_1"))
    roles = ["user", "assistant"]
    if num_calls == 2:
        own.items.add(FunctionOutput(ItemId("in_time"), "id_2", "known"), ItemId("call_2"))
        roles += ["tool", "tool"]
    own.context.edited()
    await own.condense(replace(DONE, roles=tuple(roles)))
    num_covered = own.context.num_covered
    assert num_covered == len(roles)
    late = FunctionOutput(ItemId("late"), "id_1", "ten")
    own.items.add(late)
    own.context.added(late)
    own.add("user", "question 3")
    if is_taken_over:
        apart = own.context.apart
        own.context = ChatContext(own.chat, own.items, "Be brief.")
        own.context.restore(DONE.summary, num_covered, apart)
    late_told = (("assistant", ""), ("tool", "ten"), ("user", "question 3"))
    assert await own.anew() == [("reset", (*told_from(1), *late_told)), ("summary", DONE.summary)]
    assert told(own.items, own.context.apart)[-3][1].calls == (ModelCall("tool_1", "{}"),)
    # The next summary covers it there.
    roles = ["user", "assistant"] * 2 + ["assistant", "tool"]
    again = replace(DONE, roles=tuple(roles), summary=("It is ten.",))
    await own.condense(again)
    assert await own.anew() == [("reset", (("user", "question 3"),)), ("summary", again.summary)]
    # Without a message that it covers, the result is back behind its call.
    own.items.delete(ItemId("item_0"))
    ((_, messages),) = await own.anew()
    assert isinstance(messages, tuple)
    assert ("tool", "ten") in messages[:3]
    assert messages.count(("tool", "ten")) == 1


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_result_that_comes_after_its_call_was_dropped_is_read(
    *, is_taken_over: bool
) -> None:
    """Behind its call, in front of all, the model would drop it with the call once more."""
    own = Known()
    for each in (1, 2):
        own.items.add(FunctionCall(ItemId(f"call_{each}"), f"id_{each}", "tool", "{}"))
        own.add("user", f"more {each}")
        own.add("assistant", f"answer to more {each}")
    own.context.edited()
    await own.context.settle()
    own.chat.num_left_out = 8
    late = FunctionOutput(ItemId("late"), "id_1", "ten")
    own.items.add(late)
    own.context.added(late)
    assert own.context.apart == {"id_1"}
    if is_taken_over:
        apart, own.context = own.context.apart, ChatContext(own.chat, own.items, "Be brief.")
        own.context.restore((), 0, apart)
    for _ in range(2):  # each time the model drops its oldest messages again
        ((_, messages),) = await own.anew()
        assert isinstance(messages, tuple)
        assert messages[-2:] == (("assistant", ""), ("tool", "ten"))
        assert messages.count(("tool", "ten")) == 1
        own.chat.num_left_out = 8
    assert told(own.items, own.context.apart)[-2][1].calls == (ModelCall("tool", "{}"),)


async def test_a_result_that_comes_to_another_server_before_its_first_prompt_is_read() -> None:
    """The model there has dropped nothing yet. It will, as at the first server."""
    own = Known()
    own.items.add(FunctionCall(ItemId("call"), "id_1", "tool", "{}"))
    own.add("user", "more")
    own.add("assistant", "answer to more")
    own.context.edited()
    await own.context.settle()
    assert not own.context.has_dropped
    own.chat.num_left_out = 4
    assert own.context.has_dropped
    for _ in range(2):  # the second server may be lost as well, before it has read anything
        has_dropped = own.context.has_dropped
        own.chat, own.context = FakeChat(), ChatContext(own.chat, own.items, "Be brief.")
        own.context.restore((), 0, (), has_dropped=has_dropped)
    late = FunctionOutput(ItemId("late"), "id_1", "ten")
    own.items.add(late)
    own.context.added(late)
    assert own.context.apart == {"id_1"}
    messages = told(own.items, own.context.apart)
    assert [text for _, text in messages[-2:]] == [
        ChatMessage("assistant", "", (ModelCall("tool", "{}"),)),
        ChatMessage("tool", "ten"),
    ]


async def test_a_result_that_comes_late_where_nothing_was_dropped_stands_behind_its_call() -> None:
    own = Known()
    own.items.add(FunctionCall(ItemId("call"), "id_1", "tool", "{}"), ItemId("item_1"))
    own.context.edited()
    await own.condense()
    own.chat.num_left_out = len(DONE.roles)  # the summary has taken their place
    own.items.add(FunctionCall(ItemId("call_2"), "id_2", "tool", "{}"))
    own.add("user", "more")
    late = FunctionOutput(ItemId("late"), "id_2", "ten")
    own.items.add(late)
    own.context.added(late)
    assert "id_2" not in own.context.apart
    messages = (await own.anew())[0][1]
    assert isinstance(messages, tuple)
    assert messages[-2:] == (("tool", "ten"), ("user", "more"))


def test_a_model_may_read_results_of_tools_as_the_users_messages() -> None:
    assert _same_speakers(["user", "tool"], ("user", "user"))
    assert not _same_speakers(["user", "assistant"], ("user", "user"))
    assert not _same_speakers(["user"], ("user", "user"))


async def test_nothing_is_condensed_while_the_model_lacks_a_message() -> None:
    own = Known()
    assert own.context.use() == FULL
    own.chat.refusals = [StageError("llm", "too long", refused=True)]
    own.context.said("a long story")
    with pytest.raises(StageError):
        await own.context.settle()
    assert own.context.use() is None


# --- in a session ---


def test_a_client_is_told_and_the_next_turn_has_the_mark() -> None:
    async def test(clock: ManualClock) -> None:
        chat = FakeChat(["Hello there.", "Fine."])
        async with call_with(chat=chat, clock=clock) as call:
            chat.use = FULL
            chat.condensed, chat.condensing = [DONE], asyncio.Event()
            call.ears.say("My name is Ada.")
            await call.until(say.ReplyEnded)
            chat.condensing.set()
            await asyncio.sleep(30)
            (told,) = [
                each
                for each in call.notices
                if isinstance(each, say.Extension) and each.type == "halfsec.context"
            ]
            assert told.fields == {
                "summary": "My name is Ada.",
                "messages": 2,
                "tokens_before": 3400,
                "tokens": 1700,
            }
            items = len(call.session.conversation)
            call.ears.say("How are you?")
            await call.until(say.ReplyEnded, 2)
            assert len(call.session.conversation) == items + 2, "no item has gone"
            marks = [
                mark
                for mark in read_trace(call.trace.lines()).marks()
                if mark.name is MarkName.LLM_CONDENSED
            ]
            assert [(mark.prompt_tokens, mark.output_tokens) for mark in marks] == [(3400, 1700)]

    virtual_time.run(test)


def test_it_runs_while_the_reply_plays_and_stops_when_the_caller_speaks() -> None:
    async def test(clock: ManualClock) -> None:
        chat = FakeChat(["A reply that takes some seconds to be played to its end, as many do."])
        async with call_with(chat=chat, clock=clock) as call:
            chat.use = FULL
            chat.condensing = asyncio.Event()
            call.ears.say("Hello?")
            await call.until(say.ReplyAudio)
            await asyncio.sleep(1)
            names = [name for name, _ in chat.calls]
            assert names[-1] == "condense"
            assert call.of(say.ReplyEnded) == [], "it still plays"
            call.ears.pause("And")
            await call.until(say.SpeechStarted, 2)
            await asyncio.sleep(0)
            assert "condense cancelled" in [name for name, _ in chat.calls]

    virtual_time.run(test)
