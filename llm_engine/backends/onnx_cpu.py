"""The quick decoder on the CPU: one ONNX Runtime graph, weights and activations in 8-bit blocks.

**One arithmetic.** A row's result must not depend on the rows that run beside it, or reusing a
prefix, previewing and chunking would change answers. Every block of every activation row has a
scale of its own, and MatMulNBits sums a row in the same order whatever its neighbours; so does
attention, except that its kernel for one lone row adds in another order. A lone row therefore
attends twice, as itself and as the next position, whose keys and values lie beyond the sequence's
end and are overwritten by the next token. That costs 1 % where running the whole model on two rows
costs 10. Which kernels a CPU has is not ours to know, so all of this is checked at load, bit by
bit, on the model itself.

**No spinning.** Threads of a product that wait for each other give the core away: spinning gains
8 % on an idle machine, and doubles a token's time once speech runs on the second core.

**In place.** A sequence's keys and values lie in one buffer, bound to the graph as input and output
alike, and rebound only when it grows. A step's other inputs are a handful of preallocated integers.

Sequences run one after another on the calling thread (and one more), when a plan is launched.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from llm_engine.backends.base import CacheLayout, Plan, SequenceRows, Slot, StepHandle, StepResult
from llm_engine.backends.immediate import DoneStep, choose_tokens
from llm_engine.backends.onnx_session import MAX_ROWS, DecoderSession, SequenceBuffers
from llm_engine.backends.onnx_weights import KIND, convert
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, ModelConfig
from llm_engine.errors import ModelError
from llm_engine.weight_cache import stored_weights

_PAGE_SIZE = 16


class OnnxBackend:
    """See the module's text."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        context_length: int,
        *,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Converts the weights, or finds them in `config.cache_dir`. Raises ModelError."""
        page_bytes = _PAGE_SIZE * _bytes_per_token(checkpoint.config)
        num_pages = max(1, (config.kv_cache_mb << 20) // page_bytes)
        self._layout = CacheLayout(_PAGE_SIZE, num_pages, shares_pages=False)
        self._num_threads = config.num_threads
        try:
            with stored_weights(
                config.cache_dir, checkpoint.path, KIND, lambda: convert(checkpoint, on_progress)
            ) as weights:
                self._session = DecoderSession(
                    checkpoint.config,
                    weights,
                    context_length=context_length,
                    num_threads=config.num_threads,
                )
        except OSError as error:
            raise ModelError(
                f"{checkpoint.path}: no place for converted weights: {error}"
            ) from None
        self._slots: dict[Slot, SequenceBuffers] = {}
        self._next_slot = 0

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        slot = Slot(self._next_slot)
        self._next_slot += 1
        self._slots[slot] = SequenceBuffers(self._session)
        return slot

    def close_slot(self, slot: Slot) -> None:
        del self._slots[slot]

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        self._slots[target].copy_from(self._slots[source], num_tokens)

    def launch(self, plan: Plan) -> StepHandle:
        # Sampling uses torch. OpenMP keeps this setting per thread, and the engine's thread did
        # not exist at load.
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        tokens: dict[Slot, tuple[int, ...]] = {}
        with torch.inference_mode():
            for sub_batch in plan.sub_batches:
                for rows in sub_batch.sequences:
                    tokens[rows.slot] = choose_tokens(rows, self.logits(rows))
        return DoneStep(plan, StepResult(tokens))

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, DoneStep)
        return handle.result

    def cache_bytes(self) -> int:
        return sum(sequence.num_bytes for sequence in self._slots.values())

    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows, valid until the next run."""
        sequence = self._slots[rows.slot]
        num_rows = len(rows.token_ids)
        first_sampled = num_rows - rows.num_sampled
        parts = []
        for start in range(0, num_rows, MAX_ROWS):
            end = min(start + MAX_ROWS, num_rows)
            num_sampled = max(0, end - max(start, first_sampled))
            token_ids = rows.token_ids[start:end]
            logits = self._session.run(
                sequence, token_ids, rows.first_position + start, num_sampled
            )
            if end == num_rows:
                parts.append(torch.from_numpy(logits))
            elif num_sampled:
                parts.append(torch.from_numpy(logits.copy()))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _bytes_per_token(config: ModelConfig) -> int:
    floats = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return floats * 4
