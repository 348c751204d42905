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
