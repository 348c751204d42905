"""ONNX Runtime sessions of the models of speech detection: few threads, which never spin.

A thread that spins between two short runs takes a core from the recognizer.
"""

from pathlib import Path
from typing import Any


def open_session(model: Path | bytes, *, threads: int) -> Any:
    """Open a CPU session of a file or a serialized model. Raises what ONNX Runtime raises; its
    exceptions share no base class."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
