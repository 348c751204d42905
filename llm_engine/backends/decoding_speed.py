"""Measures how fast this machine multiplies one row by 8-bit weights.

Decoding a token reads every weight once, so this speed bounds the tokens a second of any model.
The product is that of the ONNX backend, on more weights than caches hold. Takes about five seconds.
"""

from typing import Final

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from latency_budget.account.clock import SystemClock

from .onnx_graph import BlockFormat, linear_attributes, make_model
from .onnx_weights import BLOCK

_SIZE: Final = 2048
"""Inputs and outputs of each matrix."""
_NUM_MATRICES: Final = 32
"""128 MB of codes: more than the caches of the largest processors for one socket."""
_DURATION_NS: Final = 2_000_000_000
"""Time of all runs. The fastest counts: what else the machine does only makes them slower."""
_SCALE_BYTES: Final = 4


def weights_mb_per_ms(num_threads: int) -> float:
    """Megabytes of 8-bit weights, with their scales, that a row is multiplied by in a
    millisecond."""
    codes = np.random.default_rng(0).integers(
        0, 256, (_SIZE, _SIZE // BLOCK, BLOCK), dtype=np.uint8
    )
    # Each matrix another one: equal ones would be stored once, and stay in the cache.
    scales = np.full((_SIZE, _SIZE // BLOCK), 1e-3, np.float32)
    nodes, stored = [], []
    for index in range(_NUM_MATRICES):
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [f"rows.{index}", f"codes.{index}", "scales"],
                [f"rows.{index + 1}"],
                domain="com.microsoft",
                **linear_attributes(_SIZE, _SIZE, BlockFormat(8, BLOCK)),
            )
        )
        stored.append(numpy_helper.from_array(codes ^ np.uint8(index), f"codes.{index}"))
    stored.append(numpy_helper.from_array(scales, "scales"))
    info = helper.make_tensor_value_info
    model = make_model(
        nodes,
        [info("rows.0", TensorProto.FLOAT, [1, _SIZE])],
        [info(f"rows.{_NUM_MATRICES}", TensorProto.FLOAT, [1, _SIZE])],
        stored,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rows = {"rows.0": np.ones((1, _SIZE), np.float32)}
    clock = SystemClock()
    fastest_ms = float("inf")
    until_ns = clock.now_ns() + _DURATION_NS
    while (began_ns := clock.now_ns()) < until_ns:
        session.run(None, rows)
        fastest_ms = min(fastest_ms, (clock.now_ns() - began_ns) / 1e6)
    num_bytes = _NUM_MATRICES * (codes.nbytes + scales.size * _SCALE_BYTES)
    return num_bytes / 1e6 / fastest_ms
