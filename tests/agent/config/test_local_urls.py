"""Addresses of the server on this machine and in the network."""

import pytest

from agent.config.layers import load_config
from agent.config.local_urls import is_loopback, local_voice_url
from agent.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "ws://127.0.0.1:9000/v1/realtime"),
        ("0.0.0.0", "ws://127.0.0.1:9000/v1/realtime"),
        ("::", "ws://[::1]:9000/v1/realtime"),
        ("192.0.2.7", "ws://192.0.2.7:9000/v1/realtime"),
    ],
)
def test_a_server_here_is_called_where_it_listens(host: str, url: str) -> None:
    config = load_config({"agent.host": host}, env={"PORT": "9000"})
    assert local_voice_url(config) == url


def test_any_free_port_is_no_address() -> None:
    with pytest.raises(ConfigError, match="--url"):
        local_voice_url(load_config({"agent.port": 0}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "somewhere.example"])
def test_every_other_address_is_open_to_others(host: str) -> None:
    assert not is_loopback(host)
