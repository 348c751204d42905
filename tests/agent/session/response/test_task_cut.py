"""A reply that is cut says nothing more, not even what was due at that very moment."""

import pytest

from agent.session.api.server_events import Notice, ReplyAudio
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.playback import Playback
from agent.session.response.response import UNHEARD_NS, Reply
from agent.session.response.task import ResponseCallbacks, ResponseTask
from latency_budget.account.clock import Deadline, ManualClock
from latency_budget.account.turn import TurnId
from tests.support.fakes.stages import FakeChat, FakeVoice


async def test_nothing_is_sent_after_the_end_of_a_reply_was_announced() -> None:
    """Cancelling reaches the tasks of a run one step of the loop later than the announcement."""
    clock = ManualClock()
    told: list[Notice] = []
    reply = Reply(
        TurnId(1),
        SessionSettings(),
        ResponseOptions(),
        Playback(24_000, 5000),
        Deadline.after_ms(500, now_ns=0),
    )

    def notify(notice: Notice) -> None:
        told.append(notice)
        reply.ended = isinstance(notice, ReplyAudio)

    callbacks = ResponseCallbacks(
        notify, lambda reply, name, at_ns: None, audible=lambda run: run.release()
    )
    run = ResponseTask(reply, FakeVoice(), clock, callbacks)
    await run.run(FakeChat(["One two three four."]))
    assert [type(notice).__name__ for notice in told] == ["ReplyText", "ReplyAudio"]


@pytest.mark.parametrize(
    ("options", "is_heard"),
    [
        (ResponseOptions(), True),
        (ResponseOptions(output_modality="text"), False),
        (ResponseOptions(out_of_band=True), False),
    ],
)
async def test_the_model_serves_replies_first_that_a_caller_waits_for_by_ear(
    options: ResponseOptions, is_heard: bool
) -> None:
    reply = Reply(
        TurnId(1),
        SessionSettings(),
        options,
        Playback(24_000, 5000),
        Deadline.after_ms(500, now_ns=0),
    )
    chat = FakeChat(["One."])
    callbacks = ResponseCallbacks(
        lambda notice: None, lambda reply, name, at_ns: None, audible=lambda run: run.release()
    )
    await ResponseTask(reply, FakeVoice(), ManualClock(), callbacks).run(chat)
    assert chat.deadlines_ns == [500_000_000 + (0 if is_heard else UNHEARD_NS)]
