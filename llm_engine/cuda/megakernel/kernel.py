"""The decoder's layers for up to eight rows in one kernel: buffers and launches."""

import ctypes
import logging
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from llm_engine.cuda.model import DeviceModel, Scratch
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Rows

from .tables import (
    MAX_AHEAD,
    MAX_UNDER_WAY,
    QUERY_TILE,
    SharedLayout,
    Step,
    num_items,
    num_splits,
    phases,
    scores,
    shared_layout,
    unsupported,
)

log = logging.getLogger(__name__)

NO_EFFECT = "llm_engine.megakernel has no effect"


class Launcher(Protocol):
    """Runs the compiled kernel on the current stream."""

    num_blocks: int
    """Blocks of a launch: multiprocessors of the device."""
    shared_bytes: int
    """Shared memory that a block can have."""

    def launch(self, step: Step, shared_bytes: int) -> None: ...


class Megakernel:
    """All layers of a model for up to `MAX_ROWS` rows, in one launch.

    A row's result is the same bits in any company. Made for one cache and one set of buffers, of
    which it keeps the addresses; one stream uses it. `tables.unsupported` says what it serves.
    """

    def __init__(
        self,
        model: DeviceModel,
        cache: Sequence[LayerPages],
        scratch: Scratch,
        logits: Tensor,
        launcher: Launcher,
    ) -> None:
        """`scratch`: holds the embeddings before a run, and the residual stream after it. `logits
        [8 or more, vocab]`, float32: written by a run, if it `scores`."""
        self._model, self._scratch, self._launcher = model, scratch, launcher
        self._cache, self._logits = tuple(cache), logits
        self.scores = scores(model)
        """True if a run leaves logits."""
        self._tables: dict[int, tuple[SharedLayout, Tensor]] = {}
        device = model.embedding.device
        config = model.config
        self._num_splits = num_splits(config.num_kv_heads, launcher.num_blocks)
        items = max(num_items(model, MAX_ROWS, 1), num_items(model, 1, MAX_ROWS))
        parts = items * self._num_splits * QUERY_TILE
        self._mixtures = torch.empty(parts * config.head_dim, device=device)
        self._totals = torch.empty(parts, 2, device=device)
        num_phases = 5 * len(model.layers) + self.scores
        self._arrivals = torch.zeros(num_phases, dtype=torch.int32, device=device)
        self._splits_done = torch.zeros(items, dtype=torch.int32, device=device)

    def _described(self, num_rows: int) -> tuple[SharedLayout, Tensor]:
        """Layout and phases of a step of so many rows, made by the first run, before a capture."""
        if num_rows in self._tables:
            return self._tables[num_rows]
        layout = shared_layout(self._model, num_rows, self._launcher.shared_bytes)
        assert layout is not None, "the kernel does not serve this model"
        made = phases(
            self._model,
            self._cache,
            self._scratch,
            self._logits,
            layout,
            num_rows,
            self._launcher.num_blocks,
        )
        self._tables[num_rows] = layout, made.to(self._model.embedding.device)
        return self._tables[num_rows]

    def run(self, rows: Rows) -> None:
        """Run all layers on up to `MAX_ROWS` rows, as `model.hidden_states` does, in the first rows
        of `scratch.hidden`; and compute their logits, if it `scores`."""
        model, config = self._model, self._model.config
        num_rows = rows.positions.shape[0]
        layout, table = self._described(num_rows)
        self._arrivals.zero_()
        step = Step(
            phases=table.data_ptr(),
            arrivals=self._arrivals.data_ptr(),
            splits_done=self._splits_done.data_ptr(),
            mixtures=self._mixtures.data_ptr(),
            totals=self._totals.data_ptr(),
            positions=rows.positions.data_ptr(),
            tables=rows.tables.data_ptr(),
            cos=model.rope.cos.data_ptr(),
            sin=model.rope.sin.data_ptr(),
            num_phases=len(self._arrivals),
            num_seqs=rows.num_seqs,
            num_queries=num_rows // rows.num_seqs,
            table_width=rows.tables.shape[1],
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            num_splits=self._num_splits,
            num_stages=layout.num_stages,
            max_ahead=MAX_AHEAD,
            max_under_way=min(MAX_UNDER_WAY, layout.num_stages),
            activation_bytes=layout.activation_bytes,
            scale=1 / math.sqrt(config.head_dim),
        )
        self._launcher.launch(step, layout.num_bytes)


def megakernel_or_none(
    model: DeviceModel,
    cache: Sequence[LayerPages],
    scratch: Scratch,
    logits: Tensor,
    launcher: Launcher | None,
) -> Megakernel | None:
    """The kernel, or None with a log line where it does not serve the model. `launcher` None:
    None."""
    if launcher is None:
        return None
    reason = unsupported(model, cache)
    if reason is None and shared_layout(model, MAX_ROWS, launcher.shared_bytes) is None:
        reason = "this GPU's shared memory"
    if reason is not None:
        log.warning("%s: it is not made for %s", NO_EFFECT, reason)
        return None
    return Megakernel(model, cache, scratch, logits, launcher)


def bytes_of(step: Step) -> bytes:
    """The kernel's argument as it lies in memory."""
    return ctypes.string_at(ctypes.addressof(step), ctypes.sizeof(step))
