"""Saturation check: do this CPU's 8-bit kernels sum products without overflow?

Instructions from before VNNI add two products of bytes in 16 bits, which the largest codes
overflow. Libraries mostly avoid them, or halve a code's range; one that does not gives results that
look right and are wrong, so the kernels are tested with the largest codes. Takes 3 ms.
"""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from llm_engine.checkpoints.packed_cache import Array
from llm_engine.errors import ModelError

from . import onnx_graph as graph
from .onnx_weights import BLOCK

_NUM_OUTPUTS = 64
_LARGEST = 127
_NUM_ROWS = (1, 2, 8)
"""Numbers of rows tested: kernels for one row and for several differ."""


def check_products() -> None:
    """Raise ModelError where the kernels saturate."""
    for num_rows in _NUM_ROWS:
        rows = np.ones((num_rows, BLOCK), np.float32)
        rows[::2] *= -1
        expected = rows * (BLOCK * _LARGEST)
        if not np.allclose(_products(rows), expected[:, :_NUM_OUTPUTS], rtol=1e-5):
            raise ModelError("this CPU's 8-bit products saturate; use precision float32")


def _products(rows: Array) -> Array:
    """Rows `[M, BLOCK]` times a matrix `[BLOCK, 64]` of the largest weight, 127."""
    codes = np.full((_NUM_OUTPUTS, 1, BLOCK), 128 + _LARGEST, np.uint8)
    scales = np.ones((_NUM_OUTPUTS, 1), np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["rows", "codes", "scales"],
        ["products"],
        domain="com.microsoft",
        **graph.linear_attributes(BLOCK, _NUM_OUTPUTS),
    )
    info = helper.make_tensor_value_info
    model = graph.make_model(
        [node],
        [info("rows", TensorProto.FLOAT, ["M", BLOCK])],
        [info("products", TensorProto.FLOAT, ["M", _NUM_OUTPUTS])],
        [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")],
    )
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (products,) = session.run(None, {"rows": rows})
    return np.asarray(products)
