"""Tools of telephone calls, called by a real model."""

from functools import partial

import numpy as np
import pytest

from agent.errors import CLOSE_NORMAL
from agent.session.api.settings import ResponseOptions
from agent.telephony import dtmf_input
from agent.telephony.media.dtmf import DtmfDetector
from tests.agent.telephony.carriers.test_twilio import frame
from tests.agent.telephony.test_live import closed
from tests.support.service.live import LiveServer
from tests.support.telephony.phone_peer import PhonePeer, phone_call

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


def call_next(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is pressed is answered with this tool, whatever the model thinks of it."""
    forced = partial(ResponseOptions, tool_choice={"type": "function", "name": name})
    monkeypatch.setattr(dtmf_input, "ResponseOptions", forced)


async def press(peer: PhonePeer) -> None:
    for digit in "1#":
        await peer.send(frame("dtmf", dtmf={"track": "inbound_track", "digit": digit}))


async def test_a_model_hangs_up(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    call_next(monkeypatch, "hang_up")
    async with phone_call(live.http, agent="helper") as peer:
        await press(peer)
        assert await closed(peer) == (CLOSE_NORMAL, "the agent hung up")
        assert peer.num_heard > 2000, "it has said something before"


async def test_a_model_presses_keys(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    call_next(monkeypatch, "press_keys")
    async with phone_call(live.http, agent="helper") as peer:
        await press(peer)
        await peer.until(
            lambda: bool(peer.heard) and bool(DtmfDetector().push(np.concatenate(peer.heard)))
        )
        await peer.send(frame("stop"))
        await closed(peer)


async def test_a_model_transfers_only_to_whom_it_may(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the carrier's signature it is told so, and goes on."""
    live.expected = ["a call can't be transferred: its stream or webhook shows"]
    call_next(monkeypatch, "transfer")
    async with phone_call(live.http, agent="helper") as peer:
        await press(peer)
        await peer.until(lambda: bool(live.problems.texts()))
        await peer.until(lambda: peer.num_heard > 4000)
        await peer.send(frame("stop"))
        assert await closed(peer) == (CLOSE_NORMAL, "the carrier ended the stream")
