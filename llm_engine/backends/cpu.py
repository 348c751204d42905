"""The decoder on the CPU in plain torch: the reference, and a fast int8 mode.

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

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.backends.base import Plan, SequenceRows, Slot, StepHandle, StepResult
from llm_engine.backends.immediate import DoneStep, choose_tokens
from llm_engine.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, ModelConfig, Precision
from llm_engine.errors import ModelError
from llm_engine.model import Decoder, LayerCache, Linear

_FIRST_CAPACITY = 256
"""Tokens for which a new sequence has room. Growing doubles, so a call copies its cache a few times
at most; a short loose request of a 135 M model takes 12 MB."""

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
        self._context_length = context_length
        self._slots: dict[Slot, SequenceCache] = {}
        self._next_slot = 0
        if config.precision is Precision.INT8 and not int8_is_exact():
            raise ModelError("this CPU's 8-bit products saturate; use precision float32")
        make_linear = int8_linear if config.precision is Precision.INT8 else float_linear
        with torch.inference_mode():
            self._decoder = Decoder(checkpoint, make_linear, context_length)

    def open_slot(self) -> Slot:
        slot = Slot(self._next_slot)
        self._next_slot += 1
        self._slots[slot] = SequenceCache(self._config, self._context_length)
        return slot

    def close_slot(self, slot: Slot) -> None:
        del self._slots[slot]

    def launch(self, plan: Plan) -> StepHandle:
        # OpenMP keeps this setting per thread, and the engine's thread did not exist at load.
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
        return sum(cache.num_bytes for cache in self._slots.values())

    def logits(self, rows: SequenceRows) -> Tensor:
        """`[num_sampled, vocab]` after the last rows; the slot is extended by all of them."""
        caches = self._slots[rows.slot].cut_to(rows.first_position)
        hidden = self._decoder.hidden(torch.tensor(rows.token_ids), rows.first_position, caches)
        return self._decoder.logits(hidden[len(rows.token_ids) - rows.num_sampled :])


class SequenceCache:
    """Keys and values of one sequence, contiguous, `[layers, kv_heads, capacity, head_dim]`."""

    def __init__(self, config: ModelConfig, max_tokens: int) -> None:
        self._config = config
        self._max_tokens = max_tokens
        self._keys, self._values = (self._buffer(min(_FIRST_CAPACITY, max_tokens)) for _ in "kv")
        self._layers: list[LayerCache] = [_LayerView(self, i) for i in range(config.num_layers)]
        self._length = 0

    @property
    def num_bytes(self) -> int:
        return 2 * self._keys.nbytes

    def cut_to(self, num_tokens: int) -> list[LayerCache]:
        """Forget everything after the first `num_tokens`; the caches to extend from there."""
        self._length = num_tokens
        return self._layers

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        end = self._length + keys.shape[1]
        if end > self._keys.shape[2]:
            self._grow(end)
        self._keys[layer, :, self._length : end] = keys
        self._values[layer, :, self._length : end] = values
        return self._keys[layer, :, :end], self._values[layer, :, :end]

    def _grow(self, needed: int) -> None:
        capacity = min(max(needed, 2 * self._keys.shape[2]), self._max_tokens)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = self._buffer(capacity)
            new[:, :, : self._length] = old[:, :, : self._length]
            setattr(self, name, new)

    def _buffer(self, capacity: int) -> Tensor:
        config = self._config
        return torch.empty(config.num_layers, config.num_kv_heads, capacity, config.head_dim)


@dataclass(frozen=True, slots=True)
class _LayerView:
    cache: SequenceCache
    layer: int

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.extend(self.layer, keys, values)


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
