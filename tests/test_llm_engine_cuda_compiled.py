"""The kernels as machine code for an H200, which Triton makes without one.

Not how fast they are, but what they can't be fast without: nothing spills, weights and keys come in
pieces of 16 bytes and are asked for before a program waits, 8-bit values become 16-bit ones two at
a time, and every kernel waits for the one before it, exactly once.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are NOT compiled")

ROOT = Path(__file__).resolve().parents[1]
SHARED_BYTES = 227 << 10
PRODUCTS = {"queries_kernel", "plain_kernel", "residual_kernel", "gate_up_kernel"}
ATTENTION = {"attend_kernel"}

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux",
    reason="Triton's assembler is for Linux on x86-64",
)


def compiled(kind: str, num_rows: int) -> list[dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.compile_kernels", kind, str(num_rows)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("kind", "num_rows"), [("fp8", 4), ("fp8 by block", 64), ("bf16", 1)])
def test_an_8b_models_step_compiles_for_an_h200(kind: str, num_rows: int) -> None:
    kernels = compiled(kind, num_rows)
    assert {kernel["kernel"] for kernel in kernels} == {*PRODUCTS, *ATTENTION, "place_kernel"}
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel
        assert kernel["shared"] <= SHARED_BYTES, kernel
        assert kernel["waits"] == 1, kernel
        if kernel["kernel"] in PRODUCTS | ATTENTION:
            assert kernel["matrix_units"] > 0, kernel
            assert kernel["wide_copies"] > 0, kernel
            assert kernel["fetched_before_waiting"] == kernel["fetched"] > 0, kernel
        if kernel["kernel"] in PRODUCTS:
            assert (kernel["pairs_converted"] > 0) == kind.startswith("fp8"), kernel
