"""Measures this machine for the preset "auto": its decoding speed, and its GPU."""

import subprocess
import sys
from typing import Final

from agent.config.auto_preset import Gpu

_QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,compute_cap",
    "--format=csv,noheader,nounits",
)
_TIMEOUT_S: Final = 20


def measure_machine(num_threads: int) -> tuple[float, Gpu | None]:
    """Megabytes of weights in a millisecond, and the first GPU. Takes some seconds, says so."""
    print("Measuring this machine, once ...", file=sys.stderr, flush=True)
    # Only here: it imports ONNX Runtime.
    from llm_engine.backends.decoding_speed import weights_mb_per_ms

    return weights_mb_per_ms(num_threads), first_gpu()


def first_gpu() -> Gpu | None:
    """The first NVIDIA GPU that the driver reports; None without one."""
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S)
        name, memory_mb, capability = listed.stdout.splitlines()[0].rsplit(",", 2)
        return Gpu(name.strip(), int(memory_mb), float(capability))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None
