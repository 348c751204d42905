"""Settings section `[webrtc]`: calls of browsers by WebRTC."""

from dataclasses import dataclass
from typing import Annotated

from .telephony import ENVIRONMENT
from .values import Between, Matching

_HOST = r"[A-Za-z0-9.\-]+"


@dataclass(frozen=True, slots=True)
class WebRtcSettings:
    """`[webrtc]`: calls by WebRTC, with the extra `webrtc`."""

    min_port: Annotated[int, Between(0, 65535)] = 0
    """First UDP port for the audio of calls; a call takes one on each address of the machine. 0:
    any free one, which no firewall can be told of."""
    max_port: Annotated[int, Between(0, 65535)] = 0
    """Last UDP port for the audio of calls; needed with `min_port`."""
    connect_s: Annotated[int, Between(1, 120)] = 15
    """Seconds from the answer until the client must be connected, its data channel included. The
    call holds its line meanwhile."""
    stun_url: Annotated[
        str, Matching(rf"(stun:{_HOST}(:[0-9]+)?)?", "empty, or stun:HOST:PORT")
    ] = ""
    """STUN server that tells this server its public address, where it is behind a NAT that keeps
    ports. Empty: clients get the machine's own addresses."""
    turn_url: Annotated[
        str,
        Matching(
            rf"(turns?:{_HOST}(:[0-9]+)?(\?transport=(udp|tcp))?)?", "empty, or turn:HOST:PORT"
        ),
    ] = ""
    """TURN server that relays the audio, where clients can't reach this server. Empty: none."""
    turn_username: str = ""
    """User name at the TURN server."""
    turn_password_env: Annotated[str, ENVIRONMENT] = "TURN_PASSWORD"
    """The environment variable that has the password at the TURN server."""
