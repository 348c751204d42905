"""The real service behind a simulator of Twilio's streams that others wrote: `streamdouble`.

https://github.com/shaswat28/streamdouble plays the carrier: it paces frames, loses and delays some,
returns each mark when the audio before it has been played, drops those that a `clear` has
overtaken, and judges every frame that it gets.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from streamdouble.audio import frame_ulaw
from streamdouble.chaos import Impairments
from streamdouble.scenario import Dtmf, Hangup, Say, Scenario, Step, Wait
from streamdouble.session import Session, SessionConfig, SessionResult

from agent.codec.g711 import mulaw_encode
from latency_budget.storage.history import TurnEntry
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap, recording, transcript

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

PATIENT: Final = SessionConfig(response_timeout_s=60.0, max_drain_s=60.0, quiet_period_s=0.5)
"""A machine that does much else is slow, and that is no failure here."""

BAD_LINE: Final = Impairments(loss=0.03, jitter_ms=40.0)


HEARD: Final = 5
"""Marks that came back: so much of the agent was heard."""

Act = Callable[[SessionResult], Iterator[Step]]


class Script(list[Step]):
    """Steps that are chosen while the call goes on."""

    def __init__(self, steps: Callable[[], Iterator[Step]]) -> None:
        super().__init__()
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps()


def stream_of(live: LiveServer) -> str:
    return f"{live.http.replace('http', 'ws', 1)}/telephony/twilio/stream"


async def called(url: str, act: Act, line: Impairments, **parameters: str) -> SessionResult:
    """A call on such a line in which the caller does this."""
    script = Script(lambda: act(session.result))
    session = Session(
        url,
        scenario=Scenario("call", script),
        config=replace(PATIENT, impairments=line, custom_parameters=parameters),
    )
    return await session.run()


def said(name: str) -> Say:
    return Say(Path(name), frame_ulaw(mulaw_encode(recording(name, 8_000))))


def until(is_so: Callable[[], bool]) -> Iterator[Step]:
    """The caller is silent meanwhile."""
    while not is_so():
        yield Wait(0.1)


def turns_of(live: LiveServer) -> list[TurnEntry]:
    """Of the one call in progress."""

    async def entries() -> list[TurnEntry]:
        (call,) = live.calls.listing()
        return live.calls.history.entries(call["session"])

    return live.ask(entries)


def assert_well_behaved(result: SessionResult) -> None:
    assert [str(each) for each in result.violations] == []
    assert result.unknown_events == result.warnings == []
    assert result.closed_by is None


def assert_in_order(result: SessionResult) -> None:
    """Marks came back as they were sent, but for those that were cleared."""
    sent = iter(result.marks_received)
    assert result.marks_echoed
    assert all(name in sent for name in result.marks_echoed)


async def test_a_conversation_over_a_bad_line(live: LiveServer) -> None:
    turns: list[TurnEntry] = []

    def act(result: SessionResult) -> Iterator[Step]:
        yield from until(lambda: len(result.marks_echoed) > HEARD)
        yield said("vm-nobodyavail")
        yield from until(lambda: result.clears_received > 0)
        heard = len(result.marks_echoed)
        yield from until(lambda: len(result.marks_echoed) > heard + HEARD)
        cleared = result.clears_received
        yield Dtmf("4#")
        yield from until(lambda: result.clears_received > cleared)
        heard = len(result.marks_echoed)
        yield from until(lambda: len(result.marks_echoed) > heard + HEARD)
        turns.extend(turns_of(live))

    result = await called(stream_of(live), act, BAD_LINE, agent="reader")
    assert_well_behaved(result)
    assert_in_order(result)
    assert result.frames_dropped > 0
    greeting, answer = turns[:2]
    assert live.config.agents["reader"].greeting.startswith(greeting.agent_text)
    assert "basket of apples" not in greeting.agent_text, "nobody heard the end"
    assert overlap(transcript("vm-nobodyavail"), answer.caller_text) > 0.6
    assert answer.agent_text
    own_ms = live.config.budget_ms(live.config.agents["reader"])
    assert answer.budget.total_ms == own_ms + 130, "the carrier's leg comes on top"
    numbers = [int(name) for name in result.marks_received]
    assert all(first < second for first, second in pairwise(numbers))


async def test_marks_of_what_nobody_interrupts_all_come_back(live: LiveServer) -> None:
    def act(result: SessionResult) -> Iterator[Step]:
        yield from until(lambda: bool(result.marks_received))

    result = await called(stream_of(live), act, Impairments(), agent="pirate")
    assert_well_behaved(result)
    assert result.marks_echoed == result.marks_received
    assert result.clears_received == 0
    assert result.audio_duration_s > 1.0


async def test_a_caller_who_is_cut_off_leaves_nothing_behind(live: LiveServer) -> None:
    def act(result: SessionResult) -> Iterator[Step]:
        yield from until(lambda: bool(result.marks_echoed))
        yield Hangup()

    result = await called(stream_of(live), act, Impairments(), agent="reader")
    assert [str(each) for each in result.violations] == []
    assert result.closed_by == "caller"
    live.settle()
    assert len(live.calls) == 0
