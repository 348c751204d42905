"""SDP offers and answers: what is refused, what is left out, what is added.

An offer is looked through before the WebRTC library sees it: its size, its media, its candidates.
Candidates with names (mDNS, `abc.local`) are left out, so that no offer makes this server look
names up, and so are those beyond `MAX_CANDIDATES`, so that none makes it send checks to half a
network. A client that is left without any is found by the checks that it sends itself, so the line
that says that no more candidates come is left out too: without any, it would end the connection.

Pure: no I/O.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from agent.errors import ClientError

MAX_SDP_BYTES: Final = 64 << 10
"""Largest offer. Those of browsers with a microphone and a data channel have 3 to 8 kB."""

MAX_LINES: Final = 1000
"""Most lines of an offer; those of browsers have about 150."""

MAX_CANDIDATES: Final = 16
"""Most candidates that are checked. A laptop with a VPN offers six."""

OPUS: Final = re.compile(r"^a=rtpmap:(\d{1,3}) opus/48000/2\s*$", re.IGNORECASE | re.MULTILINE)
OPUS_FORMAT: Final = "minptime=10;useinbandfec=1;usedtx=1"
"""Parameters of Opus that are asked for (RFC 7587, section 6.1)."""

MAX_PACKET_MS: Final = 60
"""Longest packet of audio that is asked for. Longer ones come further apart than the jitter buffer
waits until it fills."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer that can be answered."""

    sdp: str
    has_channel: bool
    """A data channel will be opened."""


def read_offer(sdp: str) -> Offer:
    """Check an offer. Raises ClientError that says what it lacks."""
    if len(sdp) > MAX_SDP_BYTES:
        raise _refused(f"has more than {MAX_SDP_BYTES} characters")
    lines = sdp.replace("\r\n", "\n").split("\n")
    if not sdp.startswith("v=0") or len(lines) > MAX_LINES:
        raise _refused(f'has to be SDP: it begins with "v=0" and has at most {MAX_LINES} lines')
    media = [line[2:].split(" ", 1)[0] for line in lines if line.startswith("m=")]
    if "audio" not in media:
        raise _refused("offers no audio: add the track of a microphone, or an audio transceiver")
    if "video" in media:
        raise _refused("offers video, which nobody would look at: leave it out")
    if media.count("audio") > 1 or media.count("application") > 1 or len(media) > 2:
        raise _refused("offers more than one audio track and one data channel")
    if media[0] != "audio":
        raise _refused(
            "has its data channel before its audio: add the track first, and leave "
            "alwaysNegotiateDataChannels out"
        )
    if OPUS.search("\n".join(lines)) is None:
        raise _refused("offers no Opus, the only codec that is taken here")
    for needed, what in (
        ("a=ice-ufrag:", "ICE credentials"),
        ("a=ice-pwd:", "ICE credentials"),
        ("a=fingerprint:", "the fingerprint of a DTLS certificate"),
    ):
        if not any(line.startswith(needed) for line in lines):
            raise _refused(f"lacks {what} ({needed[2:-1]})")
    mids = [line[6:].strip() for line in lines if line.startswith("a=mid:")]
    bundles = [line.split()[1:] for line in lines if line.startswith("a=group:BUNDLE")]
    if len(mids) != len(media) or (bundles or [mids[:1]]) != [mids] or len({*mids}) < len(mids):
        raise _refused("does not bundle its media (a=mid, a=group:BUNDLE), as all browsers do")
    return Offer("\r\n".join(_without_candidates(lines)), "application" in media)


def with_opus_format(sdp: str) -> str:
    """The answer, with FEC, DTX and short packets asked for."""
    found = OPUS.search(sdp)
    if found is None:
        return sdp
    number = found.group(1)
    kept = re.sub(rf"^a=fmtp:{number} .*\r?\n", "", sdp, flags=re.MULTILINE)
    line = found.group(0).rstrip()
    asked = f"a=fmtp:{number} {OPUS_FORMAT}\r\na=maxptime:{MAX_PACKET_MS}"
    return kept.replace(line, f"{line}\r\n{asked}", 1)


def _without_candidates(lines: list[str]) -> list[str]:
    """The lines without candidates that are not to be checked."""
    kept: list[str] = []
    num = 0
    for line in lines:
        if line.startswith("a=candidate:"):
            if num == MAX_CANDIDATES or not _is_checked(line):
                continue
            num += 1
        if line.strip() != "a=end-of-candidates":
            kept.append(line)
    return kept


def _is_checked(line: str) -> bool:
    """True for a candidate with UDP and an address."""
    parts = line.split()
    if len(parts) < 8 or parts[2].lower() != "udp":
        return False
    try:
        address = ipaddress.ip_address(parts[4])
    except ValueError:
        return False
    return parts[5].isdecimal() and not (address.is_multicast or address.is_unspecified)


def _refused(problem: str) -> ClientError:
    return ClientError(f"The SDP offer {problem}.", code="invalid_offer", param="sdp")
