"""Whole calls of random moves: nothing is lost, nothing is said twice, histories are word-exact.

The caller speaks, hesitates, listens aloud and interrupts; the client types, deletes, truncates,
asks, cancels and changes the session; models, tools, voice and recognizer are slow, fail, or hand
the call off; the connection breaks, and the call moves to another server. The moves of a seed are
drawn before the call begins, so that a list of them that fails can be cut down by hand.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionOutput,
    ItemId,
    ItemReference,
    Message,
    ModelCall,
)
from agent.session.api.settings import ResponseOptions, SemanticVad, ServerVad
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.clock import ManualClock
from tests.agent.session.test_taken_over import recorded
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.whole_call import OPENERS, Client, Model, SlowEars, Spoken, World
from tests.support.wire.wire_order import WireOrder

Move = tuple[str, Any]

NUM_MOVES = 25
CLIENT_TOOL = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
HEARD_HZ = 16_000
ENDS_TURN_MS = 5000


class ResumedOrder(WireOrder):
    """A connection of a call that has begun on another one. The words of an item that was deleted
    there are sent here, as they would have been there."""

    def __init__(self, items: list[str], before: WireOrder) -> None:
        super().__init__()
        self.events.append({})  # there is no session.created
        self.order = items
        spoken = before._spoken.items()
        owed = {each for each, state in spoken if state == "added"}
        if isinstance(before, ResumedOrder):
            owed |= before._before - {each for each, state in spoken if state == "transcribed"}
        self._before: set[str] = owed | set(items)

    def _see_speech(self, name: str, event: dict[str, Any]) -> None:
        """What began on the connection before goes on."""
        earlier = {"speech_stopped": "speech_started", "completed": "added", "failed": "added",
                   "delta": "added"}  # fmt: skip
        item_id = event.get("item_id")
        is_known = item_id in self._before or name == "speech_stopped"
        if item_id is not None and item_id not in self._spoken and name in earlier and is_known:
            self._spoken[item_id] = earlier[name]
        super()._see_speech(name, event)


class Walk:
    """One call, and what must hold in it."""

    def __init__(self, call: Client, world: World) -> None:
        self.call, self.world = call, world
        self.must_stay: dict[int, str] = {}
        """The caller's words that have to reach the conversation, by utterance."""
        self.known: dict[str, Message] = {}
        """Newest version of each message."""
        self._excused: set[int] = set()
        """Utterances that the client cleared, or ended by changing the detection."""
        self._is_pausing = False
        self._reports = False
        """The client says now and then how much it has played."""
        self._num_said = self._num_typed = self._num_called = 0

    @property
    def ears(self) -> SlowEars:
        assert isinstance(self.call.ears, SlowEars)
        return self.call.ears

    @property
    def model(self) -> Model:
        assert isinstance(self.call.chat, Model)
        return self.call.chat

    async def play(self, move: Move) -> None:
        kind, drawn = move
        name = kind.replace(" ", "_")
        if hasattr(self, name):
            await getattr(self, name)(drawn)
        elif not self.call.is_away:
            await getattr(self, f"client_{name}")(drawn)

    # --- the caller ---

    def _words(self, what: int | str) -> str:
        if isinstance(what, str):
            return what
        self._num_said += 1
        return " ".join(f"u{self._num_said}w{n}" for n in range(1, what + 1)) + "."

    async def say(self, what: int | str) -> None:
        """A whole utterance."""
        await self.begin(what)
        await asyncio.sleep(0.3)
        await self.pause(None)
        await asyncio.sleep(0.1)
        await self.silence(ENDS_TURN_MS)

    async def begin(self, what: int | str) -> None:
        ears, text = self.ears, self._words(what)
        ears.has_audio = True
        if ears.detection is None:
            ears.buffer = f"{ears.buffer} {text}".strip()
        elif ears.open is not None:
            ears.words[ears.open] = f"{ears.words[ears.open]} {text}".strip()
            if self._is_pausing:
                self._is_pausing = False
                ears.hear(ev.SpeechResumed(ears.open, HEARD_HZ * ears.open + 12_000))
        else:
            ears.utterance += 1
            ears.open = number = ears.utterance
            ears.words[number] = text
            self._is_pausing = False
            ears.hear(ev.SpeechStarted(number, HEARD_HZ * number))

    async def pause(self, _: None) -> None:
        ears = self.ears
        if ears.open is not None and not self._is_pausing:
            self._is_pausing = True
            ears.hear(ev.SpeechPaused(ears.open, HEARD_HZ * ears.open + 11_000))

    async def silence(self, ms: int) -> None:
        ears = self.ears
        await self.pause(None)
        if ears.open is not None:
            ears.hear(ev.SilenceGrew(ears.open, ms))
            if ms >= ENDS_TURN_MS:
                self._keeps(ears.open)

    async def partial(self, _: None) -> None:
        ears = self.ears
        if ears.open is not None:
            text = ears.words[ears.open]
            ears.hear(SpeechResult(ears.open, partial=(text, len(text))))

    async def judged(self, log_odds: float) -> None:
        if self.ears.open is not None and self._is_pausing:
            revision = self.call.session._machine._state.revision
            self.ears.hear(ev.PauseJudged(self.ears.open, revision, log_odds))

    def _keeps(self, number: int) -> None:
        """This utterance is whole. One with other than the test's own words may be a sound of
        listening."""
        text = self.ears.words[number]
        is_own = all(re.match(r"u\d+w", word) for word in text.split())
        if text and is_own and number not in self._excused:
            self.must_stay[number] = text

    def _excuse(self) -> None:
        """The open utterance ends without a message."""
        if self.ears.open is not None:
            self._excused.add(self.ears.open)
            self.must_stay.pop(self.ears.open, None)

    # --- the stages ---

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def recognizer(self, drawn: tuple[float, bool]) -> None:
        self.world.ears_delay_s, self.world.ears_fail = drawn

    async def generation(self, drawn: tuple[float, int]) -> None:
        self.world.model_delay_s, self.world.num_words = drawn

    async def model_fails(self, _: None) -> None:
        self.model.planned.insert(0, StageError("llm", "it broke"))

    async def model_breaks(self, num_words: int) -> None:
        self.world.breaks_after = num_words

    async def model_calls(self, drawn: tuple[bool, Sequence[str]]) -> None:
        has_words, names = drawn
        self._num_called += 1
        calls = tuple(
            ModelCall(name, f'{{"n": {self._num_called}, "at": {at}}}')
            for at, name in enumerate(names)
        )
        self.model.planned.append(Calling("words" if has_words else "", calls))

    async def tools(self, drawn: tuple[float, bool]) -> None:
        self.world.tool_s, self.world.tool_fails = drawn

    async def voice(self, drawn: tuple[float, str, bool]) -> None:
        world = self.world
        world.voice_delay_s, world.voice_fails, world.voice_splits = drawn

    async def condense(self, _: None) -> None:
        self.model.wants_condensing = True

    async def announce(self, _: None) -> None:
        self._num_typed += 1
        if self.call.session._machine.agent not in (Agent.IDLE, Agent.TRAILING):
            self.call.flush()
        self.call.session.say(f"a{self._num_typed}x. b{self._num_typed}x.")

    # --- the connection ---

    async def lose(self, _: None) -> None:
        if not self.call.is_away:
            if self._reports:
                await self.client_reports(None)  # as it did all the time
            self.call.flush()
            self.call.is_away = True
            self.call.session.client_lost()

    async def come_back(self, _: None) -> None:
        call = self.call
        if call.is_away:
            call.is_away = False
            items = [str(item.id) for item in call.session.conversation]
            call.order = ResumedOrder(items, call.order)
            call.session.client_back()

    async def goes_on_at(self, call: Client) -> None:
        """Another server has taken the call over. Words that were not transcribed are lost."""
        old, self.call = self.call, call
        self._look()
        texts = [message.text or "" for message in self.known.values()]
        arrived = [text for text in self.must_stay.values() if any(text in each for each in texts)]
        self.must_stay = {-1 - number: text for number, text in enumerate(arrived)}
        self._excused.clear()
        self.world.failed.clear()
        for each in old.spoken.values():
            each.is_over = True
        call.spoken, call.is_away = old.spoken, True
        call.follow(call.session.settings)
        call.protocol.send(say.SessionUpdated(call.session.settings))
        await self.come_back(None)

    # --- the client ---

    async def _request(self, request: ask.Request) -> None:
        await self.call.session.handle(request)

    def _item(self, which: int) -> ItemId | None:
        """The last item but so many."""
        items = list(self.call.session.conversation)
        return items[-1 - which % len(items)].id if items else None

    async def client_commit(self, _: None) -> None:
        had = self.ears.has_audio
        await self._request(ask.CommitAudio())
        if had:
            self._keeps(self.ears.utterance)

    async def client_clear(self, _: None) -> None:
        self._excuse()
        await self._request(ask.ClearAudio())

    async def client_types(self, drawn: tuple[Any, int | None]) -> None:
        role, where = drawn
        self._num_typed += 1
        item_id = ItemId(f"typed_{self._num_typed}")
        item = Message(item_id, role, "text", f"{role} {self._num_typed}.")
        after = None if where is None else self._item(where)
        await self._request(ask.CreateItem(item, after))

    async def client_deletes(self, which: int) -> None:
        if (item_id := self._item(which)) is not None:
            for number, each in self.call.session._user_items._items.items():
                if each == item_id:  # it is not known what was said
                    self._excused.add(number)
                    self.must_stay.pop(number, None)
            await self._request(ask.DeleteItem(item_id))

    async def client_retrieves(self, which: int) -> None:
        if (item_id := self._item(which)) is not None:
            await self._request(ask.RetrieveItem(item_id))

    async def client_stops(self, _: None) -> None:
        """It stops playing, says how far it has come, and cancels."""
        call = self.call
        spoken = [each for each in call.spoken.values() if each.speaks and not each.out_of_band]
        if spoken:
            played_ms = call.played_ms(spoken[-1])
            call.flush()
            await self._request(ask.TruncateItem(spoken[-1].item_id, played_ms))
            await self._request(ask.CancelResponse())

    async def client_truncates(self, _: None) -> None:
        """It stops playing, says how far it has come, and lets the response go on. Of one outside
        of the conversation it can't say that."""
        call = self.call
        spoken = [each for each in call.spoken.values() if each.speaks]
        if spoken and spoken[-1].item_id in call.session.conversation:
            played_ms = call.played_ms(spoken[-1])
            call.flush()
            spoken[-1].is_stopped = True
            await self._request(ask.TruncateItem(spoken[-1].item_id, played_ms))

    async def client_cancels(self, _: None) -> None:
        self.call.flush(tells=True)
        await self._request(ask.CancelResponse())
        await self.tell_truncated()

    async def client_reports(self, _: None) -> None:
        self._reports = True
        for each in list(self.call.spoken.values())[-2:]:
            played_ms = self.call.played_ms(each)
            await self._request(ask.PlaybackReport(each.item_id, played_ms))

    async def client_asks(self, drawn: tuple[ResponseOptions, int | None]) -> None:
        options, refers_to = drawn
        if refers_to is not None:
            item_id = self._item(refers_to)
            refers = () if item_id is None else (ItemReference(item_id),)
            own = Message(ItemId("own"), "user", "text", "Look at this.")
            options = replace(options, input=(*refers, own))
        await self._request(ask.CreateResponse(options))

    async def client_updates(self, changes: dict[str, Any]) -> None:
        settings = self.call.session.settings
        if changes.get("turn_detection", settings.turn_detection) != settings.turn_detection:
            self._excuse()
        await self._request(ask.UpdateSession(settings.changed(**changes)))
        self.call.follow(self.call.session.settings)

    async def client_answers(self, drawn: tuple[bool, bool, bool]) -> None:
        """It has run its tools, perhaps not all of them, and not in order."""
        asks, is_reversed, is_partial = drawn
        calls = self.call.calls[::-1] if is_reversed else self.call.calls
        num_done = 1 if is_partial else len(calls)
        calls, self.call.calls = calls[:num_done], calls[num_done:]
        for made in calls:
            self._num_typed += 1
            item_id = ItemId(f"typed_{self._num_typed}")
            output = FunctionOutput(item_id, made.call_id, f"output {self._num_typed}.")
            await self._request(ask.CreateItem(output))
        if calls and asks:
            await self._request(ask.CreateResponse(ResponseOptions()))

    async def tell_truncated(self) -> None:
        """What stock clients send when they have stopped playing."""
        call = self.call
        told, call.to_truncate = call.to_truncate, []
        for item_id, played_ms in told:
            if item_id in call.session.conversation and not call.is_away:
                await self._request(ask.TruncateItem(item_id, played_ms))

    # --- what must hold ---

    def _look(self) -> None:
        for item in self.call.session.conversation:
            if isinstance(item, Message):
                self.known[str(item.id)] = item

    def check(self) -> None:
        """Each reply that is over is what came out of the loudspeaker."""
        self._look()
        conversation = self.call.session.conversation
        for each in self.call.spoken.values():
            if each.is_over and not each.out_of_band and each.item_id in conversation:
                item = conversation.get(each.item_id)
                assert isinstance(item, Message)
                self._check_words(each, (item.text or "").split())

    def _check_words(self, each: Spoken, kept: list[str]) -> None:
        heard = self.call.heard(each).split()
        if each.was_taken_back:
            assert kept == [], each.item_id
        elif self.call.is_playing(each):
            assert kept[: len(heard)] == heard, each.item_id
        else:
            is_opener = " ".join(heard) in OPENERS and not kept  # no answer
            assert kept == heard or is_opener, each.item_id

    async def come_to_rest(self) -> None:
        """Everything works again, the caller is silent, and time passes."""
        world, session = self.world, self.call.session
        world.heal()
        self.model.planned.clear()
        await self.come_back(None)
        await self.client_answers((False, False, False))
        await self.silence(ENDS_TURN_MS)
        await asyncio.sleep(4)
        await self.client_updates({"turn_detection": None, "tools": (), "tool_choice": "none"})
        machine = session._machine
        for _ in range(400):
            await asyncio.sleep(0.5)
            await self.tell_truncated()
            is_quiet = machine.agent is Agent.IDLE and machine.caller is Caller.QUIET
            waits = machine.is_asked or machine._state.awaited or session._background._running
            if is_quiet and not waits:
                break
        await asyncio.sleep(40)
        options = ResponseOptions(output_modality="text", tool_choice="none")
        await self.client_asks((options, None))  # its model is asked with all of the conversation
        await asyncio.sleep(10)
        assert machine.agent is Agent.IDLE
        self.check()

    def check_rest(self) -> None:
        """What must hold of the whole call."""
        call, session = self.call, self.call.session
        started = [n.response_id for n in call.notices if isinstance(n, say.ReplyStarted)]
        ended = [n.response_id for n in call.notices if isinstance(n, say.ReplyEnded)]
        assert sorted(started) == sorted(ended)
        assert len(set(started)) == len(started)
        call.order.finish([str(item.id) for item in session.conversation])
        self._check_caller()
        self._check_agent()
        self._check_tools()
        assert not session._user_items._items, "utterances without an end"
        assert session._displaced is None
        assert not session._script.announces
        assert all(model.closed for model in call.models[1:])

    def _check_caller(self) -> None:
        texts = [each.text or "" for each in self.known.values() if each.role == "user"]
        spoken = [text for text in texts if re.search(r"u\d+w", text)]
        assert len(set(spoken)) == len(spoken), "twice in the conversation"
        for number, text in self.must_stay.items():
            is_there = any(text in each for each in spoken)
            assert is_there or number in self.world.failed, f"lost: {text}"

    def _check_agent(self) -> None:
        spoken = [each for each in self.call.spoken.values() if each.speaks]
        words = " ".join(self.call.heard(each) for each in spoken).split()
        own = [word for word in words if re.match(r"r\d+w", word)]
        assert len(set(own)) == len(own), "said twice"

    def _check_tools(self) -> None:
        rounds = [each for message in self.known.values() for each in message.rounds]
        assert all(len(each.calls) == len(each.results) for each in rounds)
        results = [result for each in rounds for result in each.results]
        for run in self.world.runs:
            if run.call.name == "search" and run.result is not None:
                assert results.count(run.result) == 1, "a result joins once"


# --- moves ---

DETECTIONS = (
    None, SemanticVad(), SemanticVad(), SemanticVad("low"), SemanticVad(interrupt_response=False),
    SemanticVad(create_response=False), ServerVad(), ServerVad(silence_duration_ms=200),
    ServerVad(idle_timeout_ms=5000), ServerVad(create_response=False, interrupt_response=False),
)  # fmt: skip
CALLS = (
    ["lookup"], ["lookup"], ["search"], ["search", "lookup"], ["transfer_to_other"], ["clock"],
    ["transfer_to_default"], ["clock", "lookup"], ["lookup", "transfer_to_other"],
    ["clock", "clock"], ["clock", "clock", "clock"],
)  # fmt: skip


def _options(lots: random.Random) -> tuple[ResponseOptions, int | None]:
    options = ResponseOptions(
        out_of_band=lots.random() < 0.2,
        output_modality=lots.choice([None, None, "text", "audio"]),
        instructions=lots.choice([None, None, "Sing."]),
        tool_choice=lots.choice([None, None, "none", "required"]),
    )
    return options, lots.choice([None, None, 0, 3])


def _changes(lots: random.Random) -> dict[str, Any]:
    return lots.choice(
        [
            {"turn_detection": lots.choice(DETECTIONS)},
            {"turn_detection": lots.choice(DETECTIONS)},
            {"tools": lots.choice([(), (CLIENT_TOOL,)])},
            {"instructions": lots.choice(["A.", "B."])},
            {"output_modality": lots.choice(["audio", "audio", "text"])},
            {"output_encoding": lots.choice(["pcm16", "pcmu"])},
            {"pace_ms": lots.choice([0, 700])},
        ]
    )


Draw = Callable[[random.Random], Any]
KINDS: dict[str, tuple[float, Draw]] = {
    "say": (12, lambda d: d.choice([1, 3, 8, 3, 8, "Mm-hmm.", "", "Stop.", "Yeah."])),
    "begin": (5, lambda d: d.randint(1, 6)),
    "pause": (2, lambda d: None),
    "silence": (3, lambda d: d.choice([200, 450, 800, ENDS_TURN_MS])),
    "partial": (2, lambda d: None),
    "judged": (1, lambda d: d.choice([-4.0, 0.0, 4.0])),
    "recognizer": (1, lambda d: (d.choice([0, 0.1, 0.6, 3]), d.random() < 0.2)),
    "generation": (2, lambda d: (d.choice([0, 0, 0.05, 0.5]), d.choice([1, 3, 8, 20, 40]))),
    "model fails": (0.7, lambda d: None),
    "model breaks": (0.7, lambda d: d.choice([1, 3, 7])),
    "model calls": (4, lambda d: (d.random() < 0.5, d.choice(CALLS))),
    "tools": (1, lambda d: (d.choice([0, 0.3, 3, 12]), d.random() < 0.2)),
    "voice": (
        1,
        lambda d: (
            d.choice([0, 0.1, 1]),
            d.choice(["", "", "", "at once", "half way"]),
            d.random() < 0.5,
        ),
    ),
    "condense": (1, lambda d: None),
    "announce": (0.5, lambda d: None),
    "lose": (1, lambda d: None),
    "come back": (2, lambda d: None),
    "move": (0.7, lambda d: None),
    "commit": (1.5, lambda d: None),
    "clear": (0.7, lambda d: None),
    "types": (
        2,
        lambda d: (
            d.choice(["user", "user", "system", "assistant"]),
            d.choice([None, None, None, 0, 1, 3]),
        ),
    ),
    "deletes": (1, lambda d: d.randint(0, 5)),
    "retrieves": (0.5, lambda d: d.randint(0, 5)),
    "stops": (1, lambda d: None),
    "truncates": (1, lambda d: None),
    "cancels": (1.5, lambda d: None),
    "reports": (1, lambda d: None),
    "asks": (3, _options),
    "updates": (2.5, _changes),
    "answers": (3, lambda d: (d.random() < 0.7, d.random() < 0.4, d.random() < 0.3)),
}
"""How often, and what is drawn."""


def moves_of(seed: int) -> list[Move]:
    lots = random.Random(f"moves {seed}")
    weights = [weight for weight, _ in KINDS.values()]
    out: list[Move] = []
    for kind in lots.choices(list(KINDS), weights, k=NUM_MOVES):
        out.append((kind, KINDS[kind][1](lots)))
        if lots.random() < 0.5:
            out.append(("wait", lots.choice([0.3, 2, 8]) * lots.random()))
    return out


async def _serve(call: Client, group: asyncio.TaskGroup) -> asyncio.Task[None]:
    running = group.create_task(call.session.run())
    await call.ears.running.wait()
    call.ears.last_audio_ns = 1 << 62  # it never stalls
    return running


async def _call(
    clock: ManualClock, new: Callable[..., Client], world: World, moves: Sequence[Move]
) -> None:
    tasks_before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        call = new(world, clock)
        running = await _serve(call, group)
        walk = Walk(call, world)
        for move in moves:
            if move[0] == "move":
                state = recorded(call.session.state())
                running.cancel()
                call.flush()
                call.is_away = True  # what still comes is in no state
                call = new(world, clock, restored=state)
                running = await _serve(call, group)
                await walk.goes_on_at(call)
            else:
                await walk.play(move)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await walk.tell_truncated()
            walk.check()
        await walk.come_to_rest()
        walk.check_rest()
        running.cancel()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks_before
    assert call.chat.closed


def play(seed: int, moves: Sequence[Move]) -> None:
    lots = random.Random(seed)
    options: dict[str, Any] = {
        "ducks": lots.random() < 0.3,
        "ahead": lots.random() < 0.6,
        "has_tools": lots.random() < 0.6,
        "early_openers": lots.random() < 0.25,
        "openers": OPENERS if lots.random() < 0.4 else (),
        "truncates": lots.random() < 0.5,
    }

    def new(world: World, clock: ManualClock, **more: Any) -> Client:
        return Client(world, clock, **options, **more)

    def story(clock: ManualClock) -> Awaitable[None]:
        return _call(clock, new, World(), moves)

    virtual_time.run(story)


@pytest.mark.parametrize(
    "seed", [*range(60), 140, 229, 245, 690, 966, 1084, 2711, 2789, 3393, 5012, 5176, 6269]
)
def test_whatever_is_said_is_kept_as_it_was_heard(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        play(seed, moves_of(seed))
    assert not caplog.records


def test_a_ducked_reply_plays_on_where_speech_interrupts_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client sets that while the caller speaks over it."""
    waits = ServerVad(create_response=False, interrupt_response=False)
    moves: list[Move] = [
        ("say", 8), ("wait", 0.45), ("begin", 2), ("updates", {"turn_detection": waits}),
    ]  # fmt: skip
    with caplog.at_level(logging.ERROR):
        play(5012, moves)
    assert not caplog.records


def test_words_of_a_deleted_item_come_on_the_next_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moves: list[Move] = [
        ("say", 8), ("say", 3), ("recognizer", (3, False)), ("commit", None), ("deletes", 5),
        ("lose", None),
    ]  # fmt: skip
    with caplog.at_level(logging.ERROR):
        play(5176, moves)
    assert not caplog.records
