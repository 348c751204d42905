"""Compiles the megakernel for a device, and launches it.

NVRTC and the driver by `cuda.bindings`, which torch's CUDA builds bring."""

import ctypes
import logging
from importlib import resources
from typing import Any

import torch

from llm_engine.cuda.model import DeviceModel
from llm_engine.errors import ModelError

from .kernel import NO_EFFECT, Launcher
from .tables import THREADS, Step, definitions, unsupported

log = logging.getLogger(__name__)

MIN_CAPABILITY = (9, 0)
"""Compute capability of Hopper: the first that copies in bulk into shared memory."""

_NAME = "the kernel for all layers"


class CompiledKernel(Launcher):
    """The kernel on one device, for one size of heads and of weights."""

    def __init__(self, device: torch.device, *, head_dim: int, weight_bits: int) -> None:
        """Compile and load, which takes seconds. Raises ImportError without `cuda.bindings`,
        ModelError where compiling or loading fails."""
        from cuda.bindings import driver

        self._driver = driver
        torch.cuda.synchronize(device)  # makes torch's context, which the kernel is loaded into
        capability = torch.cuda.get_device_capability(device)
        self.num_blocks = torch.cuda.get_device_properties(device).multi_processor_count
        self.shared_bytes = self._checked(
            driver.cuDeviceGetAttribute(
                driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                self._checked(driver.cuCtxGetDevice()),
            )
        )
        image = compile_kernel(capability, head_dim=head_dim, weight_bits=weight_bits)
        self._module = self._checked(driver.cuModuleLoadData(image))
        self._function = self._checked(driver.cuModuleGetFunction(self._module, b"decode"))
        self._checked(
            driver.cuFuncSetAttribute(
                self._function,
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self.shared_bytes,
            )
        )
        fitting = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            self._function, THREADS, self.shared_bytes
        )
        if self._checked(fitting) < 1:
            raise ModelError(f"{_NAME} does not fit this GPU's multiprocessors")

    def launch(self, step: Step, shared_bytes: int) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(step))
        # Cooperative: all blocks run at the same time, or the launch fails.
        self._checked(
            self._driver.cuLaunchCooperativeKernel(
                self._function,
                *(self.num_blocks, 1, 1),
                *(THREADS, 1, 1),
                shared_bytes,
                torch.cuda.current_stream().cuda_stream,
                ctypes.addressof(arguments),
            )
        )

    def _checked(self, result: tuple[Any, ...]) -> Any:
        status, *found = result
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise ModelError(f"{_NAME} failed: {status!r}; leave llm_engine.megakernel out")
        return found[0] if found else None


def launcher_or_none(model: DeviceModel, device: torch.device) -> CompiledKernel | None:
    """The compiled kernel for a model, or None with a log line where the model is another, or the
    device or its software lacks something."""
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        log.warning("%s: it needs compute capability 9.0 or newer", NO_EFFECT)
        return None
    reason = unsupported(model, ())
    if reason is not None:
        log.warning("%s: it is not made for %s", NO_EFFECT, reason)
        return None
    bits = model.layers[0].out.bits
    try:
        return CompiledKernel(device, head_dim=model.config.head_dim, weight_bits=bits)
    except (ImportError, ModelError, RuntimeError) as error:
        log.warning("%s: %s", NO_EFFECT, error)
        return None


def compile_kernel(capability: tuple[int, int], *, head_dim: int, weight_bits: int) -> bytes:
    """Compile for a compute capability; needs no GPU. Returns machine code (cubin). Raises
    ModelError with the compiler's log."""
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(kernel_source().encode(), b"decoder.cu", 0, [], [])
    _raise_unless_ok(nvrtc, status)
    major, minor = capability
    options = [
        f"--gpu-architecture=sm_{major}{minor}a",
        "--std=c++17",
        *definitions(head_dim=head_dim, weight_bits=weight_bits),
    ]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise ModelError(f"{_NAME} does not compile: {log.decode(errors='replace')}")
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        _raise_unless_ok(nvrtc, status)
        image: bytes = b" " * size
        (status,) = nvrtc.nvrtcGetCUBIN(program, image)
        _raise_unless_ok(nvrtc, status)
        return image
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def kernel_source() -> str:
    """The kernel in CUDA C++, without includes. It is compiled with `tables.definitions`."""
    files = resources.files(__package__)
    return "\n".join(files.joinpath(name).read_text() for name in ("device.cuh", "decoder.cu"))


def _raise_unless_ok(nvrtc: Any, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ModelError(f"{_NAME} cannot be compiled: {status!r}")
