"""Compiles, without a GPU, what a step of an 8B model launches on an H200, and says what the
machine code is like. To be run by itself, as the interpreter's kernels cannot be compiled:

    python -m tests.support.llm.compile_kernels fp8 4
    python -m tests.support.llm.compile_kernels "fp8 by block" 512      # a part of a prompt
    python -m tests.support.llm.compile_kernels "fp8 by row" 512        # without torch's library
    python -m tests.support.llm.compile_kernels "int4 by 32 with zeros" 8
    python -m tests.support.llm.compile_kernels "int4 by 128" 8 80      # for an A100

Without arguments it reads them from stdin, a list in JSON per line, and writes an empty line behind
each answer.
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from llm_engine.cuda.ops import prefill_gemm, triton_ops, triton_step_inputs
from llm_engine.cuda.ops.interface import (
    MAX_ROWS,
    Attention,
    Heads,
    Int4Weight,
    LayerPages,
    Matrix,
    Norm,
    Rope,
    RowMasks,
    Rows,
    SamplingInputs,
    StepState,
    Weight,
)

HOPPER = 90
NUM_SMS = 132
DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Recorder:
    """In a kernel's place: compiles it for the arguments with which it is called."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self._kernel = kernel
        self._target = GPUTarget("cuda", capability, 32)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(**arguments: Any) -> None:
            compiled = triton.compile(
                _source(self._kernel, arguments), target=self._target, options=_options(arguments)
            )
            name = self._kernel.fn.__name__
            described = _described(compiled) | {"is_paired": bool(arguments.get("PAIRED"))}
            told = {"kernel": name, "grid": grid, "num_stages": arguments.get("num_stages")}
            print(json.dumps({**told, **described}))

        return launch


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    names = ("num_warps", "num_stages", "maxnreg", "launch_pdl")
    return {name: arguments[name] for name in names if name in arguments}


def _source(kernel: Any, arguments: dict[str, Any]) -> ASTSource:
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        signature[parameter.name] = "i32"
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


@functools.cache
def _registers_and_stack(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(DISASSEMBLER), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0])
    return registers, stack


def _described(compiled: Any) -> dict[str, Any]:
    registers, stack = _registers_and_stack(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    waiting, _, behind = ptx.partition("griddepcontrol.wait")
    until_next, _, _ = behind.partition("griddepcontrol.launch_dependents")
    return {
        "registers": registers,
        "stack": stack,
        "shared": compiled.metadata.shared,
        "waits": ptx.count("griddepcontrol.wait"),
        "lets_begin": ptx.count("griddepcontrol.launch_dependents"),
        "lets_begin_before_waiting": waiting.count("griddepcontrol.launch_dependents"),
        "copies_before_letting_begin": until_next.count("cp.async.c"),
        "touched_before_waiting": re.findall(
            r"cp\.async\.c\S*|(?:ld|st)\.global\S*|atom\S*", waiting
        ),
        "fetched_before_waiting": waiting.count("prefetch.global"),
        "fetched": ptx.count("prefetch.global"),
        "wide_copies": len(re.findall(r"cp\.async\.cg\.[^;]*, 0x10", ptx)),
        "narrow_copies": ptx.count("cp.async.ca"),
        "matrix_units": len(re.findall(r"wgmma\.mma_async|mma\.sync", ptx)),
        "matrix_units_in_8_bits": len(re.findall(r"wgmma\.mma_async\S*\.e4m3\.e4m3", ptx)),
        "threads": 32 * compiled.metadata.num_warps,
        "fused_additions": ptx.count("fma.rn.f32"),
        "pairs_converted": ptx.count("cvt.rn.f16x2.e4m3x2"),
        "bytes_spread": ptx.count("prmt.b32"),
        "codes_centered": ptx.count("fma.rn.bf16x2"),
        "pairs_saturated": ptx.count("cvt.rn.satfinite.f16x2.f32"),
    }


def _matrix(num_out: int, num_in: int, kind: str) -> Weight:
    if kind.startswith("int4"):
        group = int(kind.split()[2])
        codes = torch.empty(num_out, num_in // 2, dtype=torch.uint8)
        scales = torch.empty(num_in // group, num_out, dtype=torch.float16)
        return Int4Weight(codes, scales, scales if "zeros" in kind else None, group, num_in)
    if kind == "bf16":
        return Matrix(torch.empty(num_out, num_in, dtype=torch.bfloat16))
    values = torch.empty(num_out, num_in, dtype=torch.float8_e4m3fn)
    if kind != "fp8 by block":
        return Matrix(values, torch.empty(num_out, 1), (1, num_in))
    return Matrix(values, torch.empty(-(-num_out // 128), -(-num_in // 128)), (128, 128))


def launch_everything(kind: str, num_rows: int, capability: int) -> None:
    by_library = kind != "fp8 by row"
    is_dependent = capability >= HOPPER
    ops = triton_ops.TritonOps(torch.device("cpu"), num_sms=NUM_SMS, by_library=by_library)
    ops._pdl = is_dependent
    ops._prompts = replace(ops._prompts, pdl=is_dependent)
    hidden, inner, vocab = 4096, 14336, 128256
    heads = Heads(32, 8, 128)
    rows = Rows(torch.empty(num_rows, dtype=torch.int32), torch.empty(1, 64, dtype=torch.int32))

    def activations(*shape: int) -> torch.Tensor:
        return torch.empty(num_rows, *shape, dtype=torch.bfloat16)

    pages = LayerPages(*(torch.empty(8, 8, 64, 128, dtype=torch.bfloat16) for _ in "kv"))
    rope = Rope(torch.empty(4096, 64), torch.empty(4096, 64))
    norm, head_norm = Norm(torch.empty(hidden), 1e-5), Norm(torch.empty(128), 1e-6)
    qkv = _matrix(6144, hidden, kind)
    x, queries = activations(hidden), activations(32, 128)
    for layer in (
        Attention(norm, qkv, heads), Attention(norm, qkv, heads, head_norm, head_norm, 512)
    ):  # fmt: skip
        ops.queries(x, layer, rope, rows, pages, queries)
        ops.attend(queries, layer, rows, pages, activations(32, 128))
    ops.add_product(x, _matrix(hidden, hidden, kind), activations(hidden))
    ops.gate_up(x, norm, _matrix(2 * inner, hidden, kind), activations(inner))
    ops.add_product(activations(inner), _matrix(hidden, inner, kind), activations(hidden))
    if num_rows <= MAX_ROWS:
        parts = torch.empty(2, num_rows, hidden)
        ops.part(x, _matrix(hidden, hidden, kind), parts[0])
        ops.add_parts(parts, activations(hidden))
    logits = torch.empty(num_rows, vocab)
    ops.logits(x, norm, _matrix(vocab, hidden, kind), logits)

    def words(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.int32)

    lanes = triton_step_inputs.TritonStepOps(torch.device("cpu"), dependent=is_dependent)
    state = StepState(words(1, num_rows), words(1), words(1), words(1))
    embedding = torch.empty(8, hidden, dtype=torch.bfloat16)
    lanes.embed(state, embedding, rows.positions, x)
    if num_rows <= MAX_ROWS:
        numbers, seeds = torch.empty(1), torch.empty(1, dtype=torch.int64)
        sampling = SamplingInputs(numbers, words(1), numbers, numbers, seeds)
        chosen = words(1, num_rows)
        bits = torch.empty(num_rows, vocab // 8, dtype=torch.uint8)
        lanes.mask(logits, RowMasks(bits, bits, torch.empty(num_rows)))
        lanes.sample(logits, rows.positions, sampling, chosen)
        lanes.advance(state, chosen, words(1))


def main(arguments: list[str]) -> None:
    kernels = [
        (module, name, kernel)
        for module in (triton_ops, prefill_gemm, triton_step_inputs)
        for name, kernel in vars(module).items()
        if name.endswith("_kernel")
    ]
    is_asked = not arguments
    for kind, num_rows, *wanted in map(json.loads, sys.stdin) if is_asked else [arguments]:
        capability = int(wanted[0]) if wanted else HOPPER
        for module, name, kernel in kernels:
            setattr(module, name, Recorder(kernel, capability))
        launch_everything(kind, int(num_rows), capability)
        if is_asked:
            print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
