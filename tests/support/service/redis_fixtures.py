"""One Redis for the whole test session."""

from collections.abc import Iterator

import pytest

from tests.support.service.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(redis_process: RedisServer) -> RedisServer:
    """An empty one."""
    redis_process.command("FLUSHALL")
    return redis_process
