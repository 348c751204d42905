"""Options of a response that the client asked for and has cancelled: in virtual time."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions
from tests.support.session.guess_call import remembering
from tests.support.session.reopen_call import go_on, say_rest, type_after

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("cancels", [False, True])
async def test_options_of_a_response_that_speech_cut_unheard_end_with_its_cancellation(
    *, cancels: bool
) -> None:
    """The speech is a noise: what was due begins anew, by a cancelled request's options no more."""
    async with remembering("Never heard.", "Ten.") as (call, chat):
        await type_after(call)
        chat.hold = asyncio.Event()
        options = ResponseOptions(max_output_tokens=77)
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyStarted)
        await go_on(call)
        if cancels:
            await call.session.handle(ask.CancelResponse())
        num_asked = len(chat.max_tokens)
        await say_rest(call, " ")
        await call.until(say.ReplyEnded, 2)
        assert chat.max_tokens[num_asked:] == [None if cancels else 77]
