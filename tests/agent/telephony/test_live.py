"""Telephone calls to the real service, with real models."""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import httpx
import numpy as np
import pytest
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent.codec.g711 import mulaw_encode
from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.http.auth.principal import KeyLimits
from agent.telephony import endpoint
from latency_budget.storage.history import TurnEntry
from tests.agent.telephony.carriers.test_twilio import CALL, frame, media, start
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap, recording, transcript
from tests.support.telephony.phone_peer import PhonePeer, phone_call
from tests.support.telephony.telephony_server import TOKEN

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

GREETING_S: Final = 9.0
"""That of the reader lasts longer."""


def stream_of(live: LiveServer, carrier: str) -> str:
    return f"{live.http.replace('http', 'ws', 1)}/telephony/{carrier}/stream"


async def closed(peer: PhonePeer) -> tuple[int | None, str]:
    async with asyncio.timeout(60):
        await peer.socket.wait_closed()
    return peer.socket.close_code, peer.socket.close_reason or ""


def turns_of(live: LiveServer) -> list[TurnEntry]:
    """Of the one call in progress."""

    async def entries() -> list[TurnEntry]:
        (call,) = live.calls.listing()
        return live.calls.history.entries(call["session"])

    return live.ask(entries)


async def test_a_caller_interrupts_asks_and_presses_keys(live: LiveServer) -> None:
    async with phone_call(live.http, agent="reader") as peer:
        await peer.until(lambda: peer.num_heard > 8000)
        peer.say("vm-nobodyavail")
        await peer.until(lambda: "clear" in peer.events)
        cut = peer.num_heard
        assert cut < GREETING_S * 8000
        await peer.until(lambda: peer.num_heard > cut + 8000)  # the answer
        await peer.send(frame("dtmf", dtmf={"track": "inbound_track", "digit": "4"}))
        await peer.send(frame("dtmf", dtmf={"track": "inbound_track", "digit": "#"}))
        await peer.until(lambda: peer.events.count("clear") >= 2)
        before = peer.num_heard
        await peer.until(lambda: peer.num_heard > before + 4000)
        greeting, answer, *_ = await asyncio.to_thread(turns_of, live)
        await peer.send(frame("stop", stop={"accountSid": "AC", "callSid": CALL}))
        assert await closed(peer) == (CLOSE_NORMAL, "the carrier ended the stream")
    assert greeting.agent_text
    assert live.config.agents["reader"].greeting.startswith(greeting.agent_text)
    assert "basket of apples" not in greeting.agent_text, "nobody heard the end"
    assert overlap(transcript("vm-nobodyavail"), answer.caller_text) > 0.6
    assert answer.agent_text


async def test_a_minute_that_comes_at_once_is_heard_and_the_next_turn_is_as_ever(
    live: LiveServer,
) -> None:
    """As from a carrier whose network stood still."""
    said = recording("vm-nobodyavail", 8_000)
    minute = np.concatenate([said, np.zeros(60 * 8_000 - len(said), np.int16)])
    async with phone_call(live.http) as peer:
        for first in range(0, len(minute), 160):
            piece = mulaw_encode(minute[first : first + 160])
            await peer.send(media(base64.b64encode(piece).decode()))
        await peer.until(lambda: peer.num_heard > 8000)
        peer.say("conf-locked")
        await peer.until(lambda: "clear" in peer.events)
        cut = peer.num_heard
        await peer.until(lambda: peer.num_heard > cut + 8000)
        await peer.send(frame("dtmf", dtmf={"track": "inbound_track", "digit": "#"}))
        await peer.until(lambda: peer.events.count("clear") >= 2)  # that turn is over
        heard = peer.num_heard
        await peer.until(lambda: peer.num_heard > heard)
        turns = await asyncio.to_thread(turns_of, live)
        await peer.send(frame("stop"))
        assert (await closed(peer))[0] == CLOSE_NORMAL
    first_turn, second_turn, *_ = turns
    assert overlap(transcript("vm-nobodyavail"), first_turn.caller_text) > 0.6
    assert overlap(transcript("conf-locked"), second_turn.caller_text) > 0.6


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([start(), start()], "start came twice"),
        ([media("AAAA")], "media came before start"),
        ([start(), media("not base64")], "not base64"),
        ([start(), media(base64.b64encode(bytes(160)).decode()).replace("MZ", "MY")], "another"),
        ([start(mediaFormat={"encoding": "opus", "sampleRate": 8000, "channels": 1})], "opus"),
        ([start(), "{"], "JSON"),
        ([start(), b"abc"], "binary"),
        (['{"event":"connected"}'] * 65, "64 messages"),
        ([f'{{"event":"{"x" * 6000}"}}'] * 3, "characters, and none of them says"),
    ],
)
async def test_what_is_no_stream_is_closed_with_the_reason(
    live: LiveServer, frames: list[str | bytes], reason: str
) -> None:
    async with websockets_client.connect(stream_of(live, "twilio")) as socket:
        with contextlib.suppress(ConnectionClosed):
            for each in frames:
                await socket.send(each)
        await socket.wait_closed()
        assert socket.close_code == CLOSE_POLICY
        assert reason in (socket.close_reason or "")
    await asyncio.to_thread(live.settle)


async def test_a_stream_that_does_not_say_what_it_is_gets_no_line(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "OPEN_S", 0.2)
    async with websockets_client.connect(stream_of(live, "telnyx")) as socket:
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (
            CLOSE_POLICY,
            "the stream does not say what call it is",
        )


async def test_a_call_has_one_stream(live: LiveServer) -> None:
    async with phone_call(live.http) as first, phone_call(live.http) as second:
        assert "has a stream already" in (await closed(second))[1]
        assert second.events == [], "nothing is said to it"
        await first.send(frame("stop"))
        assert (await closed(first))[0] == CLOSE_NORMAL
    async with phone_call(live.http) as again:
        await again.send(frame("stop"))
        assert (await closed(again))[0] == CLOSE_NORMAL


@pytest.fixture
def shut(live: LiveServer) -> Iterator[LiveServer]:
    """A server that wants keys."""
    live.access.closed = True
    yield live
    live.access.closed = False


async def test_a_stream_of_nobody_is_refused(shut: LiveServer) -> None:
    async with phone_call(shut.http, token="ct_" + 12 * "0") as peer:
        assert await closed(peer) == (CLOSE_POLICY, endpoint.NOT_AUTHENTICATED[:123])


async def test_a_wrong_key_is_refused_at_the_handshake(shut: LiveServer) -> None:
    wrong = base64.b64encode(b"halfsec:hs_wrong").decode()
    for header in (f"Basic {wrong}", "Bearer hs_wrong", "Basic %%%"):
        with pytest.raises(InvalidStatus) as refused:
            async with phone_call(shut.http, headers={"Authorization": header}):
                pass
        assert refused.value.response.status_code == 401


async def test_a_key_is_the_password_of_basic(shut: LiveServer) -> None:
    key = shut.keys.add("carrier", KeyLimits(), 0)
    await asyncio.to_thread(shut.ask, shut.access.refresh)
    login = base64.b64encode(f"halfsec:{key}".encode()).decode()
    try:
        async with phone_call(shut.http, headers={"Authorization": f"Basic {login}"}) as peer:
            await peer.send(frame("stop"))
            assert (await closed(peer))[0] == CLOSE_NORMAL
    finally:
        shut.keys.revoke("carrier")
        await asyncio.to_thread(shut.ask, shut.access.refresh)


async def test_a_call_that_was_asked_about_is_greeted(shut: LiveServer) -> None:
    """From the ring to the greeting: the stream has nothing but the token of the webhook."""
    key = shut.keys.add("carrier", KeyLimits(), 0)
    await asyncio.to_thread(shut.ask, shut.access.refresh)
    try:
        async with httpx.AsyncClient(
            timeout=60, base_url=shut.http, auth=("x", key), trust_env=False
        ) as http:
            asked = {"CallSid": CALL, "From": "+15550100", "To": "+15550199"}
            answer = await http.post("/telephony/twilio/voice", data=asked)
        (token,) = TOKEN.findall(answer.text)
        async with phone_call(shut.http, token=token) as peer:
            await peer.until(lambda: peer.num_heard > 4000)
            (call,) = await asyncio.to_thread(shut.ask, listing_of(shut))
            assert call["agent"] == "pirate"
            await peer.send(frame("stop"))
            assert (await closed(peer))[0] == CLOSE_NORMAL
    finally:
        shut.keys.revoke("carrier")
        await asyncio.to_thread(shut.ask, shut.access.refresh)


def listing_of(live: LiveServer) -> Callable[[], Awaitable[list[dict[str, Any]]]]:
    async def listing() -> list[dict[str, Any]]:
        return list(live.calls.listing())

    return listing
