"""ONNX Runtime sessions for voices: few threads without spinning, and inner tensors as outputs.

Scratch memory lies in an arena, which grows in steps that double and is never given back: with
Piper 379 MB were resident after 51 sentences of up to 28 words, 489 after 101. Without an arena
each sentence takes a quarter more processor time; with steps of just the size that is asked for,
947 MB. So a long input gives back what the arena has once it is done: 165 to 208 MB after the same
sentences. It takes 90.7 ms instead of 78.7 for a second of speech then, and a short one behind it
82.1 instead of 78.4 (two cores of an AMD EPYC, 2026-11-28).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

_ERRORS: Final = 3
"""Log level: errors, which are raised as well."""

LONG_INPUT: Final = 200
"""Phoneme ids of an input after which the arena is given back: six seconds of a Piper voice, which
has a blank between any two. Lower: the first clause of the next reply takes its memory anew.
Higher: more stays."""


class VoiceSession(ort.InferenceSession):  # type: ignore[misc]  # it has no types
    """Session of a voice, which gives its scratch memory back after a long input."""

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: ort.RunOptions | None = None,
    ) -> list[Any]:
        """Run the model, as `InferenceSession.run` does."""
        if run_options is None and max(each.size for each in input_feed.values()) > LONG_INPUT:
            run_options = ort.RunOptions()
            run_options.log_severity_level = _ERRORS
            run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        outputs: list[Any] = super().run(output_names, input_feed, run_options)
        return outputs


def open_session(model: Path, *, threads: int, extra_output: str | None = None) -> VoiceSession:
    """Open a CPU session with `threads` threads that sleep, not spin, between runs.

    Spinning threads take the cores from the language model exactly when it decodes. `extra_output`
    names an inner tensor to return as well, after the model's own outputs; it is left out when the
    model has no such tensor. Raises what ONNX Runtime or the file system raises.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A pattern is kept for each length of input, 12 KB of hibari's, and its one large block lies
    # beside what a length that only the run itself finds out has to take anew.
    options.enable_mem_pattern = False
    serialized = model.read_bytes()
    if extra_output and extra_output.encode() in serialized:
        serialized += _graph_output(extra_output)
    return VoiceSession(serialized, options, providers=["CPUExecutionProvider"])


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
