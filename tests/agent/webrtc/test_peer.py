"""Connection to a client: its ports, and offers that no browser sends."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator

import pytest

from agent.config.webrtc import WebRtcSettings
from agent.errors import ClientError
from agent.webrtc.offer import Offer, read_offer
from agent.webrtc.peer import MAX_DATAGRAMS, Peer
from tests.support.webrtc.webrtc_peer import WebRtcPeer

PATIENCE_S = 30


@pytest.fixture
async def offer() -> AsyncIterator[Offer]:
    client = WebRtcPeer()
    yield read_offer(await client.offer())
    await client.close()


def new_peer(settings: WebRtcSettings | None = None) -> Peer:
    return Peer(
        settings or WebRtcSettings(),
        lambda seq, timestamp, payload: None,
        lambda message: None,
        on_loopback=True,
    )


def ports_in(answer: str) -> set[int]:
    return {int(port) for port in re.findall(r"a=candidate:\S+ \d udp \d+ \S+ (\d+)", answer)}


async def test_datagrams_of_strangers_are_bounded_and_no_empty_one_is_read(offer: Offer) -> None:
    peer = new_peer()
    ports = ports_in(await peer.answer(offer))  # one of them is on the loopback
    ice = peer._connection.getReceivers()[0].transport.transport.iceGatherer._connection
    before = ice._queue.qsize()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        async with asyncio.timeout(PATIENCE_S):
            while ice._queue.qsize() < MAX_DATAGRAMS:
                for port in ports:
                    stranger.sendto(b"", ("127.0.0.1", port))
                    stranger.sendto(b"\xff junk", ("127.0.0.1", port))
                await asyncio.sleep(0)
        for port in ports:
            stranger.sendto(b"\xff more", ("127.0.0.1", port))
    await asyncio.sleep(0.1)
    assert (before, ice._queue.qsize()) == (0, MAX_DATAGRAMS)
    assert all(item != (b"", 1) and item[0] for item in ice._queue._queue)
    await peer.close()


async def test_ports_come_from_the_range_and_run_out(offer: Offer) -> None:
    first = new_peer()
    (free, *_) = ports_in(await first.answer(offer))
    await first.close()
    settings = WebRtcSettings(min_port=free, max_port=free)
    held, refused = new_peer(settings), new_peer(settings)
    assert ports_in(await held.answer(offer)) == {free}
    with pytest.raises(ClientError, match="No UDP port is free"):
        await refused.answer(offer)
    await held.close()
    again = new_peer(settings)
    assert ports_in(await again.answer(offer)) == {free}
    await again.close()


async def test_any_offer_is_answered_or_refused(
    offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    lines = offer.sdp.split("\r\n")
    outcomes = []
    for number in range(len(lines)):
        name, _, _ = lines[number].partition(":")
        for changed in ([], [f"{name}:"], [f"{name}:9 x 9999999999 -1 %00"]):
            if "candidate" in name and changed:
                continue
            sdp = "\r\n".join([*lines[:number], *changed, *lines[number + 1 :]])
            peer = new_peer()
            try:
                outcomes.append((await peer.answer(read_offer(sdp)))[:3])
            except ClientError as error:
                outcomes.append(error.code)
            finally:
                await peer.close()
    assert {"v=0", "invalid_offer"} == set(outcomes)
    assert caplog.records == []
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
