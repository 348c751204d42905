"""Tile sizes of matrix products: their division among programs.

For steps the choice may depend on the weight and the device, never on the number of rows up to
`MAX_ROWS`: other tiles would round differently. Prompts may use others. There is no autotuning:
the same rules give the same tiles on every start.
"""

from dataclasses import dataclass, replace
from typing import Final

from llm_engine.cuda.memory import int4_unit_bytes

from .interface import Int4Weight, Matrix, Weight

MAX_SPLITS = 8

MIN_BLOCKS = 2
"""Blocks of columns for one program of a split product. With fewer, filling the pipeline and adding
up cost more than they save; with more, a hidden size of 2048 would leave half of an H200 idle."""

_LARGE_BLOCK = 512
"""Columns of a block that is as much work as `MIN_BLOCKS` others: of 4-bit weights in groups of
128."""

NUM_WARPS: Final = 4
"""Warps of a program, each with a piece of the columns."""

_PIECE_BYTES = 128
"""Bytes of a weight row that one warp loads at once: a cache line. With half of it steps of an 8B
model on an H100 are 6 % slower."""
_PIECES = NUM_WARPS

_PIECES_UP_TO = 16
"""Rows of activations for which every warp has a piece and sums of its own. For 64 the four sums
are 128 of a thread's registers, and it spills; there the warps share one."""
_FEWEST_COLUMNS = 16
"""Least columns of a piece: the depth of the matrix units' 16-bit instruction."""
_MOST_NUMBERS = 64 * 64
"""Most activations at once where the warps share the sums: with twice as many, which are 64 for
each thread to convert, all of its 255 registers are in use, and it spills where scales change along
a row."""

_ACTIVATION_BYTES = 2
_NORM_BYTES = 4
_ROWS_BYTES = 8 * _ACTIVATION_BYTES + _NORM_BYTES
"""Bytes loaded with every column of weights: 8 rows of activations, and the norm's weight."""

_FEWEST_STAGES = 3
"""`num_stages` for Triton, of which one is being multiplied: with two there would be one buffer,
and no program would load while it multiplies."""
_MOST_STAGES = 9
"""More stages make the prologue that fills the buffers long."""

_STAGED_BYTES = 96 << 10
"""Bytes in flight for each multiprocessor: 12 MB over an H200, three times what 4.3 TB/s with 0.8
microseconds of latency needs; or three sevenths of less shared memory. With fewer, a program that
is late stalls its multiprocessor; with more, the next kernel's first programs find no room beside
these. (Calculated, not measured.)"""

_SHORT_LOOP = 8
"""Blocks of a program without a norm up to which one more of them is in flight: in loops of 8 it
saves 1.6 % of a step, in loops of 28 it costs 0.9 %."""

SHARED_BYTES = 227 << 10
"""Shared memory of one of Hopper's multiprocessors that programs can use."""
_REGISTERS = 1 << 16
_RESERVED_BYTES = 1 << 10
"""Shared memory reserved by the driver for each program."""

MAX_RESIDENT = 4
"""Programs on a multiprocessor at once, with up to 128 registers for a thread."""
_MAX_RESIDENT_SHARED = 3
"""Programs on a multiprocessor where the warps share the sums: their threads need up to 136
registers, too many for four."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of one product."""

    block_n: int
    """Rows of the weight in a program."""
    block_k: int
    """Columns that a program multiplies at once."""
    pieces: int
    """Pieces of `block_k`, one for each warp, whose sums are added at the end; 1: all warps share a
    sum."""
    num_splits: int
    """Programs that share the columns of the same rows (split-K)."""
    span: int
    """Columns of one program, a multiple of `block_k`; the last may have fewer to do."""
    per_sm: int
    """Programs that are to be resident on a multiprocessor at once."""
    num_stages: int
    """Blocks of the weight in flight, and the one that is multiplied."""
    shared_bytes: int
    """Shared memory of a multiprocessor."""

    @property
    def max_registers(self) -> int:
        """Registers of a thread, so that `per_sm` programs fit, and beside one or two another
        kernel's. Without a limit NVIDIA's assembler may stop at 72 and spill."""
        num_programs = self.per_sm + (self.per_sm < 3)
        return min(255, _REGISTERS // (num_programs * NUM_WARPS * 32) // 8 * 8)

    def for_rows(self, weight: Weight, num_rows: int) -> "Tiles":
        """Tiles for this many rows of activations, a power of two: as many bytes of weights in
        flight as for few, if `per_sm` programs have room for them. The same tiles for all numbers
        of rows up to `MAX_ROWS`, the most that 4-bit weights take here."""
        block_k, pieces, per_sm = self.block_k, self.pieces, self.per_sm
        row_bytes, converted_bytes = num_rows * _ACTIVATION_BYTES, 0
        if num_rows > _PIECES_UP_TO and isinstance(weight, Matrix):
            most = min(self.block_k, _MOST_NUMBERS // num_rows)
            block_k, pieces = _columns_of_a_scale(weight, most), 1
            per_sm = min(per_sm, _MAX_RESIDENT_SHARED)
            converted_bytes = block_k * row_bytes  # a warp group multiplies from shared memory
        stage = block_k * self.block_n * weight.bits // 8 + block_k * (row_bytes + _NORM_BYTES)
        per_sm = min(per_sm, _fitting(self.shared_bytes, stage, converted_bytes))
        room = self.shared_bytes // per_sm - _RESERVED_BYTES - converted_bytes
        wanted = (self.num_stages - 1) * self.block_k // block_k
        num_stages = _stages(min(wanted, room // stage))
        return replace(self, block_k=block_k, pieces=pieces, per_sm=per_sm, num_stages=num_stages)


def product_tiles(
    weight: Weight, num_sms: int, *, divisible: bool, shared_bytes: int = SHARED_BYTES
) -> Tiles:
    """Choose tiles for up to `MAX_ROWS` rows of activations. `divisible`: several programs may
    share the columns. `shared_bytes`: of a multiprocessor. Raises ValueError for scales that no
    piece of columns fits.

    The four warps divide the columns and not the rows of a tile: each converts a piece of the
    activations, and no number of them is converted twice. A program with a norm has more to do for
    each column, so that there are fewer programs, with more rows each. Programs that share columns
    cost 2 to 3 microseconds, and are for weights with few rows. The bytes in flight of a
    multiprocessor are divided among the programs that it has on average, so that all run at the
    same pace, wherever there is one more. All of this was measured on an H100, with models of 1B
    and 8B.
    """
    num_out, num_in = weight.num_out, weight.num_in
    block_k = _PIECES * _piece_of_columns(weight)
    num_blocks = -(-num_in // block_k)
    num_splits = 1
    if not divisible:
        block_n = _widest_rows(weight, 0.7 * num_sms, block_k, shared_bytes)
    else:
        block_n = _widest_rows(weight, 1.5 * num_sms, block_k, shared_bytes)
        num_tiles = -(-num_out // block_n)
        fewest = 1 if block_k >= _LARGE_BLOCK else MIN_BLOCKS
        most = min(MAX_SPLITS, num_blocks // fewest, num_sms // num_tiles)
        num_splits = _power_of_two(most)
    span = -(-num_blocks // num_splits) * block_k
    num_splits = -(-num_in // span)  # the last split may be empty
    num_programs = -(-num_out // block_n) * num_splits
    resident = min(num_programs, MAX_RESIDENT * num_sms)
    stage = block_k * block_n * weight.bits // 8 + block_k * _ROWS_BYTES
    per_sm = min(-(-resident // num_sms), _fitting(shared_bytes, stage))
    staged = min(_STAGED_BYTES, shared_bytes * 3 // 7) * num_sms // max(resident, num_sms)
    if divisible and span // block_k <= _SHORT_LOOP:
        staged += stage
    room = shared_bytes // per_sm - _RESERVED_BYTES
    num_buffers = min(span // block_k, staged // stage, room // stage)
    return Tiles(
        block_n=block_n,
        block_k=block_k,
        pieces=_PIECES,
        num_splits=num_splits,
        span=span,
        per_sm=per_sm,
        num_stages=_stages(num_buffers),
        shared_bytes=shared_bytes,
    )


def _widest_rows(weight: Weight, num_programs: float, block_k: int, shared_bytes: int) -> int:
    """Most rows of a weight in a tile of which there are at least so many programs, and whose
    blocks fit into shared memory beside `_PIECES_UP_TO` rows of activations."""
    beside = _PIECES_UP_TO * _ACTIVATION_BYTES + _NORM_BYTES
    room = (shared_bytes - _RESERVED_BYTES) // (_FEWEST_STAGES - 1) // block_k - beside
    for rows in (64, 32) if weight.bits <= 8 else (32,):
        if weight.num_out >= num_programs * rows and rows * weight.bits // 8 <= room:
            return rows
    return 16


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """Tiles of a prefill product, both sides in 8 bits, or with 4-bit weights."""

    block_m: int
    """Rows of the prompt in a program; with 8 bits 64 for each four warps: one wgmma."""
    block_n: int
    """Rows of the weight in a program; of pairs, first ones."""
    num_stages: int
    """Blocks of columns in shared memory at once: one multiplied, the others on their way."""
    num_warps: int
    block_k: int = 128
    """Columns that a program multiplies at once: as many as share a scale, and the width of the
    widest swizzle of shared memory. With 4 bits, a unit."""

    def stage_bytes(self, *, paired: bool) -> int:
        """Bytes of one block of columns, both sides in 8 bits."""
        return self.block_k * (self.block_m + self.block_n * (2 if paired else 1))


def prompt_tiles(
    num_rows: int, num_out: int, num_sms: int, shared_bytes: int, *, paired: bool
) -> PromptTiles:
    """Choose tiles of a prefill product. `num_out`: outputs of each row. `shared_bytes`: that a
    program can have. Derived from the chip's and the assembler's figures, not measured:

    For some hundred rows the traffic from L2 to the multiprocessors is the limit. 512 rows times
    a weight of [28672, 4096] are 60 microseconds of matrix units, and in tiles of 128 x 128 they
    are 0.94 GB, 170 microseconds at 5.5 TB/s. So tiles are as large as registers allow, each number
    of a tile being two in them: its sum, and that of the block of columns at work.

    128 x 128 are 64 + 64 in each thread of eight warps, with addresses 180 to 204 of 255: one
    program fits. 128 x 256 would be 128 + 64 at least, and spills.

    Pairs have a product for each half, one after the other, so that only half as many sums of a
    block are there at once. 256 x (64 + 64) are 64 + 32 in each thread of sixteen warps, 126 to 128
    registers of the 128 that so many threads have, and a quarter less passes than for 128 x 128
    (128 x (128 + 128) has the same traffic, and spills with Triton 3.9). Up to 128 rows half of
    that, of which two fit at once: 126 registers, and 98 of 227 KB.

    Half as wide where wide tiles leave two thirds of the multiprocessors idle (128 rows and 4096
    outputs have 32): reading x twice as often costs less. Programs that share the columns of a tile
    would each write 64 KB of sums, and read them again; 1024 columns of it are 256 KB to begin
    with.
    """
    block_m, block_n, num_stages = 128, 64, 4
    if paired:
        tall = PromptTiles(256, 64, 4, 16)
        if num_rows > 128 and 4 * tall.stage_bytes(paired=True) <= shared_bytes:
            return tall
        num_stages = 3
    elif 3 * -(-num_rows // block_m) * -(-num_out // 128) >= num_sms:
        block_n = 128
    most = shared_bytes // PromptTiles(block_m, block_n, 1, 8).stage_bytes(paired=paired)
    return PromptTiles(block_m, block_n, max(2, min(num_stages, most)), 8)


def int4_prompt_tiles(
    weight: Int4Weight,
    num_rows: int,
    num_out: int,
    num_sms: int,
    shared_bytes: int,
    *,
    paired: bool,
) -> PromptTiles:
    """Choose tiles of a prefill product with 4-bit weights. `num_out`: outputs of each row.

    As in `prompt_tiles`, tiles are as large as registers allow: 128 x 128 are 64 sums and 64 of the
    group at work in each thread of eight warps, with addresses 217 to 237 of 255. Pairs have half
    as many rows of the prompt: three sums for each number, 175 to 221 registers. Activations are
    four times as large as codes here, so that the weight's rows are the longer side. Up to 64 rows
    the weight's bytes count most; four warps have 64 of its rows.
    """
    block_m, block_n, num_warps, num_stages = 128, 128, 8, 3
    if num_rows <= 64:
        block_m, block_n, num_warps = max(16, 1 << (num_rows - 1).bit_length()), 64, 4
        num_stages = 3 if paired else 4
    elif paired:
        block_m = 64
    elif 3 * -(-num_rows // block_m) * -(-num_out // block_n) < num_sms:
        block_n, num_warps = 64, 4
    block_k = 2 * int4_unit_bytes(weight.group)
    stage = block_k * (2 * block_m + block_n // 2 * (2 if paired else 1))
    num_stages = max(2, min(num_stages, shared_bytes // stage))
    return PromptTiles(block_m, block_n, num_stages, num_warps, block_k)


def attention_splits(num_kv_heads: int, num_sms: int, num_tiles: int = 1) -> int:
    """Number of programs that share the keys of the same rows: about one for each multiprocessor
    and up to 16, a power of two. For steps of up to `MAX_ROWS` rows `num_tiles` stays 1: results
    would depend on the number of rows."""
    return _power_of_two(min(16, num_sms // (num_kv_heads * num_tiles)))


def _power_of_two(most: int) -> int:
    """Largest power of two up to `most`, at least 1."""
    return 1 << max(0, most.bit_length() - 1)


def _fitting(shared_bytes: int, stage: int, converted_bytes: int = 0) -> int:
    """Programs for which there is shared memory, with the fewest buffers; at least 1."""
    one = (_FEWEST_STAGES - 1) * stage + converted_bytes + _RESERVED_BYTES
    return max(1, shared_bytes // one)


def _stages(num_buffers: int) -> int:
    return max(_FEWEST_STAGES, min(_MOST_STAGES, 1 + num_buffers))


def _piece_of_columns(weight: Weight) -> int:
    if isinstance(weight, Int4Weight):
        return 2 * int4_unit_bytes(weight.group)
    num_in = weight.num_in
    whole = -(-num_in // _PIECES)
    most = min(8 * _PIECE_BYTES // weight.bits, 1 << max(0, whole - 1).bit_length())
    piece = _columns_of_a_scale(weight, max(_FEWEST_COLUMNS, most))
    if piece < _FEWEST_COLUMNS:
        raise ValueError(f"scales of {weight.block[1]} columns each are not supported")
    return piece


def _columns_of_a_scale(weight: Matrix, most: int) -> int:
    """Largest power of two, up to `most`, of columns that share a scale."""
    across = weight.block[1]
    if weight.scales is None or across >= weight.num_in:
        return most
    return min(most, across & -across)
