"""Client secrets and revoked keys on all servers of a fleet."""

import asyncio
from pathlib import Path

from agent.calls.state_store.memory import MemoryStateStore
from agent.config.layers import load_config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.fleet_access import FleetAccess
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import (
    KeyLimits,
    Principal,
    principal_from,
    principal_json,
)
from latency_budget.account.clock import ManualClock

LIFE_S = 60


class Fleet:
    """Two servers, each with a copy of the file of keys."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = ManualClock()
        self.store = MemoryStateStore(self.clock, is_shared=True)
        self.files = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            self.files.append(KeyFile(tmp_path / name / "keys.json"))
        limits = KeyLimits(2, ("sales",), dials=True)
        self.key = self.files[0].add("ana", limits, 1_700_000_000)
        self.files[1].path.write_bytes(self.files[0].path.read_bytes())
        self.servers = [
            Authenticator(load_config(), file, self.clock, state_store=self.store)
            for file in self.files
        ]


async def secret_of(fleet: Fleet) -> tuple[str, Principal]:
    """A client secret that the first server made for the key, and its holder."""
    first = fleet.servers[0]
    maker = await first.identify(fleet.key)
    assert maker is not None
    session = {"type": "realtime", "model": "sales"}
    holder = Principal(maker.name, "ephemeral", maker.limits, session, maker.key_id)
    text = first.secrets.mint(holder, LIFE_S, fleet.clock.now_ns())
    await first.publish_secret(text, holder, LIFE_S)
    return text, holder


async def test_a_client_secret_works_at_every_server(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    text, holder = await secret_of(fleet)
    for server in fleet.servers:
        assert await server.identify(text) == holder
        assert await server.identify(text[:-1] + "~") is None
        assert await server.identify(text[:14]) is None
        assert await server.identify("ek_") is None
    fleet.clock.advance_ms(LIFE_S * 1000)
    for server in fleet.servers:
        assert await server.identify(text) is None


async def test_a_key_that_is_revoked_is_revoked_everywhere(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    text, holder = await secret_of(fleet)
    second = fleet.servers[1]
    told: list[bool] = []
    second.on_news = lambda: told.append(True)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(second.until_revoked(holder))
        await second.refresh()
        assert (waiting.done(), told) == (False, [])
        await FleetAccess(fleet.store).revoke(holder.key_id)
        await second.refresh()
    assert told == [True]
    assert not second.holds(holder)
    assert await second.identify(fleet.key) is None
    assert await second.identify(text) is None
    await fleet.store.close()  # it forgets everything
    await second.refresh()
    assert await second.identify(fleet.key) is None


async def test_entries_of_another_version_are_no_secrets(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    text, _ = await secret_of(fleet)
    (name,) = [each for each in fleet.store._entries if each.startswith("secret:")]
    for damaged in (b"", b"5", b"{}", b'{"sha256": "zz"}', b"\xff"):
        await fleet.store.put(name, damaged, LIFE_S)
        assert await fleet.servers[1].identify(text) is None
    assert await fleet.servers[0].identify(text) is not None, "its own"


def test_principals_come_back() -> None:
    for principal in (
        Principal("a", "open"),
        Principal("b", "key", KeyLimits(3, ("x", "y"), dials=True), {"a": [1]}, "key:1"),
    ):
        assert principal_from(principal_json(principal)) == principal
