"""Fast CPU backend: one ONNX Runtime graph, activations in 8-bit blocks, weights in 8 or 4 bits.

**Batch invariance.** A row's result must not depend on the rows that run beside it, or prefix
reuse, previews and chunking would change replies. Every block of every activation row has a
scale of its own, and MatMulNBits sums a row in the same order whatever its neighbours; so does
attention, except that its kernel for a single row adds in another order. A single row therefore
attends twice, as itself and as the next position, whose keys and values lie beyond the sequence's
end and are overwritten by the next token. That costs 2 % where running the whole model on two rows
costs 10. 4-bit blocks of 64 and 128 multiply rows in pairs (`onnx_graph`). Kernels differ between
CPUs, so all of this is checked at the first load, bit by bit, on the model itself
(`batch_invariance`).

**No spinning.** Threads of a product that wait for each other yield the core: spinning gains a
tenth on an idle machine, and costs two thirds once something runs on the second core.

**Several sequences** of a sub-batch share a pass over the weights if `EngineConfig.max_batch`
allows it, in a second session whose graph has an attention for each. Unused attentions cost a
single sequence 10 %, so it keeps a session of its own; both map the same file (`onnx_packing`).
Four replies at once take 19 ms a token instead of 40.

All work is done in `launch`, on the calling thread and one more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import numpy as np

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.packed_cache import Array, stored_weights
from llm_engine.checkpoints.verified_files import VerifiedFiles
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.errors import ModelError
from llm_engine.models.calibration_text import read_text

from .base import CacheLayout, DoneStep, Plan, SequenceRows, Slot, StepHandle, StepResult
from .batch_invariance import ensure_batch_invariance
from .cpu_memory import converted_bytes
from .int8_saturation import check_products
from .interruption import Interruption
from .onnx_attention import stored_size
from .onnx_int4 import CPU_GROUPS
from .onnx_packing import packing, with_packed
from .onnx_session import DecoderSession, SequenceBuffers, SequenceInput
from .onnx_weights import INT4_KIND, KIND, NO_GROUPS, convert
from .sampler import choose_tokens, log_prob

_PAGE_SIZE = 16
_FIRST_CAPACITY = 2048
"""Tokens for which a new sequence has room. That is address space: memory is taken by the page as
tokens arrive. Growing doubles and copies, which takes 20 to 45 ms for 512 tokens of a 135 M
model."""

_SPARE_TOKENS = 512
"""Tokens beyond a sequence's end whose memory is kept. Fewer give back, at a call of the system for
each head of each layer, what the next turn takes again. More let conversations that were long once
hold more than the cache's size, which only counts pages in use."""


class OnnxBackend:
    """The decoder on ONNX Runtime, in int8 or int4."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        context_length: int,
        *,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Convert the weights, or load them from `config.cache_dir`. Raises ModelError."""
        self._config = checkpoint.config
        page_bytes = _PAGE_SIZE * _bytes_per_token(self._config)
        num_pages = max(1, (config.kv_cache_mb << 20) // page_bytes)
        self._layout = CacheLayout(_PAGE_SIZE, num_pages, shares_pages=False)
        # One more for the second row of a single one.
        self._max_capacity = context_length + 1
        self._slots: dict[Slot, SequenceBuffers] = {}
        self._next_slot = 0
        is_int4 = config.precision is Precision.INT4
        check_products(int4=is_int4)
        kind, text = INT4_KIND if is_int4 else KIND, None
        groups = CPU_GROUPS if is_int4 and not checkpoint.has_int4_layers else NO_GROUPS
        if groups and config.calibration is not None:
            text = read_text(checkpoint, config.calibration)
            kind += f" {text.digest}"

        def arrays() -> Iterator[tuple[str, Array]]:
            calibration = None
            if text is not None:
                from .onnx_calibration import CpuCalibration

                calibration = CpuCalibration(checkpoint, text, config.num_threads)
            return convert(
                checkpoint,
                on_progress,
                keeps_int4=is_int4,
                int4_groups=groups,
                calibration=calibration,
            )

        try:
            with (
                nullcontext() if text is None else _torch_settings(),
                stored_weights(
                    config.cache_dir,
                    checkpoint.path,
                    f"{kind} {packing()}",
                    lambda: with_packed(arrays()),
                    expected_bytes=converted_bytes(checkpoint, config),
                ) as weights,
            ):
                self._sessions = [
                    DecoderSession(
                        self._config,
                        weights,
                        context_length=context_length,
                        num_threads=config.num_threads,
                        num_seqs=num_seqs,
                    )
                    for num_seqs in sorted({1, config.max_batch})
                ]
        except OSError as error:
            raise ModelError(f"converted weights of {checkpoint.path}: {error}") from None
        ensure_batch_invariance(
            self._sessions,
            self._config,
            VerifiedFiles(config.cache_dir),
            f"batch invariance of {checkpoint.path.absolute()}",
            # The key names the model, ONNX Runtime and the processor.
            f"{weights.key}, {config.num_threads} threads, {config.max_batch} sequences",
        )

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        slot = Slot(self._next_slot)
        self._next_slot += 1
        self._slots[slot] = SequenceBuffers(self._config, min(_FIRST_CAPACITY, self._max_capacity))
        return slot

    def close_slot(self, slot: Slot) -> None:
        self._forget(self._slots.pop(slot))

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        self._with_room(target, num_tokens, kept=0).copy_from(self._slots[source], num_tokens)

    def launch(self, plan: Plan) -> StepHandle:
        return self._launch(plan, None)

    def launch_interruptible(self, plan: Plan, interruption: Interruption) -> StepHandle:
        return self._launch(plan, interruption)

    def _launch(self, plan: Plan, interruption: Interruption | None) -> StepHandle:
        tokens: dict[Slot, tuple[int, ...]] = {}
        log_probs: dict[Slot, float] = {}
        for sub_batch in plan.sub_batches:
            for rows, logits in self.read(sub_batch.sequences, interruption):
                tokens[rows.slot] = choose_tokens(rows, logits)
                if rows.scored is not None:
                    row = rows.logit_rows.index(rows.scored.index)
                    log_probs[rows.slot] = log_prob(rows.scored, logits[row])
        return DoneStep(plan, StepResult(tokens, log_probs))

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, DoneStep)
        return handle.result

    def cache_bytes(self) -> int:
        return sum(buffers.num_bytes for buffers in self._slots.values())

    def logits(self, rows: SequenceRows) -> Array:
        """Logits after `rows.logit_rows`, `[rows, vocab]`, valid until the next run."""
        ((_, logits),) = self.read([rows])
        return logits

    def read(
        self, sequences: Sequence[SequenceRows], interruption: Interruption | None = None
    ) -> Iterator[tuple[SequenceRows, Array]]:
        """Run all rows. Yields a sequence when its last row is done, with the logits of its
        `logit_rows`, which are valid until the next is asked for. Raises StepInterruptedError."""
        num_seqs = self._sessions[-1].num_seqs
        for first in range(0, len(sequences), num_seqs):
            yield from self._read_together(sequences[first : first + num_seqs], interruption)

    def _read_together(
        self, sequences: Sequence[SequenceRows], interruption: Interruption | None
    ) -> Iterator[tuple[SequenceRows, Array]]:
        earlier: dict[Slot, list[Array]] = {rows.slot: [] for rows in sequences}
        start = 0
        while sequences:
            session = self._sessions[0 if len(sequences) == 1 else -1]
            results = session.run([self._chunk(rows, start) for rows in sequences], interruption)
            start += session.max_rows
            for rows, result in zip(sequences, results, strict=True):
                parts = earlier[rows.slot]
                if start < len(rows.token_ids):
                    parts.append(result.copy())
                else:
                    yield rows, np.concatenate([*parts, result]) if parts else result
            sequences = [rows for rows in sequences if start < len(rows.token_ids)]

    def _chunk(self, rows: SequenceRows, start: int) -> SequenceInput:
        num_rows = len(rows.token_ids)
        end = min(start + self._sessions[0].max_rows, num_rows)
        # The second row of a single one needs room as well.
        needed = rows.first_position + num_rows + 1
        return SequenceInput(
            buffers=self._with_room(rows.slot, needed, kept=rows.first_position + start),
            token_ids=rows.token_ids[start:end],
            first_position=rows.first_position + start,
            sampled=tuple(index - start for index in rows.logit_rows if start <= index < end),
        )

    def _with_room(self, slot: Slot, num_tokens: int, kept: int) -> SequenceBuffers:
        """A slot's buffers, grown if need be; their first `kept` tokens stay."""
        buffers = self._slots[slot]
        if num_tokens > buffers.capacity:
            buffers = self._grown(slot, num_tokens, kept)
        elif buffers.num_written > num_tokens + _SPARE_TOKENS:
            buffers.forget_after(num_tokens)
        buffers.num_written = max(buffers.num_written, num_tokens)
        return buffers

    def _grown(self, slot: Slot, num_tokens: int, kept: int) -> SequenceBuffers:
        buffers = self._slots[slot]
        if num_tokens > self._max_capacity:
            raise ValueError(f"{num_tokens - 1} tokens are more than the context holds")
        capacity = min(max(num_tokens, 2 * buffers.capacity), self._max_capacity)
        grown = SequenceBuffers(self._config, capacity)
        grown.copy_from(buffers, kept)
        self._forget(buffers)
        self._slots[slot] = grown
        return grown

    def _forget(self, buffers: SequenceBuffers) -> None:
        for session in self._sessions:
            session.forget(buffers)


def _torch_settings() -> AbstractContextManager[object]:
    """Settings of torch for a calibration. Its rounding is bound by memory, so a second thread
    saves little; on a busy machine threads that wait for each other at thousands of small steps
    take ten times as long."""
    import torch

    from .onnx_calibration import torch_threads

    settings = ExitStack()
    settings.enter_context(torch_threads(1))
    settings.enter_context(torch.inference_mode())
    return settings


def _bytes_per_token(config: ModelConfig) -> int:
    floats = 2 * config.num_layers * config.num_kv_heads * stored_size(config.head_dim)
    return floats * 4
