"""The state store: one contract, kept by the memory and by a real Redis; and what is wrong with a
Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agent.calls.state_store.load import open_state_store
from agent.calls.state_store.memory import MAX_ENTRIES, MemoryStateStore
from agent.calls.state_store.redis_store import RedisStateStore, check_version
from agent.calls.state_store.store import (
    ForeignDataError,
    Lease,
    LeaseLostError,
    StateStore,
    StoreUnavailableError,
)
from agent.config.layers import load_config
from agent.config.state_address import RedisAddress, parse_state_store
from agent.errors import ConfigError
from agent.server.service import verify_state_store
from latency_budget.account.clock import ManualClock, SystemClock
from tests.support.service.redis_server import RedisServer, redis_server

pytest_plugins = ["tests.support.service.redis_fixtures"]

LONG_S = 600.0
FIRST, SECOND = Lease("call:1", "first"), Lease("call:1", "second")


def address_of(server: RedisServer, prefix: str = "test:") -> RedisAddress:
    address = parse_state_store(server.address(prefix))
    assert address is not None
    return address


class Stores:
    """A store, and its time."""

    def __init__(self, store: StateStore, clock: ManualClock | None) -> None:
        self.store = store
        self._clock = clock

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass until this holds."""
        while not await condition():
            if self._clock is not None:
                self._clock.advance_ms(10)
            await asyncio.sleep(0.01)


@pytest.fixture(params=["memory", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "memory":
        clock = ManualClock()
        yield Stores(MemoryStateStore(clock), clock)
        return
    store = RedisStateStore(address_of(request.getfixturevalue("redis")), SystemClock())
    yield Stores(store, None)
    await store.close()


@pytest.fixture
def store(stores: Stores) -> StateStore:
    return stores.store


async def test_values_are_kept_until_they_expire(stores: Stores) -> None:
    store = stores.store
    await store.check()
    assert await store.get("name") is None
    await store.put("name", b"\x00\xff value", LONG_S)
    await store.put("other", b"other", LONG_S)
    assert await store.get("name") == b"\x00\xff value"
    await store.put("name", b"brief", 0.05)

    async def is_gone() -> bool:
        return await store.get("name") is None

    await stores.until(is_gone)
    assert await store.get("other") == b"other"
    await store.delete("other")
    await store.delete("other")
    assert await store.get("other") is None
    assert store.problem is None


async def test_of_many_that_take_a_value_one_gets_it(store: StateStore) -> None:
    await store.put("token", b"call", LONG_S)
    taken = await asyncio.gather(*(store.take("token") for _ in range(50)))
    assert sorted(each is None for each in taken) == [False] + [True] * 49
    assert await store.get("token") is None


async def test_of_many_that_set_a_value_one_wins(stores: Stores) -> None:
    store = stores.store
    values = [f"{number}".encode() for number in range(50)]
    done = await asyncio.gather(*(store.put_if_absent("w", each, LONG_S) for each in values))
    assert done.count(True) == 1
    assert await store.get("w") == values[done.index(True)]
    await store.put("w", b"", 0.05)

    async def is_set() -> bool:
        return await store.put_if_absent("w", b"again", LONG_S)

    await stores.until(is_set)


async def test_a_record_is_written_by_its_holder_alone(store: StateStore) -> None:
    assert await store.read_record("call:1") is None
    assert not await store.write_record(FIRST, {"a": b"1"}, LONG_S), "there is none to change"
    assert await store.write_record(FIRST, {"a": b"1", "b": b"2"}, LONG_S, whole=True)
    assert await store.write_record(FIRST, {"b": None, "c": b"3", "no": None}, LONG_S)
    record = await store.read_record("call:1")
    assert record is not None
    assert (record.lease_token, dict(record.fields)) == ("first", {"a": b"1", "c": b"3"})
    for whole in (False, True):
        with pytest.raises(LeaseLostError):
            await store.write_record(SECOND, {"a": b"foreign"}, LONG_S, whole=whole)
    assert await store.write_record(FIRST, {"d": b"4"}, LONG_S, whole=True)
    record = await store.read_record("call:1")
    assert record is not None
    assert dict(record.fields) == {"d": b"4"}


async def test_taking_over_fences_the_old_holder(store: StateStore) -> None:
    await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True)
    third = Lease("call:1", "third")
    assert not await store.take_over(third, "somebody", LONG_S)
    taken = await asyncio.gather(
        store.take_over(SECOND, "first", LONG_S), store.take_over(third, "first", LONG_S)
    )
    assert sorted(taken) == [False, True], "two at once"
    winner = (SECOND, third)[taken.index(True)]
    for whole in (False, True):
        with pytest.raises(LeaseLostError):
            await store.write_record(FIRST, {"a": b"late"}, LONG_S, whole=whole)
    await store.end_record(FIRST, 0)
    assert await store.write_record(winner, {"b": b"2"}, LONG_S)
    record = await store.read_record("call:1")
    assert record is not None
    assert (record.lease_token, dict(record.fields)) == (winner.token, {"a": b"1", "b": b"2"})


async def test_an_end_that_is_remembered_can_not_be_undone(stores: Stores) -> None:
    store = stores.store
    await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True)
    await store.end_record(FIRST, 0)
    assert await store.read_record("call:1") is None
    await store.write_record(SECOND, {"a": b"1"}, LONG_S, whole=True)
    await store.end_record(SECOND, LONG_S)
    record = await store.read_record("call:1")
    assert record is not None
    assert (record.is_over, dict(record.fields)) == (True, {})
    for lease in (FIRST, SECOND):
        with pytest.raises(LeaseLostError):
            await store.write_record(lease, {"a": b"late"}, LONG_S, whole=True)
    assert not await store.take_over(FIRST, "", LONG_S)


async def test_a_record_lives_as_long_as_it_is_renewed(stores: Stores) -> None:
    store = stores.store
    await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True)
    assert await store.write_record(FIRST, {}, 0.05), "a renewal sets the time anew"

    async def is_gone() -> bool:
        return await store.read_record("call:1") is None

    await stores.until(is_gone)
    assert not await store.write_record(FIRST, {"a": b"2"}, LONG_S)


async def test_slots_are_held_until_they_expire(stores: Stores) -> None:
    store = stores.store
    taken = [await store.take_slot("key", f"call{number}", "a", 2, LONG_S) for number in range(4)]
    assert taken == [True, True, False, False]
    assert await store.take_slot("key", "call0", "a", 2, LONG_S), "it is held on"
    assert await store.take_slot("key2", "call9", "a", 1, LONG_S)
    await store.release_slot("key", "call1", "a")
    await store.release_slot("key", "unknown", "a")
    assert await store.take_slot("key", "call2", "a", 2, 0.05)

    async def is_free() -> bool:
        return await store.take_slot("key", "call3", "a", 2, LONG_S)

    await stores.until(is_free)


async def test_a_slot_is_its_last_holders(store: StateStore) -> None:
    assert await store.take_slot("key", "call1", "a", 1, LONG_S)
    assert await store.take_slot("key", "call1", "b", 1, LONG_S), "it is taken over"
    assert await store.take_slot("key", "call1", "a", 1, LONG_S, renews=True), "no effect"
    await store.release_slot("key", "call1", "a")
    assert not await store.take_slot("key", "call2", "a", 1, LONG_S)
    assert not await store.take_slot("key", "call", "a", 1, LONG_S), "the beginning of an id"
    await store.release_slot("key", "call1", "b")
    assert await store.take_slot("key", "call2", "a", 1, LONG_S)
    assert not await store.take_slot("key", "call1", "b", 1, LONG_S, renews=True)


async def test_members_are_added(store: StateStore) -> None:
    assert await store.members("revoked") == set()
    for member in ("key:1", "key:2", "key:1"):
        await store.add_member("revoked", member)
    assert await store.members("revoked") == {"key:1", "key:2"}


async def test_names_of_another_kind_are_left_alone(store: StateStore) -> None:
    await store.put("value", b"1", LONG_S)
    await store.add_member("set", "a")
    for operation in (
        lambda: store.read_record("value"),
        lambda: store.write_record(Lease("value", "x"), {"a": b"1"}, LONG_S, whole=True),
        lambda: store.members("value"),
        lambda: store.take_slot("set", "a", "b", 1, LONG_S),
        lambda: store.get("set"),
        lambda: store.take("set"),
    ):
        with pytest.raises(ForeignDataError):
            await operation()
    assert await store.get("value") == b"1"
    assert await store.members("set") == {"a"}


async def test_memory_is_bounded() -> None:
    clock = ManualClock()
    store = MemoryStateStore(clock)
    for number in range(MAX_ENTRIES + 2):
        await store.put(f"{number}", b"", LONG_S)
    assert len(store) == MAX_ENTRIES
    assert await store.get("1") is None
    assert await store.get("2") == b""


async def test_two_fleets_share_a_redis(redis: RedisServer) -> None:
    one, two = (
        RedisStateStore(address_of(redis, prefix), SystemClock()) for prefix in ("one:", "two:")
    )
    await one.put("name", b"1", LONG_S)
    assert await two.get("name") is None
    await two.write_record(FIRST, {"a": b"2"}, LONG_S, whole=True)
    assert await one.write_record(SECOND, {"a": b"1"}, LONG_S, whole=True)
    keys = redis.command("KEYS", "*")
    assert all(name in keys for name in (b"one:name", b"one:call:1", b"two:call:1"))
    await one.close()
    await two.close()


async def test_a_hash_of_another_program_is_no_record(redis: RedisServer) -> None:
    redis.command("HSET", "test:call:1", "a", "foreign")
    store = RedisStateStore(address_of(redis), SystemClock())
    with pytest.raises(ForeignDataError, match="no record"):
        await store.read_record("call:1")
    for whole in (False, True):
        with pytest.raises(ForeignDataError, match="no record"):
            await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=whole)
    assert b"foreign" in redis.command("HGET", "test:call:1", "a")
    await store.close()


async def test_redis_goes_and_comes_back() -> None:
    with redis_server() as server:
        store = RedisStateStore(address_of(server), SystemClock())
        await store.put("name", b"1", LONG_S)
        server.stop()
        operations: list[Callable[[], Awaitable[Any]]] = [
            store.check,
            lambda: store.get("name"),
            lambda: store.write_record(FIRST, {}, LONG_S),
        ]
        for operation in operations:
            with pytest.raises(StoreUnavailableError, match="can't be reached"):
                await operation()
        assert store.problem is not None
        server.start()
        assert await store.get("name") is None, "with a connection from before"
        assert store.problem is None
        assert not await store.write_record(FIRST, {"a": b"1"}, LONG_S)
        assert await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True)
        await store.close()


async def test_a_wrong_password_counts_as_away_and_does_not_end_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redis_server("--requirepass", "correct horse") as server:
        store = RedisStateStore(address_of(server), SystemClock())
        with pytest.raises(StoreUnavailableError, match="refuses user or password") as refusal:
            await store.check()
        assert "correct horse" not in str(refusal.value)
        await verify_state_store(store)
        assert "refuses user or password" in capsys.readouterr().err
        assert store.problem == "the Redis refuses user or password"
        await store.close()


async def test_a_redis_that_lacks_a_command_is_a_problem_to_the_end() -> None:
    with redis_server("--rename-command", "GETDEL", "") as server:
        store = RedisStateStore(address_of(server), SystemClock())
        with pytest.raises(ForeignDataError, match="GETDEL") as unknown:
            await store.take("stream:secret-token")
        assert "secret-token" not in str(unknown.value)
        assert await store.get("name") is None, "the others go on"
        assert store.problem is not None
        assert "secret-token" not in store.problem
        await store.close()
    with redis_server("--rename-command", "PING", "") as server:
        store = RedisStateStore(address_of(server), SystemClock())
        with pytest.raises(ConfigError, match="PING"):
            await verify_state_store(store)


async def test_what_an_acl_refuses_is_a_problem_until_it_is_allowed() -> None:
    """What it allows goes on meanwhile, and says nothing of the rest."""
    with redis_server() as server:
        assert b"OK" in server.command("ACL", "SETUSER", "default", "-hset", "-sadd")
        store = RedisStateStore(address_of(server), SystemClock())
        await store.check()
        assert store.problem is None
        for operation in (
            lambda: store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True),
            lambda: store.add_member("revoked", "key:1"),
        ):
            with pytest.raises(ForeignDataError):
                await operation()
            await store.put("call:2", b"", LONG_S)
            assert store.problem is not None
        server.command("ACL", "SETUSER", "default", "+hset")
        await store.write_record(FIRST, {"a": b"1"}, LONG_S, whole=True)
        assert store.problem is not None
        assert "revoked" in store.problem
        server.command("ACL", "SETUSER", "default", "+sadd")
        await store.add_member("revoked", "key:1")
        assert store.problem is None
        await store.close()


@pytest.mark.parametrize(
    "answer",
    [
        "MISCONF Redis is configured to save RDB snapshots, but it can't",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down.",
    ],
)
async def test_a_refusal_that_passes_does_not_end_the_start(
    answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, a replica that is away: `PING` is refused with the rest."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while found := await reader.read(1 << 16):
            writer.write(f"-{answer}\r\n".encode() * found.count(b"*"))
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        address = parse_state_store(f"redis://127.0.0.1:{port}/0?prefix=test:")
        assert address is not None
        store = RedisStateStore(address, SystemClock())
        await verify_state_store(store)
        assert "can't now" in capsys.readouterr().err
        assert store.problem is not None
        await store.close()


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8.9"])
def test_an_old_redis_is_refused(version: str) -> None:
    with pytest.raises(ForeignDataError, match=r"at least 6\.2"):
        check_version(version, "redis://h")


@pytest.mark.parametrize("version", ["6.2.0", "7.2.4", "8.0.1", "255.255.255", "unknown", ""])
def test_other_versions_are_taken(version: str) -> None:
    check_version(version, "redis://h")


class _OldRedis(MemoryStateStore):
    async def check(self) -> None:
        check_version("6.0.16", "redis://h")


async def test_the_server_does_not_start_with_an_old_one() -> None:
    with pytest.raises(ConfigError, match=r"agent\.state_store"):
        await verify_state_store(_OldRedis(ManualClock()))


def test_the_settings_choose_the_store() -> None:
    assert isinstance(open_state_store(load_config(), ManualClock()), MemoryStateStore)
    chosen = {"agent.state_store": "redis://:secret@h:6379/0"}
    config = load_config(flags=chosen)
    assert isinstance(open_state_store(config, ManualClock()), RedisStateStore)
