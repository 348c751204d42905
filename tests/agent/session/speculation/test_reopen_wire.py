"""A re-opened turn on the wire: items apart, chained, and none left open."""

from collections import Counter
from typing import Any

import pytest

from agent.session.api import server_events as say
from agent.turn_taking import reopening
from tests.agent.realtime.protocol.test_order import belongs, check_response
from tests.support.session.guess_call import let_work, remembering
from tests.support.session.reopen_call import (
    FIRST,
    LONG,
    SECOND,
    answered,
    ask_first,
    go_on,
    say_rest,
)
from tests.support.wire.wire_frames import make
from tests.support.wire.wire_frames import say as told_by

Event = dict[str, Any]


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["type"] == kind]


@pytest.mark.parametrize("audible", [False, True], ids=["prepared", "heard"])
@pytest.mark.parametrize("rest", [SECOND, ""], ids=["words", "noise"])
async def test_events_of_a_re_opened_turn(
    audible: bool, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "REOPEN_NS", 1 << 60)
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat, audible=audible)
        await go_on(call)
        if not audible:
            chat.replies = ["Ten."]
        await say_rest(call, rest)
        await answered(call, "Ten.", 2)
        await let_work()
    events = told_by(make(), call.notices)

    created, done = of(events, "response.created"), of(events, "response.done")
    ids = [event["response"]["id"] for event in created]
    assert [event["response"]["id"] for event in done] == ids
    assert Counter(ids).most_common(1) == [(ids[0], 1)]
    for response_id in ids:
        check_response([event for event in events if belongs(event, response_id)])

    (cut, whole) = (event["response"] for event in done)
    assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
    (unheard,) = cut["output"]
    assert unheard["status"] == "incomplete"
    assert unheard["content"] == [{"type": "output_audio", "transcript": ""}]
    assert whole["status"] == "completed"
    for kind in ("response.output_audio_transcript.done", "conversation.item.done"):
        ended = [each for each in of(events, kind) if unheard["id"] in str(each)]
        assert LONG[:3] not in str(ended[0])

    added = of(events, "conversation.item.added")
    items = [event["item"]["id"] for event in added]
    assert [event["previous_item_id"] for event in added] == [None, *items[:-1]]
    assert items[1] == unheard["id"]
    roles = [event["item"]["role"] for event in added]
    halves = ["user", "assistant", "user", "assistant"]
    assert roles == (halves if rest else ["user", "assistant", "assistant"])
    said = of(events, "conversation.item.input_audio_transcription.completed")
    assert [event["transcript"] for event in said] == ([FIRST, SECOND] if rest else [FIRST])

    kinds = [event["type"] for event in events]
    again = len(kinds) - 1 - kinds[::-1].index("input_audio_buffer.speech_started")
    stopped = kinds.index("response.done")
    assert again < stopped
    assert not {"response.output_audio.delta", "response.created"} & set(kinds[again:stopped])
    assert isinstance(call.of(say.ReplyEnded)[0], say.ReplyEnded)
