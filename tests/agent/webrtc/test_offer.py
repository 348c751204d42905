"""SDP offers: which are refused, and what is left out of the others."""

import re

import pytest

from agent.errors import ClientError
from agent.webrtc.offer import MAX_CANDIDATES, MAX_SDP_BYTES, read_offer, with_opus_format

OFFER = "\r\n".join(
    [
        "v=0",
        "o=- 1 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0 1",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111",
        "a=mid:0",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:abcdefghijklmnopqrstuvwx",
        "a=fingerprint:sha-256 AA:BB",
        "a=rtpmap:111 opus/48000/2",
        "a=fmtp:111 minptime=10",
        "a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host",
        "a=candidate:2 1 udp 2122260222 6d1b.local 50001 typ host",
        "a=candidate:3 1 tcp 1518280447 192.0.2.1 9 typ host tcptype active",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "a=mid:1",
        "a=sctp-port:5000",
        "",
    ]
)
_HEAD, _AUDIO, _CHANNEL = re.split("(?=m=)", OFFER)
CHANNEL_FIRST = _HEAD.replace("BUNDLE 0 1", "BUNDLE 1 0") + _CHANNEL + _AUDIO


def test_a_browsers_offer_is_taken_without_names_and_tcp() -> None:
    offer = read_offer(OFFER)
    assert offer.has_channel
    assert [line for line in offer.sdp.split("\r\n") if "candidate" in line] == [
        "a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host"
    ]
    alone = OFFER.partition("m=application")[0].replace("BUNDLE 0 1", "BUNDLE 0")
    assert not read_offer(alone).has_channel


def test_a_flood_of_candidates_is_cut() -> None:
    line = "a=candidate:1 1 udp 1 192.0.2.1 50000 typ host\r\n"
    offer = read_offer(OFFER.replace("m=application", line * 500 + "m=application"))
    assert offer.sdp.count("a=candidate") == MAX_CANDIDATES


def test_candidates_that_are_left_out_count_for_nothing() -> None:
    named = "a=candidate:2 1 udp 1 6d1b.local 50001 typ host\r\n"
    offer = OFFER.replace("a=candidate:1", named * 2 * MAX_CANDIDATES + "a=candidate:1")
    kept = read_offer(offer.replace("m=application", "a=end-of-candidates\r\nm=application")).sdp
    assert kept.count("a=candidate") == 1
    assert "a=end-of-candidates" not in kept, "the client's own checks may still come"


@pytest.mark.parametrize(
    ("offer", "problem"),
    [
        (OFFER + "a" * MAX_SDP_BYTES, "characters"),
        (OFFER + "a=x\r\n" * 1000, "1000 lines"),
        ("", "has to be SDP"),
        ('{"sdp": "v=0"}', "has to be SDP"),
        (OFFER.replace("m=audio", "m=video"), "no audio"),
        (OFFER.partition("m=audio")[0], "no audio"),
        (OFFER.replace("m=application", "m=video"), "offers video"),
        (OFFER.replace("m=application", "m=audio"), "more than one"),
        (OFFER.replace("opus/48000/2", "PCMU/8000"), "no Opus"),
        (CHANNEL_FIRST, "data channel before its audio"),
        (OFFER.replace("a=ice-pwd", "a=x"), "ice-pwd"),
        (OFFER.replace("a=fingerprint", "a=x"), "fingerprint"),
        (OFFER.replace("a=group:BUNDLE", "a=x"), "bundle"),
        (OFFER.replace("a=mid:1", "a=mid:0"), "bundle"),
        (OFFER.replace("BUNDLE 0 1", "BUNDLE 0 2"), "bundle"),
    ],
)
def test_what_can_t_be_answered_is_refused(offer: str, problem: str) -> None:
    with pytest.raises(ClientError, match=problem) as refused:
        read_offer(offer)
    assert refused.value.code == "invalid_offer"
    assert refused.value.param == "sdp"


def test_the_answer_asks_for_fec_and_dtx() -> None:
    answer = with_opus_format(OFFER)
    assert answer.count("a=fmtp:111") == 1
    assert (
        "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1;usedtx=1\r\n"
        "a=maxptime:60\r\n" in answer
    )
