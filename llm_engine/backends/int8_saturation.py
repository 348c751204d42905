"""Saturation check: do this CPU's 8-bit and 4-bit kernels sum products without overflow?

Instructions from before VNNI add two products of bytes in 16 bits, which the largest codes
overflow. Libraries mostly avoid them, or halve a code's range; one that does not gives results that
look right and are wrong, so the kernels are tested with the largest codes: 127 in 8 bits, and 15
from a zero point of 0 in 4 bits. Activations are 8-bit in both. Takes 3 ms for each.
"""

import numpy as np
import onnxruntime as ort

from llm_engine.checkpoints.int4 import GROUP_SIZES
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.errors import ModelError

from .onnx_graph import BlockFormat, product_model
from .onnx_weights import BLOCK

_NUM_OUTPUTS = 64
_INT8, _INT4 = BlockFormat(8, BLOCK), tuple(BlockFormat(4, group) for group in GROUP_SIZES)
_NUM_ROWS = (1, 2, 8)
"""Numbers of rows tested: kernels for one row and for several differ."""


def check_products(*, int4: bool = False) -> None:
    """Raise ModelError where the 8-bit kernels saturate, or with `int4` the 4-bit ones as well."""
    for form in (_INT8, *_INT4) if int4 else (_INT8,):
        largest = 127 if form.bits == 8 else 15
        for num_rows in _NUM_ROWS:
            rows = np.ones((num_rows, form.block), np.float32)
            rows[::2] *= -1
            expected = rows[:, :1] * (form.block * largest)
            if not np.allclose(_products(rows, form), expected, rtol=1e-5):
                raise ModelError(
                    f"this CPU's {form.bits}-bit products saturate; use precision float32"
                )


def _products(rows: Array, form: BlockFormat) -> Array:
    """Rows `[M, block]` times a matrix `[block, 64]` of the largest weight."""
    codes = np.full((_NUM_OUTPUTS, 1, form.block * form.bits // 8), 255, np.uint8)
    scales = np.ones((_NUM_OUTPUTS, 1), np.float32)
    zeros = np.zeros((_NUM_OUTPUTS, 1), np.uint8) if form.bits == 4 else None
    model = product_model(codes, scales, zeros, form)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (products,) = session.run(None, {"rows": rows})
    return np.asarray(products)
