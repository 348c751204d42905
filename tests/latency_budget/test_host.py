import os
from pathlib import Path

import pytest

from latency_budget.host import cpu_s, machine, memory_mb, resident_mb, usable_cores


def test_the_machine_has_a_name_and_cores() -> None:
    name, _, cores = machine().rpartition(", ")
    assert name
    assert cores == f"{os.cpu_count()} cores"


def test_memory_of_a_process_and_of_none() -> None:
    here_mb = resident_mb(os.getpid())
    assert here_mb is None or here_mb > 1
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
