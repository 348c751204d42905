"""The address of the state store: what is one, and that its password is shown nowhere."""

import pytest

from agent.config.layers import load_config
from agent.config.state_address import parse_state_store, shown_state_store
from agent.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "url", "prefix", "shown"),
    [
        ("redis://h", "redis://h", "halfsec:", "redis://h?prefix=halfsec:"),
        (
            "redis://me:secret@h:6380/2?prefix=blue:",
            "redis://me:secret@h:6380/2",
            "blue:",
            "redis://h:6380/2?prefix=blue:",
        ),
        (
            "rediss://:secret@[::1]:6379/0",
            "rediss://:secret@[::1]:6379/0",
            "halfsec:",
            "rediss://[::1]:6379/0?prefix=halfsec:",
        ),
        (
            "unix:///run/redis.sock?db=3&prefix=a",
            "unix:///run/redis.sock?db=3",
            "a",
            "unix:///run/redis.sock?prefix=a",
        ),
    ],
)
def test_addresses(value: str, url: str, prefix: str, shown: str) -> None:
    address = parse_state_store(value)
    assert address is not None
    assert (address.url, address.prefix, address.shown) == (url, prefix, shown)
    assert shown_state_store(value) == shown
    assert "secret" not in repr(address)


def test_the_default_is_memory() -> None:
    assert parse_state_store(load_config().agent.state_store) is None
    assert shown_state_store("memory") == "memory"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "redis",
        "http://secret@h",
        "redis://",
        "redis://:secret@",
        "redis://:secret@h:port",
        "redis://:secret@h:99999",
        "redis://:secret@h/name",
        "redis://:secret@h/0?timeout=1",
        "redis://:secret@h/0?prefix=",
        "redis://:secret@h/0?prefix=a b",
        "redis://:secret@h/0?prefix=a&prefix=b",
        "redis://:secret@h/0#1",
        "unix://",
        "redis://:secret@[h",
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.state_store") as refusal:
        load_config({"agent.state_store": value})
    assert "secret" not in str(refusal.value)
    assert "secret" not in shown_state_store(value)


def test_no_listing_of_the_settings_has_the_password() -> None:
    config = load_config({"agent.state_store": "redis://me:secret@h/0"})
    listed = {setting.key: setting.value for setting in config.effective()}
    assert listed["agent.state_store"] == "redis://h/0?prefix=halfsec:"
    other = load_config({"agent.state_store": "redis://me:other@h/0"})
    assert config.fingerprint() == other.fingerprint()
