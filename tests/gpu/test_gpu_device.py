"""The GPU as it is, and as it is after an error that nothing survives."""

import subprocess
import sys

import pytest
import torch

from llm_engine.cuda.device import Fault, fault_of, probe, require_device, responds
from tests.gpu import ground

pytestmark = [
    *ground.pytestmark,
    pytest.mark.skipif(ground.MODE == "rehearse", reason="a CPU does not fail like a GPU"),
]

LOSES_IT = """
import torch
from llm_engine.cuda.device import Fault, fault_of, require_device, responds
device = require_device()
assert responds(device)
try:
    torch.ones(8, device="cuda")[torch.tensor([1 << 40], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError as error:
    assert fault_of(error) is Fault.LOST, error
else:
    raise AssertionError("an index out of range was overlooked")
assert not responds(device), "the error does not go away"
try:
    torch.ones(1, device="cuda").item()
except RuntimeError as error:
    assert fault_of(error) is Fault.LOST, error
"""


def test_what_is_found_will_do() -> None:
    device = require_device(needs_fp8=True)
    print(device)
    assert device.num_sms > 0
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.l2_bytes > 1 << 20
    assert device.driver[0].isdigit() or device.driver == "unknown"  # where nothing tells it
    assert responds(device)
    assert probe().problem == ""


def test_too_much_memory_is_this_request_s_fault_alone() -> None:
    device = require_device()
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    assert fault_of(error.value) is Fault.OUT_OF_MEMORY
    assert responds(device)


def test_a_lost_gpu_is_told_from_everything_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSES_IT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
