"""Operations around a forward pass by our Triton kernels: `StepOps` beside `TritonOps`."""

from typing import Any, Final

import torch
import triton
from torch import Tensor

from llm_engine.cuda.kernels.sampling import (
    LEVELS,
    NUM_STATE,
    draw_kernel,
    mask_kernel,
    narrow_kernel,
)
from llm_engine.cuda.kernels.step_inputs import advance_kernel, embed_kernel, likeliest_kernel

from .interface import MAX_ROWS, RowMasks, SamplingInputs, StepState

_MAX_PARTS: Final = 128
"""Programs that scan one row's logits: of a vocabulary of 128,256 each has one block, and each
multiprocessor of an H200 one program. Fewer would have more to add up one after another; more would
make the last one, which combines their results, read more."""
_BLOCK: Final = 1024
_COLUMNS: Final = 1024
"""Columns of an embedding for one program."""


class TritonStepOps:
    """`StepOps` on an NVIDIA GPU, or in Triton's interpreter. One instance serves one stream."""

    def __init__(self, device: torch.device, *, dependent: bool) -> None:
        """`dependent`: a kernel may begin before the one before it has ended."""
        self._dependent = {"PDL": dependent, "launch_pdl": dependent}

        def zeros(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(MAX_ROWS, width, dtype=dtype, device=device)

        self._biggest = zeros(_MAX_PARTS, torch.float32)
        self._places = zeros(_MAX_PARTS, torch.int32)
        self._counters = zeros(1, torch.int32)
        self._states = zeros(NUM_STATE.value, torch.int64)
        self._sums = zeros(_MAX_PARTS, torch.int64)
        num_bins = 1 << max(bits for _, bits in LEVELS)
        self._counts = [zeros(num_bins, torch.int32) for _ in ("first", "others")]
        self._masses = [zeros(num_bins, torch.int64) for _ in ("first", "others")]

    def embed(self, state: StepState, table: Tensor, positions: Tensor, hidden: Tensor) -> None:
        width = table.shape[1]
        embed_kernel[len(hidden), triton.cdiv(width, _COLUMNS)](
            tokens=state.tokens, first_positions=state.first_positions, num_rows=state.num_rows,
            table=table, positions=positions, hidden=hidden,
            num_queries=len(hidden) // state.num_seqs, tokens_width=state.tokens.stride(0),
            WIDTH=width, BLOCK=_COLUMNS, num_warps=4, **self._dependent,
        )  # fmt: skip

    def likeliest(self, logits: Tensor, out: Tensor) -> None:
        divided = self._divided(logits)
        likeliest_kernel[len(logits), divided["NUM_PARTS"]](
            logits=logits, out=out, biggest=self._biggest, places=self._places,
            counters=self._counters, num_queries=out.shape[1], out_width=out.stride(0), **divided,
        )  # fmt: skip

    def mask(self, logits: Tensor, masks: RowMasks) -> None:
        width = logits.shape[1]
        mask_kernel[len(logits), triton.cdiv(width, _BLOCK)](
            logits=logits, allowed=masks.allowed, penalized=masks.penalized,
            penalties=masks.penalty, WIDTH=width, BLOCK=_BLOCK, num_warps=4, **self._dependent,
        )  # fmt: skip

    def sample(
        self, logits: Tensor, positions: Tensor, sampling: SamplingInputs, out: Tensor
    ) -> None:
        self.likeliest(logits, out)
        num_rows, divided = len(logits), self._divided(logits)
        search = (*LEVELS, *LEVELS[1:])
        for shift, bits in search:
            level = int((shift, bits) != LEVELS[0])
            narrow_kernel[num_rows, divided["NUM_PARTS"]](
                logits=logits, biggest=self._biggest, temperatures=sampling.temperature,
                top_ks=sampling.top_k, top_ps=sampling.top_p, min_ps=sampling.min_p,
                states=self._states, counts=self._counts[level], masses=self._masses[level],
                first_masses=self._masses[0], counters=self._counters, num_queries=out.shape[1],
                SHIFT=shift, BITS=bits, **divided,
            )  # fmt: skip
        draw_kernel[num_rows, divided["NUM_PARTS"]](
            logits=logits, biggest=self._biggest, temperatures=sampling.temperature,
            seeds=sampling.seeds, positions=positions, states=self._states, sums=self._sums,
            ties=self._places, counts=self._counts[0], masses=self._masses[0],
            counters=self._counters, out=out, num_queries=out.shape[1], out_width=out.stride(0),
            **divided,
        )  # fmt: skip

    def advance(self, state: StepState, chosen: Tensor, last: Tensor) -> None:
        advance_kernel[state.num_seqs,](
            tokens=state.tokens, first_positions=state.first_positions, num_rows=state.num_rows,
            first_sampled=state.first_sampled, chosen=chosen, last=last,
            num_queries=chosen.shape[1], tokens_width=state.tokens.stride(0),
            chosen_width=chosen.stride(0), BLOCK=MAX_ROWS, num_warps=1, **self._dependent,
        )  # fmt: skip

    def _divided(self, logits: Tensor) -> dict[str, Any]:
        """Arguments for the division of each row's logits among programs."""
        width = logits.shape[1]
        num_blocks = triton.cdiv(width, _BLOCK)
        num_parts = min(triton.next_power_of_2(num_blocks), _MAX_PARTS)
        return {
            "WIDTH": width, "NUM_BLOCKS": triton.cdiv(num_blocks, num_parts), "BLOCK": _BLOCK,
            "NUM_PARTS": num_parts, "num_warps": 4, **self._dependent,
        }  # fmt: skip
