"""Settings of WebRTC that belong together."""

import pytest

from agent.config.layers import load_config
from agent.errors import ConfigError


def test_ports_are_a_range_or_none() -> None:
    webrtc = load_config({"webrtc.min_port": 50_000, "webrtc.max_port": 50_100}).webrtc
    assert (webrtc.min_port, webrtc.max_port) == (50_000, 50_100)
    for flags in (
        {"webrtc.min_port": 50_000},
        {"webrtc.max_port": 50_000},
        {"webrtc.min_port": 50_001, "webrtc.max_port": 50_000},
    ):
        with pytest.raises(ConfigError, match="range of ports"):
            load_config(flags)


@pytest.mark.parametrize("url", ["http://stun.example.com", "stun:", "turn:host"])
def test_a_stun_server_is_an_address(url: str) -> None:
    with pytest.raises(ConfigError, match=r"webrtc\.stun_url"):
        load_config({"webrtc.stun_url": url})


@pytest.mark.parametrize(
    "url",
    [
        "turn:turn.example.com",
        "turn:192.0.2.1:3478",
        "turns:turn.example.com:5349?transport=tcp",
        "turn:turn.example.com:3478?transport=udp",
    ],
)
def test_a_turn_server_is_an_address(url: str) -> None:
    assert load_config({"webrtc.turn_url": url}).webrtc.turn_url == url


@pytest.mark.parametrize(
    "url",
    [
        *("turn:", "turn.example.com:3478", "http://turn.example.com", "stun:turn.example.com"),
        *("turn://turn.example.com", "turn:host:port", "turn:host?transport=sctp", "turn:a b"),
    ],
)
def test_another_address_of_a_turn_server_is_refused_with_its_form(url: str) -> None:
    words = r"webrtc\.turn_url must be empty, or turn:HOST:PORT, not '.+' \(command line\)"
    with pytest.raises(ConfigError, match=words):
        load_config({"webrtc.turn_url": url})


@pytest.mark.parametrize("form", ["turn:{}@turn.example.com", "turn://{}@turn.example.com:3478"])
def test_a_login_in_the_address_is_refused_and_not_repeated(form: str) -> None:
    """It belongs into `turn_username` and an environment variable."""
    with pytest.raises(ConfigError, match=r"\*\*\*@turn\.example\.com") as raised:
        load_config({"webrtc.turn_url": form.format("halfsec:p@ss:w/rd")})
    assert "ss:w" not in str(raised.value)
    assert "halfsec" not in str(raised.value)
