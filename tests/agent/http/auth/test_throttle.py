"""Throttling of addresses that present many wrong keys."""

from agent.http.auth.throttle import FORGET_S, FREE_TRIES, MAX_ADDRESSES, AuthThrottle

SECOND = 10**9


def tries(wrong: AuthThrottle, address: str, number: int, now_ns: int = 0) -> list[bool]:
    return [wrong.add(address, now_ns) for _ in range(number)]


def test_free_attempts_are_restored_one_by_one() -> None:
    wrong = AuthThrottle()
    assert tries(wrong, "192.0.2.1", FREE_TRIES + 2) == [False] * FREE_TRIES + [True] * 2
    assert tries(wrong, "192.0.2.2", 1) == [False]
    later_ns = round(3 * FORGET_S * SECOND)
    assert tries(wrong, "192.0.2.1", 2, later_ns) == [False, True]


def test_throttling_ends_within_two_minutes() -> None:
    wrong = AuthThrottle()
    tries(wrong, "192.0.2.1", 10_000)
    later_ns = round(2 * FREE_TRIES * FORGET_S * SECOND)
    assert tries(wrong, "192.0.2.1", 1, later_ns) == [False]


def test_ipv6_network_counts_as_one_address() -> None:
    wrong = AuthThrottle()
    for number in range(FREE_TRIES):
        assert not wrong.add(f"2001:db8:0:1::{number:x}", 0)
    assert wrong.add("2001:db8:0:1:ffff::1%eth0", 0)
    assert not wrong.add("2001:db8:0:2::1", 0)
    assert not wrong.add("unknown", 0)


def test_memory_is_bounded() -> None:
    wrong = AuthThrottle()
    for number in range(MAX_ADDRESSES + 100):
        wrong.add(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number)
    assert len(wrong) == MAX_ADDRESSES
