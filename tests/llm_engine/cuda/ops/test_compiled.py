"""The kernels as machine code for an H200, which Triton makes without one.

Not how fast they are, but what they can't be fast without: nothing spills; weights, activations and
keys come in pieces of 16 bytes (beside few rows only a norm's weight does not, a kilobyte a block);
keys, and prompts' weights, are asked for before a program waits; 8-bit values become 16-bit ones
two at a time, and so do activations, in an instruction that saturates, or for prompts are
multiplied as they are; a multiprocessor has room for two programs at once; and every kernel waits
for the one before it, exactly once, and lets the next one begin behind that, a product of few rows
not before it has begun to read.
"""

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are NOT compiled")

from llm_engine.cuda.ops.interface import MAX_ROWS

ROOT = Path(__file__).resolve().parents[4]
SHARED_BYTES = 227 << 10
NUM_SMS = 132
REGISTERS = 1 << 16
"""Of one multiprocessor."""
Compile = Callable[..., list[dict[str, Any]]]
"""Kernels of a step: kind of weights, number of rows, compute capability."""
PRODUCTS = {"queries_kernel", "plain_kernel", "divided_kernel", "gate_up_kernel"}
ATTENTION = {"attend_kernel"}
LANES = {
    "embed_kernel",
    "likeliest_kernel",
    "mask_kernel",
    "narrow_kernel",
    "draw_kernel",
    "advance_kernel",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() != "x86_64" or sys.platform != "linux",
        reason="Triton's assembler is for Linux on x86-64",
    ),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """One process for all tests: it takes seconds to import torch and Triton, and many kernels are
    those of several kinds of weights."""
    errors: Path = tmp_path_factory.mktemp("compiler") / "stderr"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.llm.compile_kernels"]
    pipe = subprocess.PIPE
    with (
        errors.open("w") as log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT, env=environment
        ) as process,
    ):
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def compile_step(kind: str, num_rows: int, capability: int = 90) -> list[dict[str, Any]]:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps([kind, num_rows, capability]), file=requests, flush=True)
            kernels: list[dict[str, Any]] = []
            for line in answers:
                if line == "\n":
                    return kernels
                kernels.append(json.loads(line))
            pytest.fail(errors.read_text()[-2000:])

        yield compile_step
        requests.close()


def wanted(kernel: dict[str, Any]) -> int:
    """Programs that a multiprocessor has at once: two, where there are as many."""
    num_programs: int = math.prod(kernel["grid"])
    return min(2, -(-num_programs // NUM_SMS))


def fitting(kernel: dict[str, Any]) -> int:
    """Programs for which a multiprocessor has memory and registers."""
    registers: int = -(-kernel["registers"] // 8) * 8 * 128
    shared: int = kernel["shared"] + 1024
    return min((SHARED_BYTES + 1024) // shared, REGISTERS // registers)


def others_memory(kernel: dict[str, Any]) -> list[str]:
    """What it reads or writes, other than asking for it, while the kernel before it still runs. The
    scheduler may move loads; attention's, of where its rows stand, belong there."""
    is_attention = kernel["kernel"] in ATTENTION
    touched: list[str] = kernel["touched_before_waiting"]
    return [each for each in touched if not (is_attention and each.startswith("ld.global"))]


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [
        *[("fp8", 4), ("fp8 by block", 64), ("bf16", 1)],
        *[("int4 by 128 with zeros", 8), ("int4 by 64 with zeros", 4), ("int4 by 32", 1)],
    ],
)
def test_an_8b_models_step_compiles_for_an_h200(
    compiled: Compile, kind: str, num_rows: int
) -> None:
    kernels = compiled(kind, num_rows)
    around = LANES if num_rows <= MAX_ROWS else {"embed_kernel"}
    independent = {"add_parts_kernel"} if num_rows <= MAX_ROWS else set()
    expected = {*PRODUCTS, *ATTENTION, *around, *independent, "place_kernel"}
    assert {kernel["kernel"] for kernel in kernels} == expected
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel
        assert kernel["shared"] <= SHARED_BYTES, kernel
        is_dependent = kernel["kernel"] not in independent
        assert kernel["waits"] == is_dependent, kernel
        lets_begin = kernel["lets_begin"], kernel["lets_begin_before_waiting"]
        assert lets_begin == (is_dependent, 0), kernel
        if is_dependent:
            assert not others_memory(kernel), kernel
        if kernel["kernel"] in PRODUCTS | ATTENTION:
            assert kernel["matrix_units"] > 0, kernel
            assert kernel["wide_copies"] > 0, kernel
        if kernel["kernel"] in ATTENTION:
            assert kernel["fetched_before_waiting"] == kernel["fetched"] > 0, kernel
        if kernel["kernel"] in PRODUCTS:
            assert (kernel["pairs_converted"] > 0) == kind.startswith("fp8"), kernel
            assert kernel["copies_before_letting_begin"] > 0, kernel
            assert fitting(kernel) >= wanted(kernel), kernel
            assert (kernel["pairs_saturated"] > 0) == kind.startswith("fp8"), kernel
            if num_rows <= MAX_ROWS and not kind.startswith("int4"):
                has_norm = kernel["kernel"] != "divided_kernel"
                assert kernel["narrow_copies"] <= has_norm * kernel["num_stages"], kernel
        if kernel["kernel"] in PRODUCTS and kind.startswith("int4"):
            assert_codes_stay_where_they_are(kernel, kind)
        if kernel["kernel"] in LANES:  # several programs beside one another
            assert 4 * kernel["registers"] * kernel["threads"] <= REGISTERS, kernel
    names = [kernel["kernel"] for kernel in kernels]
    is_drawn = num_rows <= MAX_ROWS
    assert names.count("narrow_kernel") == 5 * is_drawn
    assert names.count("draw_kernel") == is_drawn


def assert_codes_stay_where_they_are(kernel: dict[str, Any], kind: str) -> None:
    """Four codes become numbers by two instructions that spread bytes and two that center them, and
    by no others that move bytes. A norm's weights, for both halves of a unit, and zero points come
    in small pieces, a kilobyte a block."""
    assert kernel["bytes_spread"] == kernel["codes_centered"] > 0, kernel
    kinds = 2 * (kernel["kernel"] != "divided_kernel") + 2 * ("zeros" in kind)
    assert kernel["narrow_copies"] <= kinds * kernel["num_stages"], kernel


def test_a_step_in_4_bits_compiles_for_an_a100(compiled: Compile) -> None:
    kernels = compiled("int4 by 128 with zeros", 8, 80)
    assert {kernel["kernel"] for kernel in kernels} >= {*PRODUCTS, *ATTENTION}
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel
        assert kernel["waits"] == 0, kernel
        if kernel["kernel"] in PRODUCTS:
            assert kernel["bytes_spread"] == kernel["codes_centered"] > 0, kernel


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [
        ("int4 by 128 with zeros", 16),
        ("int4 by 64", 64),
        ("int4 by 128 with zeros", 128),
        ("int4 by 32 with zeros", 512),
    ],
)
def test_a_prompt_in_4_bits_compiles_for_an_h200(
    compiled: Compile, kind: str, num_rows: int
) -> None:
    kernels = compiled(kind, num_rows)
    names = {"int4_prompt_kernel", "ready_kernel", "place_kernel", "embed_kernel", *ATTENTION}
    assert {kernel["kernel"] for kernel in kernels} == names
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel
        assert kernel["waits"] == 1, kernel
        assert not others_memory(kernel), kernel
    products = [kernel for kernel in kernels if kernel["kernel"] == "int4_prompt_kernel"]
    assert len(products) == 6  # two layers' queries, O, gate and up, down, the head
    for kernel in products:
        assert kernel["matrix_units"] > 0, kernel
        assert kernel["wide_copies"] > 0, kernel
        assert kernel["codes_centered"] > 0, kernel
        assert kernel["fetched_before_waiting"] == kernel["fetched"] > 0, kernel
        assert kernel["shared"] <= SHARED_BYTES, kernel
        assert kernel["registers"] * kernel["threads"] <= REGISTERS, kernel


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [("fp8 by block", 128), ("fp8 by block", 256), ("fp8 by block", 512), ("fp8 by row", 512)],
)
def test_a_prompt_of_8_bits_compiles_for_an_h200(
    compiled: Compile, kind: str, num_rows: int
) -> None:
    kernels = compiled(kind, num_rows)
    names = {"blocks_kernel", "ready_kernel", "place_kernel", "embed_kernel", *ATTENTION}
    assert {kernel["kernel"] for kernel in kernels} == names
    for kernel in kernels:
        assert kernel["stack"] == 0, kernel
        assert kernel["waits"] == 1, kernel
        assert not others_memory(kernel), kernel
    products = [kernel for kernel in kernels if kernel["kernel"] == "blocks_kernel"]
    assert len(products) == 6  # two layers' queries, O, gate and up, down, the head
    for kernel in products:
        assert kernel["matrix_units_in_8_bits"] == kernel["matrix_units"] > 0, kernel
        assert kernel["wide_copies"] > 0, kernel
        assert kernel["fetched_before_waiting"] == kernel["fetched"] > 0, kernel
        assert kernel["pairs_converted"] == 0, kernel
        assert kernel["fused_additions"] >= 32, kernel  # one for each number of the sums
        num_resident = 2 if kernel["is_paired"] and num_rows <= 128 else 1
        assert num_resident * kernel["shared"] <= SHARED_BYTES, kernel
        assert num_resident * kernel["registers"] * kernel["threads"] <= REGISTERS, kernel
        # A third of the multiprocessors at least has something to do.
        assert kernel["grid"][0] * kernel["grid"][1] >= 132 / 3, kernel
