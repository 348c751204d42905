"""Calls whose connection breaks at random moments, in virtual time.

Whatever breaks when: the history is what came out of the client's loudspeaker, word for word, the
model's is the same, no name is used twice, and every caller is answered.
"""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_messages import messages_of
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from tests.agent.session.interruptions.test_barge_in_random import Client, rests, sentence
from tests.support.fakes.remembering import RememberingChat
from tests.support.session import virtual_time
from tests.support.session.overlap_call import begin, items, listen, wire_is_in_order
from tests.support.session.session_call import call_with

NUM_BREAKS = 3
WIRE_HZ = 24_000


class LosableClient(Client):
    """Stops playing when its connection breaks, and knows nothing of what is said meanwhile."""

    async def is_away(self) -> None:
        self.loudspeaker.flush(self.clock.now_ns())
        self.is_lost = True
        session, newest = self.call.session, self.call.session.conversation.last_id()
        session.client_lost()
        await asyncio.sleep(self.lots.choice([0, 0.05, 0.5, 20]))
        self.is_lost = False
        session.client_back()
        responses = {item_id: name for name, item_id in self.items.items()}
        if newest in responses and self.lots.random() < 0.5:
            played = round(self.loudspeaker.played_s(responses[newest]) * WIRE_HZ)
            self.claims[newest] = self.lots.choice([0, played])
            claim_ms = self.claims[newest] * 1000 // WIRE_HZ
            await self.call.session.handle(ask.TruncateItem(newest, claim_ms))


async def speaks_and_is_lost(client: LosableClient) -> None:
    """Asks something; the connection breaks while he speaks, waits, or is answered."""
    lots, call = client.lots, client.call
    asked = f"Question number {len(call.of(say.ReplyStarted))}, isn't it one?"
    number = begin(call, asked)
    steps: list[ev.Event] = [
        ev.SpeechPaused(number, 16_000),
        ev.SilenceGrew(number, 200),
        ev.SilenceGrew(number, 5000),
    ]
    breaks = lots.randint(0, len(steps))
    for index, step in enumerate(steps):
        await asyncio.sleep(lots.uniform(0, 0.3))
        if index == breaks:
            await client.is_away()
        call.ears.hear(step)
        await asyncio.sleep(0.002)
    if breaks == len(steps):
        await asyncio.sleep(lots.uniform(0, 3))
        await client.is_away()
    await rests(client)
    assert asked in [item.text for item in items(call)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_history_equals_played_text_after_any_disconnect(seed: int) -> None:
    lots = random.Random(seed)

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat([sentence(number, lots) for number in range(100)])
        ahead, ducks = lots.random() < 0.5, lots.random() < 0.5
        async with call_with(chat=chat, clock=clock, ahead=ahead, ducks=ducks) as call:
            listen(call)
            client = LosableClient(call, clock, lots)
            for _ in range(NUM_BREAKS):
                await speaks_and_is_lost(client)
            heard = client.heard()
            known = {item.id: item.text for item in items(call) if item.role == "assistant"}
            assert {key: (text or "").rstrip() for key, text in known.items()} == {
                key: text.rstrip() for key, text in heard.items()
            }
            ids = [str(item.id) for item in call.session.conversation] + list(client.items)
            assert len(set(ids)) == len(ids)
            await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
            await call.until(say.ReplyEnded, len(call.of(say.ReplyEnded)) + 1)
            assert [(each.role, each.text.strip()) for each in chat.history] == [
                (each.role, each.text.strip()) for each in messages_of(call.session.conversation)
            ]
            wire_is_in_order(call)

    virtual_time.run(test)
