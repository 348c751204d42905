"""Callers who hesitate and clients that meddle, at random.

Whatever was guessed, dropped, outdated, adopted and cut: in the end the model's history is the
conversation, as it was said and heard.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ROOT, ItemId, Message, ModelCall
from agent.session.api.settings import ResponseOptions, SemanticVad, ServerVad
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import ChatMessage, ReplyToken
from agent.tools.offered import NO_TOOLS
from tests.support.fakes import stages
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import Toolbox

WORDS = ("Well,", "I would", "like a table", "for two.", "And the bill?", "Yes.")
MAX_MOVES = 25


class Chaos:
    """One move at a time; ears and client do only what real ones can."""

    def __init__(self, call: Call, lots: random.Random) -> None:
        self.call = call
        self.lots = lots
        self.is_pausing = False
        self._num_items = 0

    async def move(self) -> None:
        moves: list[Callable[[], Awaitable[None]]] = [self.pause] * 4
        if self.is_pausing:
            moves += [self.end] * 3
        moves += [self.create, self.delete, self.truncate, self.update, self.ask, self.cancel]
        moves += [self.clear, self.commit]
        await self.lots.choice(moves)()
        await self.work(self.lots.choice([0, 1, 3, 8, 60]))

    async def work(self, num_steps: int = 60) -> None:
        for _ in range(num_steps):
            await asyncio.sleep(0)

    async def pause(self) -> None:
        self.call.ears.pause(" ".join(self.lots.sample(WORDS, self.lots.randint(1, 3))))
        self.is_pausing = True
        await self.work(4)  # what is heard is told

    async def end(self) -> None:
        self.call.ears.fall_silent()
        self.is_pausing = False
        await self.work(4)

    async def create(self) -> None:
        self._num_items += 1
        item = Message(ItemId(f"mine{self._num_items}"), "user", "text", f"Note {self._num_items}")
        await self.call.session.handle(ask.CreateItem(item, self.lots.choice([None, None, ROOT])))

    async def delete(self) -> None:
        items = [item for item in self.call.session.conversation if item.status == "completed"]
        if items:
            await self.call.session.handle(ask.DeleteItem(self.lots.choice(items).id))

    async def truncate(self) -> None:
        last = self.call.session.conversation.last_id()
        if last is not None:
            await self.call.session.handle(ask.TruncateItem(last, self.lots.choice([0, 10, 30])))

    async def update(self) -> None:
        detection = ServerVad(
            500, interrupt_response=False, create_response=self.lots.random() < 0.8
        )
        await self.call.session.handle(ask.UpdateSession(self.call.session.settings.changed(
            instructions=self.lots.choice(["Be brief.", "Be kind."]),
            output_modality=self.lots.choice(["audio", "text"]),
            turn_detection=self.lots.choice([SemanticVad(), detection]),
        )))  # fmt: skip

    async def ask(self) -> None:
        await self.call.session.handle(ask.CreateResponse(ResponseOptions(
            instructions=self.lots.choice([None, None, "Say banana."]),
        )))  # fmt: skip

    async def cancel(self) -> None:
        await self.call.session.handle(ask.CancelResponse())

    async def clear(self) -> None:
        await self.call.session.handle(ask.ClearAudio())
        self.is_pausing = False

    async def commit(self) -> None:
        self.call.ears.words.setdefault(self.call.ears.utterance + 1, "Pushed.")
        await self.call.session.handle(ask.CommitAudio())
        self.is_pausing = False


class Tools(Toolbox):
    """Tools that take more or less long."""

    def __init__(self, lots: random.Random) -> None:
        super().__init__()
        self.lots = lots

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        for _ in range(self.lots.choice([0, 1, 3, 10, 60])):
            await asyncio.sleep(0)
        self.called.append(call)
        return f"Result {len(self.called)}"


class Chat(RememberingChat):
    """A model that goes on for a while behind its calls."""

    def __init__(self, replies: Sequence[str | Calling], lots: random.Random) -> None:
        super().__init__(replies)
        self.lots = lots

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        async with aclosing(super().generate(*args, **options)) as tokens:
            async for token in tokens:
                yield token
                for _ in range(self.lots.choice([0, 3, 10]) if token.calls else 0):
                    await asyncio.sleep(0)


def by_role(messages: list[ChatMessage]) -> dict[str, list[tuple[str, tuple[ModelCall, ...]]]]:
    """What each party said and called, in order. A note that comes while the model is being told
    what to answer is told as well, and then stands before the reply, behind which the client put
    it."""
    said: dict[str, list[tuple[str, tuple[ModelCall, ...]]]] = {}
    for message in messages:
        said.setdefault(message.role, []).append((message.text.strip(), message.calls))
    return said


def reply(number: int, lots: random.Random, *, may_call: bool) -> str | Calling:
    text = " ".join(f"r{number}.{word}" for word in range(lots.randint(1, 9))) + "."
    if not (may_call and lots.random() < 0.5):
        return text
    calls = [ModelCall("clock", f'{{"n": {number}, "k": {k}}}') for k in range(lots.randint(1, 2))]
    return Calling(lots.choice(["", text]), tuple(calls))


@pytest.mark.parametrize(
    ("seed", "has_tools"),
    [(seed, False) for seed in range(100)] + [(seed, True) for seed in range(50)],
)
async def test_the_history_is_the_conversation(
    seed: int, has_tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", 24)  # a millisecond
    lots = random.Random(seed)
    chat = Chat([reply(n, lots, may_call=has_tools) for n in range(2 * MAX_MOVES)], lots)
    async with call_with(chat=chat, tools=Tools(lots) if has_tools else NO_TOOLS) as call:
        chaos = Chaos(call, lots)
        for _ in range(MAX_MOVES):
            await chaos.move()
        await chaos.clear()
        await chaos.cancel()
        while call.of(say.Problem)[-1:] != call.notices[-1:]:  # until there is nothing to cancel
            await chaos.cancel()
            await chaos.work()
        chat.replies = ["The end."]
        num_ended = len(call.of(say.ReplyEnded))
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, num_ended + 1)
        assert by_role(chat.history) == by_role(messages_of(call.session.conversation))
        assert chat.system == call.session.settings.instructions
