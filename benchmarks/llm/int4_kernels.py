"""4-bit products on this machine: ONNX Runtime's MatMulNBits beside torch's int4 kernel.

    python -m benchmarks.llm.int4_kernels --json FILE

The MLP matrices of a half-billion model (24 times 896 x 4864 and back, 105 MB in 4 bits, more than
any cache holds) are multiplied by 1, 16 and 64 rows, one kernel after the other, again and again;
of each the fastest pass counts. Needs the extra `torch`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks.voice.report import save
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.host import machine
from llm_engine.backends.onnx_graph import BlockFormat, linear_attributes, make_model
from llm_engine.torch_extra import require_torch

HIDDEN: Final = 896
INNER: Final = 4864
NUM_LAYERS: Final = 24
ROWS: Final = (1, 16, 64)
BLOCKS: Final = (32, 128)
ROUNDS: Final = 8
_CODE_RANGE: Final = 16

Pass = Callable[[int], None]
"""Multiplies this many rows by all matrices."""


def shapes() -> list[tuple[int, int]]:
    """Inputs and outputs of each matrix, in order."""
    return [(HIDDEN, INNER), (INNER, HIDDEN)] * NUM_LAYERS


def onnx_pass(block: int, num_threads: int) -> Pass:
    """MatMulNBits as the engine runs it: activations in 8 bits, a scale for each block of a row."""
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    for index, (inputs, outputs) in enumerate(shapes()):
        codes = rng.integers(0, 256, (outputs, inputs // block, block // 2), dtype=np.uint8)
        scales = np.full((outputs, inputs // block), 1e-3, np.float32)
        names = [f"rows.{index}", f"codes.{index}", f"scales.{index}"]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                names,
                [f"rows.{index + 1}"],
                domain="com.microsoft",
                **linear_attributes(inputs, outputs, BlockFormat(4, block)),
            )
        )
        stored += [numpy_helper.from_array(codes, names[1])]
        stored += [numpy_helper.from_array(scales, names[2])]
    last = f"rows.{len(nodes)}"
    info = helper.make_tensor_value_info
    graph = make_model(
        nodes,
        [info("rows.0", TensorProto.FLOAT, ["rows", HIDDEN])],
        [info(last, TensorProto.FLOAT, ["rows", HIDDEN])],
        stored,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(None, {"rows.0": np.ones((rows, HIDDEN), np.float32)})


def torch_pass(block: int, num_threads: int) -> Pass:
    """torch's `_weight_int4pack_mm_for_cpu`: activations in bfloat16."""
    require_torch("this bench")
    import torch

    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in shapes():
        codes = torch.randint(0, _CODE_RANGE, (outputs, inputs), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.full((inputs // block, outputs, 2), 1e-3, dtype=torch.bfloat16)
        layers.append((packed, scales))

    def multiply(rows: int) -> None:
        values = torch.ones((rows, HIDDEN), dtype=torch.bfloat16)
        with torch.inference_mode():
            for packed, scales in layers:
                values = torch.ops.aten._weight_int4pack_mm_for_cpu(values, packed, block, scales)

    return multiply


def measure(num_threads: int) -> dict[str, dict[str, float]]:
    """Fastest pass of each kernel, in ms, by number of rows."""
    kernels = {
        **{f"MatMulNBits, blocks of {block}": onnx_pass(block, num_threads) for block in BLOCKS},
        **{f"torch, groups of {block}": torch_pass(block, num_threads) for block in BLOCKS},
    }
    clock = SystemClock()
    fastest = {name: dict.fromkeys(map(str, ROWS), float("inf")) for name in kernels}
    for _ in range(ROUNDS):
        for name, multiply in kernels.items():
            for rows in ROWS:
                began_ns = clock.now_ns()
                multiply(rows)
                ms = (clock.now_ns() - began_ns) / 1e6
                fastest[name][str(rows)] = min(fastest[name][str(rows)], ms)
    return fastest


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.llm.int4_kernels", description=__doc__
    )
    parser.add_argument("--threads", type=int, default=2, help="of each kernel (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result")
    options = parser.parse_args(argv)
    fastest = measure(options.threads)
    print(f"{'ms for 105 MB of weights':<28}" + "".join(f"{rows:>5} rows" for rows in ROWS))
    for name, times in fastest.items():
        print(f"{name:<28}" + "".join(f"{times[str(rows)]:>10.1f}" for rows in ROWS))
    command = f"python -m benchmarks.llm.int4_kernels --threads {options.threads}"
    save(
        {
            "bench": "int4_kernels",
            "machine": machine(),
            "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
            "command": command,
            "fastest_ms": fastest,
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
