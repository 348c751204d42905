"""The decoder on the CPU in plain torch: the reference, and a fast int8 mode.

Keys and values are really read through the block tables, which copies them for every step: slow,
and the oracle of backends that are clever about it.

**float32** is what equality tests compare with.

**int8** quantizes weights per output row at load, and at run time each activation to two 8-bit
digits with one scale per token. Digits times weights are summed exactly in 32-bit integers by
oneDNN's packed kernels. Scales never span rows, and integer sums have no order, so a product's row
does not depend on how many rows run with it: prompt and decode share one arithmetic. (Torch's
`quantized::linear_dynamic` takes one scale for the whole batch of rows and lacks that property.)

Why two digits: with one, SmolLM2-135M loses 5.5 % of perplexity, nearly all of it to rare large
activations; with two, 0.8 % (float32 against int8 over 1024 tokens of this project's licence: 13.97
and 14.10). The second digit is a second row for the same pass over the weights, which a lone token
hardly notices (18.2 against 17.8 ms) and a prompt of 64 pays with a quarter more.

Digits are stored unsigned around 128: oneDNN's matmul (torch 2.13) is as fast with signed ones on
AMX, but 600 times slower on plain AVX512-VNNI.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.backends.base import (
    CacheLayout,
    PageCopy,
    PageId,
    Plan,
    SequenceRows,
    Slot,
    StepHandle,
    StepResult,
)
from llm_engine.backends.immediate import DoneStep, choose_tokens
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.errors import ModelError
from llm_engine.model import Decoder, LayerCache, Linear

PAGE_SIZE = 16
"""Tokens. A sequence wastes half a page on average; a larger table costs nothing here."""

_ZERO = 128
"""What an activation of 0 is stored as."""
_FINER = 254
"""Steps of an activation's second digit in one of its first: half a step up or down is 127."""


class CpuBackend:
    """Runs a plan's sequences one after another, on the calling thread, when it is launched."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, context_length: int) -> None:
        """Reads all weights. Raises ModelError."""
        self._config = checkpoint.config
        self._num_threads = config.num_threads
        self._layout = cache_layout(self._config, config.kv_cache_mb)
        self._cache = PagedCache(self._config, self._layout)
        self._next_slot = 0
        if config.precision is Precision.INT8 and not int8_is_exact():
            raise ModelError("this CPU's 8-bit products saturate; use precision float32")
        make_linear = int8_linear if config.precision is Precision.INT8 else float_linear
        with torch.inference_mode():
            self._decoder = Decoder(checkpoint, make_linear, context_length)

    @property
    def layout(self) -> CacheLayout:
        return self._layout

    def open_slot(self) -> Slot:
        self._next_slot += 1
        return Slot(self._next_slot)

    def close_slot(self, slot: Slot) -> None:
        """Nothing to do: its pages may be used again."""

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        """Nothing to do: it lies in pages that both list."""

    def launch(self, plan: Plan) -> StepHandle:
        # OpenMP keeps this setting per thread, and the engine's thread did not exist at load.
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        tokens: dict[Slot, tuple[int, ...]] = {}
        with torch.inference_mode():
            self._cache.copy(plan.copies)
            for sub_batch in plan.sub_batches:
                for rows in sub_batch.sequences:
                    tokens[rows.slot] = choose_tokens(rows, self._sampled(rows))
        return DoneStep(plan, StepResult(tokens))

    def collect(self, handle: StepHandle) -> StepResult:
        assert isinstance(handle, DoneStep)
        return handle.result

    def cache_bytes(self) -> int:
        return self._cache.num_bytes

    def _sampled(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]`, one row at a time: torch's products of one row and of several
        round differently, and a drafted token must not change the one after it."""
        num_before = len(rows.token_ids) - max(rows.num_sampled, 1)
        if num_before:
            self.logits(_part(rows, 0, num_before))
        parts = range(num_before, len(rows.token_ids))
        return torch.cat([self.logits(_part(rows, index, index + 1)) for index in parts])

    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows; the cache is extended by all of them."""
        caches = self._cache.view(rows)
        hidden = self._decoder.hidden(torch.tensor(rows.token_ids), rows.first_position, caches)
        return self._decoder.logits(hidden[len(rows.token_ids) - rows.num_sampled :])


def _part(rows: SequenceRows, start: int, end: int) -> SequenceRows:
    """Some of the rows; one alone is sampled."""
    return replace(
        rows,
        token_ids=rows.token_ids[start:end],
        first_position=rows.first_position + start,
        num_sampled=int(end - start == 1 and rows.num_sampled > 0),
    )


class PagedCache:
    """Keys and values of all sequences, `[layers, tokens, kv_heads, head_dim]` each.

    Page p has the tokens from p * page_size. Memory is taken as pages are first written.
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
        """For each layer a cache of one sequence, to be extended by these rows."""
        start, end = rows.first_position, rows.first_position + len(rows.token_ids)
        pages = torch.tensor(rows.pages[: -(-end // self._page_size)])
        self._touched.update(rows.pages[start // self._page_size : len(pages)])
        offsets = torch.arange(self._page_size)
        places = (pages[:, None] * self._page_size + offsets).flatten()[:end]
        return [
            _LayerView(keys, values, places, start)
            for keys, values in zip(self._keys, self._values, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _LayerView:
    keys: Tensor
    values: Tensor
    places: Tensor
    """Where each of the sequence's tokens lies."""
    start: int
    """How many of them are there already."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        fresh = self.places[self.start :]
        self.keys[fresh] = keys.transpose(0, 1)
        self.values[fresh] = values.transpose(0, 1)
        return self.keys[self.places].transpose(0, 1), self.values[self.places].transpose(0, 1)


def cache_layout(config: ModelConfig, kv_cache_mb: int) -> CacheLayout:
    """Pages for so much memory, in float32; one at least."""
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    num_pages = max(1, (kv_cache_mb << 20) // (PAGE_SIZE * token_bytes))
    return CacheLayout(PAGE_SIZE, num_pages, shares_pages=True)


def float_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product in float32."""
    return lambda rows: F.linear(rows, weight, bias)


def int8_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product in 8-bit integers; see the module's text."""
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
    packed = torch.ops.onednn.qlinear_prepack((weight / scales[:, None]).round().char(), None)
    zero_points = torch.zeros(weight.shape[0], dtype=torch.int64)

    def multiply(rows: Tensor) -> Tensor:
        num_rows = rows.shape[0]
        row_scales = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(127)
        scaled = rows / row_scales
        coarse = scaled.round()
        fine = scaled.sub_(coarse).mul_(_FINER).round_()
        digits = torch.cat([coarse, fine]).add_(_ZERO).to(torch.uint8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            digits, 1.0, _ZERO, packed, scales, zero_points, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        products = sums[:num_rows].add_(sums[num_rows:], alpha=1 / _FINER).mul_(row_scales)
        return products if bias is None else products.add_(bias)

    return multiply


def int8_is_exact() -> bool:
    """Whether this CPU's kernels sum 8-bit products without saturating, which old ones do not."""
    largest = torch.full((2, 64), 127.0)
    product = int8_linear(largest, None)(largest)
    return bool(torch.allclose(product, largest @ largest.T, rtol=1e-5))
