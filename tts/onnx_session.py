"""ONNX Runtime sessions for voices: few threads without spinning, and inner tensors as outputs."""

from pathlib import Path

import onnxruntime as ort


def open_session(
    model: Path, *, threads: int, extra_output: str | None = None
) -> ort.InferenceSession:
    """Open a CPU session with `threads` threads that sleep, not spin, between runs.

    Spinning threads take the cores from the language model exactly when it decodes. `extra_output`
    names an inner tensor to return as well, after the model's own outputs; it is left out when the
    model has no such tensor. Raises what ONNX Runtime or the file system raises.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A pattern is kept for each length of input, 12 KB of hibari's, and its one large block lies
    # beside what a length that only the run itself finds out has to take anew.
    options.enable_mem_pattern = False
    serialized = model.read_bytes()
    if extra_output and extra_output.encode() in serialized:
        serialized += _graph_output(extra_output)
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _graph_output(tensor: str) -> bytes:
    """Serialize a model that holds only one more output of the graph.

    Protocol buffers merge by concatenation: repeated fields of an embedded message that comes twice
    are joined. So appending this to a model adds the output, without the `onnx` package and
    without writing a changed file. Field numbers are those of onnx.proto3.
    """
    name = _field(1, tensor.encode())  # ValueInfoProto.name
    output = _field(12, name)  # GraphProto.output
    return _field(7, output)  # ModelProto.graph


def _field(number: int, payload: bytes) -> bytes:
    length_delimited = 2
    assert len(payload) < 128, "longer payloads need a longer varint"
    return bytes([number << 3 | length_delimited, len(payload)]) + payload
