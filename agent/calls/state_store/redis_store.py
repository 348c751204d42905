"""State store in Redis, with redis-py's asyncio client (the extra `redis`).

All names begin with the prefix of the address, and nothing else is read, written or deleted:
several fleets, and other programs, may use one Redis. A record is a hash with its lease's token in
the field `@lease`; what must happen in one step is a script of Lua. Works with Redis 6.2 and later,
and with what speaks its protocol (Valkey); persistence is not needed: a store that has forgotten
everything is filled again by the calls in progress.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any, Final, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from agent.config.state_address import RedisAddress
from latency_budget.account.clock import Clock

from .circuit_breaker import CircuitBreaker
from .store import ForeignDataError, Lease, LeaseLostError, Record, StoreUnavailableError

MIN_VERSION: Final = (6, 2)
"""The first Redis with GETDEL."""

MAX_CONNECTIONS: Final = 32
"""Connections to the Redis. Each carries one command at a time, of less than a millisecond in one
data center."""

TIMEOUT_S: Final = 2.0
"""Time limit of one command, its connection and second try included. Operations in a row, such as
the three of a carrier's webhook, wait for one of them where the Redis hangs
(`circuit_breaker.py`)."""

LEASE: Final = "@lease"
"""Field of a record with its holder's token; empty where its end was recorded."""

_WRITE: Final = """
local held = redis.call('HGET', KEYS[1], '@lease')
if held and held ~= ARGV[1] then return -1 end
if not held then
  if redis.call('EXISTS', KEYS[1]) == 1 then return -2 end
  if ARGV[3] == '0' then return 0 end
end
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], '@lease', ARGV[1])
local last = 4 + 2 * tonumber(ARGV[4])
for i = 5, last, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = last + 1, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""

_TAKE_OVER: Final = """
local held = redis.call('HGET', KEYS[1], '@lease')
if held == ARGV[1] then return 1 end
if not held or held == '' or held ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], '@lease', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

_END: Final = """
if redis.call('HGET', KEYS[1], '@lease') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if tonumber(ARGV[2]) > 0 then
  redis.call('HSET', KEYS[1], '@lease', '')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
"""

_TAKE_SLOT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local slots = redis.call('ZRANGE', KEYS[1], 0, -1)
local held = nil
for _, slot in ipairs(slots) do
  if slot == ARGV[1] or string.sub(slot, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then held = slot end
end
local own = ARGV[1] .. ' ' .. ARGV[2]
if held and held ~= own then
  if ARGV[5] == '1' then return 1 end
  redis.call('ZREM', KEYS[1], held)
end
if not held and #slots >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), own)
redis.call('PEXPIRE', KEYS[1], 2 * tonumber(ARGV[4]))
return 1
"""
"""A slot is the member and its holder, with a blank between. Older servers wrote the
member alone."""

_NOT_NOW: Final = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, ClusterDownError)
"""Refusals that pass: it loads its file, a replica is not promoted yet or has lost its master,
memory is full."""

_NOT_NOW_CODES: Final = ("MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "BUSY ")
"""Codes of others, for which redis-py has no class, or had none: its disk is full, its replicas or
its master are away, a script runs for too long."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
_Argument = str | bytes | int


class RedisStateStore:
    """A `StateStore` in Redis. Belongs to the event loop that uses it first."""

    is_shared: Final = True

    def __init__(self, address: RedisAddress, clock: Clock) -> None:
        """Connects with the first operation."""
        self._clock = clock
        self._breaker = CircuitBreaker()
        self._prefix = address.prefix
        self._shown = address.shown
        pool = BlockingConnectionPool.from_url(
            address.url,
            max_connections=MAX_CONNECTIONS,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            # One more try, at once: connections that are kept may be broken since a restart.
            retry=Retry(NoBackoff(), 1),
        )
        self._client: Redis = Redis.from_pool(pool)
        self._scripts = {
            method: self._client.register_script(text) for method, text in _SCRIPTS.items()
        }
        self._problem: str | None = None
        """Why the last operation failed, without an answer."""
        self._refused: set[str] = set()
        """Operations that the Redis refuses, each on one kind of names, until it does one such."""

    @property
    def problem(self) -> str | None:
        if self._problem is None and self._refused:
            return f"the Redis refuses {', '.join(sorted(self._refused))}; the log says why"
        return self._problem

    async def check(self) -> None:
        await self._run("PING", lambda: _awaitable(self._client.ping()))
        try:
            info = await self._tried(lambda: self._client.info("server"))
        except ForeignDataError:
            return  # this user may not ask
        check_version(str(info.get("redis_version", "")), self._shown)

    async def get(self, name: str) -> bytes | None:
        return _bytes(
            await self._run(_what("get", name), lambda: self._client.get(self._key(name)))
        )

    async def put(self, name: str, value: bytes, ttl_s: float) -> None:
        await self._run(
            _what("put", name), lambda: self._client.set(self._key(name), value, px=_ms(ttl_s))
        )

    async def put_if_absent(self, name: str, value: bytes, ttl_s: float) -> bool:
        is_set = await self._run(
            _what("put_if_absent", name),
            lambda: self._client.set(self._key(name), value, px=_ms(ttl_s), nx=True),
        )
        return bool(is_set)

    async def take(self, name: str) -> bytes | None:
        return _bytes(
            await self._run(_what("take", name), lambda: self._client.getdel(self._key(name)))
        )

    async def delete(self, name: str) -> None:
        await self._run(_what("delete", name), lambda: self._client.delete(self._key(name)))

    async def read_record(self, name: str) -> Record | None:
        found = await self._run(
            _what("read_record", name), lambda: _awaitable(self._client.hgetall(self._key(name)))
        )
        if not found:
            return None
        fields = {key.decode("utf-8", "replace"): value for key, value in found.items()}
        lease = fields.pop(LEASE, None)
        if lease is None:
            raise ForeignDataError(f"{self._key(name)} is no record of halfsec's")
        return Record(lease.decode("utf-8", "replace"), fields)

    async def write_record(
        self,
        lease: Lease,
        changes: Mapping[str, bytes | None],
        ttl_s: float,
        *,
        whole: bool = False,
    ) -> bool:
        values = [(name, value) for name, value in changes.items() if value is not None]
        gone = [name for name, value in changes.items() if value is None and not whole]
        arguments: list[_Argument] = [lease.token, _ms(ttl_s), int(whole), len(values)]
        for name, value in values:
            arguments += [name, value]
        done = await self._script("write_record", lease.record, [*arguments, *gone])
        if done == -1:
            raise LeaseLostError
        if done == -2:
            raise ForeignDataError(f"{self._key(lease.record)} is no record of halfsec's")
        return done == 1

    async def take_over(self, lease: Lease, from_token: str, ttl_s: float) -> bool:
        arguments: list[_Argument] = [lease.token, from_token, _ms(ttl_s)]
        return await self._script("take_over", lease.record, arguments) == 1

    async def end_record(self, lease: Lease, keep_s: float) -> None:
        await self._script("end_record", lease.record, [lease.token, _ms(keep_s)])

    async def take_slot(
        self, name: str, member: str, holder: str, limit: int, ttl_s: float, *, renews: bool = False
    ) -> bool:
        arguments: list[_Argument] = [member, holder, limit, _ms(ttl_s), int(renews)]
        return await self._script("take_slot", name, arguments) == 1

    async def release_slot(self, name: str, member: str, holder: str) -> None:
        await self._run(
            _what("release_slot", name),
            lambda: self._client.zrem(self._key(name), f"{member} {holder}"),
        )

    async def add_member(self, name: str, member: str) -> None:
        await self._run(
            _what("add_member", name),
            lambda: _awaitable(self._client.sadd(self._key(name), member)),
        )

    async def members(self, name: str) -> Set[str]:
        found = await self._run(
            _what("members", name), lambda: _awaitable(self._client.smembers(self._key(name)))
        )
        return frozenset(each.decode("utf-8", "replace") for each in found)

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()
            await self._client.connection_pool.disconnect()

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    async def _script(self, method: str, name: str, arguments: Sequence[_Argument]) -> int:
        run = self._scripts[method]
        done = await self._run(
            _what(method, name), lambda: run(keys=[self._key(name)], args=arguments)
        )
        return int(done)

    async def _run(self, what: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        """Run one operation of the client, unless the Redis hung a moment ago. `what`: as for
        `problem`. Raises StateStoreError."""
        admitted = self._breaker.admit(self._clock.now_ns())
        if admitted is None:
            problem = self._problem or "the Redis did not answer in time"
            raise StoreUnavailableError(f"{problem}; it is tried again in a moment")
        try:
            result = await self._tried(operation)
        except StoreUnavailableError:
            self._breaker.failed(admitted, self._clock.now_ns())
            raise
        except ForeignDataError as error:
            self._breaker.answered(admitted)
            if what not in self._refused:
                self._refused.add(what)
                _log.warning("%s: %s", what, error)
            raise
        except BaseException:
            self._breaker.abandoned(admitted)
            raise
        self._breaker.answered(admitted)
        self._refused.discard(what)
        return result

    async def _tried(self, operation: Callable[[], Awaitable[Result]]) -> Result:
        """Raises StateStoreError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):  # of the pool, the connection and all tries
                result = await operation()
        except AuthenticationError:
            raise self._failed("refuses user or password") from None
        except _NOT_NOW as error:  # one of them is a ConnectionError as well
            raise self._failed(f"can't now: {_line(error)}") from None
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise self._failed("can't be reached", error) from None
        except ResponseError as error:
            if str(error).startswith(_NOT_NOW_CODES):
                raise self._failed(f"can't now: {_line(error)}") from None
            raise ForeignDataError(f"the Redis at {self._shown} refuses: {_line(error)}") from None
        except (RedisError, RuntimeError) as error:  # an answer that is none, a closed transport
            raise self._failed("fails", error) from None
        if self._problem is not None:
            self._problem = None
            _log.info("the Redis at %s answers again", self._shown)
        return result

    def _failed(self, problem: str, error: Exception | None = None) -> StoreUnavailableError:
        """Note that an operation failed. `error`: for the log; it may have the address."""
        reason = f"the Redis at {self._shown} {problem}"
        if error is not None:
            reason = f"{reason} ({_line(error)})"
        if self._problem is None:
            _log.warning("%s; calls go on, and none can be resumed meanwhile", reason)
        self._problem = f"the Redis {problem}"
        return StoreUnavailableError(reason)


_SCRIPTS: Final = {
    "write_record": _WRITE,
    "take_over": _TAKE_OVER,
    "end_record": _END,
    "take_slot": _TAKE_SLOT,
}
"""Scripts by the methods that run them."""


def check_version(version: str, shown: str) -> None:
    """Raises ForeignDataError for a Redis that is too old."""
    numbers = version.split(".")[:2]
    is_known = len(numbers) == 2 and all(number.isdecimal() for number in numbers)
    if is_known and tuple(map(int, numbers)) < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ForeignDataError(f"the Redis at {shown} is {version}; at least {least} is needed")


def _what(method: str, name: str) -> str:
    """A method of the store, and the kind of the name that it is for."""
    return f"{method} of {name.partition(':')[0]}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _awaitable(value: Any) -> Awaitable[Any]:
    """The result of a command, which redis-py annotates for its blocking client too."""
    return cast(Awaitable[Any], value)


def _line(error: BaseException) -> str:
    """First line of a message, without the arguments of the command."""
    text = str(error).partition("\n")[0].partition(", with args")[0][:200].strip()
    return text or type(error).__name__
