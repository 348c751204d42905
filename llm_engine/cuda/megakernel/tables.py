"""What the megakernel reads: its structures, as `decoder.cu` lays them out, and their sizes.

`definitions` gives the numbers that both need to the compiler of `decoder.cu`. The structures stand
in both; the compiler compares their sizes, and a test each field's place.

Everything here runs without a GPU."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from llm_engine.cuda.model import DeviceLayer, DeviceModel, Scratch
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Matrix, Norm, Weight

CONSUMER_WARPS = 8
_PRODUCER_WARPS = 4
THREADS = 32 * (CONSUMER_WARPS + _PRODUCER_WARPS)
QUERY_TILE = 8
HEAD_DIMS = (64, 128)
PAGE_SIZE = 16

_TILE = 16
_ROW_BYTES = 1024
_STAGE_BYTES = _TILE * _ROW_BYTES
SHARED_STRUCT_BYTES = 21_888
_MAX_STAGES = 16
_MIN_STAGES = 4
MAX_ACTIVATION_BYTES = 66_560
"""Of shared memory: the ring needs the rest. Longer rows are multiplied in chunks of columns."""
_MAX_SPLITS = 32

MAX_AHEAD = 12
"""Stages behind a full ring that are fetched into L2: 25 MiB in all."""
MAX_UNDER_WAY = 4
"""Stages that are copied at the same time: 64 KiB for each multiprocessor."""


def activation_pad(bits: int) -> int:
    """Bytes behind a row of activations in shared memory, for weights of so many bits: the rows'
    banks differ."""
    return 16 if bits == 8 else 64


class Kind(IntEnum):
    """What a phase of the kernel computes."""

    QUERIES = 0
    ATTEND = 1
    ADD = 2
    GATE_UP = 3
    LOGITS = 4


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Fields of a structure: names of one type behind each other."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Phase(ctypes.Structure):
    """`Phase` of `decoder.cu`."""

    _fields_ = _fields(
        (ctypes.c_void_p, "weight scales bias norm source out keys values"),
        (ctypes.c_int, "kind num_tiles columns outputs chunk first_block window"),
        (ctypes.c_float, "eps"),
        (ctypes.c_int * 8, "unused"),
    )


class Step(ctypes.Structure):
    """`Step` of `decoder.cu`: the kernel's argument."""

    _fields_ = _fields(
        (ctypes.c_void_p, "phases arrivals splits_done mixtures totals positions tables cos sin"),
        (ctypes.c_int, "num_phases num_seqs num_queries table_width num_heads num_kv_heads"),
        (ctypes.c_int, "num_splits num_stages max_under_way max_ahead activation_bytes"),
        (ctypes.c_float, "scale"),
        (ctypes.c_int * 2, "unused"),
    )


def definitions(*, head_dim: int, weight_bits: int) -> tuple[str, ...]:
    """Options of the compiler that define the numbers of `decoder.cu`, for a size of heads and of
    weights."""
    numbers = {
        "HEAD_DIM": head_dim,
        "WEIGHT_BITS": weight_bits,
        "TABLES_MAX_ROWS": MAX_ROWS,
        "TABLES_CONSUMER_WARPS": CONSUMER_WARPS,
        "TABLES_PRODUCER_WARPS": _PRODUCER_WARPS,
        "TABLES_TILE": _TILE,
        "TABLES_ROW_BYTES": _ROW_BYTES,
        "TABLES_ACTIVATION_PAD": activation_pad(weight_bits),
        "TABLES_MAX_STAGES": _MAX_STAGES,
        "TABLES_PAGE_SIZE": PAGE_SIZE,
        "TABLES_QUERY_TILE": QUERY_TILE,
        "TABLES_PHASE_BYTES": ctypes.sizeof(Phase),
        "TABLES_STEP_BYTES": ctypes.sizeof(Step),
        "TABLES_SHARED_STRUCT_BYTES": SHARED_STRUCT_BYTES,
        **{f"TABLES_{kind.name}": kind.value for kind in Kind},
    }
    return tuple(f"-D{name}={number}" for name, number in numbers.items())


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Division of a block's shared memory for a number of rows."""

    activation_bytes: int
    num_stages: int

    @property
    def num_bytes(self) -> int:
        return SHARED_STRUCT_BYTES + self.activation_bytes + self.num_stages * _STAGE_BYTES


def unsupported(model: DeviceModel, cache: Sequence[LayerPages]) -> str | None:
    """What the kernel does not serve; None: it serves this model with this cache."""
    config = model.config
    weights = [weight for layer in model.layers for weight in _weights(layer)]
    if not all(isinstance(weight, Matrix) for weight in weights):
        return "weights of 4 bits"
    matrices = [weight for weight in weights if isinstance(weight, Matrix)]
    if len({matrix.bits for matrix in matrices}) > 1:
        return "weights of different sizes"
    if any(_has_blocks(matrix) for matrix in matrices):
        return "scales of blocks"
    if config.head_dim not in HEAD_DIMS:
        return f"heads of {config.head_dim}"
    if any(layer.attention.q_norm is not None for layer in model.layers):
        return "norms of heads"
    if model.embedding.dtype != torch.bfloat16 or any(
        pages.keys.dtype != torch.bfloat16 for pages in cache
    ):
        return "activations or a KV cache of another type than bfloat16"
    if any(matrix.num_in % _multiple(matrix) or matrix.num_out % _TILE for matrix in matrices):
        return "a matrix whose sizes are no multiples of its tiles"
    if any(pages.page_size != PAGE_SIZE for pages in cache):
        return "pages of another size"
    return None


def scores(model: DeviceModel) -> bool:
    """True if the kernel computes logits as well: the LM head is stored as the layers are."""
    head = model.head
    return (
        isinstance(head, Matrix)
        and head.bits == model.layers[0].out.bits
        and not _has_blocks(head)
        and head.num_in % _multiple(head) == 0
    )


def _has_blocks(matrix: Matrix) -> bool:
    return matrix.scales is not None and matrix.block != (1, matrix.num_in)


def _multiple(matrix: Matrix) -> int:
    """Columns that a warp multiplies at once."""
    return 512 // matrix.bits


def shared_layout(model: DeviceModel, num_rows: int, shared_bytes: int) -> SharedLayout | None:
    """Shared memory for so many rows; None without room for a ring."""
    config = model.config
    longest = max(weight.num_in for weight in _weights(model.layers[0]))
    members = min(QUERY_TILE, num_rows * (config.num_heads // config.num_kv_heads))
    whole = num_rows * (2 * longest + activation_pad(16))
    parts = CONSUMER_WARPS * members * config.head_dim * 4
    activations = max(min(whole, MAX_ACTIVATION_BYTES), parts)
    activations = -(-activations // 128) * 128
    stages = (shared_bytes - SHARED_STRUCT_BYTES - activations) // _STAGE_BYTES
    if stages < _MIN_STAGES:
        return None
    return SharedLayout(activations, min(stages, _MAX_STAGES))


def num_splits(num_kv_heads: int, num_blocks: int) -> int:
    """Splits of a sequence's pages, the same for any number of rows: their sums are the same."""
    return max(1, min(_MAX_SPLITS, num_blocks // num_kv_heads))


def num_items(model: DeviceModel, num_seqs: int, num_queries: int) -> int:
    """Items of attention: query tiles of every key-value head."""
    config = model.config
    members = num_queries * (config.num_heads // config.num_kv_heads)
    return num_seqs * -(-members // QUERY_TILE) * config.num_kv_heads


def phases(
    model: DeviceModel,
    cache: Sequence[LayerPages],
    scratch: Scratch,
    logits: Tensor,
    layout: SharedLayout,
    num_rows: int,
    num_blocks: int,
) -> Tensor:
    """Descriptions of all phases for so many rows, `[phases, 128]`, uint8, on the host."""
    found = list(_phases(model, cache, scratch))
    if scores(model):
        found.append(_product(Kind.LOGITS, model.head, scratch.hidden, logits, model.norm))
    tiles_before = 0
    for phase in found:
        if phase.kind == Kind.ATTEND:
            continue
        phase.chunk = _chunk(
            phase.columns, layout.activation_bytes, num_rows, model.layers[0].out.bits
        )
        # The first tile is the next block's behind the last tile: all get the same number in time.
        phase.first_block = -tiles_before % num_blocks
        tiles_before += phase.num_tiles
    return torch.frombuffer(bytearray(b"".join(bytes(phase) for phase in found)), dtype=torch.uint8)


def _chunk(columns: int, activation_bytes: int, num_rows: int, bits: int) -> int:
    """Columns of the activations that are in shared memory at once: all, or whole stages."""
    stage = _ROW_BYTES * 8 // bits
    room = (activation_bytes // num_rows - activation_pad(bits)) // 2
    if columns <= room:
        return columns
    assert room >= stage, "attention's parts alone take more"
    return room // stage * stage


def _phases(model: DeviceModel, cache: Sequence[LayerPages], scratch: Scratch) -> Iterator[Phase]:
    hidden, queries = scratch.hidden, scratch.queries
    attended, inner = scratch.attended, scratch.inner
    for layer, pages in zip(model.layers, cache, strict=True):
        attention = layer.attention
        placed = {"keys": pages.keys.data_ptr(), "values": pages.values.data_ptr()}
        yield _product(Kind.QUERIES, attention.qkv, hidden, queries, attention.norm, **placed)
        yield Phase(
            kind=Kind.ATTEND,
            source=queries.data_ptr(),
            out=attended.data_ptr(),
            window=attention.window or 0,
            **placed,
        )
        yield _product(Kind.ADD, layer.out, attended, hidden)
        yield _product(Kind.GATE_UP, layer.gate_up, hidden, inner, layer.mlp_norm)
        yield _product(Kind.ADD, layer.down, inner, hidden)


def _product(
    kind: Kind, weight: Weight, source: Tensor, out: Tensor, norm: Norm | None = None, **more: int
) -> Phase:
    assert isinstance(weight, Matrix)
    return Phase(
        kind=kind,
        weight=weight.values.data_ptr(),
        scales=_address(weight.scales),
        bias=_address(weight.bias),
        norm=None if norm is None else norm.weight.data_ptr(),
        eps=0.0 if norm is None else norm.eps,
        source=source.data_ptr(),
        out=out.data_ptr(),
        num_tiles=-(-weight.num_out // _TILE),
        columns=weight.num_in,
        outputs=weight.num_out // 2 if kind is Kind.GATE_UP else weight.num_out,
        **more,
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _weights(layer: DeviceLayer) -> list[Weight]:
    return [layer.attention.qkv, layer.out, layer.gate_up, layer.down]
