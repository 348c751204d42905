"""Calls in which the caller goes on just as the agent begins, for tests."""

import asyncio

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.turn_taking import events as ev
from tests.support.fakes.remembering import RememberingChat
from tests.support.session.guess_call import ended, let_work
from tests.support.session.session_call import Call

FIRST, SECOND, WHOLE = "What time is it?", "In Paris.", "What time is it? In Paris."
LONG = "One two three four five six seven eight nine ten eleven twelve."


async def ask_first(call: Call, chat: RememberingChat, *, audible: bool = True) -> None:
    """The first half is taken for all, and the reply to it has begun."""
    chat.hold = None if audible else asyncio.Event()
    call.ears.say(FIRST)
    await (call.until(say.ReplyAudio) if audible else chat.generating.wait())


async def go_on(call: Call) -> None:
    """The caller begins to speak."""
    call.ears.last_audio_ns = 1 << 62  # it does not stall
    call.ears.utterance += 1
    call.ears.hear(ev.SpeechStarted(call.ears.utterance, 1600 * call.ears.utterance))
    await let_work()
    chat = call.chat
    if chat.hold is not None:
        chat.hold.set()


async def say_rest(call: Call, text: str) -> None:
    """Say more of the utterance, up to the end of the turn."""
    number = call.ears.utterance
    call.ears.words[number] = text
    call.ears.hear(ev.SpeechPaused(number, 1600 * number + 800))
    call.ears.hear(ev.SilenceGrew(number, 5000))
    await let_work()


async def answered(call: Call, text: str, count: int) -> None:
    await call.until(say.ReplyEnded, count)
    assert ended(call)[-1] == ("completed", text)


def messages(call: Call) -> list[tuple[str, str | None, str]]:
    items = [item for item in call.session.conversation if isinstance(item, Message)]
    return [(item.role, item.text, item.status) for item in items]


def last_asked(chat: RememberingChat) -> list[tuple[str, str]]:
    return [(each.role, each.text) for each in chat.asked[-1]]


async def type_after(call: Call) -> None:
    item = Message(ItemId("note"), "user", "text", "By the way")
    await call.session.handle(ask.CreateItem(item))
