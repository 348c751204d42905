"""A telephone call that the agents SDK brings: Twilio on one side of its application, played by
`streamdouble`, and this service, asked for mu-law, on the other.

`tests/clients/openai_agents_python/telephone.py` is the application.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
from streamdouble.chaos import Impairments
from streamdouble.scenario import Step
from streamdouble.session import SessionResult

from tests.agent.telephony.carriers.test_streamdouble import (
    HEARD,
    assert_well_behaved,
    called,
    said,
    turns_of,
    until,
)
from tests.clients.cable import Cable, cable_to
from tests.clients.openai_agents_python.telephone import Bridge, bridge
from tests.clients.scene import READER, Event, check_chain
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap, transcript
from tests.support.wire.wire_frames import check_strictly

SAID: Final = ("vm-nobodyavail", "conf-locked")
TRUNCATED: Final = "conversation.item.truncated"
RETRIEVED: Final = "conversation.item.retrieved"
CHARS_PER_S: Final = 25.0
"""Nobody speaks faster; the voice says 15."""

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]


@pytest.fixture
async def cable(live: LiveServer) -> AsyncIterator[Cable]:
    """To the service; every frame that came through it was right."""
    async with cable_to(live.port) as made:
        yield made
    assert made.frames
    for frame in made.frames:
        check_strictly(json.loads(frame))


def events(call: Bridge, kind: str) -> list[Event]:
    return [event for event in call.raw if event["type"] == kind]


async def test_a_caller_interrupts_twice_and_history_is_what_was_heard(
    live: LiveServer, cable: Cable
) -> None:
    told: list[str] = []

    def act(result: SessionResult) -> Iterator[Step]:
        def heard_more() -> Iterator[Step]:
            heard = len(result.marks_echoed)
            yield from until(lambda: len(result.marks_echoed) > heard + HEARD)

        def interrupts(name: str) -> Iterator[Step]:
            cleared = result.clears_received
            yield said(name)
            yield from until(lambda: result.clears_received > cleared)

        yield from heard_more()
        for name in SAID:
            yield from interrupts(name)
            yield from heard_more()
        told.extend(turn.agent_text for turn in turns_of(live))

    url = f"ws://127.0.0.1:{cable.port}/v1/realtime?model={READER}"
    async with bridge(url) as (call, address):
        result = await called(address, act, Impairments())
    assert call.errors == []
    assert_well_behaved(result)
    check_chain(call.raw)
    assert result.clears_received == len(call.interrupted)
    finals = events(call, "conversation.item.input_audio_transcription.completed")
    heard = " ".join(final["transcript"] for final in finals)
    for name in SAID:
        assert overlap(transcript(name), heard) > 0.6
    cuts = {each["item_id"]: each["audio_end_ms"] for each in events(call, TRUNCATED)}
    for item_id, played_ms in call.interrupted:
        # A mark may come between the interruption and its being told to the application.
        assert cuts[item_id] <= round(played_ms)
        assert cuts[item_id] in [round(ms) for ms in call.played_ms[item_id]]
    greeting = live.config.agents[READER].greeting
    first, _ = call.interrupted[0]
    asked = [each["item"] for each in events(call, RETRIEVED) if each["item"]["id"] == first]
    item = asked[-1]
    (part,) = item["content"]
    words = part["transcript"]
    assert item["status"] == "incomplete"
    assert 0 < len(words) <= CHARS_PER_S * cuts[first] / 1000
    assert greeting.startswith(words)
    assert told[0] == words, "the service's own account has the same words"
