"""Callers who go on at random moments, and clients that interfere: the model reads the whole
turn."""

import asyncio
import random
from dataclasses import dataclass

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from agent.turn_taking.tables import Agent
from tests.support.fakes import stages
from tests.support.fakes.remembering import RememberingChat
from tests.support.session.guess_call import let_work
from tests.support.session.session_call import Call, call_with

WORDS = ("Well,", "I would", "like a table", "for two.", "And the bill?", "Yes.")
MAX_MOVES = 20
FOREVER = 1 << 60


@dataclass
class Said:
    item_id: ItemId
    role: str
    text: str = ""
    """Of a reply: unknown here. What was heard of it is another test's."""
    goes_on_with: ItemId | None = None
    is_unheard: bool = False
    whole: str = ""
    """Of a reply, with what came of it after it was held."""


class Meant:
    """What was said in the call, after its notices."""

    def __init__(self, call: Call) -> None:
        self.said: list[Said] = []
        self.num_reopened = 0
        self._call = call
        self._num_read = 0
        self._reply: Said | None = None
        self._asked_for = False
        self._is_own = False
        """The newest reply answers what the caller said last, and was not held."""
        self._goes_on_with: ItemId | None = None
        self._last_utterance: ItemId | None = None

    def read(self) -> None:
        """Take in what the client was told since."""
        for notice in self._call.notices[self._num_read :]:
            match notice:
                case say.ReplyStarted(item_id=item_id):
                    self._reply = Said(item_id, "assistant")
                    self.said.append(self._reply)
                    self._goes_on_with = None
                    if self._takes_up(item_id):
                        self._is_own = False  # what was heard of it stays
                    else:
                        self._is_own, self._asked_for = not self._asked_for, False
                case say.TranscriptCompleted(item_id, text):
                    self.said.append(Said(item_id, "user", text, self._goes_on_with))
                    self._last_utterance = item_id
                    self._goes_on_with = None
                case say.ItemAdded(Message(item_id, "user", "text", text)):
                    self.said.append(Said(item_id, "user", text or ""))
                    self._goes_on_with = None
                case say.ItemDeleted(item_id):
                    self.said = [each for each in self.said if each.item_id != item_id]
        self._num_read = len(self._call.notices)

    def _takes_up(self, item_id: ItemId) -> bool:
        """Whether it is the rest of a reply that was held."""
        item = self._call.session.conversation.get(item_id)
        return isinstance(item, Message) and item.continues is not None

    def asked_for(self) -> None:
        """The next reply is the client's wish."""
        self._asked_for = True

    def speech(self, agent: Agent, in_time: bool) -> None:
        """The caller is about to speak."""
        if agent is Agent.IDLE or not self._is_own or not (in_time or agent is Agent.PREPARING):
            return
        self.num_reopened += 1
        self._goes_on_with = self._last_utterance
        assert self._reply is not None
        self._reply.is_unheard = True

    def messages(self) -> list[tuple[str, str]]:
        """What a model is to know of it."""
        told: list[tuple[ItemId, str, str]] = []
        rests: dict[ItemId, str] = {}
        for each in reversed(self.said):  # a reply that was taken up again is one
            item = self._call.session.conversation.get(each.item_id)
            rest = rests.pop(each.item_id, "")
            each.whole = (item.text or "") + rest if isinstance(item, Message) else ""
            assert not (each.role == "assistant" and each.is_unheard and each.whole)
            before = item.continues if isinstance(item, Message) else None
            if each.role == "assistant" and any(other.item_id == before for other in self.said):
                assert before is not None
                rests[before], each.whole = each.whole, ""
        for each in self.said:
            text = each.whole if each.role == "assistant" else each.text
            if told and each.goes_on_with == told[-1][0]:
                text = f"{told.pop()[2]} {text}"
            if text.strip():
                told.append((each.item_id, each.role, text.strip()))
        return [(role, text) for _, role, text in told]


class Chaos:
    """One move at a time. Between two moves everything is done that needs no time."""

    def __init__(
        self, call: Call, lots: random.Random, meant: Meant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.call = call
        self.lots = lots
        self.meant = meant
        self._monkeypatch = monkeypatch
        self._is_speaking = False
        self._num_notes = 0

    async def move(self) -> None:
        if self._is_speaking:
            moves = [self.pause, self.pause, self.end, self.end, self.end]
        else:
            moves = [self.speak, self.speak, self.speak, self.wait]
        moves += [self.lots.choice([self.hold, self.note, self.ask, self.delete, self.truncate])]
        await self.lots.choice(moves)()
        await let_work()
        self.meant.read()

    @property
    def agent(self) -> Agent:
        return self.call.session._machine.agent

    async def speak(self) -> None:
        in_time = self.lots.random() < 0.7
        self._monkeypatch.setattr(reopening, "REOPEN_NS", FOREVER if in_time else 0)
        self.meant.speech(self.agent, in_time)
        self._is_speaking = True
        ears = self.call.ears
        ears.last_audio_ns = 1 << 62  # it does not stall
        ears.utterance += 1
        ears.hear(ev.SpeechStarted(ears.utterance, 0))

    async def pause(self) -> None:
        """After which the caller goes on."""
        await self._fall_silent(self.lots.sample(WORDS, self.lots.randint(0, 2)))
        self.call.ears.hear(ev.SpeechResumed(self.call.ears.utterance, 0))

    async def end(self) -> None:
        await self._fall_silent(self.lots.sample(WORDS, self.lots.choice([0, 1, 1, 2])))
        self.call.ears.hear(ev.SilenceGrew(self.call.ears.utterance, 5000))
        self._is_speaking = False

    async def _fall_silent(self, words: list[str]) -> None:
        ears = self.call.ears
        ears.words[ears.utterance] = " ".join(words)
        ears.hear(ev.SpeechPaused(ears.utterance, 0))
        if self.lots.random() < 0.7:
            await let_work()  # time enough for a guess

    async def wait(self) -> None:
        await asyncio.sleep(0.02)

    async def hold(self) -> None:
        """The model becomes slow, or quick again."""
        chat = self.call.chat
        if chat.hold is None:
            chat.hold = asyncio.Event()
        else:
            chat.hold.set()
            chat.hold = None

    async def note(self) -> None:
        self._num_notes += 1
        item = Message(ItemId(f"mine{self._num_notes}"), "user", "text", f"Note {self._num_notes}")
        await self.call.session.handle(ask.CreateItem(item))

    async def ask(self) -> None:
        if self.call.session._machine.takes_requests:
            self.meant.asked_for()
        await self.call.session.handle(ask.CreateResponse(ResponseOptions()))

    async def delete(self) -> None:
        items = [item for item in self.call.session.conversation if item.status != "in_progress"]
        if items:
            await self.call.session.handle(ask.DeleteItem(self.lots.choice(items).id))

    async def truncate(self) -> None:
        """As clients do when they are told that the caller speaks."""
        replies = [each.item_id for each in self.meant.said if each.role == "assistant"]
        if replies and not self._is_deleted(replies[-1]):
            played_ms = self.lots.choice([0, 30, 90])
            await self.call.session.handle(ask.TruncateItem(replies[-1], played_ms))

    def _is_deleted(self, item_id: ItemId) -> bool:
        return item_id not in self.call.session.conversation

    async def come_to_rest(self) -> None:
        if self._is_speaking:
            await self.end()
        if self.call.chat.hold is not None:
            await self.hold()
        await let_work()
        while self.agent is not Agent.IDLE:
            await self.call.session.handle(ask.CancelResponse())
            await asyncio.sleep(0.02)
        self.meant.read()


NUM_REOPENED: list[int] = []


@pytest.mark.parametrize("seed", range(100))
async def test_model_receives_the_whole_utterance(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", 240)  # five times as fast as one can speak
    lots = random.Random(seed)
    replies = [" ".join(f"r{number}.{word}" for word in range(lots.randint(1, 20))) + "."
               for number in range(4 * MAX_MOVES)]  # fmt: skip
    chat = RememberingChat(replies)
    async with call_with(chat=chat) as call:
        meant = Meant(call)
        chaos = Chaos(call, lots, meant, monkeypatch)
        for _ in range(MAX_MOVES):
            await chaos.move()
        await chaos.come_to_rest()
        num_ended = len(call.of(say.ReplyEnded))
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, num_ended + 1)
        meant.read()
        assert [(each.role, each.text.strip()) for each in chat.history] == meant.messages()
        ended = [each for each in call.of(say.ReplyEnded) if isinstance(each, say.ReplyEnded)]
        assert len({each.response_id for each in ended}) == len(call.of(say.ReplyStarted))
        assert len(ended) == len(call.of(say.ReplyStarted))
    NUM_REOPENED.append(meant.num_reopened)


def test_many_turns_were_re_opened() -> None:
    """Of the seeds above, where all of them ran."""
    assert len(NUM_REOPENED) < 100 or sum(NUM_REOPENED) > 100
