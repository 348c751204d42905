"""Tools in the background of a session: fake stages, real tools of the server, virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.calls.call_state import CallHead, CallState, CallStateEncoder, read_state
from agent.config.schema import ServiceSettings
from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    ItemId,
    Message,
    ModelCall,
)
from agent.session.api.session_state import SessionState
from agent.session.api.settings import ResponseOptions, SemanticVad, SessionSettings
from agent.session.background_tools import (
    MAX_BACKGROUND,
    OVER,
    RUNNING,
    too_many,
)
from agent.session.ports.stage_ports import APOLOGY, ChatMessage, ReplyToken
from agent.session.response.task import LOST, OUT_OF_BAND, TOO_LONG
from agent.tools.api import ToolError
from agent.tools.server_tools import CallTools, ToolCounts, handoff_tools
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import IdleRules
from agent.turn_taking.tables import Agent
from agent.turn_taking.thresholds import ANNOUNCE_AFTER_NS
from latency_budget.account.clock import ManualClock, SystemClock
from tests.agent.session.test_handoff import CONFIG, TO_BILLING, Agents, call_of
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import begin, listen
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CLOCK, answer, until

LOOKING = "I'm looking into it."
FOUND = "It costs 89 euros."
ANNOUNCE_S = ANNOUNCE_AFTER_NS / 1e9
LONG_S = 20.0
"""Longer than everything that may follow by itself."""


def search(place: str = "Lisbon") -> ModelCall:
    return ModelCall("search", f'{{"to": "{place}"}}')


@dataclass
class Search:
    """A `ServerTool` in the background, which ends when the test lets it."""

    name: str = "search"
    definition: str = '{"name": "search"}'
    timeout_s: float = 60
    is_background: bool = True
    started: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _ends: dict[str, asyncio.Future[str]] = field(default_factory=dict)

    async def call(self, arguments: str) -> str:
        self.started.append(arguments)
        try:
            return await self._end_of(arguments)
        except asyncio.CancelledError:
            self.cancelled.append(arguments)
            raise

    def end(self, result: str | Exception = "89 euros", call: ModelCall | None = None) -> None:
        future = self._end_of((call or search()).arguments)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _end_of(self, arguments: str) -> asyncio.Future[str]:
        return self._ends.setdefault(arguments, asyncio.get_running_loop().create_future())


@dataclass
class Scene:
    """A call whose agent searches in the background."""

    call: Call
    tool: Search
    chat: RememberingChat
    told: list[str]
    """States of `halfsec.tool`, in order."""

    @property
    def num_replies(self) -> int:
        return len(self.call.of(say.ReplyEnded))

    def texts(self) -> list[str]:
        ends = self.call.of(say.ReplyEnded)
        return [each.text for each in ends if isinstance(each, say.ReplyEnded)]

    def results(self) -> list[str]:
        """Results that have joined the conversation, in order."""
        return [
            result
            for item in self.call.session.conversation
            if isinstance(item, Message) and not item.text
            for each in item.rounds
            for result in each.results
        ]

    async def rest(self, num_replies: int) -> None:
        """Wait until so many replies are over, and nobody speaks."""
        await until(
            lambda: (
                self.num_replies >= num_replies and self.call.session._machine.agent is Agent.IDLE
            )
        )


Story = Callable[[Scene], Awaitable[None]]


def play(
    story: Story,
    *replies: str | Exception | Calling,
    calls: Sequence[ModelCall] = (search(),),
    tool: Search | None = None,
    settings: SessionSettings | None = None,
    restored: SessionState | None = None,
    **options: Any,
) -> Scene:
    """The caller asks for what takes long, the agent starts searching and says so, and the story
    goes on once that was heard."""
    scenes: list[Scene] = []

    async def test(clock: ManualClock) -> None:
        first = () if restored is not None else (Calling("", tuple(calls)), LOOKING)
        chat = RememberingChat([*first, *(replies or (FOUND,))])
        told: list[str] = []

        def notify(notice: say.Notice) -> None:
            assert isinstance(notice, say.Extension)
            told.append(notice.fields["state"])

        search_tool = tool or Search()
        tools = CallTools(
            (search_tool,), ServiceSettings(), SystemClock(), "sess_test", notify, ToolCounts()
        )
        async with call_with(
            chat=chat, tools=tools, clock=clock, settings=settings, restored=restored, **options
        ) as call:
            listen(call)
            scene = Scene(call, search_tool, chat, told)
            scenes.append(scene)
            if restored is None:
                call.ears.say("Is there anything cheap?")
                await scene.rest(1)
            await story(scene)

    virtual_time.run(test)
    return scenes[0]


def test_the_result_is_announced_once_behind_a_silence() -> None:
    async def story(scene: Scene) -> None:
        assert scene.texts() == [LOOKING]
        await asyncio.sleep(LONG_S)
        assert scene.num_replies == 1
        assert scene.told == ["started", "background"]
        scene.tool.end()
        await scene.rest(2)
        assert scene.told[2:] == ["done"]
        await asyncio.sleep(LONG_S)
        assert scene.texts() == [LOOKING, FOUND]
        scene.call.ears.say("Book it.")
        await scene.rest(3)

    scene = play(story, FOUND, "Done.")
    assert scene.call.num_background == [1, 0]
    (call,), chat = (search(),), scene.chat
    before = (
        ChatMessage("user", "Is there anything cheap?"),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", RUNNING),
        ChatMessage("assistant", LOOKING),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", "89 euros"),
    )
    # Nothing was read anew: the model's own words are as it said them.
    assert chat.asked[-2:] == [
        before,
        (*before, ChatMessage("assistant", FOUND), ChatMessage("user", "Book it.")),
    ]
    assert not [told for name, told in chat.calls if name == "reset"]
    assert scene.tool.started == [call.arguments]
    added = [n.item for n in scene.call.notices if isinstance(n, say.ItemAdded)]
    shown = [(each.role, each.text, each.status) for each in added if isinstance(each, Message)]
    assert [each for each in shown if each[0] != "user"] == [("assistant", "", "completed")]


def test_the_caller_speaks_first_and_the_reply_has_the_result() -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await until(scene.results)
        await asyncio.sleep(ANNOUNCE_S / 2)
        scene.call.ears.say("And with luggage?")
        await scene.rest(2)
        await asyncio.sleep(LONG_S)
        assert scene.texts() == [LOOKING, "89 with luggage."]

    scene = play(story, "89 with luggage.", "Never said.")
    assert [each.text for each in scene.chat.asked[-1]][-2:] == ["89 euros", "And with luggage?"]


def test_a_result_while_the_caller_speaks_is_in_the_reply() -> None:
    async def story(scene: Scene) -> None:
        number = begin(scene.call, "And with luggage?")
        await asyncio.sleep(0.5)
        scene.tool.end()
        await until(scene.results)
        assert scene.num_replies == 1
        scene.call.ears.hear(ev.SpeechPaused(number, 16_000))
        scene.call.ears.hear(ev.SilenceGrew(number, 5000))
        await scene.rest(2)
        await asyncio.sleep(LONG_S)

    scene = play(story, "89 with luggage.", "Never said.")
    assert scene.texts() == [LOOKING, "89 with luggage."]
    assert [each.text for each in scene.chat.asked[-1]][-2:] == ["89 euros", "And with luggage?"]


def test_a_result_in_a_pause_leaves_the_prepared_reply_alone() -> None:
    async def story(scene: Scene) -> None:
        scene.call.ears.pause("And with luggage?")
        await asyncio.sleep(0.1)
        scene.tool.end()
        await until(lambda: "done" in scene.told)
        scene.call.ears.fall_silent()
        await scene.call.until(say.ReplyEnded, 2)
        assert not scene.results()
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    scene = play(story, "A bag is included.", FOUND, "Never said.")
    assert scene.texts() == [LOOKING, "A bag is included.", FOUND]
    assert scene.results() == ["89 euros"]
    counts = [name for name, _ in scene.chat.calls].count("generate")
    assert counts == 2 + 2, "the reply to the pause was prepared once"


def test_a_result_while_the_agent_speaks_waits_for_the_end() -> None:
    async def story(scene: Scene) -> None:
        scene.call.ears.say("What's your name?")
        await scene.call.until(say.ReplyStarted, 2)
        scene.tool.end()
        await scene.rest(2)
        await scene.rest(3)
        names = [type(each).__name__ for each in scene.call.notices]
        second, third = [at for at, name in enumerate(names) if name == "ReplyEnded"][1:]
        joined = max(at for at, name in enumerate(names) if name == "ItemAdded")
        assert second < joined < third

    scene = play(story, "My name is Ann, and I am the agent of this line.", FOUND)
    assert scene.texts()[1:] == ["My name is Ann, and I am the agent of this line.", FOUND]
    assert scene.results() == ["89 euros"]


def test_speech_cuts_an_announcement_and_nothing_is_said_twice() -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await scene.call.until(say.ReplyStarted, 2)
        await scene.call.until(say.ReplyAudio, len(scene.call.of(say.ReplyAudio)) + 4)
        scene.call.ears.say("Wait a moment please.")
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    scene = play(story, "It costs 89 euros and leaves at nine forty.", "Sure.", "Never said.")
    assert len(scene.texts()) == 3
    assert scene.texts()[2] == "Sure."
    assert "89 euros" in [each.text for each in scene.chat.asked[-1]]


def test_a_noise_delays_the_announcement_only() -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await until(scene.results)
        begin(scene.call, "")
        await asyncio.sleep(5)
        assert scene.num_replies == 1
        scene.call.ears.hear(ev.SpeechPaused(scene.call.ears.utterance, 16_000))
        scene.call.ears.hear(ev.SilenceGrew(scene.call.ears.utterance, 5000))
        await scene.rest(2)
        await asyncio.sleep(LONG_S)

    assert play(story, FOUND, "Never said.").texts() == [LOOKING, FOUND]


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (ToolError("all airlines are away"), "Error: all airlines are away"),
        (ValueError("password=secret"), "Error: search failed (ValueError)"),
        (None, "Error: search has not answered within 30 seconds"),
    ],
)
def test_failures_are_announced_like_results(end: Exception | None, result: str) -> None:
    async def story(scene: Scene) -> None:
        if end is not None:
            scene.tool.end(end)
        await scene.rest(2)
        await asyncio.sleep(LONG_S)

    scene = play(story, "I could not find out.", "Never said.", tool=Search(timeout_s=30))
    assert scene.texts() == [LOOKING, "I could not find out."]
    assert scene.results() == [result]
    assert scene.told == ["started", "background", "failed"]
    assert len(scene.tool.cancelled) == (end is None)


def test_a_result_that_does_not_fit_is_an_error() -> None:
    async def story(scene: Scene) -> None:
        scene.chat.max_chars = 2500
        scene.tool.end("x" * 3000)
        await scene.rest(2)

    assert play(story).results() == [TOO_LONG]


def test_two_at_once_are_announced_in_the_order_of_their_ends() -> None:
    lisbon, porto = search("Lisbon"), search("Porto")

    async def together(scene: Scene) -> None:
        scene.tool.end("70 euros", porto)
        scene.tool.end("89 euros", lisbon)
        await scene.rest(2)
        await asyncio.sleep(LONG_S)

    scene = play(together, "Both.", "Never said.", calls=(lisbon, porto))
    assert scene.tool.started == [lisbon.arguments, porto.arguments]
    assert sorted(scene.results()) == ["70 euros", "89 euros"]
    assert scene.texts() == [LOOKING, "Both."]

    async def one_by_one(scene: Scene) -> None:
        scene.tool.end("70 euros", porto)
        await scene.rest(2)
        assert scene.results() == ["70 euros"]
        scene.tool.end("89 euros", lisbon)
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    scene = play(one_by_one, "Porto.", "Lisbon.", "Never said.", calls=(lisbon, porto))
    assert scene.results() == ["70 euros", "89 euros"]
    assert scene.texts() == [LOOKING, "Porto.", "Lisbon."]


def test_one_more_than_the_limit_is_refused_and_an_equal_call_runs_once() -> None:
    places = [search(f"{number}") for number in range(MAX_BACKGROUND + 1)]

    async def story(scene: Scene) -> None:
        scene.call.ears.say("Any news?")
        await scene.rest(2)
        assert len(scene.tool.started) == MAX_BACKGROUND
        scene.tool.end("89 euros", places[0])
        await scene.rest(3)
        scene.call.ears.say("Again.")
        await scene.rest(4)

    again = Calling("", (places[0], places[-1]))
    replies = (Calling("", (places[0],)), "Not yet.", "One is there.", again, "I'm on it.")
    scene = play(story, *replies, calls=places)
    read = [each.text for each in scene.chat.history if each.role == "tool"]
    running = [RUNNING] * MAX_BACKGROUND
    assert read == [
        *running, too_many("search"), RUNNING, "89 euros", RUNNING, too_many("search"),
    ]  # fmt: skip
    # The first one had ended: it is run anew, as its place was free again.
    assert scene.tool.started == [each.arguments for each in (*places[:-1], places[0])]


def test_the_end_of_the_call_cancels_it() -> None:
    async def story(scene: Scene) -> None:
        assert not scene.tool.cancelled

    scene = play(story)
    assert scene.tool.cancelled == [search().arguments]
    assert scene.told == ["started", "background", "cancelled"]
    assert scene.texts() == [LOOKING]


def test_an_interruption_does_not_cancel_it() -> None:
    looking = "I'm looking into it, which takes a minute or two, or even three."

    async def test(clock: ManualClock) -> None:
        tool = Search()
        notices: list[say.Notice] = []
        tools = CallTools(
            (tool,), ServiceSettings(), SystemClock(), "sess_test", notices.append, ToolCounts()
        )
        chat = RememberingChat([Calling("", (search(),)), looking, "Fine.", FOUND, "Never said."])
        async with call_with(chat=chat, tools=tools, clock=clock) as call:
            listen(call)
            scene = Scene(call, tool, chat, [])
            call.ears.say("Is there anything cheap?")
            await call.until(say.ReplyAudio, 6)
            call.ears.say("Take your time with that.")
            await scene.rest(2)
            assert scene.texts()[1] == "Fine."
            assert not tool.cancelled
            tool.end()
            await scene.rest(3)
            await asyncio.sleep(LONG_S)
            assert scene.texts()[2:] == [FOUND]
            # The model knows that it runs, though it was interrupted.
            assert [each.text for each in chat.history if each.role == "tool"] == [
                RUNNING,
                "89 euros",
            ]

    virtual_time.run(test)


def test_a_client_that_asks_for_responses_gets_no_other() -> None:
    async def test(clock: ManualClock) -> None:
        tool = Search()
        tools = CallTools(
            (tool,), ServiceSettings(), SystemClock(), "sess_test", lambda _: None, ToolCounts()
        )
        settings = SessionSettings(
            instructions="Be brief.", turn_detection=SemanticVad(create_response=False)
        )
        chat = RememberingChat([Calling("", (search(),)), LOOKING, FOUND])
        async with call_with(chat=chat, tools=tools, clock=clock, settings=settings) as call:
            scene = Scene(call, tool, chat, [])
            await call.session.handle(ask.CreateResponse(ResponseOptions()))
            await scene.rest(1)
            tool.end()
            await until(scene.results)
            await asyncio.sleep(LONG_S)
            assert scene.texts() == [LOOKING]
            await call.session.handle(ask.CreateResponse(ResponseOptions()))
            await scene.rest(2)
            assert [each.text for each in chat.asked[-1]][-1] == "89 euros"
            settings = call.session.settings.changed(turn_detection=SemanticVad())
            await call.session.handle(ask.UpdateSession(settings))
            await asyncio.sleep(LONG_S)
            assert scene.texts() == [LOOKING, FOUND]

    virtual_time.run(test)


def test_a_silent_caller_is_not_asked_while_it_runs() -> None:
    async def story(scene: Scene) -> None:
        await asyncio.sleep(30)
        assert scene.num_replies == 1
        scene.tool.end()
        await scene.rest(2)
        await scene.rest(3)

    idle = IdleRules(idle_after_ms=5000)
    assert play(story, idle=idle).texts() == [LOOKING, FOUND, "Hey?"]


CLOCK_CALL = ModelCall("clock", '{"zone": "UTC"}')
WITH_CLOCK = SessionSettings(instructions="Be brief.", tools=(CLOCK,))


def called_and_answered(scene: Scene) -> list[str]:
    """Kinds of the conversation's items since the client's tool was called."""
    names = [
        "result" if isinstance(item, Message) and not item.text else type(item).__name__
        for item in scene.call.session.conversation
    ]
    return names[names.index("FunctionCall") :]


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_result_is_announced_behind_the_output_of_a_clients_call(is_beside: bool) -> None:
    """It joins at once. So it is where another response has come `is_beside` the conversation
    meanwhile."""

    async def story(scene: Scene) -> None:
        scene.call.ears.say("What time is it?")
        await scene.call.until(say.ReplyCalled)
        if is_beside:
            options = ResponseOptions(out_of_band=True, output_modality="text")
            await scene.call.session.handle(ask.CreateResponse(options))
            await scene.rest(3)
        scene.tool.end()
        await asyncio.sleep(LONG_S)
        assert scene.results() == ["89 euros"]
        await answer(scene.call)
        await scene.rest(3 + is_beside)
        await asyncio.sleep(LONG_S)

    replies = ["Noon, and 89 euros.", "Never said."]
    if is_beside:
        replies.insert(0, "Beside.")
    scene = play(story, Calling("", (CLOCK_CALL,)), *replies, settings=WITH_CLOCK)
    assert scene.texts() == [LOOKING, "", *replies[:-1]]
    assert called_and_answered(scene) == ["FunctionCall", "result", "FunctionOutput", "Message"]
    assert [each.text for each in scene.chat.history if each.role == "tool"] == [
        RUNNING,
        "12:00",
        "89 euros",
    ]


async def give_output(scene: Scene) -> None:
    """The client gives its tool's output, and asks for no response."""
    (made,) = [i for i in scene.call.session.conversation if isinstance(i, FunctionCall)]
    item = FunctionOutput(ItemId("out"), made.call_id, "12:00")
    await scene.call.session.handle(ask.CreateItem(item))


def test_a_result_is_not_announced_where_an_output_asks_for_nothing() -> None:
    async def story(scene: Scene) -> None:
        scene.call.ears.say("Set the clock.")
        await scene.rest(2)
        scene.tool.end()
        await asyncio.sleep(LONG_S)
        await give_output(scene)
        await asyncio.sleep(LONG_S)
        assert scene.num_replies == 2
        scene.call.ears.say("Thanks.")
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    scene = play(story, Calling("", (CLOCK_CALL,)), FOUND, "Never said.", settings=WITH_CLOCK)
    assert scene.texts() == [LOOKING, "", FOUND]
    assert [each.text for each in scene.chat.asked[-1]][-2:] == ["89 euros", "Thanks."]


def test_a_result_joins_though_the_client_never_answers_its_call() -> None:
    async def story(scene: Scene) -> None:
        scene.call.ears.say("What time is it?")
        await scene.rest(2)
        scene.tool.end()
        await asyncio.sleep(LONG_S)
        assert scene.num_replies == 2
        scene.call.ears.say("And the flight?")
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    scene = play(story, Calling("", (CLOCK_CALL,)), FOUND, "Never said.", settings=WITH_CLOCK)
    assert scene.texts() == [LOOKING, "", FOUND]
    asked = scene.chat.asked[-1]
    assert [each.text for each in asked][-2:] == ["89 euros", "And the flight?"]
    assert [call.name for each in asked for call in each.calls][-2:] == ["clock", "search"]


def test_a_clients_call_is_waited_for_at_another_server_too() -> None:
    states: list[SessionState] = []

    async def before(scene: Scene) -> None:
        scene.call.ears.say("What time is it?")
        await scene.rest(2)
        scene.tool.end()
        await until(lambda: "done" in scene.told)
        states.append(recorded(scene.call.session.state()))

    play(before, Calling("", (CLOCK_CALL,)), settings=WITH_CLOCK)

    async def after(scene: Scene) -> None:
        scene.call.session.client_back()
        await asyncio.sleep(LONG_S)
        assert scene.results() == ["89 euros"]
        assert scene.num_replies == 0
        await give_output(scene)
        await scene.call.session.handle(ask.CreateResponse(ResponseOptions()))
        await scene.rest(1)
        await asyncio.sleep(LONG_S)

    scene = play(after, "Noon, and 89 euros.", "Never said.", restored=states[0])
    assert scene.texts() == ["Noon, and 89 euros."]
    assert not scene.call.of(say.Problem)
    assert called_and_answered(scene) == ["FunctionCall", "result", "FunctionOutput", "Message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "search"}])
def test_an_announcement_need_not_call_a_tool(choice: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await scene.rest(2)
        await asyncio.sleep(LONG_S)
        scene.call.ears.say("Thanks.")
        await scene.rest(3)

    settings = SessionSettings(instructions="Be brief.", tool_choice=choice)
    scene = play(story, FOUND, "Bye.", settings=settings)
    named = "search" if isinstance(choice, dict) else choice
    choices = [each.choice for each in scene.chat.may_call if each is not None]
    assert choices == [named, "auto", "auto", named]


def test_what_has_ended_is_not_run_again_before_the_caller_says_something() -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await scene.rest(2)
        await asyncio.sleep(LONG_S)
        assert scene.tool.started == [search().arguments]
        item = Message(ItemId("typed"), "user", "text", "Look again.")
        await scene.call.session.handle(ask.CreateItem(item))
        await scene.call.session.handle(ask.CreateResponse(ResponseOptions()))
        await scene.rest(3)
        assert scene.tool.started == [search().arguments] * 2

    again = Calling("", (search(),))
    scene = play(story, again, FOUND, again, LOOKING)
    assert scene.texts() == [LOOKING, FOUND, LOOKING]
    read = [each.text for each in scene.chat.history if each.role == "tool"]
    assert read[:3] == [RUNNING, "89 euros", "89 euros"]


def test_an_announcement_that_fails_is_made_again_once() -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await scene.rest(3)
        await asyncio.sleep(LONG_S)

    gone = StageError("llm", "the model is gone")
    assert play(story, gone, FOUND, "Never said.").texts() == [LOOKING, APOLOGY, FOUND]
    assert play(story, gone, gone, "Never said.").texts() == [LOOKING, APOLOGY, APOLOGY]


@pytest.mark.parametrize("by", ["caller", "service", "client"])
def test_an_announcement_that_is_cut_unheard_is_made_again(by: str) -> None:
    """Not where the client does not want it."""

    async def story(scene: Scene) -> None:
        scene.chat.hold = asyncio.Event()
        scene.tool.end()
        await until(lambda: scene.call.session._machine.agent is Agent.PREPARING)
        if by == "caller":
            number = begin(scene.call, "")  # nothing but noise
            await asyncio.sleep(2)
            scene.call.ears.hear(ev.SpeechPaused(number, 16_000))
            scene.call.ears.hear(ev.SilenceGrew(number, 5000))
        elif by == "service":
            scene.call.session.say("Time is up.")
        else:
            await scene.call.session.handle(ask.CancelResponse())
        scene.chat.hold.set()
        await asyncio.sleep(LONG_S)

    scene = play(story, FOUND, "Never said.")
    expected = {"caller": ["", FOUND], "service": ["", "Time is up.", FOUND], "client": [""]}
    assert scene.texts() == [LOOKING, *expected[by]]


def test_an_announcement_in_preparation_is_made_by_another_server() -> None:
    states: list[SessionState] = []

    async def before(scene: Scene) -> None:
        scene.chat.hold = asyncio.Event()
        scene.tool.end()
        await until(lambda: scene.call.session._machine.agent is Agent.PREPARING)
        states.append(recorded(scene.call.session.state()))
        scene.chat.hold.set()
        await scene.rest(2)
        states.append(recorded(scene.call.session.state()))

    play(before)
    assert [each.background.is_due for each in states] == [True, False]

    async def after(scene: Scene) -> None:
        scene.call.session.client_back()
        await scene.rest(1)
        await asyncio.sleep(LONG_S)

    assert play(after, FOUND, "Never said.", restored=states[0]).texts() == [FOUND]


class CutChat(RememberingChat):
    """A model whose reply with a call is cut in the step in which it gives the call."""

    def cut(self) -> None:
        """Set by the test."""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        given = [token async for token in super().generate(*args, **options)]
        for token in given:
            if token.calls:
                self.cut()
            yield token


def test_a_reply_that_was_cut_starts_none() -> None:
    async def test(clock: ManualClock) -> None:
        tool = Search()
        tools = CallTools(
            (tool,), ServiceSettings(), SystemClock(), "sess_test", lambda _: None, ToolCounts()
        )
        chat = CutChat([Calling("", (search(),))])
        async with call_with(chat=chat, tools=tools, clock=clock) as call:
            chat.cut = lambda: call.session.feed(ev.ReplyCancelled())  # type: ignore[method-assign]
            call.ears.say("Is there anything cheap?")
            await call.until(say.ReplyEnded)
            await asyncio.sleep(LONG_S)
            assert call.session.state().background.running == ()
        assert tool.started == []

    virtual_time.run(test)


def test_a_tool_is_the_one_of_the_agent_that_called_it() -> None:
    """The other agent, which takes over in the same round, has no such tool."""

    async def test(clock: ManualClock) -> None:
        agents, tool = Agents(), Search()
        tools = CallTools(
            (tool,), ServiceSettings(), SystemClock(), "sess_test", lambda _: None, ToolCounts(),
            handoff_tools(CONFIG, "default"),
        )  # fmt: skip
        replies = (Calling("", (search(), TO_BILLING)), "Billing here.", FOUND, "Never said.")
        async with call_of(agents, *replies, tools=tools, clock=clock) as call:
            scene = Scene(call, tool, call.chat, [])
            call.ears.say("Is there anything cheap? And my bill is wrong.")
            await scene.rest(2)
            assert tool.started == [search().arguments]
            tool.end()
            await scene.rest(3)
            await asyncio.sleep(LONG_S)
            assert scene.texts() == ["", "Billing here.", FOUND]
            assert scene.results() == [RUNNING, '{"assistant": "billing"}', "89 euros"]

    virtual_time.run(test)


def test_a_call_that_ends_starts_none() -> None:
    async def story(scene: Scene) -> None:
        assert scene.tool.started == [search().arguments]

    scene = play(story)
    session, other = scene.call.session, search("Rome")
    run = session._responses.current
    assert run is not None
    assert session._background.start(run.reply, other) == OVER
    assert other not in session.state().background.running


def test_a_response_outside_of_the_conversation_starts_none() -> None:
    async def story(scene: Scene) -> None:
        options = ResponseOptions(out_of_band=True, output_modality="text")
        await scene.call.session.handle(ask.CreateResponse(options))
        await scene.rest(2)
        scene.tool.end()
        await scene.rest(3)

    other = search("Rome")
    scene = play(story, Calling("", (other,)), "I can't.", FOUND)
    assert scene.texts() == [LOOKING, "I can't.", FOUND]
    assert scene.tool.started == [search().arguments]
    assert OUT_OF_BAND in [told for name, told in scene.chat.calls if name == "tool"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_announcement_that_nobody_heard_comes_after_the_resumption(is_begun: bool) -> None:
    async def story(scene: Scene) -> None:
        scene.tool.end()
        await until(scene.results)
        if is_begun:
            await scene.call.until(say.ReplyStarted, 2)
        scene.call.session.client_lost()
        await asyncio.sleep(LONG_S)
        assert len(scene.call.of(say.ReplyStarted)) == 1 + is_begun
        scene.call.session.client_back()
        await scene.rest(2 + is_begun)
        await asyncio.sleep(LONG_S)

    scene = play(story, *([FOUND] * (1 + is_begun)), "Never said.")
    assert scene.texts() == [LOOKING, *([""] * is_begun), FOUND]


def recorded(state: SessionState) -> SessionState:
    """The state as another server reads it."""
    head = CallHead("sess_test", "default", "m", (), "", 2_000_000_000, 0, ())
    return read_state(CallStateEncoder().fields(CallState(head, state))).session


@pytest.mark.parametrize("where", ["running", "ended", "joined"])
def test_another_server_runs_nothing_again_and_tells_what_there_is(where: str) -> None:
    states: list[SessionState] = []

    async def before(scene: Scene) -> None:
        if where == "ended":
            scene.call.ears.pause("And with luggage?")  # nothing joins in a pause
            await asyncio.sleep(0.1)
        if where != "running":
            scene.tool.end()
            await until(lambda: "done" in scene.told)
        states.append(recorded(scene.call.session.state()))

    play(before)
    (state,) = states

    async def after(scene: Scene) -> None:
        await asyncio.sleep(LONG_S)
        assert scene.num_replies == 0
        scene.call.session.client_back()
        await scene.rest(1)
        await asyncio.sleep(LONG_S)
        assert scene.texts() == [FOUND]

    found = LOST if where == "running" else "89 euros"
    for replies in ((FOUND,), (Calling("", (search(),)), FOUND)):
        scene = play(after, *replies, "Never said.", restored=state)
        assert scene.tool.started == []
        assert scene.results() == [found]
        assert scene.chat.asked[0][-1] == ChatMessage("tool", found)
    assert [each.text for each in scene.chat.history if each.role == "tool"][-2:] == [found] * 2
