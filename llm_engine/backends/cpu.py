"""Reference backend: the decoder on the CPU in plain torch and float32.

Other backends are compared with it. Keys and values are gathered through the block tables, which
copies them for every step: slow, and correct without tricks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, ModelConfig
from llm_engine.models.decoder import Decoder, LayerCache, Linear

from .base import (
    CacheLayout,
    DoneStep,
    PageCopy,
    PageId,
    Plan,
    SequenceRows,
    Slot,
    StepHandle,
    StepResult,
)
from .sampler import choose_tokens, log_prob

PAGE_SIZE = 16
"""Tokens in a page. A sequence wastes half a page on average; a longer table costs nothing here."""
_NO_ROWS = torch.empty(0, 0)


class CpuBackend:
    """Runs a plan's sequences one after another, in `launch`, on the calling thread."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, context_length: int) -> None:
        """Read all weights. Raises ModelError."""
        self._config = checkpoint.config
        self._num_threads = config.num_threads
        self._layout = cache_layout(self._config, config.kv_cache_mb)
        self._cache = PagedCache(self._config, self._layout)
        self._next_slot = 0
        self._sampled_rows: dict[Slot, tuple[int, Tensor]] = {}
        """Position of the first sampled row, and the rows `[num_sampled, hidden]`."""
        with torch.inference_mode():
            self._decoder = Decoder(checkpoint, float_linear, context_length)

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        self._next_slot += 1
        return Slot(self._next_slot)

    def close_slot(self, slot: Slot) -> None:
        """Forget the sequence; its pages may be reused."""
        self._sampled_rows.pop(slot, None)

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Do nothing: the tokens lie in pages that both list."""

    def launch(self, plan: Plan) -> StepHandle:
        # OpenMP keeps this setting per thread, and the engine's thread did not exist at load.
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        tokens: dict[Slot, tuple[int, ...]] = {}
        log_probs: dict[Slot, float] = {}
        with torch.inference_mode():
            self._cache.copy(plan.copies)
            for sub_batch in plan.sub_batches:
                for rows in sub_batch.sequences:
                    scored, sampled = self._scored_and_sampled(rows)
                    tokens[rows.slot] = choose_tokens(rows, sampled.numpy())
                    if rows.scored is not None:
                        log_probs[rows.slot] = log_prob(rows.scored, scored.numpy())
        return DoneStep(plan, StepResult(tokens, log_probs))

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, DoneStep)
        return handle.result

    def cache_bytes(self) -> int:
        return self._cache.num_bytes

    def hidden(self, slot: Slot, position: int) -> Tensor | None:
        first, rows = self._sampled_rows.get(slot, (0, _NO_ROWS))
        return rows[position - first] if 0 <= position - first < len(rows) else None

    def _scored_and_sampled(self, rows: SequenceRows) -> tuple[Tensor, Tensor]:
        """Logits of the scored row, `[vocab]` (empty without one), and of the sampled rows,
        `[num_sampled, vocab]`. Sampled rows run one at a time: torch's products of one row and of
        several round differently, and a drafted token must not change the one after it."""
        num_rows = len(rows.token_ids)
        first_sampled = num_rows - rows.num_sampled
        num_before = min(first_sampled, num_rows - 1)
        parts = [self._hidden(_part(rows, 0, num_before))] if num_before else []
        parts += [
            self._hidden(_part(rows, index, index + 1)) for index in range(num_before, num_rows)
        ]
        hidden = torch.cat(parts)
        sampled = hidden[first_sampled:]
        if rows.num_sampled:
            self._sampled_rows[rows.slot] = rows.first_position + first_sampled, sampled
        scored = _NO_ROWS
        if rows.scored is not None:
            scored = self._decoder.logits(hidden[rows.scored.index : rows.scored.index + 1])[0]
        logits = [self._decoder.logits(row[None]) for row in sampled]
        return scored, torch.cat(logits) if logits else _NO_ROWS

    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows; the cache is extended by all of them."""
        return self._decoder.logits(self._hidden(rows)[len(rows.token_ids) - rows.num_sampled :])

    def _hidden(self, rows: SequenceRows) -> Tensor:
        caches = self._cache.view(rows)
        return self._decoder.hidden(torch.tensor(rows.token_ids), rows.first_position, caches)


def _part(rows: SequenceRows, start: int, end: int) -> SequenceRows:
    """Rows `start` to before `end`, to compute; what is sampled after them is not in it."""
    return replace(
        rows,
        token_ids=rows.token_ids[start:end],
        first_position=rows.first_position + start,
        num_sampled=0,
    )


class PagedCache:
    """Keys and values of all sequences, `[layers, tokens, kv_heads, head_dim]` each.

    Page p holds the tokens from p * page_size. Memory is taken as pages are first written.
    """

    def __init__(self, config: ModelConfig, layout: CacheLayout) -> None:
        self._page_size = layout.page_size
        num_tokens = layout.num_pages * layout.page_size
        shape = config.num_layers, num_tokens, config.num_kv_heads, config.head_dim
        self._keys, self._values = torch.empty(shape), torch.empty(shape)
        self._token_bytes = 2 * self._keys[:, 0].nbytes
        self._touched: set[PageId] = set()

    @property
    def num_bytes(self) -> int:
        return len(self._touched) * self._page_size * self._token_bytes

    def copy(self, pages: Iterable[PageCopy]) -> None:
        for each in pages:
            for buffer in (self._keys, self._values):
                source, target = (each.source * self._page_size, each.target * self._page_size)
                buffer[:, target : target + self._page_size] = buffer[
                    :, source : source + self._page_size
                ]
            self._touched.add(each.target)

    def view(self, rows: SequenceRows) -> list[LayerCache]:
        """Cache of one sequence for each layer, to be extended by these rows."""
        start, end = rows.first_position, rows.first_position + len(rows.token_ids)
        pages = torch.tensor(rows.pages[: -(-end // self._page_size)])
        self._touched.update(rows.pages[start // self._page_size : len(pages)])
        offsets = torch.arange(self._page_size)
        indices = (pages[:, None] * self._page_size + offsets).flatten()[:end]
        return [
            _LayerView(keys, values, indices, start)
            for keys, values in zip(self._keys, self._values, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _LayerView:
    keys: Tensor
    values: Tensor
    indices: Tensor
    """Index of each of the sequence's tokens in the cache."""
    start: int
    """Tokens that are cached already."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        fresh = self.indices[self.start :]
        self.keys[fresh] = keys.transpose(0, 1)
        self.values[fresh] = values.transpose(0, 1)
        return self.keys[self.indices].transpose(0, 1), self.values[self.indices].transpose(0, 1)


def cache_layout(config: ModelConfig, kv_cache_mb: int) -> CacheLayout:
    """Layout for this much memory, in float32; at least one page."""
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    num_pages = max(1, (kv_cache_mb << 20) // (PAGE_SIZE * token_bytes))
    return CacheLayout(PAGE_SIZE, num_pages, shares_pages=True)


def float_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Linear layer in float32."""
    return lambda rows: F.linear(rows, weight, bias)
