"""Logit masks of a step on the device: grammar, repetition penalty, banned tokens, by row."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from llm_engine.backends.base import SequenceRows
from llm_engine.cuda.ops.interface import RowMasks

_ALL_BITS: Final = 0xFF


def needs_masks(rows: SequenceRows) -> bool:
    """True if a reply needs masks: a grammar, banned tokens or a penalty."""
    return bool(rows.allowed or rows.num_banned or rows.sampling.repetition_penalty != 1)


class MaskBuffers:
    """Masks of up to `num_rows` rows. A step with masks waits for the host anyway, so that there is
    one host buffer and no ring: `send` returns when the copy is done."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        width = -(-vocab_size // 8)
        pinned = device.type == "cuda"
        self._host = [
            torch.zeros(num_rows, width, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)
        ]
        self._host[0].fill_(_ALL_BITS)
        self._host_penalty = torch.ones(num_rows, pin_memory=pinned)
        self._all = RowMasks(*(each.to(device) for each in (*self._host, self._host_penalty)))

    def rows(self, num_rows: int) -> RowMasks:
        """The masks of the first rows, on the device."""
        masks = self._all
        return RowMasks(
            masks.allowed[:num_rows], masks.penalized[:num_rows], masks.penalty[:num_rows]
        )

    def send(self, sequences: Sequence[SequenceRows], num_seqs: int, num_queries: int) -> None:
        """Send the masks of a step of `num_seqs` sequences with `num_queries` rows each; nothing is
        masked beyond the given sequences."""
        allowed, penalized = (each.numpy() for each in self._host)
        penalty = self._host_penalty.numpy()
        num_rows = num_seqs * num_queries
        allowed[:num_rows], penalized[:num_rows], penalty[:num_rows] = _ALL_BITS, 0, 1.0
        for seq, rows in enumerate(sequences):
            first = seq * num_queries + len(rows.token_ids) - rows.num_sampled
            for index in range(rows.num_sampled):
                _allow(allowed[first + index], rows, index)
                _penalize(penalized[first + index], rows, index)
                penalty[first + index] = rows.sampling.repetition_penalty
        masks = self.rows(num_rows)
        for host, there in zip(
            (*self._host, self._host_penalty),
            (masks.allowed, masks.penalized, masks.penalty),
            strict=True,
        ):
            there.copy_(host[:num_rows], non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def _allow(bits: NDArray[np.uint8], rows: SequenceRows, index: int) -> None:
    if rows.allowed:
        given = np.frombuffer(rows.allowed[index], dtype=np.uint8)[: len(bits)]
        bits[: len(given)] = given
        bits[len(given) :] = 0
    if index < rows.num_banned:
        for token_id in rows.banned:
            bits[token_id // 8] &= _ALL_BITS ^ (1 << token_id % 8)


def _penalize(bits: NDArray[np.uint8], rows: SequenceRows, index: int) -> None:
    if rows.sampling.repetition_penalty != 1:
        first_sampled = len(rows.token_ids) - rows.num_sampled
        drafted = rows.token_ids[first_sampled + 1 : first_sampled + 1 + index]
        for token_id in {*rows.chosen, *drafted}:
            bits[token_id // 8] |= 1 << token_id % 8
