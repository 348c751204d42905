"""Attention of a few rows by FlashInfer's XQA kernel, where it is installed and suitable.

Of FlashInfer's attention functions, `xqa_batch_decode_with_kv_cache` (0.6.6 to 0.6.18) is the one
that a CUDA graph can hold: lengths and tables are read on the device, nothing is planned on the
host. Its paged prefill needs a plan on the host for every step, so prompts use our own kernel.

XQA divides the keys among its programs by the number of sequences and of rows, and may so round a
row differently when it is drafted or batched. That is tested once for each kind of layer: where one
bit differs, our kernel serves all rows of such layers.

FlashInfer is imported when an `XqaAttention` is made and nowhere else: several releases crash at
import on a machine without a GPU, and not with ImportError.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_engine.cuda.kernels.prefill import lengths_kernel

from .interface import MAX_ROWS, Attention, Heads, LayerPages, Matrix, Norm, Rows

log = logging.getLogger(__name__)

_PAGE_SIZES = (16, 32, 64, 128)
_MAX_HEAD_DIM = 256

_WORKSPACE_BYTES = 256 << 20
"""Size of the workspace, as in FlashInfer's own tests; the first 8 MB are counters, and must be
zero at the start."""

_TRIED_LENGTHS = (9, 64, 129, 1000, 3001)
"""Numbers of keys with which rows are compared: within a page, at its edge, behind it, and so many
that they are divided among programs."""

_TRIED_STEPS = ((1, 2), (1, 4), (1, 8), (2, 4), (8, 1))
"""Sequences, and rows of each, in the steps whose rows are compared with single rows."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of layer for which XQA is compiled."""

    heads: Heads
    page_size: int
    window: int | None
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @property
    def fits(self) -> bool:
        """True if XQA supports this kind. Not with 8-bit keys: XQA would multiply queries and
        weights in 8 bits, too, unlike our kernel."""
        dim = self.heads.head_dim
        return (
            self.page_size in _PAGE_SIZES
            and dim % 16 == 0
            and dim <= _MAX_HEAD_DIM
            and self.dtype in (torch.float16, torch.bfloat16)
            and self.kv_dtype == self.dtype
        )


class XqaAttention:
    """FlashInfer's XQA kernel; made by `xqa_or_none`. The first call for a kind of layer takes
    seconds (FlashInfer compiles) and reads back to the host: it must come before a graph is
    captured."""

    def __init__(self, device: torch.device, workspace_bytes: int = _WORKSPACE_BYTES) -> None:
        """Import FlashInfer. Raises whatever that raises."""
        from flashinfer.decode import xqa_batch_decode_with_kv_cache

        self._xqa: Callable[..., Any] = xqa_batch_decode_with_kv_cache
        self._device = device
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=device)
        self._lengths = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self._masks = {n: _causal_masks(n).to(device) for n in range(2, MAX_ROWS + 1)}
        self._verdicts: dict[_Kind, bool] = {}
        self._counted: tuple[Rows, Attention] | None = None
        """Rows and first layer for which `_lengths` was computed."""

    def serves(self, queries: Tensor, layer: Attention, pages: LayerPages) -> bool:
        """True if this kernel is to compute all steps of up to `MAX_ROWS` rows of such a layer."""
        kind = _Kind(layer.heads, pages.page_size, layer.window, queries.dtype, pages.keys.dtype)
        if kind not in self._verdicts:
            self._verdicts[kind] = kind.fits and self._try(kind)
        return self._verdicts[kind]

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        """`Ops.attend` for up to `MAX_ROWS` rows, those of a sequence at consecutive positions.
        Padding rows are computed like others: pages that a table names for them are read, and must
        exist. A step's layers must come one after another with the same `Rows`."""
        num_seqs = rows.num_seqs
        num_queries = len(queries) // num_seqs
        lengths = self._count_keys(layer, rows, num_queries)
        mask = None
        if num_queries > 1:
            mask = self._masks[num_queries][:num_seqs]
            out = out.view(num_seqs, num_queries, *out.shape[1:])
        self._xqa(
            query=queries,
            kv_cache=(pages.keys, pages.values),
            workspace_buffer=self._workspace,
            block_tables=rows.tables,
            seq_lens=lengths,
            max_seq_len=rows.tables.shape[1] * pages.page_size,
            bmm1_scale=1 / math.sqrt(layer.heads.head_dim),
            bmm2_scale=1.0,
            window_left=-1 if layer.window is None else layer.window - 1,
            out=out,
            kv_layout="HND",
            enable_pdl=False,  # its kernels are not known to wait for two before them
            q_len_per_req=num_queries,
            mask=mask,
        )

    def _count_keys(self, layer: Attention, rows: Rows, num_queries: int) -> Tensor:
        """Keys of each sequence, `[B]`. Computed once a step, as positions are the same for all
        layers: for other rows than before, or when the first layer comes again, as positions may
        have changed in place. A captured graph has rows of its own, and so counts for itself."""
        lengths = self._lengths[: rows.num_seqs]
        if self._counted is None or self._counted[0] is not rows or self._counted[1] is layer:
            self._counted = rows, layer
            lengths_kernel[1,](
                positions=rows.positions, out=lengths, NUM_SEQS=rows.num_seqs,
                NUM_QUERIES=num_queries, BLOCK=MAX_ROWS, PDL=False, num_warps=1,
            )  # fmt: skip
        return lengths

    def _try(self, kind: _Kind) -> bool:
        """True if rows give the same bits alone, drafted and batched."""
        try:
            agree = self._rows_agree(kind)
        except Exception as error:  # a missing compiler, an unsupported shape
            log.warning("attention by our own kernel: FlashInfer fails with %r", error)
            return False
        if not agree:
            log.warning("attention by our own kernel: FlashInfer rounds drafted rows otherwise")
        return agree

    def _rows_agree(self, kind: _Kind) -> bool:
        trial = _Trial(kind, self._device)
        for end in _TRIED_LENGTHS:
            last = range(end - MAX_ROWS, end)
            alone = torch.stack([self._run(trial, [position], 1)[0, 0] for position in last])
            for num_seqs, num_queries in _TRIED_STEPS:
                together = self._run(trial, last[-num_queries:], num_seqs)
                if not all(torch.equal(seq, alone[-num_queries:]) for seq in together):
                    return False
        return True

    def _run(self, trial: "_Trial", positions: Sequence[int], num_seqs: int) -> Tensor:
        """Attention `[num_seqs, queries, heads, head_dim]` of several copies of the trial
        sequence."""
        rows = trial.rows(positions, num_seqs)
        queries = trial.queries[rows.positions.long()]
        out = torch.empty_like(queries)
        self.attend(queries, trial.layer, rows, trial.pages, out)
        return out.view(num_seqs, len(positions), *out.shape[1:])


def xqa_or_none(device: torch.device) -> XqaAttention | None:
    """XQA, or None with a log line where FlashInfer is missing or broken."""
    try:
        return XqaAttention(device)
    except Exception as error:
        log.warning("attention by our own kernel: FlashInfer cannot be used (%r)", error)
        return None


class _Trial:
    """Trial sequence of random keys, with a query for each position."""

    def __init__(self, kind: _Kind, device: torch.device) -> None:
        heads, size = kind.heads, kind.page_size
        generator = torch.Generator().manual_seed(0)
        self._table = torch.arange(-(-max(_TRIED_LENGTHS) // size) + 1, dtype=torch.int32)
        self._device = device

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device, kind.dtype)

        shape = len(self._table), heads.num_kv_heads, size, heads.head_dim
        self.pages = LayerPages(normal(*shape), normal(*shape))
        self.queries = normal(len(self._table) * size, heads.num_heads, heads.head_dim)
        empty = torch.empty(0, 0)
        norm, weight = Norm(empty, 0.0), Matrix(empty)
        self.layer = Attention(norm, weight, heads, window=kind.window)

    def rows(self, positions: Sequence[int], num_seqs: int) -> Rows:
        flat = torch.tensor([*positions] * num_seqs, dtype=torch.int32)
        tables = self._table.repeat(num_seqs, 1)
        return Rows(flat.to(self._device), tables.to(self._device))


def _causal_masks(num_queries: int) -> Tensor:
    """Causal masks `[num_seqs, queries, 2]`, uint16: bit j of row i is set if draft i sees draft j;
    32 bits a row, low half first."""
    bits = [[(1 << (row + 1)) - 1, 0] for row in range(num_queries)]
    return torch.tensor([bits] * (MAX_ROWS // num_queries), dtype=torch.int32).to(torch.uint16)
