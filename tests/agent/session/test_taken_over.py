"""A session that goes on at another server, from what the first one recorded: in virtual time, on
fake stages."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from agent.calls.call_state import CallHead, CallState, CallStateEncoder, read_state
from agent.config.schema import AgentProfile
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
    ModelCall,
    ToolRound,
)
from agent.session.api.session_state import SessionState
from agent.session.api.settings import ResponseOptions, ServerVad
from agent.session.ports.stage_ports import ChatMessage
from agent.session.response.task import LOST
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import (
    CHAR_S,
    REPLY,
    begin,
    ended,
    items,
    listen,
    over,
    play,
    wire_is_in_order,
)
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CALL, Toolbox, equip, until

HEARD = "Your table for two is booked"
"""Of `REPLY`, after 30 characters."""

Story = Callable[[Call], Awaitable[None]]


def recorded(session: SessionState) -> SessionState:
    """The state as another server reads it."""
    head = CallHead("sess_test", "default", "m", (), "", 2_000_000_000, 0, ())
    return read_state(CallStateEncoder().fields(CallState(head, session))).session


def state_after(seconds: float, *replies: str) -> SessionState:
    """The state so long after the first audio of a reply."""
    states: list[SessionState] = []

    async def story(call: Call) -> None:
        await asyncio.sleep(seconds)
        states.append(recorded(call.session.state()))

    play(story, *replies)
    return states[0]


def go_on(state: SessionState, story: Story, *replies: str | Calling) -> Call:
    """The call at another server, whose client comes before the story."""
    calls: list[Call] = []

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat([*replies, "Next.", "And next."])
        profile = AgentProfile(greeting="Hello there.")
        async with call_with(chat=chat, clock=clock, restored=state, profile=profile) as call:
            calls.append(call)
            listen(call)
            await asyncio.sleep(0.5)
            assert call.notices == [], "nobody is there to be told"
            call.session.client_back()
            await story(call)

    virtual_time.run(test)
    (call,) = calls
    assert not call.of(say.SessionCreated)
    wire_is_in_order_after(call, state)
    return call


def wire_is_in_order_after(call: Call, state: SessionState) -> None:
    """As `wire_is_in_order`, with the items of before."""
    if not state.items:
        wire_is_in_order(call)
    ids = [item.id for item in call.session.conversation]
    assert len(set(ids)) == len(ids)
    started = [each.response_id for each in call.notices if isinstance(each, say.ReplyStarted)]
    assert len(set(started)) == len(started)


def texts(call: Call) -> list[str | None]:
    return [item.text for item in items(call)]


def history(call: Call) -> list[str]:
    assert isinstance(call.chat, RememberingChat)
    return [message.text for message in call.chat.history]


async def answer(call: Call, count: int = 1) -> None:
    """Ask for a response, without speech, and wait for it."""
    await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
    await call.until(say.ReplyEnded, count)


def test_the_history_has_the_words_that_were_heard() -> None:
    state = state_after(30.5 * CHAR_S)

    async def story(call: Call) -> None:
        assert not call.session.will_answer
        await answer(call)

    call = go_on(state, story)
    assert texts(call) == ["Is it booked?", HEARD, "Next."]
    assert [item.status for item in items(call)] == ["completed", "incomplete", "completed"]
    assert history(call) == ["Is it booked?", HEARD, "Next."]
    resets = [told for name, told in call.chat.calls if name == "reset"]
    assert resets == [(("user", "Is it booked?"), ("assistant", HEARD))], "it is read once"


def test_the_client_knows_better_what_was_heard() -> None:
    state = state_after(30.5 * CHAR_S)
    for chars, heard in ((12.5, "Your table"), (37.9, "Your table for two is booked for"), (0, "")):

        async def story(call: Call, chars: float = chars) -> None:
            item = items(call)[-1]
            await call.session.handle(ask.TruncateItem(item.id, round(chars * CHAR_S * 1000)))
            await answer(call)

        call = go_on(state, story)
        assert texts(call) == ["Is it booked?", heard, "Next."]
        assert history(call) == [text for text in ("Is it booked?", heard, "Next.") if text]


def test_an_answer_that_was_not_heard_is_given_once() -> None:
    state = state_after(0)

    async def story(call: Call) -> None:
        assert call.session.will_answer or call.of(say.ReplyStarted)
        await call.until(say.ReplyEnded)
        await asyncio.sleep(60)

    call = go_on(state, story, "Yes, for nine.")
    assert texts(call) == ["Is it booked?", "", "Yes, for nine."]
    assert history(call) == ["Is it booked?", "Yes, for nine."]
    assert len(call.of(say.ReplyStarted)) == 1


def test_a_reply_that_had_not_begun_to_speak_is_given() -> None:
    """With tools it has no item before its first word."""
    state = state_after(0)
    assert state.answers_caller
    state = replace(state, reply=None, items=state.items[:1])

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)

    call = go_on(state, story, "Yes, for nine.")
    assert texts(call) == ["Is it booked?", "Yes, for nine."]


def test_an_unheard_answer_survives_two_servers() -> None:
    """The second one is lost as well, before its client has come."""
    states: list[SessionState] = []
    first = state_after(0)

    async def test(clock: ManualClock) -> None:
        async with call_with(clock=clock, restored=first, chat=RememberingChat()) as call:
            states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)

    virtual_time.run(test)
    call = go_on(states[0], story, "Yes, for nine.")
    assert texts(call) == ["Is it booked?", "", "Yes, for nine."]


ANNOUNCED = "This call may be recorded for training."


@pytest.mark.parametrize("is_away", [False, True])
def test_an_answer_behind_an_announcement_that_was_heard_in_part_is_given(*, is_away: bool) -> None:
    """Whether the second server is lost as well or not, and the client before the first."""
    states: list[SessionState] = []

    async def announce(call: Call) -> None:
        settings = call.session.settings.changed(turn_detection=ServerVad(interrupt_response=False))
        await call.session.handle(ask.UpdateSession(settings))
        await over(call, "And the window?", silence_ms=5000)
        num_sent = len(call.of(say.ReplyAudio))
        call.session.say(ANNOUNCED)
        await call.until(say.ReplyAudio, num_sent + 1)
        await asyncio.sleep(12.5 * CHAR_S)
        if is_away:
            call.session.client_lost()
        states.append(recorded(call.session.state()))

    async def again(clock: ManualClock) -> None:
        async with call_with(clock=clock, restored=states[0], chat=RememberingChat()) as call:
            states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await asyncio.sleep(60)

    play(announce)
    virtual_time.run(again)
    for state in states:
        call = go_on(state, story, "Yes, by the window.")
        *_, question, heard, answered = texts(call)
        assert question == "And the window?"
        assert heard
        assert ANNOUNCED.startswith(heard)
        assert heard != ANNOUNCED
        assert answered == "Yes, by the window."
        assert len(call.of(say.ReplyStarted)) == 1


def test_an_announcement_that_waits_is_no_answer() -> None:
    """Its words are lost with the server, and nothing else was wanted."""
    states: list[SessionState] = []

    async def announce(call: Call) -> None:
        await asyncio.sleep(len(REPLY) * CHAR_S + 2)
        call.session.client_lost()
        call.session.say(ANNOUNCED)
        assert call.session.will_answer
        states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        await asyncio.sleep(10)

    play(announce)
    assert not go_on(states[0], story).of(say.ReplyStarted)


def test_a_reply_that_was_played_is_not_given_again() -> None:
    state = state_after(len(REPLY) * CHAR_S + 2)

    async def story(call: Call) -> None:
        assert not call.session.will_answer
        await asyncio.sleep(60)
        assert not call.of(say.ReplyStarted)
        await answer(call)

    call = go_on(state, story)
    assert texts(call) == ["Is it booked?", REPLY, "Next."]
    assert [item.status for item in items(call)][1] == "completed"


@pytest.mark.parametrize("options", [ResponseOptions(), ResponseOptions(out_of_band=True)])
def test_a_reply_that_is_played_behind_which_the_next_one_begins_ends_where_it_was_heard(
    options: ResponseOptions,
) -> None:
    states: list[SessionState] = []

    async def ask_for_more(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(options))
        states.append(recorded(call.session.state()))
        await call.until(say.ReplyAudio, len(call.of(say.ReplyAudio)) + 1)
        states.append(recorded(call.session.state()))
        await asyncio.sleep(9 * CHAR_S)  # the lead is eight characters
        states.append(recorded(call.session.state()))

    play(ask_for_more)
    assert [len(state.earlier) for state in states] == [1, 1, 0]
    assert all(state.is_playing for state in states[:2])

    async def story(call: Call) -> None:
        await answer(call)

    heard = REPLY.removesuffix(" tonight.")
    for state, kept in zip(states, (heard, heard, REPLY), strict=True):
        call = go_on(state, story)
        second = [] if options.out_of_band else [""]
        assert texts(call) == ["Is it booked?", kept, *second, "Next."]
        assert history(call) == ["Is it booked?", kept, "Next."]
        assert items(call)[1].status == ("completed" if kept == REPLY else "incomplete")


def test_the_client_knows_better_what_was_heard_of_the_reply_before() -> None:
    states: list[SessionState] = []

    async def ask_for_more(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        states.append(recorded(call.session.state()))

    play(ask_for_more)

    async def story(call: Call) -> None:
        item = items(call)[1]
        await call.session.handle(ask.TruncateItem(item.id, round(12.5 * CHAR_S * 1000)))
        await answer(call)

    call = go_on(states[0], story)
    assert history(call) == ["Is it booked?", "Your table", "Next."]


def test_an_interrupted_reply_stays_cut() -> None:
    states: list[SessionState] = []

    async def interrupt(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)
        await over(call, "No, stop.", silence_ms=2000)
        await call.until(say.ReplyEnded)
        await call.until(say.ReplyAudio, 30)
        states.append(recorded(call.session.state()))

    play(interrupt, REPLY, "I have stopped, and I will say no more about it tonight.")
    cut = [item.text for item in states[0].items if isinstance(item, Message)][1]
    assert cut is not None
    assert REPLY.startswith(cut)
    assert cut != REPLY

    async def story(call: Call) -> None:
        await answer(call)

    call = go_on(states[0], story)
    assert texts(call)[:3] == ["Is it booked?", cut, "No, stop."]


def test_words_that_were_being_said_are_lost() -> None:
    states: list[SessionState] = []

    async def speak(call: Call) -> None:
        await asyncio.sleep(len(REPLY) * CHAR_S + 2)
        begin(call, "And make it")
        await asyncio.sleep(0.5)
        states.append(recorded(call.session.state()))

    play(speak)

    async def story(call: Call) -> None:
        assert not call.session.will_answer
        call.ears.say("Make it ten.")
        await call.until(say.ReplyEnded)

    call = go_on(states[0], story)
    assert texts(call) == ["Is it booked?", REPLY, "Make it ten.", "Next."]


def test_a_pending_call_of_the_clients_tool_is_answered() -> None:
    states: list[SessionState] = []

    async def test(clock: ManualClock) -> None:
        calling = Calling("", (ModelCall("clock", "{}"),))
        settings = {"type": "function", "name": "clock", "parameters": {}}
        async with call_with(chat=RememberingChat([calling]), clock=clock) as call:
            listen(call)
            changed = call.session.settings.changed(tools=(settings,))
            await call.session.handle(ask.UpdateSession(changed))
            call.ears.say("What time is it?")
            await call.until(say.ReplyCalled)
            await call.until(say.ReplyEnded)
            states.append(recorded(call.session.state()))

    virtual_time.run(test)

    async def story(call: Call) -> None:
        assert not call.session.will_answer
        (made,) = [item for item in call.session.conversation if isinstance(item, FunctionCall)]
        output = FunctionOutput(ItemId("mine"), made.call_id, "ten")
        await call.session.handle(ask.CreateItem(output))
        await answer(call)

    call = go_on(states[0], story, "It is ten.")
    kinds = [type(item).__name__ for item in call.session.conversation]
    assert kinds == ["Message", "FunctionCall", "FunctionOutput", "Message"]
    assert history(call)[-2:] == ["ten", "It is ten."]
    assert not any(isinstance(each, say.Problem) for each in call.notices)


def test_a_late_result_is_read_where_the_first_model_had_dropped_its_call() -> None:
    """It comes before the second server's model has read anything."""
    made = FunctionCall(ItemId("made"), "id_made", "clock", "{}")
    states: list[SessionState] = []

    async def drop(call: Call) -> None:
        assert isinstance(call.chat, RememberingChat)
        call.chat.num_left_out = 2
        states.append(recorded(call.session.state()))

    play(drop)
    state = replace(states[0], items=(made, *states[0].items))

    async def story(call: Call) -> None:
        output = FunctionOutput(ItemId("mine"), made.call_id, "ten")
        await call.session.handle(ask.CreateItem(output))
        await answer(call)

    call = go_on(state, story)
    assert isinstance(call.chat, RememberingChat)
    called, result, _ = call.chat.history[-3:]
    assert called.calls == (ModelCall("clock", "{}"),)
    assert (result.role, result.text) == ("tool", "ten")


QUESTION = Message(ItemId("asked"), "user", "audio", "Rain, and the time?")
RAIN, CLOCK = (FunctionCall(ItemId(name), f"id_{name}", name, "{}") for name in ("rain", "clock"))
RAINS = FunctionOutput(ItemId("rains"), RAIN.call_id, "no")
TEN = FunctionOutput(ItemId("ten"), CLOCK.call_id, "ten")
NOTICE = Message(ItemId("notice"), "assistant", "audio", "This call is recorded.")
NOTE = Message(ItemId("note"), "system", "text", "The caller is in Oslo.")
UNHEARD = Message(ItemId("unheard"), "assistant", "audio", "", "incomplete")


@pytest.mark.parametrize(
    ("after", "answer_due", "answers"),
    [
        ([RAIN, CLOCK, RAINS], False, False),
        ([RAIN, CLOCK, RAINS], True, True),
        ([RAIN, CLOCK, RAINS, UNHEARD], False, False),
        ([RAIN], False, False),
        ([RAIN], True, True),
        ([RAIN, CLOCK, RAINS, TEN], False, True),
        ([RAIN, NOTICE, RAINS, UNHEARD], True, True),
        ([RAIN, NOTICE], True, False),
        ([RAIN, CLOCK, RAINS, NOTE], False, False),
    ],
)
@pytest.mark.parametrize("has_abandoned", [False, True])
def test_a_question_with_calls_of_the_client_is_answered_once(
    after: list[Item], *, answer_due: bool, answers: bool, has_abandoned: bool
) -> None:
    """The client asks for the answer behind its last result, unless it has done so before."""
    state = state_after(0)
    abandoned = [replace(RAIN, id=ItemId("old"), call_id="id_old")] if has_abandoned else []
    found = (*state.items[:1], *abandoned, QUESTION, *after)
    state = replace(
        state, reply=None, items=found, answer_due=answer_due, answers_caller=not answer_due
    )

    async def story(call: Call) -> None:
        assert call.session.will_answer or bool(call.of(say.ReplyStarted)) == answers
        await asyncio.sleep(10)

    assert len(go_on(state, story).of(say.ReplyStarted)) == answers


@pytest.mark.parametrize("num_results", [0, 1, 2])
def test_a_response_that_has_called_the_client_is_not_begun_anew(num_results: int) -> None:
    """Nothing of it was heard, and not all results, or no request, had come: the client asks."""
    states: list[SessionState] = []
    calls = (ModelCall("clock", "{}"), ModelCall("clock", '{"zone": "CET"}'))

    async def before(clock: ManualClock) -> None:
        chat = RememberingChat([Calling("Let me look at the clocks.", calls)])
        async with call_with(chat=chat, clock=clock) as call:
            listen(call)
            await equip(call)
            call.ears.say("What time is it?")
            await call.until(say.ReplyCalled, 2)
            await give_results(call, 0, num_results)
            assert not ended(call)
            states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        assert not call.session.will_answer
        await asyncio.sleep(5)
        assert not call.of(say.ReplyStarted)
        await give_results(call, num_results, 2)
        await answer(call)

    virtual_time.run(before)
    call = go_on(states[0], story, "It is ten.")
    assert history(call) == ["What time is it?", "", "result 0", "result 1", "It is ten."]
    assert len(call.of(say.ReplyStarted)) == 1
    assert not call.of(say.Problem)


async def give_results(call: Call, first: int, end: int) -> None:
    made = [each for each in call.session.conversation if isinstance(each, FunctionCall)]
    for number in range(first, end):
        output = FunctionOutput(ItemId(f"o{number}"), made[number].call_id, f"result {number}")
        await call.session.handle(ask.CreateItem(output))


def test_a_note_behind_the_question_does_not_hide_it() -> None:
    state = state_after(0)
    note = Message(ItemId("note"), "system", "text", "The kitchen closes at ten.")
    state = replace(state, items=(*state.items, note))

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)

    call = go_on(state, story, "Yes, for nine.")
    assert history(call) == ["Is it booked?", "The kitchen closes at ten.", "Yes, for nine."]


def test_a_server_tool_that_ran_is_not_run_again() -> None:
    """Its reply had no word yet: the history has the call and what it gave."""
    done = ToolRound(0, 0, (ModelCall("book", "{}"),), ("booked",))
    state = state_after(0)
    assert state.reply is not None
    reply = replace(
        state.reply, item_id=ItemId("item_test00099"), text="", chunks=(), rounds=(done,)
    )
    state = replace(state, reply=reply, items=state.items[:1])

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)

    call = go_on(state, story, "It is booked.")
    assert isinstance(call.chat, RememberingChat)
    asked = [(message.role, message.text) for message in call.chat.asked[-1]]
    assert asked == [("user", "Is it booked?"), ("assistant", ""), ("tool", "booked")]


def test_a_deleted_reply_with_tools_does_not_come_back() -> None:
    states: list[SessionState] = []

    async def before(clock: ManualClock) -> None:
        chat = RememberingChat([Calling("", (CALL,)), REPLY])
        async with call_with(chat=chat, tools=Toolbox(), clock=clock) as call:
            listen(call)
            call.ears.say("Book it.")
            await call.until(say.ReplyAudio)
            await call.session.handle(ask.DeleteItem(items(call)[-1].id))
            states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        await asyncio.sleep(0.5)

    virtual_time.run(before)
    assert texts(go_on(states[0], story))[:1] == ["Book it."]
    assert not any(item.rounds for item in items(go_on(states[0], story)))


def test_a_server_tool_that_ran_when_the_server_died_may_have_done_its_work() -> None:
    """It is not known to be cancelled: a model that reads so books a second time."""
    states: list[SessionState] = []

    async def before(clock: ManualClock) -> None:
        tools = Toolbox(gate=asyncio.Event())
        async with call_with(Calling("", (CALL,)), tools=tools, clock=clock) as call:
            call.ears.say("Book it.")
            await until(lambda: tools.called)
            states.append(recorded(call.session.state()))

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)

    virtual_time.run(before)
    call = go_on(states[0], story, "It may be booked.")
    assert isinstance(call.chat, RememberingChat)
    assert call.chat.asked[0][-1] == ChatMessage("tool", LOST)


def test_ids_and_the_axis_of_audio_go_on() -> None:
    state = replace(state_after(30.5 * CHAR_S), audio_ms=60_000)

    async def story(call: Call) -> None:
        begin(call, "Thanks.")
        await call.until(say.SpeechStarted)

    call = go_on(state, story)
    (started,) = call.of(say.SpeechStarted)
    assert isinstance(started, say.SpeechStarted)
    assert started.audio_start_ms == 60_100, "the gap is not in it"
    assert started.item_id not in {item.id for item in state.items}
