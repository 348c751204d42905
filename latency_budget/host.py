"""The machine: processor and its instructions, usable cores, memory, processor time of a process.

Reads the operating system's files; imports the standard library only.
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")

_INSTRUCTIONS: Final = (
    ({"avx2"}, "AVX2, which models run several times slower without"),
    ({"avx512_vnni", "avx_vnni"}, "VNNI, without which products of 8-bit numbers take longer"),
)
"""What the kernels of x86 processors are made for: names in cpuinfo, of which one will do, and what
their lack costs; the worst first."""
_ARM_INSTRUCTIONS: Final = (
    ({"asimddp"}, "dot products, without which products of 8-bit numbers take longer"),
)


def machine() -> str:
    """Name of the processor and number of cores, as far as the platform reports them."""
    name = platform.processor() or platform.machine()
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores"


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Number of cores that this process may use: those of its affinity, or fewer where its
    container has a quota of processor time. `cgroup`: the directory with the quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and int(period) > 0:  # "max", or -1: none
            cores = min(cores, int(quota) / int(period))
    return max(cores, 0.1)


def missing_instructions(proc: Path = _PROC) -> str:
    """Instructions that this processor lacks and the models' kernels are made for, with what that
    costs; "": none, or the platform does not say. `proc`: the directory with `cpuinfo`."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    flags: dict[str, set[str]] = {}
    for line in lines:
        name, _, listed = line.partition(":")
        flags.setdefault(name.strip(), set(listed.split()))
    for key, wanted in (("flags", _INSTRUCTIONS), ("Features", _ARM_INSTRUCTIONS)):
        for names, lack in wanted if flags.get(key) else ():
            if not names & flags[key]:
                return f"no {lack}"
    return ""


def memory_mb(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int:
    """Memory of the machine in MB, or less where its container has a limit; 0 where the platform
    does not report it. `cgroup`, `proc`: the system's directories."""
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    return min([num_bytes, *(limit for limit, _ in _memory_limits(cgroup, proc))]) >> 20


def available_mb(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int | None:
    """Memory in MB that this process can still take, without swapping: what the machine has left,
    or less where its container's limit leaves less; None where the platform does not report it.

    File pages that the system can drop count as free. `cgroup`, `proc`: the system's directories.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        (left_kb,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        left = [int(left_kb) << 10]
    except (OSError, ValueError, IndexError):
        return None
    left += [max(0, limit - used) for limit, used in _memory_limits(cgroup, proc)]
    return min(left) >> 20


def _memory_limits(cgroup: Path, proc: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each control group around this process that has a limit."""
    try:
        entries = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().split()]
        own = next((Path(path.lstrip("/")) for kind, _, path in entries if kind == "0"), Path())
    except (OSError, ValueError):
        own = Path()
    groups = [cgroup / each for each in (own, *own.parents)]
    kinds = [(group, "memory.max", "memory.current", "inactive_file") for group in groups]
    first_kind = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    for group, limit_name, used_name, file_name in (*kinds, (cgroup / "memory", *first_kind)):
        try:
            limit = (group / limit_name).read_text().strip()
        except OSError:
            continue
        if not limit.isdigit():  # "max": none
            continue
        used = 0
        try:
            used = int((group / used_name).read_text())
            stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used -= int(stats.get(file_name, 0))
        except (OSError, ValueError):
            pass  # without its statistics all of it counts
        yield int(limit), max(0, used)


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process in MB; None where the platform does not report it, or the
    process has ended."""
    return _status_mb(pid, "VmRSS:")


def anonymous_mb(pid: int) -> float | None:
    """Resident memory of a process that no file backs, in MB; None as in `resident_mb`. Pages of
    mapped weights come and go as the system likes, and are not in it."""
    return _status_mb(pid, "RssAnon:")


def _status_mb(pid: int, name: str) -> float | None:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith(name)]
    return int(sizes[0]) / 1024 if sizes else None


def cpu_s(pid: int) -> float | None:
    """Processor time of all threads of a process, in s; None as in `resident_mb`."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold blanks
    user, system = int(fields[11]), int(fields[12])  # utime and stime of proc(5)
    return (user + system) / os.sysconf("SC_CLK_TCK")
