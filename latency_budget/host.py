"""The machine of a measurement: processor, usable cores, memory and processor time of a process.

Reads the operating system's files; imports the standard library only.
"""

import os
import platform
from pathlib import Path


def machine() -> str:
    """Name of the processor and number of cores, as far as the platform reports them."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores"


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
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


def memory_mb(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory of the machine in MB, or less where its container has a limit; 0 where the platform
    does not report it. `cgroup`: the directory with the limit."""
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():  # "max": none
            num_bytes = min(num_bytes, int(limit))
    return num_bytes >> 20


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process in MB; None where the platform does not report it, or the
    process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) / 1024 if sizes else None


def cpu_s(pid: int) -> float | None:
    """Processor time of all threads of a process, in s; None as in `resident_mb`."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold blanks
    user, system = int(fields[11]), int(fields[12])  # utime and stime of proc(5)
    return (user + system) / os.sysconf("SC_CLK_TCK")
