"""A hundred calls in which the caller speaks over the agent at random moments.

Some have words, some listen aloud, some cough; some clients say how much they played, truly or not.
In the end the history is what came out of the client's loudspeaker, word for word, and the model's
is the same.
"""

import asyncio
import random

import pytest

from agent.client.simulated_caller.playback import SimulatedPlayback
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.server_events import Notice
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_messages import messages_of
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import SAMPLES_PER_CHAR
from tests.support.session import virtual_time
from tests.support.session.overlap_call import begin, items, listen, wire_is_in_order
from tests.support.session.session_call import Call, call_with

SAID = ("Mm-hmm.", "Yeah.", "Okay, right.", "", " ", "No, wait.", "Make it ten please.", "Stop.")
OVERLAPS = 4


def sentence(number: int, lots: random.Random) -> str:
    """Words that stand nowhere else, so that one lost or said twice is found."""
    return " ".join(f"w{number}x{word}" for word in range(lots.randint(6, 14))) + "."


def whole_words(text: str, samples: int) -> str:
    """What the fake voice has said of a text after so many samples."""
    ends = [at for at in range(1, len(text) + 1) if at == len(text) or text[at] == " "]
    return text[: max((at for at in ends if at * SAMPLES_PER_CHAR <= samples), default=0)]


class Told(list[Notice]):
    """Notices of a call, each of which a client takes as it comes."""

    def __init__(self, client: "Client", before: list[Notice]) -> None:
        super().__init__(before)
        self._client = client
        for notice in before:
            client.take(notice)

    def append(self, notice: Notice) -> None:
        super().append(notice)
        self._client.take(notice)


class Client:
    """Plays what comes, stops when somebody speaks, and may say how much it played."""

    def __init__(self, call: Call, clock: ManualClock, lots: random.Random) -> None:
        self.call = call
        self.clock = clock
        self.lots = lots
        self.loudspeaker = SimulatedPlayback(record=False)
        self.items: dict[str, str] = {}
        """Of each response."""
        self.texts: dict[str, str] = {}
        """Of each item, as it was shown."""
        self.claims: dict[str, int] = {}
        """Samples of an item that the client said it had played."""
        self.is_lost = False
        """True while nothing reaches it."""
        self._arrived: dict[str, int] = {}
        call.notices = Told(self, call.notices)

    def take(self, notice: Notice) -> None:
        """Take in what comes, at the time at which it comes."""
        if self.is_lost:
            return
        match notice:
            case say.ReplyStarted(response_id, item_id):
                self.items[response_id] = item_id
                self.texts[item_id] = ""
            case say.ReplyText(response_id, delta):
                self.texts[self.items[response_id]] += delta
            case say.ReplyAudio(response_id, pcm, rate_hz):
                spoken = self.items[response_id]
                now_ns = self.clock.now_ns()
                self._arrived[spoken] = self._arrived.get(spoken, 0) + len(pcm)
                self.loudspeaker.push(response_id, spoken, pcm, rate_hz, now_ns)
            case say.SpeechStarted():
                self.loudspeaker.flush(self.clock.now_ns())

    async def claim(self) -> None:
        """As stock clients do when somebody speaks; some lie."""
        item = items(self.call)[-1]
        if item.role != "assistant":
            return
        arrived = self._arrived.get(item.id, 0)
        claim_ms = self.lots.choice([None, None, "true", 0, 10**12])
        if claim_ms == "true":
            responses = {item_id: name for name, item_id in self.items.items()}
            claim_ms = int(self.loudspeaker.played_s(responses[item.id]) * 1000 + 0.01)
        if isinstance(claim_ms, int):
            self.claims[item.id] = min(claim_ms * 24, arrived)
            await self.call.session.handle(ask.TruncateItem(item.id, claim_ms))

    def heard(self) -> dict[str, str]:
        """Of each item."""
        played = {
            item_id: round(self.loudspeaker.played_s(response_id) * 24_000)
            for response_id, item_id in self.items.items()
        }
        played |= self.claims
        return {item_id: whole_words(self.texts[item_id], n) for item_id, n in played.items()}


async def rests(client: Client) -> None:
    machine = client.call.session._machine
    for _ in range(6_000):
        if machine.agent is Agent.IDLE and machine.caller is Caller.QUIET:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no rest")


async def speaks_over(client: Client) -> None:
    """At a random moment of a reply, or just after it."""
    lots, call = client.lots, client.call
    num_replies = len(call.of(say.ReplyStarted))
    call.ears.say(f"Question number {num_replies}, isn't it one?")
    await call.until(say.ReplyStarted, num_replies + 1)
    for _ in range(lots.randint(1, 3)):
        await asyncio.sleep(lots.uniform(0.1, 3))
        number = begin(call, lots.choice(SAID))
        await asyncio.sleep(0.002)
        await client.claim()
        await asyncio.sleep(lots.uniform(0.1, 0.6))
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(lots.uniform(0.01, 0.3))
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await asyncio.sleep(0.01)
    await rests(client)


@pytest.mark.parametrize("seed", range(100))
def test_history_equals_the_played_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)  # else what was hardly heard never was
    lots = random.Random(seed)

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat([sentence(number, lots) for number in range(100)])
        async with call_with(chat=chat, clock=clock, ahead=lots.random() < 0.5) as call:
            listen(call)
            client = Client(call, clock, lots)
            for _ in range(OVERLAPS):
                await speaks_over(client)
            heard = client.heard()
            known = {item.id: item.text for item in items(call) if item.role == "assistant"}
            assert {key: (text or "").rstrip() for key, text in known.items()} == {
                key: text.rstrip() for key, text in heard.items()
            }
            await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
            await call.until(say.ReplyEnded, len(call.of(say.ReplyEnded)) + 1)
            assert [(each.role, each.text.strip()) for each in chat.history] == [
                (each.role, each.text.strip()) for each in messages_of(call.session.conversation)
            ]
            wire_is_in_order(call)

    virtual_time.run(test)
