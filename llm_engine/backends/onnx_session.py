"""Running the ONNX decoder over buffers that stay where they are.

A sequence's keys and values lie in one array, bound to the graph as input and output alike, and
bound again only when it grows. What a step adds is a handful of integers, written into arrays that
every sequence's binding shares; logits come out in one as well.

A lone row attends twice, as itself and as the next position, for the sake of one arithmetic (see
`onnx_graph`). Keys and values of the second lie beyond the sequence's end, where the next token
overwrites them: buffers and rotary tables have room for one token more than the context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from llm_engine.backends import onnx_graph as graph
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError
from llm_engine.model import inverse_frequencies
from llm_engine.weight_cache import Array, WeightFile

MAX_ROWS = 32
"""Rows of one run. Beyond twice the head's size (at least 16) attention takes the last rows through
another kernel. For heads of 64, runs of 64 would save 3 % of a long prompt's time."""
_FIRST_CAPACITY = 256
"""Tokens for which a new sequence has room. Growing doubles, so a call copies its cache a few times
at most; a short loose request of a 135 M model takes 12 MB."""
_NUM_CHECKED = 4
"""Tokens that are run alone, in pairs and together when a model is loaded: a dozen passes."""
_FATAL_ONLY = 4
"""Log level: whatever goes wrong is raised as well."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What is bound for a number of rows and of sampled rows, by name."""

    bound: Mapping[str, Any]
    logits: Array
    """`[rows of the head, vocab]`: where the outcome will be."""


class DecoderSession:
    """A loaded graph. One thread at a time may run it."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightFile,
        *,
        context_length: int,
        num_threads: int,
    ) -> None:
        """The file is mapped here and not needed afterwards. Raises ModelError."""
        self.config = config
        self.capacity_limit = context_length + 1
        self._session = _load(config, weights, self.capacity_limit, num_threads)
        self._tokens = np.zeros((1, MAX_ROWS), np.int64)
        self._last_position = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._logits = np.empty((1, MAX_ROWS, config.vocab_size), np.float32)
        self._row_numbers = np.arange(MAX_ROWS)
        self._inputs: dict[tuple[int, int], _Inputs] = {}
        self._min_rows = 1
        if not self._rows_agree():
            self._min_rows = 2
            self._inputs.clear()
            if not self._rows_agree():
                raise ModelError(
                    "on this CPU the quick kernels' results depend on how a prompt is cut; use "
                    "backend torch"
                )

    def run(
        self,
        sequence: "SequenceBuffers",
        token_ids: Sequence[int],
        first_position: int,
        num_sampled: int,
    ) -> Array:
        """Extend a sequence that holds `first_position` tokens by 1 to `MAX_ROWS`.

        Returns the logits `[num_sampled, vocab]` of the last rows, valid until the next run.
        """
        num_rows = len(token_ids)
        end = first_position + max(num_rows, 2)
        sequence.reserve(end, kept=first_position)
        self._tokens[0, 1] = token_ids[0]  # what stands beside a lone token
        self._tokens[0, :num_rows] = token_ids
        self._last_position[0] = end - 1
        self._total[()] = end
        key = num_rows, num_sampled
        inputs = self._inputs.get(key)
        if inputs is None:
            inputs = self._inputs[key] = self._prepare(num_rows, num_sampled)
        sequence.bind(key, inputs.bound)
        self._session.run_with_iobinding(sequence.binding)
        return inputs.logits[:num_sampled]

    def new_binding(self) -> Any:
        return self._session.io_binding()

    def _prepare(self, num_rows: int, num_sampled: int) -> _Inputs:
        """Row numbers never change, so a step writes nothing but tokens and lengths."""
        row_numbers = self._row_numbers
        num_tokens = max(num_rows, self._min_rows)
        is_lone = num_tokens == 1
        sampled = row_numbers[num_rows - num_sampled : num_rows]
        if num_sampled == 1:
            sampled = np.repeat(sampled, self._min_rows)
        logits = self._logits[:, : len(sampled)]
        arrays: dict[str, Array] = {
            graph.TOKENS: self._tokens[:, :num_tokens],
            graph.LAST_POSITION: self._last_position,
            graph.TOTAL: self._total,
            graph.ATTENDED: np.zeros(2, np.int64) if is_lone else row_numbers[:num_tokens],
            graph.KEPT: row_numbers[:num_tokens],
            graph.SAMPLED: sampled,
            graph.LOGITS: logits,
        }
        return _Inputs({name: _value(array) for name, array in arrays.items()}, logits[0])

    def _rows_agree(self) -> bool:
        """Whether tokens give the same bits alone, in pairs and together."""
        step = self.config.vocab_size // _NUM_CHECKED
        token_ids = [step * index for index in range(_NUM_CHECKED)]
        outcomes = []
        for size in (_NUM_CHECKED, 2, 1):
            sequence = SequenceBuffers(self)
            outcomes.append(
                [
                    self.run(sequence, token_ids[first : first + size], first, size).copy()
                    for first in range(0, _NUM_CHECKED, size)
                ]
            )
        together, *others = (np.concatenate(rows) for rows in outcomes)
        return all(np.array_equal(together, rows, equal_nan=True) for rows in others)


class SequenceBuffers:
    """Keys and values of one sequence, `[layers, 2, 1, kv_heads, capacity, head_dim]`."""

    def __init__(self, session: DecoderSession) -> None:
        self._session = session
        self._bound: tuple[int, int] | None = None
        self._buffer: Array
        self._allocate(min(_FIRST_CAPACITY, session.capacity_limit))

    @property
    def num_bytes(self) -> int:
        return self._buffer.nbytes

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return int(self._buffer.shape[-2])

    def reserve(self, num_tokens: int, kept: int) -> None:
        """Make room for so many tokens; the first `kept` stay."""
        if num_tokens > self.capacity:
            old = self._buffer
            limit = self._session.capacity_limit
            self._allocate(min(max(num_tokens, 2 * self.capacity), limit))
            self._buffer[..., :kept, :] = old[..., :kept, :]

    def copy_from(self, other: "SequenceBuffers", num_tokens: int) -> None:
        """Begin with another sequence's first tokens."""
        self.reserve(num_tokens, kept=0)
        self._buffer[..., :num_tokens, :] = other._buffer[..., :num_tokens, :]

    def bind(self, key: tuple[int, int], values: Mapping[str, Any]) -> None:
        """Bind a step's other inputs, unless those of the same key still are."""
        if key == self._bound:
            return
        self._bound = key
        for name, value in values.items():
            if name == graph.LOGITS:
                self.binding.bind_ortvalue_output(name, value)
            else:
                self.binding.bind_ortvalue_input(name, value)

    def _allocate(self, capacity: int) -> None:
        config = self._session.config
        shape = (config.num_layers, 2, 1, config.num_kv_heads, capacity, config.head_dim)
        self._buffer = np.empty(shape, np.float32)
        self.binding = self._session.new_binding()
        self._bound = None
        for layer in range(config.num_layers):
            names = graph.cache_names(layer)
            for (before, after), array in zip(names, self._buffer[layer], strict=True):
                value = _value(array)
                self.binding.bind_ortvalue_input(before, value)
                self.binding.bind_ortvalue_output(after, value)


def _value(array: Array) -> Any:
    """An OrtValue over an array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def _rotary_tables(config: ModelConfig, num_positions: int) -> dict[str, Array]:
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return {graph.COSINES: angles.cos().numpy(), graph.SINES: angles.sin().numpy()}


def _load(config: ModelConfig, weights: WeightFile, num_positions: int, num_threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # Threads that wait give the core away, see `onnx_cpu`.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Scratch memory goes back after each run; as fast as an arena that keeps its largest ever.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(weights.path.parent)
    )
    tables = _rotary_tables(config, num_positions)
    options.add_external_initializers(list(tables), [_value(table) for table in tables.values()])
    model = graph.decoder_graph(config, weights, num_positions)
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds have nothing else in common
        raise ModelError(f"ONNX Runtime cannot run this model: {error}") from error
