"""GPU probe, requirements, and classification of CUDA errors.

Probing (`probe`) and judging what was found (`require_device`) are separate, so that the second is
tested with machines that are not at hand.

After some CUDA errors every later call of the process fails with the same error: the context is
lost, and only a new process gets another one. Other errors concern one request. `fault_of` tells
them apart, by the error's code where torch has it, and otherwise by CUDA's message: Triton and the
libraries raise plain `RuntimeError`s that contain it.
"""

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

import torch

from llm_engine.errors import ModelError

BFLOAT16_CAPABILITY = (8, 0)
"""Compute capability of Ampere: the first with bfloat16 in its matrix units."""
FP8_CAPABILITY = (8, 9)
"""Compute capability of Ada: the first that converts 8-bit floats by an instruction, which Triton
needs."""
_OLDEST_DRIVERS = {"12": 525, "13": 580}
"""Oldest driver for each major version of CUDA, from the CUDA Toolkit's release notes (minor
versions are compatible)."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, its driver and software versions."""

    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    """Streaming multiprocessors."""
    l2_bytes: int
    free_bytes: int
    """Free memory when it was probed; this process's context is subtracted already."""
    total_bytes: int
    driver: str
    cuda: str
    """CUDA version that torch was built with."""
    torch: str
    triton: str

    def __str__(self) -> str:
        major, minor = self.capability
        return (
            f"{self.name} (sm_{major}{minor}, {self.num_sms} SMs, {self.l2_bytes >> 20} MiB of L2, "
            f"{self.free_bytes / 2**30:.1f} of {self.total_bytes / 2**30:.1f} GiB free), driver "
            f"{self.driver}, CUDA {self.cuda}, torch {self.torch}, Triton {self.triton}"
        )


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """Result of a probe, with or without a GPU."""

    torch: str
    cuda: str | None = None
    """None: torch was built without CUDA."""
    triton: str | None = None
    """None: not installed."""
    driver: str | None = None
    """None: there is no driver, or its version is unknown."""
    visible: str | None = None
    """Value of CUDA_VISIBLE_DEVICES, where it is set."""
    problem: str = ""
    """CUDA's error message when it failed to start."""
    num_devices: int = 0
    device: Device | None = None
    """The GPU that was probed."""


def require_device(
    found: DeviceProbe | None = None, *, index: int = 0, needs_fp8: bool = False
) -> Device:
    """The GPU to use. Probes unless `found` is given.

    Raises ModelError with the problem and its remedy.
    """
    found = found or probe(index)
    if found.cuda is None:
        raise ModelError(
            f"torch {found.torch} was built without CUDA; install a CUDA build of it "
            "(https://pytorch.org/get-started/locally), or choose a backend for the CPU"
        )
    if found.problem:
        raise ModelError(_about_driver(found))
    if not found.num_devices:
        hint = "nvidia-smi lists the GPUs that the driver sees"
        if found.visible is not None:
            hint = f"CUDA_VISIBLE_DEVICES is {found.visible!r}, which hides all or names none"
        raise ModelError(f"the NVIDIA driver {found.driver or ''} shows no GPU: {hint}")
    device = found.device
    if device is None:
        raise ModelError(f"there is no GPU {index}; there are {found.num_devices}, from 0")
    _require_capability(device, needs_fp8=needs_fp8)
    if found.triton is None:
        raise ModelError(
            "Triton is not installed, which the GPU kernels need: pip install 'halfsec[cuda]' "
            "(torch's CUDA builds for Linux bring it)"
        )
    return device


def _about_driver(found: DeviceProbe) -> str:
    cuda = found.cuda or ""
    oldest = _OLDEST_DRIVERS.get(cuda.partition(".")[0])
    needed = f"CUDA {cuda} needs driver {oldest} or later" if oldest else f"CUDA {cuda}"
    major = (found.driver or "").partition(".")[0]
    is_old = oldest is not None and major.isdigit() and int(major) < oldest
    if is_old or "too old" in found.problem:
        has = found.driver or "an older one"
        return (
            f"the NVIDIA driver is too old: {needed}, this machine has {has}; update it, or "
            "install a torch built for an older CUDA"
        )
    if found.driver is None:
        return (
            f"no NVIDIA driver answers ({found.problem}); {needed}. Install it (in a container: "
            "start it with --gpus all), or choose a backend for the CPU"
        )
    return f"the GPU cannot be used: {found.problem} (driver {found.driver}, CUDA {cuda})"


def _require_capability(device: Device, *, needs_fp8: bool) -> None:
    has = ".".join(map(str, device.capability))
    if device.capability < BFLOAT16_CAPABILITY:
        raise ModelError(
            f"{device.name} has compute capability {has}; bfloat16 needs 8.0 (Ampere) or later. "
            "Choose a backend for the CPU"
        )
    if needs_fp8 and device.capability < FP8_CAPABILITY:
        raise ModelError(
            f"{device.name} has compute capability {has}; FP8 needs 8.9 (Ada, Hopper) or later. "
            "Choose precision bfloat16"
        )


def probe(index: int = 0) -> DeviceProbe:
    """Probe software, driver and this one GPU. Starts CUDA on it in this process, which takes
    memory there, and fails where other processes use all of it. Raises nothing."""
    cuda = torch.version.cuda
    has_triton = importlib.util.find_spec("triton") is not None
    triton = metadata.version("triton") if has_triton else None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = DeviceProbe(torch.__version__, cuda, triton, None, visible)
    if cuda is None:
        return found
    driver = driver_version()
    problem = ""
    num_devices, device = 0, None
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        num_devices = torch.cuda.device_count()
        if index < num_devices:
            device = _device(index, driver or "unknown", cuda, triton or "none")
    except (RuntimeError, AssertionError) as error:  # torch raises either
        problem = str(error).partition("\n")[0]
    return DeviceProbe(
        torch.__version__, cuda, triton, driver, visible, problem, num_devices, device
    )


def _device(index: int, driver: str, cuda: str, triton: str) -> Device:
    properties = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return Device(
        index=index,
        name=properties.name,
        capability=(properties.major, properties.minor),
        num_sms=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        driver=driver,
        cuda=cuda,
        torch=torch.__version__,
        triton=triton,
    )


def driver_version() -> str | None:
    """Driver version from NVML, also where the driver is too old for CUDA; None without one."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0:
        return None
    try:
        status = library.nvmlSystemGetDriverVersion(text, len(text))
    finally:
        library.nvmlShutdown()
    return text.value.decode() if status == 0 else None


class Fault(StrEnum):
    """Class of an error by what it means for the GPU."""

    NONE = "none"
    """No error of the device, or one that ended with the call."""
    OUT_OF_MEMORY = "out of memory"
    """An allocation failed. Everything allocated before is intact."""
    LOST = "lost"
    """The CUDA context is lost: nothing runs any more in this process."""


_LOST_CODES = frozenset(
    # cudaError_t, driver_types.h: device unavailable or gone, uncorrectable memory and links,
    {46, 100, 101, 214, 220, 226}
    # illegal address, timeout, destroyed context, assertion, and the other ways a kernel can die.
    | {700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
)
_MEMORY_CODE = 2
_LOST_WORDS = (
    "illegal memory access",
    "device-side assert",
    "uncorrectable ecc",
    "uncorrectable nvlink",
    "unspecified launch failure",
    "launch timed out",
    "misaligned address",
    "illegal instruction",
    "hardware stack error",
    "invalid program counter",
    "global/shared address space",
    "context is destroyed",
    "no cuda-capable device",
    "devices are busy or unavailable",
    "gpu is lost",
    "fallen off the bus",
    "cuda error: unknown error",
    "[cuda]: unknown error",
)
_MEMORY_WORDS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "[cuda]: out of memory",
    "cublas_status_alloc_failed",
)


def fault_of(error: BaseException) -> Fault:
    """Classify an error, or any that led to it."""
    seen: set[int] = set()
    each: BaseException | None = error
    worst = Fault.NONE
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        fault = _fault_of_one(each)
        if fault is Fault.LOST:
            return fault
        worst = fault if worst is Fault.NONE else worst
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return worst


def _fault_of_one(error: BaseException) -> Fault:
    if isinstance(error, torch.OutOfMemoryError):
        return Fault.OUT_OF_MEMORY
    code = getattr(error, "error_code", None)  # torch.AcceleratorError
    if code in _LOST_CODES and isinstance(error, RuntimeError):
        return Fault.LOST
    if not isinstance(error, RuntimeError):
        return Fault.NONE
    text = str(error).lower()
    if any(words in text for words in _LOST_WORDS):
        return Fault.LOST
    if code == _MEMORY_CODE or any(words in text for words in _MEMORY_WORDS):
        return Fault.OUT_OF_MEMORY
    return Fault.NONE


def responds(device: Device) -> bool:
    """True if the GPU still completes work. Waits for all that was launched before."""
    try:
        torch.cuda.synchronize(device.index)
        return bool(torch.ones((), device=f"cuda:{device.index}").item() == 1)
    except RuntimeError as error:
        return fault_of(error) is Fault.OUT_OF_MEMORY
