"""What cases of `halfsec bench faults` have around their server: disk, tool server, webhooks."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from agent.config.layers import load_config
from agent.tools.api import ToolError
from agent.tools.mcp_client import McpClient
from benchmarks.faults import disk as disks
from benchmarks.faults import webhook_endpoints
from benchmarks.faults.disk import Disk, disk_problem, mounted
from benchmarks.faults.fault_case import FaultSite
from benchmarks.faults.plan import CASES
from benchmarks.faults.tool_calls import ToolServer, calls_made
from benchmarks.faults.webhook_endpoints import Webhooks, around_webhooks

CASE = {case.name: case for case in CASES}


def site_with(around: object) -> FaultSite:
    return cast("FaultSite", SimpleNamespace(around=around, url="ws://127.0.0.1:1/v1/realtime"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if disk_problem():
        pytest.skip(disk_problem())
    with mounted(tmp_path, 8) as mount:
        disk = Disk(tmp_path, mount)
        yield disk
        disk.speed_up()


def test_a_full_disk_takes_no_byte_until_it_has_room_again(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.mount / "file").write_bytes(b"x")
    disk.free()
    (disk.mount / "file").write_bytes(b"x")
    assert (disk.mount / "file").read_bytes() == b"x"


def test_a_read_only_disk_refuses_files_that_are_open_already(disk: Disk) -> None:
    (disk.mount / "old").write_bytes(b"old")
    with (disk.mount / "open").open("wb", buffering=0) as file:
        file.write(b"x")
        disk.abort()
        with pytest.raises(OSError, match="Read-only"):
            file.write(b"y")
    with pytest.raises(OSError, match="Read-only"):
        (disk.mount / "new").write_bytes(b"x")
    assert (disk.mount / "old").read_bytes() == b"old"


def test_a_slow_disk_is_thawed_at_the_end(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "FROZEN_S", 0.05)
    disk.slow_down()
    for number in range(3):
        (disk.mount / f"file{number}").write_bytes(b"x")
    disk.speed_up()
    assert disk.num_frozen >= 1
    (disk.mount / "last").write_bytes(b"x")
    assert len(list(disk.mount.glob("file?"))) == 3
    disk.speed_up()  # again is nothing


async def test_what_is_written_soon_after_the_call_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "LOOK_S", 0.01)
    disk = Disk(tmp_path, tmp_path)
    disk.recordings.mkdir()
    disk.traces.mkdir()
    (disk.recordings / "a.wav").write_bytes(bytes(4000))
    look, num_looks = disks._kept_sizes, 0

    def written_at_the_third(disk: Disk) -> tuple[list[int], list[int]]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 3:
            (disk.traces / "a.jsonl").write_bytes(bytes(2000))
        return look(disk)

    monkeypatch.setattr(disks, "_kept_sizes", written_at_the_third)
    found = await disks.files_kept(site_with(disk))
    assert (found.seen, found.lost) == (["on the disk: recordings: 4 kB; traces: 2 kB"], [])
    assert num_looks == 3


async def test_what_is_kept_on_a_disk_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "LOOK_S", 0.01)
    monkeypatch.setattr(disks, "WRITTEN_S", 0.02)
    disk = Disk(tmp_path, tmp_path)
    settings = load_config(file_text=disk.settings)
    assert settings.agent.record_dir == str(disk.recordings)
    assert settings.agent.trace_dir == str(disk.traces)
    assert (await disks.files_kept(site_with(disk))).lost == ["the recording", "the trace"]
    disk.recordings.mkdir()
    disk.traces.mkdir()
    (disk.recordings / "a.wav").write_bytes(bytes(4000))
    (disk.traces / "a.jsonl").write_bytes(b"")
    found = await disks.files_kept(site_with(disk))
    assert found.seen == ["on the disk: recordings: 4 kB; traces: 0 kB"]
    assert found.lost == ["the trace"]
    slow = await disks.freezes_counted(site_with(disk))
    assert slow.why == ["the disk was not slow"]


async def test_weights_that_are_half_written_fail_the_row(tmp_path: Path) -> None:
    disk = Disk(tmp_path, tmp_path)
    (tmp_path / "home" / "converted").mkdir(parents=True)
    (tmp_path / "server.log").write_text("converted weights cannot be kept in X: no room\n")
    assert (await disks.cache_left(site_with(disk))).why == []
    (tmp_path / "home" / "converted" / "a.weights").write_bytes(b"x")
    (tmp_path / "server.log").write_text("")
    assert (await disks.cache_left(site_with(disk))).why == [
        "in the cache is left: a.weights",
        "its log does not say that weights can't be kept",
    ]


async def test_the_tool_server_hangs_while_its_file_is_there(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    case, tools = CASE["tool server hangs"], ToolServer(tmp_path)
    settings = load_config(file_text=tools.settings)
    assert settings.agents["default"].server_tools == ("mcp:bench",)
    client = McpClient("bench", settings.mcp["bench"])
    site = site_with(tools)
    async with asyncio.TaskGroup() as group:
        living = group.create_task(client.live())
        async with asyncio.timeout(60):
            while client.problem is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        answer = await client.call("opening_hours", {}, 60)
        assert "open from nine" in answer
        assert (await calls_made(site)).why == ["the tool was not called while it hung"]
        await case.strike(site)
        with pytest.raises(ToolError):
            await client.call("opening_hours", {}, 0.5)
        await case.mend(site)
        assert "open from nine" in await client.call("opening_hours", {}, 60)
        living.cancel()
    assert tools.calls == ["answered", "hangs", "answered"]
    assert (await calls_made(site)).why == []


def message(session_id: str) -> dict[str, Any]:
    return {"type": "call.ended", "data": {"id": session_id}}


async def test_endpoints_of_webhooks_fail_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        around_webhooks(tmp_path) as webhooks,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        monkeypatch.setattr(os, "environ", os.environ | webhooks.environment)
        settings = load_config(file_text=webhooks.settings)
        assert set(settings.webhooks) == {"refuses", "silent"}
        urls = {name: each.url for name, each in settings.webhooks.items()}
        headers = {"webhook-id": "msg_1"}

        async def send(name: str, session_id: str, timeout_s: float = 60.0) -> int:
            response = await http.post(
                urls[name], json=message(session_id), headers=headers, timeout=timeout_s
            )
            return response.status_code

        assert await send("refuses", "before") == 200
        await webhooks.endpoints["refuses"].close()
        webhooks.endpoints["silent"].answers = False
        with pytest.raises(httpx.ConnectError):
            await send("refuses", "gone")
        with pytest.raises(httpx.ReadTimeout):
            await send("silent", "gone", 0.5)
        assert webhooks.endpoints["silent"].tried.is_set()
        webhooks.session_id = "call"
        await webhook_endpoints._bring_back(site_with(webhooks))
        assert [await send(name, "call") for name in urls] == [200, 200]
        found = await webhook_endpoints.delivered(site_with(webhooks))
        assert (len(found.seen), found.why) == (2, [])
        assert webhooks.endpoints["refuses"].delivered == ["before", "call"]
        assert webhooks.endpoints["silent"].delivered == ["call"]


async def test_a_message_that_does_not_come_fails_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_endpoints, "DELIVERED_S", 0.01)
    webhooks = Webhooks(tmp_path)
    webhooks.session_id = "call"
    webhooks.endpoints["silent"].delivered.append("call")
    found = await webhook_endpoints.delivered(site_with(webhooks))
    assert found.seen == ["the endpoint that was silent has the message"]
    assert found.why == [
        "the endpoint that refused did not get the message",
        "no endpoint was tried while they were away",
    ]
