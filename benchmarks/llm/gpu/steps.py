"""Latency that a caller waits for: ITL, TTFT, and both with speculation."""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Final

import torch

from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import PageId, SequenceRows, Slot
from llm_engine.config import SamplingParams
from llm_engine.cuda.backend import PAGE_SIZE
from llm_engine.cuda.megakernel.kernel import megakernel_or_none
from llm_engine.cuda.memory import MemoryBudget, plan_memory
from llm_engine.cuda.model import Scratch
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages
from llm_engine.cuda.steps.graph_runner import DecodeStep, GraphRunner, PrefillStep, StepContext
from llm_engine.cuda.steps.logit_masks import MaskBuffers
from llm_engine.cuda.steps.step_inputs import StepInputs

from . import targets as limits
from .device_limits import matrix_rate, read_bandwidth
from .driving import BackendSequence
from .figures import Figure, gaps_ms, percentile
from .models import LoadedModel
from .timing import event

CONTEXT: Final = 1024
"""Context length in tokens of a reply's first token."""
STRETCH: Final = 256
"""Number of tokens after which a reply is restarted, so that the context stays near `CONTEXT`."""
_LEFT_OUT: Final = 2
"""Steps after a restart that are not counted: one was launched for the abandoned reply."""
SAMPLINGS: Final = {
    "temperature": SamplingParams(temperature=0.8),
    "temperature and top_p": SamplingParams(temperature=0.8, top_p=0.9),
}
"""Sampling parameters by the names of their figures. All other figures are of greedy replies."""
PROMPTS: Final = ((32, 4096), (64, 0), (128, 0), (256, 0), (512, 0), (512, 4096))
"""Number of new tokens, and of tokens already in the cache."""
_PROMPT_REPEATS: Final = 30
_CLOCK = SystemClock()


def intervals(loaded: LoadedModel) -> Iterator[Figure]:
    """ITL through the backend, which launches one step ahead, and time of its graph alone."""
    target, bars = loaded.target, loaded.subject.bars(loaded.target)
    limit = _step_limit_ms(loaded)
    with quiet():
        found = interval_ms(loaded.session(), target.num_steps)
    half = percentile(found, 0.5)
    note = f"{len(found)} steps at {CONTEXT} to {CONTEXT + STRETCH} tokens"
    yield Figure("ITL p50", half, "ms", limit, bars.itl_ms(), note=note)
    yield Figure("ITL p99", percentile(found, 0.99), "ms", limit)
    yield Figure("ITL p99.9", percentile(found, 0.999), "ms", limit)
    yield Figure("ITL p99 / p50", percentile(found, 0.99) / half, "", None, bars.jitter())
    alone = graph_ms(loaded, min(target.num_steps, 1000))
    yield Figure("graph alone p50", percentile(alone, 0.5), "ms", limit)
    yield Figure("graph alone p99", percentile(alone, 0.99), "ms", limit)
    for num_seqs in (2, 4, 8):
        several = lanes_ms(loaded, num_seqs, min(target.num_steps, 200))
        yield Figure(f"graph of {num_seqs} sequences", percentile(several, 0.5), "ms", limit)
    for name, sampling in SAMPLINGS.items():
        with quiet():
            found = interval_ms(loaded.session(sampling), min(target.num_steps, 1000))
        yield Figure(f"ITL p50, {name}", percentile(found, 0.5), "ms", limit)
        for num_seqs in (1, 8):
            drawn = lanes_ms(loaded, num_seqs, min(target.num_steps, 200), sampling)
            what = "graph alone" if num_seqs == 1 else f"graph of {num_seqs} sequences"
            yield Figure(f"{what}, {name}", percentile(drawn, 0.5), "ms", limit)


def interval_ms(
    session: BackendSequence,
    num_steps: int,
    between: Callable[[], None] = lambda: None,
    step: Callable[[], object] | None = None,
) -> list[float]:
    """Intervals in ms between steps, as the engine's thread sees them. `between` is called after
    each stretch. `step` runs a step of the session; None: `session.step`."""
    step = step or session.step
    first = session.num_tokens
    last = session.last if first else session.read(session.prompt(CONTEXT))
    start = session.num_tokens
    found: list[float] = []
    while len(found) < num_steps:
        session.back_to(start, last)
        before_ns = 0
        for number in range(STRETCH):
            step()
            now_ns = _CLOCK.now_ns()
            if number >= _LEFT_OUT:
                found.append((now_ns - before_ns) / 1e6)
            before_ns = now_ns
            if len(found) == num_steps or session.num_tokens - start >= STRETCH:
                break
        between()
    return found


def graph_ms(loaded: LoadedModel, num_steps: int) -> list[float]:
    """Times in ms of the captured step of one sequence, by the device's clock."""
    return lanes_ms(loaded, 1, num_steps)


@torch.inference_mode()
def lanes_ms(
    loaded: LoadedModel, num_seqs: int, num_steps: int, sampling: SamplingParams | None = None
) -> list[float]:
    """Times in ms of the captured step of `num_seqs` sequences, by the device's clock. All read the
    same keys and values."""
    step, sequences = _recorded(loaded, num_seqs, sampling or SamplingParams())
    choose = partial(step.replay, GraphRunner.choice_for(sequences))
    found: list[float] = []
    while len(found) < num_steps:
        step.inputs.send(sequences)
        for _ in range(4):
            choose()
        stretch = min(STRETCH - 4, num_steps - len(found))
        found += _timed(loaded, choose, stretch)
    return found


@torch.inference_mode()
def part_ms(loaded: LoadedModel, num_rows: int, repeats: int) -> list[float]:
    """Times in ms of the captured step that reads `num_rows` tokens of a prompt with an empty
    cache."""
    num_pages = -(-num_rows // PAGE_SIZE)
    context = _machinery(loaded, num_rows, num_pages)
    inputs = StepInputs(1, num_rows, num_pages, loaded.target.device)
    pages = [PageId(page) for page in range(num_pages)]
    tokens = tuple(place % loaded.subject.config.vocab_size for place in range(num_rows))
    with context.graphs.running():
        step = PrefillStep(context, inputs, (num_rows,))
        inputs.send([SequenceRows(Slot(0), tokens, 0, 0, SamplingParams(), 0, pages=pages)])
        return _timed(loaded, partial(step.replay, num_rows, None), repeats + 2)[2:]


def first_tokens(loaded: LoadedModel) -> Iterator[Figure]:
    """TTFT through the backend: from a prompt's tokens to the token after it, on the host."""
    target, subject = loaded.target, loaded.subject
    bars, config = subject.bars(target), subject.config
    speed, flops = read_bandwidth(target), matrix_rate(target, subject.multiplied)
    session = loaded.session()
    repeats = min(_PROMPT_REPEATS, target.repeats)
    for num_new, num_cached in PROMPTS:
        if num_new + num_cached > len(session.pages) * PAGE_SIZE:
            continue
        with quiet():
            times = [_first_ms(session, num_new, num_cached) for _ in range(repeats + 2)][2:]
        limit = limits.prompt_ms(config, num_new, loaded.model.step_bytes, speed, flops)
        name = f"TTFT of {num_new} tokens" + (f" after {num_cached}" if num_cached else "")
        bar = bars.ttft_ms(num_new, num_cached)
        note = f"p99 {percentile(times, 0.99):.3g}"
        yield Figure(name, percentile(times, 0.5), "ms", limit, bar, note=note)


def _first_ms(session: BackendSequence, num_new: int, num_cached: int) -> float:
    """TTFT in ms. The cached tokens were computed before; their values do not matter."""
    session.num_tokens = num_cached
    prompt = session.prompt(num_new)
    start_ns = _CLOCK.now_ns()
    session.read(prompt)
    return (_CLOCK.now_ns() - start_ns) / 1e6


def speculation(
    loaded: LoadedModel, acceptances: tuple[float, ...], lengths: tuple[int, ...]
) -> Iterator[Figure]:
    """Time of a token with drafts that are accepted with a given probability.

    First the reply is generated without drafts. Then a drafter that knows it errs on purpose.
    Drafting is free here: a real drafter's time must be added.
    """
    session = loaded.session()
    num_tokens = max(min(loaded.target.num_steps, 1024), 8)
    session.read(session.prompt(min(CONTEXT, len(session.pages) * PAGE_SIZE // 4)))
    start, first = session.num_tokens, session.last
    with quiet():
        begin_ns = _CLOCK.now_ns()
        reply = [session.step()[0] for _ in range(num_tokens)]
        plain_ms = (_CLOCK.now_ns() - begin_ns) / 1e6 / num_tokens
    yield Figure("a token without drafts", plain_ms, "ms", _step_limit_ms(loaded))
    bars = loaded.subject.bars(loaded.target)
    for length in lengths:
        for acceptance in acceptances:
            session.back_to(start, first)
            with quiet():
                begin_ns = _CLOCK.now_ns()
                num_steps = drafted_steps(session, reply, length, acceptance)
                ms = (_CLOCK.now_ns() - begin_ns) / 1e6
            a_step = num_tokens / num_steps
            name = f"a token with {length} drafted, {acceptance:.0%} right"
            expected = limits.expected_tokens(acceptance, length)
            bar = bars.speculative_ms(a_step)
            note = f"{a_step:.2f} tokens a step ({expected:.2f} expected), {ms / num_steps:.3g} ms"
            limit = _step_limit_ms(loaded) / a_step
            yield Figure(name, ms / num_tokens, "ms", limit, bar, note=note)


def drafted_steps(
    session: BackendSequence, reply: list[int], length: int, acceptance: float
) -> int:
    """Generate a known reply again with drafts. Returns the number of steps.

    Raises RuntimeError if the reply differs: then drafts change the output.
    """
    chance = random.Random(length)
    written: list[int] = []
    num_steps = 0
    while len(written) < len(reply):
        ahead = reply[len(written) : len(written) + length]
        draft = [
            token if chance.random() < acceptance else (token + 1) % session.vocab_size
            for token in ahead
        ]
        written += session.step(draft)
        num_steps += 1
        if written[: len(reply)] != reply[: len(written)]:
            raise RuntimeError(f"with drafts the reply differs at token {len(written)}")
    return num_steps


def memory(loaded: LoadedModel) -> Iterator[Figure]:
    """Memory in use beside the plan, and its growth over 500 steps."""
    target, subject = loaded.target, loaded.subject
    device, num_pages = target.device, loaded.backend.layout.num_pages
    page = loaded.kv_bytes(PAGE_SIZE)
    context_length = loaded.model.rope.cos.shape[0]
    room = MemoryBudget(1 << 50, PAGE_SIZE, context_length, num_pages * page)
    plan = plan_memory(subject.config, subject.storage, room)
    yield Figure("weights", loaded.model.step_bytes / 1e9, "GB", note="read in every step")
    yield Figure("reckoned in all", plan.total / 1e9, "GB")
    yield Figure("cache", loaded.backend.cache_bytes() / 1e9, "GB", num_pages * page / 1e9)
    if not target.is_gpu:
        return
    yield Figure("allocated", torch.cuda.memory_allocated(device) / 1e9, "GB", bar=plan.total / 1e9)
    yield Figure("reserved", torch.cuda.memory_reserved(device) / 1e9, "GB")
    session = loaded.session()
    session.read(session.prompt(CONTEXT))
    before = torch.cuda.memory_allocated(device)
    for _ in range(500):
        session.step()
    grown = torch.cuda.memory_allocated(device) - before
    yield Figure("grown over 500 steps", grown, "bytes", bar=0)


def _step_limit_ms(loaded: LoadedModel) -> float:
    speed = read_bandwidth(loaded.target)
    return limits.step_ms(loaded.model.step_bytes, loaded.kv_bytes(CONTEXT), speed)


def _recorded(
    loaded: LoadedModel, num_seqs: int, sampling: SamplingParams
) -> tuple[DecodeStep, list[SequenceRows]]:
    """Capture a step apart from the backend's. Returns it with its sequences."""
    num_pages = -(-(CONTEXT + STRETCH + 1) // PAGE_SIZE)
    context = _machinery(loaded, MAX_ROWS, num_pages)
    with context.graphs.running():
        step = DecodeStep(context, StepInputs(num_seqs, 1, num_pages, loaded.target.device), 1)
    pages = [PageId(page) for page in range(num_pages)]
    rows = [
        SequenceRows(Slot(lane), (lane + 1,), CONTEXT, 1, sampling, 0, pages=pages)
        for lane in range(num_seqs)
    ]
    return step, rows


def _machinery(loaded: LoadedModel, num_rows: int, num_pages: int) -> StepContext:
    """Make the context of a step, with a cache of random values."""
    model, device = loaded.model, loaded.target.device
    config, like = model.config, model.embedding.dtype
    shape = config.num_layers, 2, num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim
    cache = torch.randn(shape, device=device).to(like)
    layers, scratch = [LayerPages(keys, values) for keys, values in cache], Scratch(model, num_rows)
    logits = torch.zeros(MAX_ROWS, config.vocab_size, device=device)
    graphs = loaded.target.graphs()
    with graphs.running():
        megakernel = megakernel_or_none(model, layers, scratch, logits, loaded.launcher)
    return StepContext(
        model=model,
        ops=loaded.ops,
        cache=layers,
        scratch=scratch,
        logits=logits,
        masks=MaskBuffers(MAX_ROWS, config.vocab_size, device),
        graphs=graphs,
        megakernel=megakernel,
    )


def _timed(loaded: LoadedModel, call: Callable[[], None], repeats: int) -> list[float]:
    if not loaded.target.is_gpu:
        marks = [_CLOCK.now_ns()]
        for _ in range(repeats):
            call()
            marks.append(_CLOCK.now_ns())
        return gaps_ms(marks)
    events = [event() for _ in range(repeats + 1)]
    events[0].record()
    for each in events[1:]:
        call()
        each.record()
    loaded.target.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the garbage collector for the block, as in a service after its warm-up."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
