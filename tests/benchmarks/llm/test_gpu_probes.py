"""Probe kernels of the GPU bench: they read everything once, and compile for Hopper."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("triton")

READS = """
import torch
from benchmarks.llm.gpu import triton_probes as probes
values = torch.randint(0, 9, (probes.ALIGNED * 5,), dtype=torch.int32)
for reading in probes.READINGS:
    sums = probes.read_sums(1, torch.device("cpu"))
    probes.read(values, sums, 1, reading)
    assert sums.sum() == values.sum(), reading
touched = torch.zeros(1, dtype=torch.int32)
probes.nothing(touched, pdl=False)
assert touched.item() == 1
"""
COMPILES = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from benchmarks.llm.gpu import triton_probes as probes

def assembly(kernel, signature, constants, **options):
    types = signature | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=types, constexprs=constants,
                       attrs={(0,): [["tt.divisibility", 16]]})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

for reading in probes.READINGS:
    constants = {"ROUNDS": 500, "BLOCK": reading.block, "STAGES": reading.num_stages}
    signature = {"values": "*i32", "sums": "*i32", "num_blocks": "i32"}
    text = assembly(probes.read_kernel, signature, constants, num_warps=8)
    assert "cp.async.cg.shared.global" in text or "ld.global.v4" in text, "loads of 16 bytes"
text = assembly(probes.nothing_kernel, {"touched": "*i32"}, {"PDL": True}, launch_pdl=True)
assert "griddepcontrol.wait" in text
assert "griddepcontrol.launch_dependents" in text
"""


def run(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_read_is_all_there_is() -> None:
    run(READS, TRITON_INTERPRET="1")


def test_they_compile_for_hopper() -> None:
    run(COMPILES, TRITON_INTERPRET="0")
