"""Packs a matrix for this CPU's kernels ahead of time, so that sessions map it and share its pages.

ONNX Runtime reorders the codes of each MatMulNBits when a session is created, in memory of the
session's own: a half-billion-parameter model then takes half a gigabyte once for each session. Its
setting `session.save_external_prepacked_constant_initializers` writes the reordered bytes beside
the codes, under a key that is a hash of them. A session that finds the key of what it has just
packed drops its own copy and maps the file's. Where another version or CPU packs differently, the
keys differ and the session keeps its copy: more memory, the same results.

A matrix is packed by a model of one node, so that no more than one is in memory and on disk twice.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from latency_budget.host import machine
from llm_engine.checkpoints.packed_cache import Array, scratch_directory
from llm_engine.errors import ModelError

from .onnx_graph import PREPACKED, block_format, packed_name, product_model

_log = logging.getLogger(__name__)

_FATAL_ONLY = 4


def packing() -> str:
    """Name of this machine's packing: files of another are not worth mapping."""
    return f"{ort.__version__} {machine().rpartition(',')[0]}"


def with_packed(arrays: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of `onnx_weights.convert`, and behind each matrix its packed bytes. A matrix
    for which there is no room to pack it goes without them, which is reported in the log."""
    parts: dict[str, Array] = {}
    num_unpacked, problem = 0, ""
    for name, array in arrays:
        yield name, array
        matrix, _, part = name.rpartition(".")
        if part in ("codes", "nibbles", "zeros"):
            parts[part] = array
        elif part == "scales":  # the last
            try:
                packed = pack(matrix, parts, array)
            except OSError as error:
                packed, num_unpacked, problem = None, num_unpacked + 1, str(error)
            parts = {}
            if packed is not None:
                yield packed
        del array  # not to be kept while the next one is made
    if num_unpacked:
        _log.warning(
            "%d matrices are not packed, and take memory in each session: "
            "in the temporary directory %s",
            num_unpacked,
            problem,
        )


def pack(matrix: str, parts: Mapping[str, Array], scales: Array) -> tuple[str, Array] | None:
    """Pack `codes` `[out, blocks, block]`, or `nibbles` `[out, blocks, block / 2]` and `zeros`,
    with scales `[out, blocks]`.

    Returns the name under which the graph finds the bytes, and the bytes; None where this ONNX
    Runtime stores packed matrices in another way. Raises OSError without room in the temporary
    directory.
    """
    (kind,) = parts.keys() & {"codes", "nibbles"}
    name, codes = f"{matrix}.{kind}", parts[kind]
    form = block_format(kind, codes.shape)
    model = product_model(codes, scales, parts.get("zeros"), form)  # kernels pack whole blocks
    with scratch_directory(3 * (codes.nbytes + scales.nbytes)) as temporary:
        saved = temporary / "packed.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.optimized_model_filepath = str(saved)
        for key, value in (
            ("optimized_model_external_initializers_file_name", "packed.data"),
            ("optimized_model_external_initializers_min_size_in_bytes", "1"),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{key}", value)
        try:
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no other common base
            raise ModelError(f"ONNX Runtime cannot pack {name}: {error}") from error
        return _packed(name, saved)


def _packed(name: str, saved: Path) -> tuple[str, Array] | None:
    for tensor in onnx.load(saved, load_external_data=False).graph.initializer:
        for entry in tensor.external_data:
            if entry.key == PREPACKED:
                key, _, rest = entry.value.partition("|")
                if "|" in rest:
                    return None  # in several pieces, as of other kernels
                first_byte, num_bytes, _ = map(int, rest.split(";"))
                with (saved.parent / "packed.data").open("rb") as file:
                    file.seek(first_byte)
                    return packed_name(name, key), np.frombuffer(file.read(num_bytes), np.uint8)
    return None
