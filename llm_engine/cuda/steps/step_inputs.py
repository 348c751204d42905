"""Inputs of a captured step: one pinned ring buffer on the host, one H2D copy per step.

A step has a fixed number of sequences, each with a fixed number of rows; unused sequences have no
rows. All inputs stand in one array of 32-bit words, which goes to the device in one asynchronous
copy and is read there through views. The device updates it at the end of a step
(`StepOps.advance`): the chosen tokens become the next step's rows, at the next positions, so that
the next step can begin before the host has seen them.

The host's copies are a ring of page-locked arrays: one must not be overwritten before it has been
copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.ops.interface import Rows, SamplingInputs, StepState

RING: Final = 8
"""Steps whose inputs may be on their way to the device."""

_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Views:
    """Named views of one array of int32 words, on the host or on the device."""

    seeds: Tensor
    """`[B]`, int64: first, as they need an alignment of 8 bytes."""
    tokens: Tensor
    """`[B, Q]`, int32."""
    first_positions: Tensor
    """`[B]`, int32: position of each sequence's first row."""
    num_rows: Tensor
    """`[B]`, int32: rows in use, 0 to Q."""
    first_sampled: Tensor
    """`[B]`, int32: the first row after which a token is wanted; those before belong to a
    prompt."""
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    tables: Tensor
    """Block tables, `[B, pages]`, int32."""


def _views(words: Tensor, num_seqs: int, num_queries: int, num_pages: int) -> _Views:
    sizes = [2 * num_seqs, num_seqs * num_queries, *[num_seqs] * 7, num_seqs * num_pages]
    seeds, tokens, first, count, sampled, top_k, heat, top_p, min_p, tables = torch.split(
        words, sizes
    )
    return _Views(
        seeds=seeds.view(torch.int64),
        tokens=tokens.view(num_seqs, num_queries),
        first_positions=first,
        num_rows=count,
        first_sampled=sampled,
        top_k=top_k,
        temperature=heat.view(torch.float32),
        top_p=top_p.view(torch.float32),
        min_p=min_p.view(torch.float32),
        tables=tables.view(num_seqs, num_pages),
    )


def _num_words(num_seqs: int, num_queries: int, num_pages: int) -> int:
    return num_seqs * (2 + num_queries + 7 + num_pages)


class _HostCopy:
    """Entry of the ring: a page-locked array, and the event of its last copy."""

    def __init__(self, num_seqs: int, num_queries: int, num_pages: int, *, pinned: bool) -> None:
        size = _num_words(num_seqs, num_queries, num_pages)
        self.words = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        views = _views(self.words, num_seqs, num_queries, num_pages)
        self.arrays: dict[str, NDArray[np.generic]] = {
            name: getattr(views, name).numpy() for name in _Views.__dataclass_fields__
        }
        self.copied: torch.cuda.Event | None = None


class StepInputs:
    """The inputs of steps of `num_seqs` sequences with up to `num_queries` rows each."""

    def __init__(
        self, num_seqs: int, num_queries: int, num_pages: int, device: torch.device
    ) -> None:
        """`num_pages`: pages of the longest sequence."""
        shape = num_seqs, num_queries, num_pages
        self.num_seqs, self.num_queries = num_seqs, num_queries
        self._device = device
        is_cuda = device.type == "cuda"
        self._words = torch.zeros(_num_words(*shape), dtype=torch.int32, device=device)
        self._on_device = _views(self._words, *shape)
        self._ring = [_HostCopy(*shape, pinned=is_cuda) for _ in range(RING)]
        self._next = 0
        self._tables = self._ring[0].arrays["tables"].copy()
        """Mirror of the device's block tables."""
        self._positions = torch.zeros(num_seqs * num_queries, dtype=torch.int32, device=device)
        there = self._on_device
        self.state = StepState(
            there.tokens, there.first_positions, there.num_rows, there.first_sampled
        )
        self.sampling = SamplingInputs(
            there.temperature, there.top_k, there.top_p, there.min_p, there.seeds
        )

    # --- on the host ---

    def send(self, sequences: Sequence[SequenceRows]) -> None:
        """Send the next step's sequences, in this order; further ones stay empty."""
        copy = self._ring[self._next]
        self._next = (self._next + 1) % RING
        if copy.copied is not None:
            copy.copied.synchronize()
        arrays = copy.arrays
        arrays["num_rows"].fill(0)
        arrays["temperature"].fill(0)  # unused sequences choose, too, greedily
        for seq, rows in enumerate(sequences):
            self._write(arrays, seq, rows)
        self._words.copy_(copy.words, non_blocking=True)
        if self._device.type == "cuda":
            copy.copied = copy.copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            copy.copied.record()
        self._tables[:] = arrays["tables"]

    def set_page(self, seq: int, index: int, page: int) -> None:
        """Set page `index` of a sequence's block table from the next step on."""
        if self._tables[seq, index] != page:
            self._tables[seq, index] = page
            self._on_device.tables[seq, index].fill_(page)

    def _write(self, arrays: dict[str, NDArray[np.generic]], seq: int, rows: SequenceRows) -> None:
        count, sampling = len(rows.token_ids), rows.sampling
        values = {
            "seeds": _signed(rows.seed),
            "first_positions": rows.first_position,
            "num_rows": count,
            "first_sampled": count - rows.num_sampled,
            "top_k": sampling.top_k,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
        }
        for name, value in values.items():
            arrays[name][seq] = value
        arrays["tokens"][seq, :count] = rows.token_ids
        # A sequence may own more pages than the longest needs: room for drafts.
        pages = rows.pages[: arrays["tables"].shape[1]]
        arrays["tables"][seq, : len(pages)] = pages

    # --- on the device, inside graphs ---

    def rows(self, num_queries: int) -> Rows:
        """Positions (written by `StepOps.embed`) and pages of each sequence's first rows."""
        return Rows(self._positions[: self.num_seqs * num_queries], self._on_device.tables)

    def last_row(self) -> Tensor:
        """Index of each sequence's last row in use, `[B]`; 0 where there is none."""
        return (self._on_device.num_rows - 1).clamp(min=0)

    def expect(self, drafted: Tensor) -> None:
        """Make a draft `[1, n]` the next step's rows behind the token that is certain."""
        there, count = self._on_device, drafted.shape[1]
        there.tokens[:, 1 : count + 1] = drafted
        there.num_rows.mul_(count + 1)  # 0 stays 0

    def first_token(self) -> Tensor:
        """Token of each sequence's first row, `[B]` int32."""
        return self._on_device.tokens[:, 0]


def _signed(seed: int) -> int:
    word = seed & _MASK
    return word - (1 << 64) if word >> 63 else word
