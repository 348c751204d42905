"""How products are divided among programs.

For steps the choice may depend on the weight and the device, never on the number of rows up to
`ops.MAX_ROWS`: other tiles would round otherwise. Prompts may take others. No trial runs at start
either: a table is the same on every start.
"""

from dataclasses import dataclass, replace
from typing import Final

from .interface import Matrix

MAX_SPLITS = 8

MIN_BLOCKS = 2
"""Of columns for one program. With fewer, filling the pipeline and adding up cost more than is
won; with more, a hidden size of 2048 would leave half of an H200 without a program."""

NUM_WARPS: Final = 4
"""Of a program, each with a piece of the columns."""

_PIECE_BYTES = 64
"""Of a weight row, for one warp at once. With half of it a loop's own instructions count for twice
as much; with twice as much, two blocks on their way take all of the shared memory that four
programs have."""
_PIECES = NUM_WARPS

_PIECES_UP_TO = 16
"""Rows of activations for which every warp has a piece and sums of its own. For 64 the four sums
are 128 of a thread's registers, and it spills; there the warps share one."""
_FEWEST_COLUMNS = 16
"""Of a piece: what the matrix units take of 16-bit numbers."""
_MOST_NUMBERS = 64 * 64
"""Of activations at once where the warps share the sums: with twice as many, which are 64 for each
thread to convert, it has all of its 255 registers in use and spills where scales change along a
row."""

_ACTIVATION_BYTES = 2
_NORM_BYTES = 4
_ROWS_BYTES = 8 * _ACTIVATION_BYTES + _NORM_BYTES
"""Beside every column of weights: 8 rows of activations, and the norm's weight."""

_FEWEST_STAGES = 3
"""`num_stages` for Triton, of which one is being multiplied: with two there would be one buffer,
and no program would load while it multiplies."""
_MOST_STAGES = 9
"""More make the code long that fills the buffers."""

_STAGED_BYTES = 96 << 10
"""On their way for each multiprocessor: 12 MB over an H200, three times what 4.3 TB/s with 0.8
microseconds of latency needs; or three sevenths of less shared memory. With fewer, a program that
is late holds up its multiprocessor; with more, the next kernel's first programs find no room beside
these, and can't fetch their weights while these end. (Reckoned, not measured.)"""

_AHEAD_BYTES = 14 << 20
"""Of weights that all programs ask for before they wait for their inputs. With much more, of the
50 MB of L2 half, what the kernel before still reads would wash them out again. (Reckoned, not
measured; a bench compares.)"""
_LINE_BYTES = 128
"""Of L2."""

SHARED_BYTES = 227 << 10
"""Of one of Hopper's multiprocessors, for programs."""
_REGISTERS = 1 << 16
_RESERVED_BYTES = 1 << 10
"""Of shared memory, for each program."""

MAX_RESIDENT = 4
"""Programs on a multiprocessor at once; a thread has up to 128 registers then."""
_MAX_RESIDENT_SHARED = 3
"""Where the warps share the sums: for four, up to 136 registers of a thread are too many."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of one product."""

    block_n: int
    """Rows of the weight that a program has."""
    block_k: int
    """Columns that it multiplies at once."""
    pieces: int
    """Of `block_k`, each one warp's, whose sums are added in the end; 1: all warps share a sum."""
    num_splits: int
    """Programs that share the columns of the same rows."""
    span: int
    """Columns of one program, a multiple of `block_k`; the last may have fewer to do."""
    per_sm: int
    """Programs that are to be resident on a multiprocessor at once."""
    num_stages: int
    """Blocks of the weight on their way at once and the one that is multiplied."""
    lines_ahead: int
    """Cache lines of each of its rows that a program asks for before it waits for its inputs: a
    power of two."""
    shared_bytes: int
    """Of a multiprocessor."""
    next_at: int = 3
    """Quarters of its columns after which a program lets the next kernel begin: at once, what that
    one asks for ahead would be 10 to 30 microseconds older than its use, and of a large weight
    twice the L2 would have been read since; at the end it would have no time to begin. (Reckoned,
    not measured.)"""

    @property
    def max_registers(self) -> int:
        """Of a thread, so that `per_sm` programs have them, and beside one or two another kernel's.
        Told nothing, NVIDIA's assembler may stop at 72 and spill."""
        num_programs = self.per_sm + (self.per_sm < 3)
        return min(255, _REGISTERS // (num_programs * NUM_WARPS * 32) // 8 * 8)

    def for_rows(self, weight: Matrix, num_rows: int) -> "Tiles":
        """For so many rows of activations, a power of two, which lie beside the weights: as many
        bytes of weights on their way as for few, if `per_sm` programs have room for them. The same
        tiles for all numbers of rows up to `ops.MAX_ROWS`."""
        block_k, pieces, per_sm = self.block_k, self.pieces, self.per_sm
        row_bytes, converted_bytes = num_rows * _ACTIVATION_BYTES, 0
        if num_rows > _PIECES_UP_TO:
            most = min(self.block_k, _MOST_NUMBERS // num_rows)
            block_k, pieces = _columns_of_a_scale(weight, most), 1
            per_sm = min(per_sm, _MAX_RESIDENT_SHARED)
            converted_bytes = block_k * row_bytes  # a warp group multiplies from shared memory
        stage = block_k * (self.block_n * weight.values.itemsize + row_bytes + _NORM_BYTES)
        per_sm = min(per_sm, _fitting(self.shared_bytes, stage, converted_bytes))
        room = self.shared_bytes // per_sm - _RESERVED_BYTES - converted_bytes
        wanted = (self.num_stages - 1) * self.block_k // block_k
        num_stages = _stages(min(wanted, room // stage))
        return replace(self, block_k=block_k, pieces=pieces, per_sm=per_sm, num_stages=num_stages)


def product_tiles(
    weight: Matrix, num_sms: int, *, divisible: bool, shared_bytes: int = SHARED_BYTES
) -> Tiles:
    """For up to `ops.MAX_ROWS` rows of activations. `divisible`: whether several programs may share
    the columns. `shared_bytes`: of a multiprocessor. Raises ValueError for scales that no piece of
    columns fits.

    The four warps divide the columns and not the rows of a tile: each converts a piece of the
    activations, and no number of them is converted twice. There should be enough programs for
    every multiprocessor, all of them resident at once, as a second round leaves most of the device
    idle at its end. What a multiprocessor may have on its way is divided among the programs that it
    has on average, so that all go at the same pace, wherever there is one more.
    """
    num_out, num_in = weight.values.shape
    block_k = _PIECES * _piece_of_columns(weight)
    block_n = 32 if not divisible and num_out < 64 * num_sms else 64
    num_blocks = -(-num_in // block_k)
    num_splits = 1
    if divisible:
        num_tiles = -(-num_out // block_n)
        most = min(MAX_SPLITS, num_blocks // MIN_BLOCKS, 2 * num_sms // num_tiles)
        num_splits = _power_of_two(most)
    span = -(-num_blocks // num_splits) * block_k
    num_splits = -(-num_in // span)  # a last one may have been left nothing
    num_programs = -(-num_out // block_n) * num_splits
    resident = min(num_programs, MAX_RESIDENT * num_sms)
    stage = block_k * (block_n * weight.values.itemsize + _ROWS_BYTES)
    lines = _AHEAD_BYTES // (resident * block_n * _LINE_BYTES)
    lines = min(lines, span * weight.values.itemsize // _LINE_BYTES)
    per_sm = min(-(-resident // num_sms), _fitting(shared_bytes, stage))
    staged = min(_STAGED_BYTES, shared_bytes * 3 // 7) * num_sms // resident
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
        lines_ahead=_power_of_two(lines),
        shared_bytes=shared_bytes,
    )


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """Of a product of a prompt's rows, both sides in 8 bits."""

    block_m: int
    """Rows of the prompt that a program has, 64 for each four warps: a wgmma of their own."""
    block_n: int
    """Rows of the weight that it has; of pairs, first ones."""
    num_stages: int
    """Blocks of columns in shared memory at once: one multiplied, the others on their way."""
    num_warps: int
    block_k: int = 128
    """Columns that it multiplies at once: as many as share a scale, and as many bytes as the widest
    swizzle of shared memory has."""

    def stage_bytes(self, *, paired: bool) -> int:
        """Of one block of columns."""
        return self.block_k * (self.block_m + self.block_n * (2 if paired else 1))


def prompt_tiles(
    num_rows: int, num_out: int, num_sms: int, shared_bytes: int, *, paired: bool
) -> PromptTiles:
    """`num_out`: outputs of each row. `shared_bytes`: that a program can have. Reasoned from the
    chip's figures and the assembler's, not measured:

    What counts for some hundred rows is what passes from L2 to the multiprocessors. 512 rows times
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


def attention_splits(num_kv_heads: int, num_sms: int, num_tiles: int = 1) -> int:
    """Programs that share the keys of the same rows: about one for each multiprocessor and up to
    16, a power of two. For steps of up to `MAX_ROWS` rows `num_tiles` is not told: rows would
    depend on their number."""
    return _power_of_two(min(16, num_sms // (num_kv_heads * num_tiles)))


def _power_of_two(most: int) -> int:
    """The largest up to `most`, or one."""
    return 1 << max(0, most.bit_length() - 1)


def _fitting(shared_bytes: int, stage: int, converted_bytes: int = 0) -> int:
    """Programs for which there is shared memory, with the fewest buffers; one at least."""
    one = (_FEWEST_STAGES - 1) * stage + converted_bytes + _RESERVED_BYTES
    return max(1, shared_bytes // one)


def _stages(num_buffers: int) -> int:
    return max(_FEWEST_STAGES, min(_MOST_STAGES, 1 + num_buffers))


def _piece_of_columns(weight: Matrix) -> int:
    num_in = weight.values.shape[1]
    whole = -(-num_in // _PIECES)
    most = min(_PIECE_BYTES // weight.values.itemsize, 1 << max(0, whole - 1).bit_length())
    piece = _columns_of_a_scale(weight, max(_FEWEST_COLUMNS, most))
    if piece < _FEWEST_COLUMNS:
        raise ValueError(f"scales of {weight.block[1]} columns each are not supported")
    return piece


def _columns_of_a_scale(weight: Matrix, most: int) -> int:
    """The largest power of two, up to `most`, of columns that never have two scales."""
    across = weight.block[1]
    if weight.scales is None or across >= weight.values.shape[1]:
        return most
    return min(most, across & -across)
