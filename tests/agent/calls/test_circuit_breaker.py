"""The circuit breaker of a state store that hangs: by itself, and in the store in Redis."""

from typing import Any, cast

import pytest
from redis.exceptions import BusyLoadingError
from redis.exceptions import TimeoutError as RedisTimeoutError

from agent.calls.state_store.circuit_breaker import PAUSE_NS, SLOW_NS, CircuitBreaker
from agent.calls.state_store.redis_store import TIMEOUT_S, RedisStateStore
from agent.calls.state_store.store import StoreUnavailableError
from agent.config.state_address import parse_state_store
from latency_budget.account.clock import ManualClock


def opened(at_ns: int) -> CircuitBreaker:
    """Open since `at_ns`."""
    breaker = CircuitBreaker()
    assert breaker.admits(at_ns - SLOW_NS)
    breaker.failed(at_ns - SLOW_NS, at_ns)
    return breaker


def test_a_failure_that_comes_at_once_leaves_it_closed() -> None:
    breaker = CircuitBreaker()
    breaker.failed(0, SLOW_NS - 1)
    assert breaker.admits(SLOW_NS)


def test_after_a_pause_one_operation_is_on_trial() -> None:
    breaker = opened(SLOW_NS)
    retry_ns = SLOW_NS + PAUSE_NS
    assert not breaker.admits(retry_ns - 1)
    assert breaker.admits(retry_ns)
    assert not breaker.admits(retry_ns + SLOW_NS), "one at a time"
    breaker.failed(retry_ns, retry_ns + SLOW_NS)
    assert not breaker.admits(retry_ns + SLOW_NS + PAUSE_NS - 1)
    assert breaker.admits(retry_ns + SLOW_NS + PAUSE_NS)
    breaker.answered()
    assert all(breaker.admits(retry_ns) for _ in range(2)), "closed"


def test_a_trial_that_was_cancelled_is_followed_by_another() -> None:
    breaker = opened(SLOW_NS)
    assert breaker.admits(SLOW_NS + PAUSE_NS)
    breaker.abandoned()
    assert breaker.admits(SLOW_NS + PAUSE_NS)


def test_a_trial_that_fails_at_once_closes_it() -> None:
    breaker = opened(SLOW_NS)
    retry_ns = SLOW_NS + PAUSE_NS
    assert breaker.admits(retry_ns)
    breaker.failed(retry_ns, retry_ns)
    assert breaker.admits(retry_ns)


class HangingRedis:
    """A client of a Redis that takes connections and answers nothing, until it does."""

    def __init__(self, clock: ManualClock) -> None:
        self.is_back = False
        self.num_asked = 0
        self._clock = clock

    async def get(self, *command: object, **options: object) -> bytes | None:
        self.num_asked += 1
        if self.is_back:
            return None
        self._clock.advance_ms(TIMEOUT_S * 1000)
        raise RedisTimeoutError("Timeout reading from redis:6379")

    getdel = set = get


def hanging_store(clock: ManualClock) -> tuple[RedisStateStore, HangingRedis]:
    address = parse_state_store("redis://127.0.0.1:6379/0?prefix=test:")
    assert address is not None
    store, client = RedisStateStore(address, clock), HangingRedis(clock)
    store._client = cast(Any, client)
    return store, client


async def test_operations_in_a_row_wait_for_one_of_them() -> None:
    clock = ManualClock()
    store, client = hanging_store(clock)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="can't be reached"):
            await store.get("name")
    assert (client.num_asked, clock.now_ns()) == (1, TIMEOUT_S * 1e9)
    assert store.problem == "the Redis can't be reached", "shown at /readyz: without its address"
    clock.advance_ms(PAUSE_NS / 1e6)
    client.is_back = True
    for _ in range(2):
        assert await store.get("name") is None
    assert client.num_asked == 3
    assert not store.problem


async def test_a_redis_that_loads_its_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def loads(*_: object) -> None:
        raise BusyLoadingError("Redis is loading the dataset in memory")

    store, client = hanging_store(ManualClock())
    monkeypatch.setattr(client, "get", loads)
    with pytest.raises(StoreUnavailableError, match="can't now: Redis is loading"):
        await store.get("name")
    assert store.problem == "the Redis can't now: Redis is loading the dataset in memory"
