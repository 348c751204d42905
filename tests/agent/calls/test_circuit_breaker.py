"""The circuit breaker of a state store that hangs: by itself, and in the store in Redis."""

from typing import Any, cast

import pytest
from redis.exceptions import BusyLoadingError
from redis.exceptions import TimeoutError as RedisTimeoutError

from agent.calls.state_store.circuit_breaker import (
    PAUSE_NS,
    SLOW_NS,
    CircuitBreaker,
    Operation,
)
from agent.calls.state_store.redis_store import TIMEOUT_S, RedisStateStore
from agent.calls.state_store.store import StoreUnavailableError
from agent.config.state_address import parse_state_store
from latency_budget.account.clock import ManualClock


def begun(breaker: CircuitBreaker, at_ns: int) -> Operation:
    operation = breaker.admit(at_ns)
    assert operation is not None
    return operation


def opened(at_ns: int) -> CircuitBreaker:
    """Open since `at_ns`."""
    breaker = CircuitBreaker()
    breaker.failed(begun(breaker, at_ns - SLOW_NS), at_ns)
    return breaker


def test_a_failure_that_comes_at_once_leaves_it_closed() -> None:
    breaker = CircuitBreaker()
    breaker.failed(begun(breaker, 0), SLOW_NS - 1)
    assert breaker.admit(SLOW_NS)


def test_after_a_pause_one_operation_is_on_trial() -> None:
    breaker = opened(SLOW_NS)
    retry_ns = SLOW_NS + PAUSE_NS
    assert not breaker.admit(retry_ns - 1)
    trial = begun(breaker, retry_ns)
    assert not breaker.admit(retry_ns + SLOW_NS), "one at a time"
    breaker.failed(trial, retry_ns + SLOW_NS)
    assert not breaker.admit(retry_ns + SLOW_NS + PAUSE_NS - 1)
    breaker.answered(begun(breaker, retry_ns + SLOW_NS + PAUSE_NS))
    assert all(breaker.admit(retry_ns) for _ in range(2)), "closed"


def test_a_trial_that_was_cancelled_is_followed_by_another() -> None:
    breaker = opened(SLOW_NS)
    breaker.abandoned(begun(breaker, SLOW_NS + PAUSE_NS))
    assert breaker.admit(SLOW_NS + PAUSE_NS)


def test_a_trial_that_fails_at_once_closes_it() -> None:
    breaker = opened(SLOW_NS)
    retry_ns = SLOW_NS + PAUSE_NS
    breaker.failed(begun(breaker, retry_ns), retry_ns)
    assert breaker.admit(retry_ns)


END = {
    "answered": lambda breaker, operation, now_ns: breaker.answered(operation),
    "failed": lambda breaker, operation, now_ns: breaker.failed(operation, now_ns),
    "abandoned": lambda breaker, operation, now_ns: breaker.abandoned(operation),
}


@pytest.mark.parametrize("end", END)
def test_an_operation_from_before_it_opened_decides_no_trial(end: str) -> None:
    breaker = CircuitBreaker()
    first, late, later = (begun(breaker, at_ns) for at_ns in (0, SLOW_NS - 2, SLOW_NS - 1))
    breaker.failed(first, SLOW_NS)
    END[end](breaker, late, SLOW_NS + 1)
    retry_ns = SLOW_NS + PAUSE_NS
    assert not breaker.admit(retry_ns - 1), "open, as before"
    trial = begun(breaker, retry_ns)
    END[end](breaker, later, retry_ns + 1)
    assert not breaker.admit(retry_ns + 1 + PAUSE_NS), "the trial is on its way"
    breaker.answered(trial)
    assert all(breaker.admit(retry_ns + 2) for _ in range(2)), "closed"


def test_an_operation_from_before_the_trial_opens_nothing_after_it() -> None:
    breaker = CircuitBreaker()
    first, late = (begun(breaker, 0) for _ in range(2))
    breaker.failed(first, SLOW_NS)
    breaker.answered(begun(breaker, SLOW_NS + PAUSE_NS))
    breaker.failed(late, SLOW_NS + PAUSE_NS + 1)
    assert breaker.admit(SLOW_NS + PAUSE_NS + 2), "the store has answered since"


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
