"""A reply that is cut says nothing more, not even what was due at that very moment."""

from functools import partial

from agent.notices import Notice, ReplyAudio
from agent.playback import Playback
from agent.reply import ReplyRun
from agent.reply_state import Reply
from agent.settings import ResponseOptions, SessionSettings
from latency_budget.clock import ManualClock
from latency_budget.deadline import Deadline
from latency_budget.turn import TurnId

from .fakes.stages import FakeChat, FakeVoice


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

    run = ReplyRun(reply, FakeVoice(), clock, notify, lambda name, at_ns: None)
    run.on_audible = partial(run.release)
    await run.run(FakeChat(["One two three four."]))
    assert [type(notice).__name__ for notice in told] == ["ReplyText", "ReplyAudio"]
