"""Helpers of all kernels: programmatic dependent launch, prefetch, operands, split reductions."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

EMULATED = bool(triton.knobs.runtime.interpret)
"""True if kernels run in Triton's interpreter. Fixed when they are imported."""


@triton.jit
def wait_for_inputs(PDL: tl.constexpr, IS_SHORT: tl.constexpr = True):
    """Wait for the kernel before this one. Every program calls it once, before it reads what
    another kernel has written and before it writes anything: a kernel launched with programmatic
    dependent launch begins while the one before it still runs. Earlier kernels have ended, as that
    one has waited too.

    From here on the next kernel may begin; where this kernel is not short, from `let_next_begin`
    on.
    """
    if PDL:
        gdc_wait()
        if IS_SHORT:
            gdc_launch_dependents()


@triton.jit
def let_next_begin(PDL: tl.constexpr):
    """Let the next kernel begin once every program has come here or has ended. Called once in every
    program, behind `wait_for_inputs`: before its last loads have come, the next kernel's programs
    only take this one's slots (measured on an H100)."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def fetch_ahead(pointers):
    """Prefetch the cache lines of these addresses into L2, without waiting."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def operand(x, TYPE: tl.constexpr, EMULATED: tl.constexpr):
    """Convert `x` to the matrix units' type.

    float16 has a smaller range than float32: values beyond saturate, in the one instruction that
    converts two numbers. `EMULATED`: rounded likewise, but kept in float32; Triton's interpreter
    cannot multiply bfloat16.
    """
    if TYPE == tl.float16 and x.dtype == tl.float32:
        if EMULATED:
            return tl.minimum(tl.maximum(x, -65504.0), 65504.0).to(TYPE).to(tl.float32)
        else:
            return tl.inline_asm_elementwise(
                "cvt.rn.satfinite.f16x2.f32 $0, $2, $1;",
                "=r,r,r",
                [x],
                dtype=tl.float16,
                is_pure=True,
                pack=2,
            )
    elif EMULATED:
        return x.to(TYPE).to(tl.float32)
    else:
        return x.to(TYPE)


@triton.jit
def is_last(counter, NUM: tl.constexpr):
    """True in the last of `NUM` programs to get here; what the others have written before is then
    visible. The last one resets the counter."""
    tl.debug_barrier()  # one thread counts, all threads have written
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == NUM - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def existing(n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Rows `n` of a block, the last row instead of those behind it. Unchanged where no block has
    such rows: the compiler then knows that they lie one behind the other."""
    if COUNT % BLOCK == 0:
        return n
    else:
        return tl.minimum(n, COUNT - 1)
