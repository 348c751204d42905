"""GPU requirements, tested with recorded probes, and classification of CUDA errors."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from llm_engine.cuda.device import DeviceProbe, Fault, fault_of, probe, require_device
from llm_engine.errors import EngineError, ModelError
from tests.support.fakes.llm_cuda import H200

GOOD = DeviceProbe("2.11.0+cu130", "13.0", "3.6.0", "580.159.04", num_devices=1, device=H200)
BARE = replace(GOOD, num_devices=0, device=None)


def test_only_the_gpu_that_is_asked_for_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared machine a neighbour may have another one for itself, or fill it."""

    def memory(index: int) -> tuple[int, int]:
        if index != 1:
            raise torch.AcceleratorError("CUDA-capable devices are busy or unavailable")
        return 5 << 30, 6 << 30

    kind = SimpleNamespace(name="H", major=9, minor=0, multi_processor_count=132, L2_cache_size=1)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.init", lambda: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: kind)
    monkeypatch.setattr("torch.cuda.mem_get_info", memory)
    device = require_device(index=1)
    assert (device.index, device.free_bytes, device.total_bytes) == (1, 5 << 30, 6 << 30)
    with pytest.raises(ModelError, match="busy or unavailable"):
        require_device(index=2)
    with pytest.raises(ModelError, match="no GPU 3; there are 3"):
        require_device(index=3)


def test_a_device_tells_what_it_is() -> None:
    text = str(H200)
    for part in ("NVIDIA H200", "sm_90", "132", "60 MiB", "139.0 of 140.0", "580.159.04", "3.6.0"):
        assert part in text


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (DeviceProbe("2.11.0+cpu"), ["2.11.0+cpu", "without CUDA", "install"]),
        (
            replace(BARE, driver=None, problem="Found no NVIDIA driver on your system."),
            ["no NVIDIA driver", "580", "--gpus all"],
        ),
        (
            replace(BARE, driver="535.54.03", problem="forward compatibility failed"),
            ["too old", "CUDA 13.0 needs driver 580", "535.54.03", "update"],
        ),
        (
            replace(GOOD, cuda="12.8", driver=None, problem="driver is too old (found version 1)"),
            ["too old", "CUDA 12.8 needs driver 525"],
        ),
        (
            replace(BARE, problem="CUDA error: all CUDA-capable devices are busy"),
            ["all CUDA-capable devices are busy", "580.159.04"],
        ),
        (
            replace(BARE, visible=""),
            ["shows no GPU", "CUDA_VISIBLE_DEVICES is ''"],
        ),
        (BARE, ["shows no GPU", "nvidia-smi"]),
        (
            replace(GOOD, device=replace(H200, name="Tesla V100", capability=(7, 0))),
            ["Tesla V100", "7.0", "bfloat16 needs 8.0"],
        ),
        (
            replace(GOOD, device=replace(H200, name="NVIDIA A100", capability=(8, 0))),
            ["NVIDIA A100", "8.0", "FP8 needs 8.9", "precision bfloat16"],
        ),
        (replace(GOOD, triton=None), ["Triton is not installed", "pip install 'halfsec[cuda]'"]),
    ],
)
def test_a_machine_that_will_not_do_is_refused_with_the_reason(
    found: DeviceProbe, words: list[str]
) -> None:
    with pytest.raises(ModelError) as error:
        require_device(found, needs_fp8=True)
    for word in words:
        assert word in str(error.value)


def test_an_old_gpu_will_do_without_fp8() -> None:
    a100 = replace(H200, capability=(8, 0))
    assert require_device(replace(GOOD, device=a100)) is a100


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"no GPU 2; there are 1"):
        require_device(replace(GOOD, device=None), index=2)


def test_looking_around_never_raises() -> None:
    found = probe()
    assert found.torch == torch.__version__
    if not torch.cuda.is_available():
        with pytest.raises(ModelError):
            require_device(found)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Fault.LOST),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), Fault.LOST),
        (RuntimeError("CUDA error: device-side assert triggered\nCompile with"), Fault.LOST),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Fault.LOST),
        (RuntimeError("CUDA error: unspecified launch failure"), Fault.LOST),
        (RuntimeError("CUDA error: unknown error"), Fault.LOST),
        (RuntimeError("No CUDA-capable device is detected"), Fault.LOST),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), Fault.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Fault.OUT_OF_MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Fault.OUT_OF_MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), Fault.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: invalid argument"), Fault.NONE),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Fault.NONE),
        (ValueError("an illegal memory access was encountered"), Fault.NONE),
        (MemoryError(), Fault.NONE),
    ],
)
def test_what_an_error_says_of_the_device(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


@pytest.mark.parametrize(
    ("code", "fault"), [(700, Fault.LOST), (2, Fault.OUT_OF_MEMORY), (1, Fault.NONE)]
)
def test_a_code_counts_whatever_the_words_are(code: int, fault: Fault) -> None:
    error = torch.AcceleratorError("translated")
    error.error_code = code  # type: ignore[attr-defined]  # as torch does in C++
    assert fault_of(error) is fault


def chained(cause: Exception, *, is_cause: bool) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            if is_cause:
                raise EngineError("the language model failed") from error
            raise KeyError("while cleaning up") from None
    except Exception as error:
        return error


def test_what_led_to_an_error_counts_unless_it_was_dealt_with() -> None:
    lost = RuntimeError("CUDA error: misaligned address")
    assert fault_of(chained(lost, is_cause=True)) is Fault.LOST
    assert fault_of(chained(lost, is_cause=False)) is Fault.NONE


def test_an_error_that_caused_itself_ends() -> None:
    error = RuntimeError("round")
    error.__cause__ = error
    assert fault_of(error) is Fault.NONE
