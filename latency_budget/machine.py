"""What a measurement was made on, and what a process takes of it.

Reads the operating system's files; imports the standard library only.
"""

import os
import platform
from pathlib import Path


def machine() -> str:
    """Processor and cores, as far as the platform tells."""
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


def resident_mb(pid: int) -> float | None:
    """Memory of a process that is not swapped out; None where the platform does not tell, or the
    process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) / 1024 if sizes else None
