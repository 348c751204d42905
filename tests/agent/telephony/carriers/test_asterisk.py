"""Messages of Asterisk's `chan_websocket` beyond those common to all carriers."""

import pytest

from agent.telephony.carriers.asterisk import MAX_MESSAGE, Asterisk
from agent.telephony.carriers.media_stream import (
    MULAW,
    FlowChanged,
    KeyPressed,
    MarkReached,
    StreamError,
    StreamStarted,
)
from tests.agent.telephony.carriers.test_carriers import ASTERISK, PBX, said


def test_asterisk_speaks_in_lines_as_well() -> None:
    asterisk = Asterisk()
    started = StreamStarted("e226e283", "WebSocket/x", MULAW)
    assert asterisk.receive(PBX) == [started]
    assert asterisk.receive("MEDIA_MARK_PROCESSED 7") == [MarkReached("7")]
    assert asterisk.receive("DTMF_END digit:4") == [KeyPressed("4")]
    assert asterisk.receive("MEDIA_XOFF") == [FlowChanged(takes_audio=False)]
    sent = [*asterisk.mark("7"), *asterisk.clear(), *asterisk.hang_up()]
    assert sent == ["MARK_MEDIA 7", "FLUSH_MEDIA", "HANGUP"]


@pytest.mark.parametrize("first", [PBX, ASTERISK.start], ids=["lines", "json"])
def test_asterisks_orders_and_messages_stay_within_its_bounds(first: str) -> None:
    asterisk = Asterisk()
    asterisk.receive(first)
    orders = [*asterisk.mark("9" * 12), *asterisk.clear(), *asterisk.hang_up()]
    assert all(len(order) <= 128 for order in orders)
    assert asterisk.frame_bytes == 160
    messages = [each for each in asterisk.audio(bytes(200_000)) if isinstance(each, bytes)]
    assert all(len(message) <= MAX_MESSAGE for message in messages)
    assert all(len(message) % 160 == 0 for message in messages), "the rest would be dropped"
    assert sum(map(len, messages)) == 200_000


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (PBX, "ERROR channel_id:x error_text:MARK_MEDIA not supported in passthrough mode"),
        (
            ASTERISK.start,
            said(event="ERROR", error_text="MARK_MEDIA not supported in passthrough mode"),
        ),
    ],
    ids=["lines", "json"],
)
def test_what_asterisk_can_not_do_ends_the_call(first: str, error: str) -> None:
    asterisk = Asterisk()
    asterisk.receive(first)
    with pytest.raises(StreamError, match=r"error: MARK_MEDIA not supported in passthrough mode$"):
        asterisk.receive(error)
