"""Graph of Smart Turn's first blocks, for a shorter window than the 8 s of its export.

The network is a transformer over 50 positions a second with a learned table of positions; nothing
in it needs all of them, but the export wrote their number into the table and into its reshapes.
Here the table keeps its newest positions and the reshapes get the new number. The newest, because
the network was trained with the pause at the end of its window and silence in front of short turns.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

POSITIONS: Final = 400
"""Positions of the exported graph: 8 s."""

_TABLE: Final = "inner.encoder.embed_positions.weight"

BLOCKS: Final = 2
"""Blocks used, of the transformer's four."""

STATE: Final = 384
"""Numbers at each position."""


def states_graph(path: Path, window_s: float) -> bytes:
    """The model in `path` up to the states behind its first BLOCKS blocks: from
    [batch, 80, 100 * window_s] to [batch, 50 * window_s, STATE].

    Raises ValueError when it is not Smart Turn version 3, and what `onnx` raises for no model.
    """
    import onnx
    from onnx import numpy_helper
    from onnx.utils import Extractor

    model = onnx.load(path)
    positions = round(50 * window_s)

    def changed(tensor: Any) -> Any:
        array = numpy_helper.to_array(tensor)
        if tensor.name == _TABLE:
            array = array[-positions:]
        elif array.dtype == np.int64:
            array = np.where(array == POSITIONS, positions, array)
        return numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)

    tables = [tensor for tensor in model.graph.initializer if tensor.name == _TABLE]
    if [list(table.dims)[:1] for table in tables] != [[POSITIONS]]:
        raise ValueError(f"no table of {POSITIONS} positions in it")
    for tensor in model.graph.initializer:
        if tensor.name == _TABLE or tensor.data_type == onnx.TensorProto.INT64:
            tensor.CopyFrom(changed(tensor))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.t.data_type == onnx.TensorProto.INT64:
                attribute.t.CopyFrom(changed(attribute.t))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2 * positions
    del model.graph.value_info[:]  # shapes between the nodes, as they were
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    if len(norms) <= 2 * BLOCKS:
        raise ValueError(f"no {BLOCKS} blocks in it")
    states = norms[2 * BLOCKS].input[0]  # each block begins with one, and has another inside
    shape = [None, positions, STATE]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(states, onnx.TensorProto.FLOAT, shape)
    )
    begin = model.graph.input[0].name
    return bytes(Extractor(model).extract_model([begin], [states]).SerializeToString())
