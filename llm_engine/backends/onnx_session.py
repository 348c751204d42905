"""ONNX Runtime session of the decoder, with inputs and outputs bound to fixed buffers.

Keys and values of a sequence lie in one array, bound to the graph as input and output alike, and
bound again only when it grows or another sequence takes its attention. A step adds a handful of
integers, written into arrays that stay bound; logits come out in one as well.

A single row attends twice, as itself and as the next position, for batch invariance (see
`onnx_graph`). Keys and values of the second lie beyond the sequence's end, where the next token
overwrites them: buffers and rotary tables have room for one token more than the context.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime as ort

from llm_engine.checkpoints.packed_cache import Array, WeightFile
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from . import onnx_graph as graph
from .interruption import Interruption
from .onnx_attention import num_hidden_keys, rotary_tables, stored_size

_MAX_ROWS = 64
"""Rows of one sequence in a run: as many as a prefill chunk. Larger runs gain nothing."""
_FATAL_ONLY = 4
"""Log level: errors are raised as well."""

_Shape: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Shape of a run: for each sequence its rows and which of them are sampled."""
_IDLE: Final[tuple[int, tuple[int, ...]]] = 0, ()


class SequenceBuffers:
    """Keys and values of one sequence, `[layers, 2, 1, kv_heads, hidden + capacity, head size]`,
    with hidden keys and sizes as in `onnx_attention`."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        """`capacity` counts tokens."""
        layers, heads = config.num_layers, config.num_kv_heads
        self._hidden = num_hidden_keys(config.head_dim)
        shape = layers, 2, 1, heads, self._hidden + capacity, stored_size(config.head_dim)
        # numpy's allocator asks for huge pages, and the first token would take all memory.
        self._memory = mmap.mmap(-1, 4 * math.prod(shape), access=mmap.ACCESS_COPY)
        self._array: Array = np.frombuffer(self._memory, np.float32).reshape(shape)
        self._array[..., : self._hidden, :] = 0
        self.num_written = 0
        """Tokens written so far, and with them memory taken; maintained by the backend."""
        self.values = [[_value(part) for part in layer] for layer in self._array]
        """OrtValues of each layer's keys and values."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory taken; the rest is address space."""
        return self._array.nbytes // int(self._array.shape[-2]) * (self._hidden + self.num_written)

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return int(self._array.shape[-2]) - self._hidden

    def forget_after(self, num_tokens: int) -> None:
        """Give back the memory of all tokens after the first ones. They read as zeros."""
        *_, positions, size = self._array.shape
        num_bytes = 4 * positions * size  # of a layer's keys or values of one head
        first = 4 * (self._hidden + num_tokens) * size
        for start in range(0, self._array.nbytes, num_bytes):
            begin = -(-(start + first) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if begin < end:
                self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        self.num_written = num_tokens

    def copy_from(self, other: "SequenceBuffers", num_tokens: int) -> None:
        """Copy another sequence's first tokens."""
        end = self._hidden + num_tokens
        self._array[..., :end, :] = other._array[..., :end, :]


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Consecutive tokens of one sequence, 1 to `DecoderSession.max_rows`."""

    buffers: SequenceBuffers
    """Buffers with room for these tokens and one more."""
    token_ids: Sequence[int]
    first_position: int
    sampled: tuple[int, ...]
    """Indices of the rows whose logits are wanted, in order."""


class DecoderSession:
    """A loaded graph for up to `num_seqs` sequences at once. One thread at a time may run it."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightFile,
        *,
        context_length: int,
        num_threads: int,
        num_seqs: int = 1,
    ) -> None:
        """Map and pack the weights; the file is not needed afterwards. Raises ModelError."""
        self.num_seqs = num_seqs
        # Beyond twice the head's size attention uses another kernel for the last rows.
        self.max_rows = min(_MAX_ROWS, 2 * stored_size(config.head_dim))
        self.row_multiple = 1
        self._hidden = num_hidden_keys(config.head_dim)
        self._paired = graph.paired_inputs(weights.arrays)
        self._session = _load(config, weights, context_length + 1, num_threads, num_seqs)
        max_rows = self.max_rows * num_seqs
        self._tokens = np.zeros((1, max_rows), np.int64)
        self._last_positions = np.zeros((num_seqs, 1), np.int32)
        self._totals = np.ones((num_seqs, 1), np.int32)
        self._logits = np.empty((max_rows, config.vocab_size), np.float32)
        self._binding = self._session.io_binding()
        self._shape: _Shape = ()
        self._unused = SequenceBuffers(config, 1)
        self._bound: list[SequenceBuffers | None] = [None] * num_seqs
        for seq in range(num_seqs):
            self._bind_input(graph.last_position(seq), self._last_positions[seq])
            self._bind_input(graph.total(seq), self._totals[seq].reshape(()))
            self._bind_sequence(seq, self._unused)

    def run(
        self, work: Sequence[SequenceInput], interruption: Interruption | None = None
    ) -> list[Array]:
        """Extend each sequence by its rows; none may stand in `work` twice.

        Returns for each its logits `[sampled rows, vocab]`, valid until the next run. Raises
        StepInterruptedError; the rows may be written in some layers then.
        """
        assigned = self._assign(work)
        shape = tuple((len(rows.token_ids), rows.sampled) if rows else _IDLE for rows in assigned)
        if shape != self._shape:
            self._bind_shape(shape)
        num_rows = num_sampled = 0
        logits: dict[int, Array] = {}
        for seq, rows in enumerate(assigned):
            if rows is None:
                self._attend(seq, num_rows=1, total=1)
                self._bind_sequence(seq, self._unused)
                continue
            size = len(rows.token_ids)
            seen = max(size, 2)
            self._attend(seq, num_rows=seen, total=rows.first_position + seen)
            self._bind_sequence(seq, rows.buffers)
            self._tokens[0, num_rows : num_rows + size] = rows.token_ids
            num_rows += size
            logits[id(rows)] = self._logits[num_sampled : num_sampled + len(rows.sampled)]
            num_sampled += len(rows.sampled)
        if num_rows % self.row_multiple:
            self._tokens[0, num_rows] = self._tokens[0, 0]
        if interruption is None:
            self._session.run_with_iobinding(self._binding)
        else:
            options = ort.RunOptions()

            def stop() -> None:
                options.terminate = True

            with interruption.watched(stop):
                self._session.run_with_iobinding(self._binding, options)
        return [logits[id(rows)] for rows in work]

    def pair_rows(self) -> None:
        """Give linear layers an even number of rows: their kernels for a last row without a pair
        add in another order. The added row is computed and not used."""
        self.row_multiple = 2
        self._shape = ()

    def forget(self, buffers: SequenceBuffers) -> None:
        """Unbind a sequence's memory."""
        for seq, taken in enumerate(self._bound):
            if taken is buffers:
                self._bind_sequence(seq, self._unused)

    def _attend(self, seq: int, num_rows: int, total: int) -> None:
        """Set the next run's rows of a sequence: the last `num_rows` of its `total` tokens."""
        end = self._hidden + total
        self._last_positions[seq], self._totals[seq] = end - 1, end
        if self._hidden:
            mask = np.zeros((1, 1, num_rows, end), np.float32)
            mask[..., : self._hidden] = -np.inf
            self._bind_input(graph.hidden_keys(seq), mask)

    def _assign(self, work: Sequence[SequenceInput]) -> list[SequenceInput | None]:
        """Assign each sequence to the attention it is bound to, or else to a free one."""
        by_buffers = {id(rows.buffers): rows for rows in work}
        assigned = [by_buffers.pop(id(taken), None) for taken in self._bound]
        rest = iter(by_buffers.values())
        return [next(rest, None) if rows is None else rows for rows in assigned]

    def _bind_sequence(self, seq: int, buffers: SequenceBuffers) -> None:
        if self._bound[seq] is buffers:
            return
        self._bound[seq] = buffers
        for layer, values in enumerate(buffers.values):
            for (before, after), value in zip(graph.caches(layer, seq), values, strict=True):
                self._binding.bind_ortvalue_input(before, value)
                self._binding.bind_ortvalue_output(after, value)

    def _bind_shape(self, shape: _Shape) -> None:
        """Bind the row indices of a shape; they stay bound until the shape changes."""
        self._shape = shape
        attended: list[int] = []
        kept: list[int] = []
        sampled: list[int] = []
        seq_sizes: list[int] = []
        num_rows = sum(size for size, _ in shape)
        first = 0
        for size, wanted in shape:
            own = list(range(first, first + size))
            first += size
            sampled += [own[index] for index in wanted]
            kept += range(len(attended), len(attended) + len(own))
            # A single row attends twice. An unused attention needs a row as well, any row.
            seen = own if len(own) > 1 else own * 2 or [0]
            attended += seen
            seq_sizes.append(len(seen))
        kept += [0] * (-num_rows % self.row_multiple)
        sampled += sampled[-1:] * (-len(sampled) % self.row_multiple)
        num_rows = len(kept)
        self._bind_input(graph.TOKENS, self._tokens[:, :num_rows])
        self._bind_input(graph.ATTENDED, np.array(attended))
        self._bind_input(graph.KEPT, np.array(kept))
        self._bind_input(graph.SAMPLED, np.array(sampled, np.int64))
        for paired, unpaired in self._paired:
            count = num_rows if paired == graph.PAIRED else len(sampled)
            rows = np.arange(count)
            self._bind_input(unpaired, rows)
            self._bind_input(paired, np.append(rows, rows[-1:]) if count % 2 else rows)
        if self.num_seqs > 1:
            self._bind_input(graph.SEQ_SIZES, np.array(seq_sizes))
        logits = self._logits[None, : len(sampled)]
        self._binding.bind_ortvalue_output(graph.LOGITS, _value(logits))

    def _bind_input(self, name: str, array: Array) -> None:
        self._binding.bind_ortvalue_input(name, _value(array))


def _value(array: Array) -> Any:
    """OrtValue over an array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def _load(
    config: ModelConfig, weights: WeightFile, num_positions: int, num_threads: int, num_seqs: int
) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # Threads that wait yield the core, see `onnx_cpu`.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Scratch memory goes back after each run; as fast as an arena that keeps its largest ever.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(weights.path.parent)
    )
    tables = [_value(table) for table in rotary_tables(config, num_positions)]
    options.add_external_initializers([graph.COSINES, graph.SINES], tables)
    model = graph.decoder_graph(config, weights, num_positions, num_seqs)
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no other common base
        raise ModelError(f"ONNX Runtime cannot run this model: {error}") from error
