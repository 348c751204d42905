import os
from pathlib import Path

import pytest

from latency_budget.host import (
    anonymous_mb,
    available_mb,
    cpu_s,
    machine,
    memory_mb,
    missing_instructions,
    resident_mb,
    usable_cores,
)


def test_the_machine_has_a_name_and_cores() -> None:
    name, _, cores = machine().rpartition(", ")
    assert name
    assert cores == f"{os.cpu_count()} cores"


def test_memory_of_a_process_and_of_none() -> None:
    here_mb = resident_mb(os.getpid())
    assert here_mb is None or here_mb > 1
    own_mb = anonymous_mb(os.getpid())
    assert own_mb is None or 0 < own_mb < (here_mb or 0)
    assert anonymous_mb(2**22 + 1) is None
    assert resident_mb(2**22 + 1) is None  # above the highest number that Linux gives


def test_processor_time_of_a_process_and_of_none() -> None:
    before_s = cpu_s(os.getpid())
    if before_s is not None:
        sum(number * number for number in range(3_000_000))
        assert (cpu_s(os.getpid()) or 0) > before_s
    assert cpu_s(2**22 + 1) is None


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4.0),
        ({"cpu.max": "max 100000\n"}, 4.0),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "900000 100000\n"}, 4.0),
        ({"cpu.max": "nonsense"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.max": "1 1000000\n"}, 0.1),
    ],
)
def test_a_container_may_use_what_its_quota_allows(
    files: dict[str, str], cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path) -> None:
    whole = memory_mb(tmp_path)
    assert whole > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_mb(tmp_path) == whole
    (tmp_path / "memory.max").write_text(f"{64 << 20}\n")
    assert memory_mb(tmp_path) == 64


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "left_mb"),
    [
        ({}, 3000),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 3000),
        ({"memory.max": f"{1 << 30}\n", "memory.current": f"{200 << 20}\n"}, 824),
        (
            {
                "memory.max": f"{1 << 30}\n",
                "memory.current": f"{900 << 20}\n",
                "memory.stat": f"anon 1\ninactive_file {700 << 20}\n",
            },
            824,
        ),
        ({"memory.max": f"{1 << 30}\n", "memory.current": f"{2 << 30}\n"}, 0),
        ({"memory.max": f"{9 << 30}\n"}, 3000),
        ({"a/b/memory.max": f"{1 << 30}\n"}, 1024),
        ({"a/memory.max": f"{1 << 30}\n", "a/b/memory.max": f"{2 << 30}\n"}, 1024),
        (
            {
                "memory/memory.limit_in_bytes": f"{1 << 30}\n",
                "memory/memory.usage_in_bytes": f"{124 << 20}\n",
                "memory/memory.stat": f"total_inactive_file {100 << 20}\n",
            },
            1000,
        ),
    ],
)
def test_memory_that_is_left(files: dict[str, str], left_mb: int, tmp_path: Path) -> None:
    cgroup = write(tmp_path / "cgroup", {"x": "", **files})
    meminfo = f"MemTotal: 9 kB\nMemAvailable:  {3000 << 10} kB\n"
    proc = write(tmp_path / "proc", {"meminfo": meminfo, "self/cgroup": "0::/a/b\n"})
    assert available_mb(cgroup, proc) == left_mb


def test_memory_that_nothing_reports(tmp_path: Path) -> None:
    assert available_mb(tmp_path, tmp_path) is None
    here_mb = available_mb()
    assert here_mb is None or 0 < here_mb <= memory_mb()


@pytest.mark.parametrize(
    ("cpuinfo", "lack"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni\n", ""),
        ("flags\t\t: fpu avx2 avx_vnni\n", ""),
        ("flags\t\t: fpu avx2\n", "no VNNI, "),
        ("model name: x\nflags\t\t: fpu sse4_2 avx\nflags : fpu\n", "no AVX2, "),
        ("Features\t: fp asimd asimddp\n", ""),
        ("Features\t: fp asimd\n", "no dot products, "),
        ("model name: x\n", ""),
    ],
)
def test_instructions_that_the_kernels_are_made_for(
    cpuinfo: str, lack: str, tmp_path: Path
) -> None:
    assert missing_instructions(tmp_path) == ""
    write(tmp_path, {"cpuinfo": cpuinfo})
    assert missing_instructions(tmp_path).startswith(lack)
    assert bool(missing_instructions(tmp_path)) == bool(lack)
