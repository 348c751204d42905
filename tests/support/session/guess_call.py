"""Calls with guesses, for tests: a caller who pauses, and what the model knows of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import SpeechResult
from tests.support.fakes.remembering import RememberingChat
from tests.support.session.session_call import Call, call_with


async def let_work() -> None:
    """Everything that can be done without time passing."""
    for _ in range(60):
        await asyncio.sleep(0)


def told(call: Call) -> list[tuple[str, object]]:
    """Messages and requests of the chat, without those computed ahead."""
    return [each for each in call.chat.calls if not each[0].startswith("preview")]


def said(call: Call) -> list[tuple[str, str]]:
    return [(each.role, each.text.strip()) for each in messages_of(call.session.conversation)]


def known(chat: RememberingChat) -> list[tuple[str, str]]:
    return [(each.role, each.text.strip()) for each in chat.history]


@asynccontextmanager
async def remembering(
    *replies: str | Exception, pace_ms: int = 0, openers: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Call, RememberingChat]]:
    chat = RememberingChat(replies)
    async with call_with(chat=chat, pace_ms=pace_ms, openers=openers) as call:
        yield call, chat


async def pause(call: Call, text: str) -> None:
    """A guess is made of it, as far as it can be made."""
    call.ears.pause(text)
    await let_work()


def last_voiced(call: Call, at_ns: int) -> None:
    """Up to here the caller was heard."""
    call.ears.hear(SpeechResult(call.ears.utterance, last_voiced_ns=(at_ns, at_ns)))


async def end(call: Call) -> None:
    call.ears.fall_silent()
    await let_work()


async def change(call: Call, **settings: object) -> None:
    changed = call.session.settings.changed(**settings)
    await call.session.handle(ask.UpdateSession(changed))


def ended(call: Call) -> list[tuple[str, str]]:
    notices = [each for each in call.of(say.ReplyEnded) if isinstance(each, say.ReplyEnded)]
    return [(each.status, each.text) for each in notices]
