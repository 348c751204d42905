"""Handoffs: another agent takes a call over, on fake stages with the tools of real agents."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from agent.config.layers import load_config
from agent.config.schema import AgentProfile, Config
from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message, ModelCall
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import ChatMessage
from agent.session.response.handoff import MAX_HANDOFFS, NOT_THIS_ONE, TOO_MANY, AgentSwitch
from agent.session.response.task import INTERRUPTED, OUT_OF_BAND
from agent.tools.server_tools import CallTools, ToolCounts, handoff_tools
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import ManualClock, SystemClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import begin, listen
from tests.support.session.session_call import WAIT, Call, call_with
from tests.support.session.tool_call import CLOCK, Toolbox, answer, problems, until

pytestmark = pytest.mark.virtual_time

CONFIG = load_config(
    file_text="""
[agents.default]
instructions = "You answer the telephone."
examples = []
handoffs = ["billing", "sales"]
[agents.billing]
instructions = "You know all bills."
voice = "marin"
handoffs = ["default"]
handoff_description = "For questions about bills."
pace_ms = 40
budget_ms = 900
[agents.sales]
instructions = "You sell."
handoffs = ["billing"]
[[agents.sales.examples]]
user = "Hi."
assistant = "Buy."
"""
)
TO_BILLING = ModelCall("transfer_to_billing", "{}")
TO_SALES = ModelCall("transfer_to_sales", "{}")
BACK = ModelCall("transfer_to_default", "{}")


class Agents:
    """Agents of the settings, as the service prepares them for a session."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.config = config
        self.gate: asyncio.Event | None = None
        self.cancelled = 0
        self.fault: Exception | None = None

    def tools(self, agent: str) -> CallTools:
        offered = handoff_tools(self.config, agent)
        return CallTools(
            (), self.config.agent, SystemClock(), "sess_test", lambda _: None, ToolCounts(), offered
        )

    async def switch(self, agent: str, settings: SessionSettings, old: AgentProfile) -> AgentSwitch:
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.fault is not None:
            raise self.fault
        profile = self.config.agents[agent]
        return AgentSwitch(
            agent, profile, self.config.voice(profile), "", self.config.pace_ms(profile),
            self.config.budget_ms(profile), self.tools(agent),
        )  # fmt: skip


def call_of(agents: Agents, *replies: str | Calling, **options: Any) -> Any:
    profile = agents.config.agents["default"]
    settings = SessionSettings(instructions=profile.instructions, tools=profile.tools)
    chat = RememberingChat(list(replies))
    chat.system = profile.instructions
    return call_with(
        chat=chat,
        profile=profile,
        settings=settings,
        tools=options.pop("tools", agents.tools("default")),
        switch_agent=agents.switch,
        **options,
    )


def handoffs(call: Call) -> list[tuple[str, str]]:
    return [
        (notice.fields["from"], notice.fields["to"])
        for notice in call.notices
        if isinstance(notice, say.Extension) and notice.type == "halfsec.handoff"
    ]


async def replied(call: Call, count: int) -> list[say.ReplyEnded]:
    found = await call.until(say.ReplyEnded, count)
    return [each for each in found if isinstance(each, say.ReplyEnded)]


async def typed(call: Call, text: str) -> None:
    item = Message(ItemId(f"typed_{len(call.session.conversation)}"), "user", "text", text)
    await call.session.handle(ask.CreateItem(item))
    await call.session.handle(ask.CreateResponse(ResponseOptions()))


@pytest.mark.parametrize("words", ["", "I will connect you."])
async def test_the_other_agent_speaks_next_and_knows_what_was_said(words: str) -> None:
    agents = Agents()
    async with call_of(agents, Calling(words, (TO_BILLING,)), "Billing here.", "Sure.") as call:
        call.ears.say("My bill is wrong.")
        first, second = await replied(call, 2)
        assert (first.status, first.text) == ("completed", words)
        assert (second.status, second.text) == ("completed", "Billing here.")
        assert handoffs(call) == [("default", "billing")]
        (updated,) = call.of(say.SessionUpdated)
        assert isinstance(updated, say.SessionUpdated)
        assert updated.is_handoff
        assert updated.settings == call.session.settings
        assert (updated.settings.agent, updated.settings.voice) == ("billing", "marin")
        assert updated.settings.instructions == "You know all bills."
        assert updated.settings.pace_ms == 40
        assert call.opened_voices[-1][0] == "marin"
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        call.ears.say("Thanks.")
        await replied(call, 3)
        told = messages_of(tuple(call.session.conversation)[:3])
    chat = call.chat
    assert isinstance(chat, RememberingChat)
    history = (
        ChatMessage("user", "My bill is wrong."),
        ChatMessage("assistant", words, (TO_BILLING,)),
        ChatMessage("tool", '{"assistant": "billing"}'),
    )
    assert chat.asked[1] == history
    assert chat.system == "You know all bills."
    assert tuple(told) == (*history, ChatMessage("assistant", "Billing here."))
    assert chat.asked[-1] == (*told, ChatMessage("user", "Thanks."))
    assert not any(kind == "reset" for kind, _ in chat.calls), "the history was kept as it is"
    tools = chat.may_call[-1]
    assert tools is not None
    offered = [json.loads(each)["name"] for each in tools.definitions]
    assert offered == ["transfer_to_default"]
    assert problems(call) == []


async def test_a_client_that_is_lost_behind_the_switch_is_answered_by_the_other_agent() -> None:
    agents = Agents()
    words = "I will connect you with somebody who knows."
    async with call_of(agents, Calling(words, (TO_BILLING,)), "Billing here.") as call:
        listen(call)
        call.ears.say("My bill is wrong.")
        await until(lambda: bool(handoffs(call) and call.of(say.ReplyAudio)))
        await asyncio.sleep(0.5)
        call.session.client_lost()
        assert call.session.will_answer
        await asyncio.sleep(1)
        call.session.client_back()
        first, second = await replied(call, 2)
        assert first.text
        assert words.startswith(first.text)
        assert second.text == "Billing here."


@pytest.mark.parametrize("words", ["", "I will connect you."])
async def test_a_turn_is_that_of_the_agent_that_began_to_answer_it(words: str) -> None:
    async with call_of(Agents(), Calling(words, (TO_BILLING,)), "Billing here.") as call:
        own_ms = call.session.settings.budget_ms
        call.ears.say("My bill is wrong.")
        await replied(call, 2)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        handing, answering = call.records()
    assert [each.agent for each in (handing, answering)] == ["default", "billing"]
    assert handing.budget.total_ms - handing.budget.widened_ms == own_ms
    assert answering.budget.total_ms - answering.budget.widened_ms == 900 != own_ms
    assert handing.budget.widened_ms == answering.budget.widened_ms


async def test_a_change_of_the_session_during_a_response_is_for_the_next_turn() -> None:
    async with call_of(Agents(), "Certainly. Of course.", "Yes.") as call:
        before = call.session._log.budget
        call.ears.say("Are you there?")
        await call.until(say.ReplyStarted)
        await call.session.handle(
            ask.UpdateSession(call.session.settings.changed(budget_ms=before.total_ms + 200))
        )
        await replied(call, 1)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        await typed(call, "And now?")
        await replied(call, 2)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        first, second = call.records()
        now = call.session._log.budget
    assert now != before
    assert (first.budget, second.budget) == (before, now)


async def test_examples_are_the_other_agents() -> None:
    async with call_of(Agents(), Calling("", (TO_SALES,)), "Buy.") as call:
        await typed(call, "Sell me something.")
        await replied(call, 2)
    shown = [what for kind, what in call.chat.calls if kind == "examples"]
    assert shown == [(ChatMessage("user", "Hi."), ChatMessage("assistant", "Buy."))]


async def test_the_model_is_told_what_the_agents_are_for() -> None:
    (billing, sales) = [json.loads(each.definition) for each in handoff_tools(CONFIG, "default")]
    assert billing["name"] == "transfer_to_billing"
    assert billing["description"].endswith("For questions about bills.")
    assert sales["description"] == "Hands the caller over to the agent 'sales'."


async def test_speech_over_the_words_before_the_handoff_stops_it() -> None:
    agents = Agents()
    agents.gate = asyncio.Event()
    words = "I will connect you with somebody who knows."
    async with call_of(agents, Calling(words, (TO_BILLING,)), "Fine.") as call:
        call.ears.say("My bill is wrong.")
        await call.until(say.ReplyAudio, 4)
        call.ears.say("Never mind.")
        first, second = await replied(call, 2)
        assert (first.status, second.text) == ("cancelled", "Fine.")
        assert agents.cancelled == 1
        assert handoffs(call) == []
        assert call.session.settings.agent == "default"
    chat = call.chat
    assert isinstance(chat, RememberingChat)
    assert chat.asked[-1] == (
        ChatMessage("user", "My bill is wrong."),
        ChatMessage("assistant", first.text, (TO_BILLING,)),
        ChatMessage("tool", INTERRUPTED),
        ChatMessage("user", "Never mind."),
    )
    assert chat.system == "You answer the telephone."


async def test_speech_over_the_words_after_the_switch_is_for_the_other_agent() -> None:
    words = "I will connect you with somebody who knows."
    async with call_of(Agents(), Calling(words, (TO_BILLING,)), "Yes?") as call:
        call.ears.say("My bill is wrong.")
        await call.until(say.ReplyAudio, 4)
        await until(lambda: handoffs(call))
        call.ears.say("It is from May.")
        first, second = await replied(call, 2)
        assert (first.status, second.text) == ("cancelled", "Yes?")
        assert words.startswith(first.text)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        assert len(call.of(say.ReplyStarted)) == 2, "it answers, and does not greet as well"
    chat = call.chat
    assert isinstance(chat, RememberingChat)
    assert chat.system == "You know all bills."
    assert chat.asked[-1] == (
        ChatMessage("user", "My bill is wrong."),
        ChatMessage("assistant", first.text, (TO_BILLING,)),
        ChatMessage("tool", '{"assistant": "billing"}'),
        ChatMessage("user", "It is from May."),
    )


def test_a_handoff_while_the_response_is_held_is_followed_up() -> None:
    """All of the response was heard before the backchannel: nothing of it is left to resume."""

    async def story(clock: ManualClock) -> None:
        agents = Agents()
        agents.gate = asyncio.Event()
        words = Calling("I will connect you.", (TO_BILLING,))
        async with call_of(agents, words, "Billing here.", clock=clock) as call:
            listen(call)
            call.ears.say("My bill is wrong.")
            await call.until(say.ReplyAudio)
            await asyncio.sleep(8)
            number = begin(call, "Mm-hmm.")
            await asyncio.sleep(0.1)
            assert call.session._machine.agent is Agent.HELD
            agents.gate.set()
            await until(lambda: handoffs(call))
            call.ears.hear(ev.SpeechPaused(number, 16_000))
            await asyncio.sleep(0.05)
            call.ears.hear(ev.SilenceGrew(number, 320))
            first, second = await replied(call, 2)
            assert (first.text, second.text) == (f"I will connect you. {WAIT}", "Billing here.")
            await until(lambda: call.session._machine.agent is Agent.IDLE)
            assert len(call.of(say.ReplyStarted)) == 2

    virtual_time.run(story)


async def test_a_handoff_waits_for_the_other_tools_and_only_the_first_counts() -> None:
    agents, box = Agents(), Toolbox(gate=asyncio.Event())
    clock = ModelCall("clock", "{}")

    class Both:
        """The clock, and the handoffs."""

        definitions = (*box.definitions, *agents.tools("default").definitions)

        def has(self, name: str) -> bool:
            return box.has(name) or agents.tools("default").has(name)

        def handoff_to(self, name: str) -> str | None:
            return agents.tools("default").handoff_to(name)

        def is_background(self, name: str) -> bool:
            return False

        async def run(self, call: ModelCall, item_id: ItemId) -> str:
            return await box.run(call, item_id)

    calls = Calling("", (TO_SALES, clock, TO_BILLING))
    async with call_of(agents, calls, "Sales.", tools=Both()) as call:
        await typed(call, "What time is it, and what do you sell?")
        await until(lambda: box.called)
        assert handoffs(call) == []
        assert box.gate is not None
        box.gate.set()
        await replied(call, 2)
        assert handoffs(call) == [("default", "sales")]
    told = [what for kind, what in call.chat.calls if kind == "tool"]
    assert told == ['{"assistant": "sales"}', "12:00", NOT_THIS_ONE]


async def test_handoffs_in_a_circle_end() -> None:
    circle = [Calling("", (TO_BILLING,)), Calling("", (BACK,))] * MAX_HANDOFFS
    replies: list[str | Calling] = [*circle[: MAX_HANDOFFS + 1], "I will help you."]
    replies += [Calling("", (BACK,)), "Hello."]
    async with call_of(Agents(), *replies) as call:
        await typed(call, "My bill is wrong.")
        ended = await replied(call, MAX_HANDOFFS + 1)
        assert ended[-1].text == "I will help you."
        assert len(handoffs(call)) == MAX_HANDOFFS
        assert [what for kind, what in call.chat.calls if kind == "tool"][-1] == TOO_MANY
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        await typed(call, "Thanks, the front desk please.")  # words of the caller begin anew
        await replied(call, MAX_HANDOFFS + 3)
        assert handoffs(call)[-1] == ("billing", "default")


async def test_an_agent_that_can_t_take_the_call_leaves_it_where_it_is() -> None:
    agents = Agents()
    agents.fault = StageError("tts", "its voice is broken")
    async with call_of(agents, Calling("", (TO_BILLING,)), "I will help you.") as call:
        await typed(call, "My bill is wrong.")
        (ended,) = await replied(call, 1)
        assert ended.text == "I will help you."
        assert (handoffs(call), call.session.settings.agent) == ([], "default")
    told = [what for kind, what in call.chat.calls if kind == "tool"]
    assert told == ["Error: billing can't take this call: its voice is broken"]


async def test_with_a_tool_of_the_client_the_other_agent_waits_for_its_result() -> None:
    agents = Agents()
    calls = Calling("", (ModelCall("clock", "{}"), TO_BILLING))
    async with call_of(agents, calls, "It is noon, and this is billing.") as call:
        settings = call.session.settings.changed(tools=(CLOCK,))
        await call.session.handle(ask.UpdateSession(settings))
        await typed(call, "What time is it?")
        await replied(call, 1)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        assert call.session.settings.agent == "billing"
        assert call.session.settings.tools == (CLOCK,), "the client runs it, whoever asks"
        assert len(call.of(say.ReplyStarted)) == 1
        await answer(call)
        _, second = await replied(call, 2)
        assert second.text == "It is noon, and this is billing."


@pytest.mark.parametrize(
    ("named", "then"), [("transfer_to_billing", "auto"), ("weather", "weather")]
)
async def test_a_choice_that_names_a_tool_which_is_gone_is_auto(named: str, then: str) -> None:
    agents = Agents()
    weather = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    profile = agents.config.agents["default"]
    settings = SessionSettings(
        instructions=profile.instructions,
        tools=(weather,),
        tool_choice={"type": "function", "name": named},
    )
    chat = RememberingChat([Calling("", (TO_BILLING,)), "Billing here."])
    chat.system = profile.instructions
    async with call_with(
        chat=chat,
        profile=profile,
        settings=settings,
        tools=agents.tools("default"),
        switch_agent=agents.switch,
    ) as call:
        call.ears.say("My bill is wrong.")
        await replied(call, 2)
        choice = call.session.settings.tool_choice
        assert (choice if isinstance(choice, str) else choice["name"]) == then
        assert call.session.settings.tools == (weather,)


async def test_a_response_outside_of_the_conversation_hands_nothing_off() -> None:
    agents = Agents()
    async with call_of(agents, Calling("", (TO_BILLING,)), "I can't do that.") as call:
        options = ResponseOptions(out_of_band=True, output_modality="text", input=())
        await call.session.handle(ask.CreateResponse(options))
        (ended,) = await replied(call, 1)
        assert ended.text == "I can't do that."
        assert handoffs(call) == []
        assert call.session.settings.agent == "default"
        assert OUT_OF_BAND in [told for name, told in call.chat.calls if name == "tool"]


async def test_what_a_client_changes_meanwhile_is_changed_for_the_other_agent() -> None:
    async with call_of(Agents(), Calling("", (TO_BILLING,)), "Billing here.") as call:
        base = call.session.settings
        await typed(call, "My bill is wrong.")
        await replied(call, 2)
        asked = ask.UpdateSession(base.changed(speed=1.5), base=replace(base))
        await call.session.handle(asked)
        assert call.session.settings.speed == 1.5
        assert call.session.settings.agent == "billing"
        assert call.session.settings.instructions == "You know all bills."


async def test_an_agent_is_prepared_again_where_the_language_changes_meanwhile() -> None:
    agents, asked = Agents(), list[str]()
    agents.gate = asyncio.Event()

    async def switch(agent: str, settings: SessionSettings, old: AgentProfile) -> AgentSwitch:
        asked.append(settings.language)
        return await agents.switch(agent, settings, old)

    async with call_of(agents, Calling("", (TO_BILLING,)), "Guten Tag.") as call:
        call.session._stages = replace(call.session._stages, switch_agent=switch)
        await typed(call, "My bill is wrong.")
        await until(lambda: asked)
        german = call.session.settings.changed(transcription={"language": "de"})
        await call.session.handle(ask.UpdateSession(german))
        agents.gate.set()
        await replied(call, 2)
        assert asked == ["en", "de"]
        assert handoffs(call) == [("default", "billing")]
        assert (call.session.settings.agent, call.session.settings.language) == ("billing", "de")


async def test_a_language_that_is_loaded_during_a_handoff_is_the_other_agents() -> None:
    agents, gate = Agents(), asyncio.Event()
    agents.gate = asyncio.Event()
    asked: list[tuple[str, str]] = []

    async def prepare(language: str, voice: str) -> str:
        asked.append((language, voice))
        await gate.wait()
        return voice

    async with call_of(agents, Calling("", (TO_BILLING,)), "Billing here.") as call:
        call.session._stages = replace(
            call.session._stages, prepare_language=prepare, is_prepared=lambda *_: False
        )
        base = call.session.settings
        await typed(call, "My bill is wrong.")
        german = base.changed(transcription={"language": "de"})
        await call.session.handle(ask.UpdateSession(german, base=base))
        await until(lambda: asked)
        agents.gate.set()
        await replied(call, 2)
        assert call.session.settings.agent == "billing"
        gate.set()
        await until(lambda: call.session.settings.language == "de")
        assert asked == [("de", "hibari"), ("de", "marin")]
        settings = call.session.settings
        assert (settings.agent, settings.voice) == ("billing", "marin")
        assert settings.instructions == "You know all bills."
        updates = call.of(say.SessionUpdated)
        assert updates[0] != updates[1] == say.SessionUpdated(settings)
