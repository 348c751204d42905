"""Chooses the preset "auto" stands for: the largest model that keeps up on this machine.

A model keeps up when the first clause of a reply is ready within the wait for the end of the
caller's turn, so that it costs the caller nothing, and when the words of all calls come faster than
they are spoken. Both follow from the time of a token, which is predicted: decoding reads every
weight once a token, so the speed at which this machine multiplies by weights decides. That speed is
measured once (`llm_engine.backends.decoding_speed`) and kept beside the models.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from latency_budget.host import machine, memory_mb, usable_cores

from .home import halfsec_home

AUTO: Final = "auto"
"""Name of the preset that is chosen."""

FILE_NAME: Final = "machine.json"

GPU_CAPABILITY: Final = 8.9
"""Compute capability from which a GPU calculates in FP8, the number format of these presets."""
MAX_THREADS: Final = 8
"""More threads than that wait for each other."""
_GPU_DEVICE: Final = Path("/dev/nvidia0")
_SLOW_MB_PER_MS: Final = 4.0
"""Speed of a core that nobody measured."""

FIRST_CLAUSE_TOKENS: Final = 10
"""Tokens until the first piece can be spoken."""
FIRST_CLAUSE_MS: Final = 400.0
"""Longest time for them. A turn is taken for over some 450 ms after its last word, and the model
writes from some 250 ms on, when the recognizer has heard the pause: so about half of this time
costs the caller nothing. Measured at the ear on two cores of a Xeon: 0.5 s with 27 ms a token (the
half-billion model), 0.9 s with 58 ms (the one of 1.5 billion). Lower: slower processors get the
smallest model, which does not do what it is told."""
SPOKEN_TOKENS_PER_S: Final = 4.0
"""Tokens that a voice speaks in a second."""
_SHARE_SPOKEN: Final = 0.6
"""Share of a call in which the agent speaks, with some reserve."""
_LAYER_MS: Final = 0.1
"""Time of a layer beside its weights: attention, norms, calls of kernels."""
_REST_MB: Final = 800
"""Memory of everything else: recognizer, voice, calls, operating system."""


@dataclass(frozen=True, slots=True)
class CpuRequirements:
    """A preset for processors, and what its language model asks of the machine."""

    name: str
    weights_mb: int
    """Weights that are read for a token, as if all were in 8 bits: with half of the 0.5B's in 4
    bits a token takes 0.89 of the time (measured), not 0.81 as bytes would have it; the 1.5B by the
    same share."""
    resident_mb: int
    """Memory of the model, with the cache of four calls (`llm_engine.backends.cpu_memory`). In 1700
    MB of its own the 0.5B converts its weights, starts and answers (measured)."""
    num_layers: int

    def token_ms(self, mb_per_ms: float) -> float:
        """Predicted time of a token."""
        return self.weights_mb / mb_per_ms + self.num_layers * _LAYER_MS


CPU_PRESETS: Final = (
    CpuRequirements("embedded-1.5b", weights_mb=1460, resident_mb=2700, num_layers=28),
    CpuRequirements("embedded-0.5b", weights_mb=467, resident_mb=1100, num_layers=24),
    CpuRequirements("embedded", weights_mb=143, resident_mb=600, num_layers=30),
)
"""The largest first. The last one runs everywhere."""


@dataclass(frozen=True, slots=True)
class GpuRequirements:
    """A preset for NVIDIA GPUs, and the memory that it takes."""

    name: str
    memory_mb: int
    """Weights in 8 bits, cache, workspace, the recognizer beside them, and CUDA's own."""


GPU_PRESETS: Final = (GpuRequirements("gpu-8b", 20_000), GpuRequirements("gpu-4b", 12_000))
"""The largest first. `llm_engine.cuda.memory` plans 17.7 and 8.7 GB for the language models; the
recognizer takes 2."""


SMALLER: Final[Mapping[str, str]] = {
    "gpu-70b": "gpu-8b",
    "gpu-8b": "gpu-4b",
    "gpu-4b": "embedded-1.5b",
    "cpu": "embedded-1.5b",
    "embedded-1.5b": "embedded-0.5b",
    "embedded-0.5b": "embedded",
}
"""The next smaller preset, for a model that does not fit."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU."""

    name: str
    memory_mb: int
    capability: float
    """Compute capability: 8.9 for Ada, 9.0 for Hopper."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a preset is chosen for."""

    name: str
    cores: float
    memory_mb: int
    mb_per_ms: float
    """Weights in 8 bits that it multiplies by in a millisecond, one row at a time."""
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class PresetChoice:
    """A preset, and why."""

    preset: str
    reason: str
    num_threads: int = 2
    """Threads for the language model."""


Obstacle = Callable[[str], str]
"""Says why the models of a preset can't be had here, in a clause; "": they can."""


def choose(here: Machine, num_calls: int, obstacle: Obstacle = lambda preset: "") -> PresetChoice:
    """Choose for a machine that holds `num_calls` calls at once. `obstacle` is asked about presets
    whose models come from the Hugging Face hub."""
    passed: list[str] = []
    for gpu_preset in GPU_PRESETS if here.gpu is not None else ():
        assert here.gpu is not None
        problem = _gpu_problem(gpu_preset, here.gpu) or obstacle(gpu_preset.name)
        if not problem:
            reason = f"{here.gpu.name}, {here.gpu.memory_mb} MB"
            return PresetChoice(gpu_preset.name, "; ".join([reason, *passed]))
        passed.append(f"not {gpu_preset.name}: {problem}")
    num_threads = num_threads_of(here.cores)
    for preset in CPU_PRESETS:
        token_ms = preset.token_ms(here.mb_per_ms)
        problem = _problem(preset, token_ms, here, num_calls)
        if not problem or preset is CPU_PRESETS[-1]:
            reason = f"{here.cores:g} cores, {here.memory_mb} MB, {token_ms:.0f} ms a token"
            return PresetChoice(preset.name, "; ".join([reason, *passed]), num_threads)
        passed.append(f"not {preset.name}: {problem}")
    raise AssertionError("the last preset is always taken")


def _problem(preset: CpuRequirements, token_ms: float, here: Machine, num_calls: int) -> str:
    """Why a preset is too much for a machine; "": it is not."""
    needed_mb = preset.resident_mb + _REST_MB
    if needed_mb > here.memory_mb:
        return f"it needs {needed_mb} MB of memory"
    clause_ms = FIRST_CLAUSE_TOKENS * token_ms
    if clause_ms > FIRST_CLAUSE_MS:
        return f"its first clause would take {clause_ms:.0f} ms, more than {FIRST_CLAUSE_MS:.0f}"
    asked = num_calls * SPOKEN_TOKENS_PER_S * _SHARE_SPOKEN
    made = 1000 / token_ms
    if made < asked:
        return f"{num_calls} calls speak {asked:.0f} tokens a second, and it makes {made:.0f}"
    return ""


def _gpu_problem(preset: GpuRequirements, gpu: Gpu) -> str:
    if find_spec("torch") is None:
        return "torch is not installed (pip install 'halfsec[cuda]')"
    if gpu.memory_mb < preset.memory_mb:
        return f"{gpu.name} has {gpu.memory_mb} MB, and it needs {preset.memory_mb}"
    if gpu.capability < GPU_CAPABILITY:
        return f"{gpu.name} has no FP8: compute capability {gpu.capability:g}"
    return ""


def num_threads_of(cores: float) -> int:
    """Threads of the language model on a machine with this many cores."""
    return max(2, min(int(cores), MAX_THREADS))


Measure = Callable[[int], tuple[float, Gpu | None]]
"""Measures `Machine.mb_per_ms` with this many threads, and looks for a GPU."""


def preset_for_here(
    num_calls: int,
    measure: Measure | None,
    env: Mapping[str, str] | None = None,
    obstacle: Obstacle = lambda preset: "",
) -> PresetChoice:
    """Choose for this machine; `obstacle` as in `choose`. It is measured once, and again when it
    changes; without `measure` a machine that was never measured is taken for a slow one."""
    name, cores, memory = machine(), usable_cores(), memory_mb()
    path = halfsec_home(env) / FILE_NAME
    saved = _saved(path)
    if saved is not None and (saved.name, saved.cores) == (name, cores) and _keeps_gpu(saved):
        here = replace(saved, memory_mb=memory)
    elif measure is not None:
        mb_per_ms, gpu = measure(num_threads_of(cores))
        here = Machine(name, cores, memory, round(mb_per_ms, 2), gpu)
        _save(path, here)
    else:
        here = Machine(name, cores, memory, _SLOW_MB_PER_MS * cores)
    return choose(here, num_calls, obstacle)


def _keeps_gpu(saved: Machine) -> bool:
    """True unless a GPU has come or gone since."""
    return (saved.gpu is not None) == _GPU_DEVICE.exists()


def _saved(path: Path) -> Machine | None:
    """What was measured, if it can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        gpu = Gpu(**values.pop("gpu")) if values.get("gpu") else None
        saved = Machine(**values | {"gpu": gpu})
        return saved if saved.mb_per_ms > 0 else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _save(path: Path, here: Machine) -> None:
    """Keep what was measured. A home that can't be written is no reason to fail: it is measured
    again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(here)) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return
