"""Limits of a single address."""

from collections import Counter
from typing import NoReturn

import pytest

from agent.config.access import AccessSettings
from agent.errors import ConfigError
from agent.http.hardening.address_limits import (
    BURST_S,
    MAX_ADDRESSES,
    AddressLimits,
    CallsByAddress,
)
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.http.peer_address import is_within, networks_of, place_of


def test_rate_limit_allows_a_burst_and_then_a_steady_rate() -> None:
    pace = LeakyBucket(2.0, 4.0, now_s=10.0)
    assert [pace.take(1, 10.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert [pace.take(1, 11.0) for _ in range(3)] == [True, True, False]
    assert pace.take(4, 1000.0)  # no more than the burst was saved up
    assert not pace.take(1, 1000.0)
    assert [pace.fits(1, 1000.5), pace.fits(3, 1000.5), pace.fits(2, 1001.0)] == [True, False, True]
    assert pace.take(2, 1001.0), "asking takes nothing"


def test_rate_limit_returns_the_wait() -> None:
    pace = LeakyBucket(1.0, 10.0, now_s=0.0)
    assert pace.add(10, 0.0) == 0.0
    assert pace.add(3, 0.0) == 3.0
    assert pace.add(1, 3.0) == 1.0
    assert pace.add(1, 1000.0) == 0.0


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),  # IPv4, on a socket for both
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("x" * 1000, "x" * 64),
    ],
)
def test_addresses_map_to_networks(address: str, place: str) -> None:
    assert place_of(address) == place


def test_proxies_are_addresses_or_networks() -> None:
    networks = networks_of(["192.0.2.7", "10.0.0.0/24", "2001:db8::/32"])
    for inside in ("192.0.2.7", "::ffff:10.0.0.9", "2001:db8::1"):
        assert is_within(inside, networks)
    for outside in ("192.0.2.8", "10.0.1.1", "2001:db9::1", "unknown", ""):
        assert not is_within(outside, networks)


@pytest.mark.parametrize("wrong", ["*", "proxy.example", "10.0.0.1/24", ""])
def test_invalid_proxy_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="addresses or networks"):
        AddressLimits(AccessSettings(trusted_proxies=(wrong,)))


def test_number_of_remembered_addresses_is_bounded() -> None:
    limits = AddressLimits(AccessSettings())
    for number in range(MAX_ADDRESSES + 500):
        place = limits.place(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert limits.may_connect(place, number / 1000)
        limits.opened(place)
        limits.closed(place)
    assert len(limits) == MAX_ADDRESSES


def test_refused_attempts_do_not_extend_the_wait() -> None:
    limits = AddressLimits(AccessSettings(connections_per_s=10))
    flood = [limits.may_connect("here", second / 1000) for second in range(5000)]
    assert sum(flood) == pytest.approx(10 * (5 + BURST_S), abs=1)
    assert limits.may_connect("here", 5.2)


def test_calls_are_counted_per_client_address() -> None:
    calls = CallsByAddress(AccessSettings(calls_per_address=2))
    here = {"client": ("2001:db8::1", 5)}
    neighbour = {"client": ("2001:db8::2", 6)}
    elsewhere = {"client": ("192.0.2.1", 7)}
    calls.begun(here)
    calls.begun(neighbour)
    assert calls.are_all_held(here)
    assert not calls.are_all_held(elsewhere)
    assert not calls.are_all_held({"client": None})
    calls.ended(neighbour)
    assert not calls.are_all_held(here)
    assert not CallsByAddress(AccessSettings()).are_all_held(here)


def test_a_connection_that_ends_looks_at_its_own_address_alone() -> None:
    class Watched(Counter[str]):
        def items(self) -> NoReturn:
            raise AssertionError("all addresses are looked at")

    limits = AddressLimits(AccessSettings())
    limits._num_open = Watched()
    for place in ("one", "two", "two"):
        limits.opened(place)
    limits.closed("one")
    limits.closed("two")
    assert (len(limits._num_open), limits._num_open["two"]) == (1, 1)
