"""Calls that Asterisk's `chan_websocket` brings to the real service, with real models."""

import asyncio
from collections.abc import Iterator

import pytest

from agent.errors import CLOSE_NORMAL
from agent.http.auth.principal import KeyLimits
from tests.agent.telephony.test_live import turns_of
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap, transcript
from tests.support.telephony.asterisk_peer import AsteriskPeer, asterisk_call

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


@pytest.fixture
def key(live: LiveServer) -> Iterator[str]:
    """Of a server that wants keys."""
    live.access.closed = True
    key = live.keys.add("pbx", KeyLimits(), 0)
    live.ask(live.access.refresh)
    yield key
    live.keys.revoke("pbx")
    live.ask(live.access.refresh)
    live.access.closed = False


async def test_a_caller_interrupts_asks_and_presses_keys(live: LiveServer, key: str) -> None:
    """The queue is full again and again: one piece of a reply is as much as it holds."""
    async with asterisk_call(live.http, key, xoff=5, xon=3, agent="reader", caller="12") as peer:
        assert peer.socket.subprotocol == "media"
        await peer.until(lambda: peer.num_heard > 8000)
        assert {"MEDIA_XOFF", "MEDIA_XON"} <= set(peer.events)
        peer.say("vm-nobodyavail")
        await peer.until(lambda: "FLUSH_MEDIA" in peer.orders)
        cut = peer.num_heard
        assert cut < 9 * 8000, "the greeting lasts longer"
        await peer.until(lambda: peer.num_heard > cut + 8000)  # the answer
        await peer.tell("DTMF_END", digit="4")
        await peer.tell("DTMF_END", digit="#")
        await peer.until(lambda: peer.orders.count("FLUSH_MEDIA") >= 2)
        before = peer.num_heard
        await peer.until(lambda: peer.num_heard > before + 4000)
        assert peer.num_dropped == 0
        greeting, answer, *_ = await asyncio.to_thread(turns_of, live)
        await peer.socket.close(CLOSE_NORMAL)
    assert greeting.agent_text
    assert live.config.agents["reader"].greeting.startswith(greeting.agent_text)
    assert "basket of apples" not in greeting.agent_text, "nobody heard the end"
    assert overlap(transcript("vm-nobodyavail"), answer.caller_text) > 0.6
    assert answer.agent_text


async def test_an_asterisk_that_speaks_in_lines_is_told_to_hang_up(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(live.config.telephony.numbers, "", "reader")
    async with asterisk_call(live.http, is_json=False) as peer:
        await peer.until(lambda: "MEDIA_MARK_PROCESSED" in peer.events)
        await peer.tell("ERROR", channel_id="x", error_text="it is told what it can't do")
        code, reason = await closed_by(peer)
    assert code != CLOSE_NORMAL
    assert reason == "Asterisk reports an error: it is told what it can't do"
    assert peer.is_hung_up
    assert peer.orders[0] == "MARK_MEDIA"
    assert peer.num_dropped == 0


async def closed_by(peer: AsteriskPeer) -> tuple[int | None, str]:
    async with asyncio.timeout(60):
        await peer.socket.wait_closed()
    return peer.socket.close_code, peer.socket.close_reason or ""
