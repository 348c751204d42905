"""What all kernels do: wait for the kernel before, fetch ahead, and prepare what is multiplied."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

EMULATED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter. That is decided when they are imported."""


@triton.jit
def wait_for_inputs(PDL: tl.constexpr, IS_SHORT: tl.constexpr = True):
    """To be called once by every program, before it reads what another kernel has written and
    before it writes anything: a kernel launched with programmatic dependent launch begins while
    the one before it still runs. Nothing reaches further back, as that one has waited too.

    From here on the kernel after this one may begin to fetch its weights; where this one is not
    short, from `let_next_begin` on.
    """
    if PDL:
        gdc_wait()
        if IS_SHORT:
            gdc_launch_dependents()


@triton.jit
def let_next_begin(PDL: tl.constexpr):
    """Once in every program, behind `wait_for_inputs`: when all have come here or have ended, the
    kernel after this one begins. What it fetches much too early is gone from L2 when it is wanted,
    washed out by what this one reads; and its programs take the places of this one's."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def fetch_ahead(pointers):
    """Bring the cache lines of these addresses into L2, without waiting for them."""
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
    """`x` as the matrix units take it.

    Halves have a smaller range than the numbers that they come from: what is beyond becomes the
    largest, in the one instruction that converts two numbers. `EMULATED`: rounded likewise, but in
    float32; Triton's interpreter cannot multiply bfloat16.
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
    """Whether of `NUM` programs this is the last one to get here; what the others have written
    before they came here is then visible. The counter is zero again after the last."""
    tl.debug_barrier()  # the counting is one thread's, the writing was everyone's
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == NUM - 1
    if last:
        tl.store(counter, 0)
    return last
