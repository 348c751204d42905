"""Cost of a step with draft heads that run in the captured graph.

A step with heads verifies the draft of the previous step, continues after its accepted tokens, and
drafts again, in one launch; the next step is launched before the host has seen a token. The cost
does not depend on whether drafts are accepted, so random heads suffice. The gain does, and is
calculated for given acceptance rates.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Final

from llm_engine.backends.base import PageId
from llm_engine.cuda.backend import PAGE_SIZE, CudaBackend
from llm_engine.cuda.ops.interface import MAX_ROWS
from llm_engine.cuda.steps.draft_heads import step_bytes
from llm_engine.models.medusa_heads import DraftHeads

from . import targets as limits
from .device_limits import read_bandwidth
from .driving import SLOT, BackendSequence
from .figures import Figure, percentile
from .models import LoadedModel
from .random_weights import random_heads
from .steps import CONTEXT, STRETCH, interval_ms, quiet

_SEED: Final = 2


def in_graph(
    loaded: LoadedModel, acceptances: tuple[float, ...], numbers: tuple[int, ...]
) -> Iterator[Figure]:
    """Time of a step for each of `numbers` of heads, beside a step without heads in the same run,
    and time of a token for each acceptance rate."""
    num_steps, kv_bytes = loaded.target.num_steps, loaded.kv_bytes(CONTEXT)
    speed, weight_bytes = read_bandwidth(loaded.target), loaded.model.step_bytes
    bars = loaded.subject.bars(loaded.target)
    with quiet():
        plain = percentile(interval_ms(loaded.session(), num_steps), 0.5)
    yield Figure("a step without heads", plain, "ms", limits.step_ms(weight_bytes, kv_bytes, speed))
    for number in numbers:
        heads = random_heads(loaded.model, number, seed=_SEED)
        session = session_with(loaded, heads)
        with quiet():
            found, a_step = _drafted_ms(session, num_steps)
        half = percentile(found, 0.5)
        added = step_bytes(heads.shape, loaded.model)
        limit = limits.step_ms(weight_bytes + added, kv_bytes, speed)
        name = f"{number} heads"
        note = f"{half / plain:.3g} of one without; {added / 1e6:.3g} MB; {a_step:.2f} tokens"
        yield Figure(f"a step with {name}", half, "ms", limit, note=note)
        yield Figure(f"a step with {name}, p99", percentile(found, 0.99), "ms", limit)
        for acceptance in acceptances:
            tokens = limits.expected_tokens(acceptance, number)
            yield Figure(
                f"a token with {name}, {acceptance:.0%} right",
                half / tokens,
                "ms",
                limit / tokens,
                bars.speculative_ms(tokens),
                note=f"{tokens:.2f} tokens a step, reckoned",
            )
        del session, heads  # frees their memory before the next ones are made


def session_with(loaded: LoadedModel, heads: DraftHeads) -> BackendSequence:
    """Make a sequence on its own backend, with pages for a run of `interval_ms`."""
    num_pages = -(-(CONTEXT + STRETCH + 2 * MAX_ROWS) // PAGE_SIZE)
    backend = CudaBackend(
        loaded.model,
        loaded.ops,
        loaded.target.graphs(),
        num_pages=num_pages,
        cache_dtype=loaded.model.embedding.dtype,
        heads=heads,
    )
    pages = [PageId(page) for page in range(num_pages)]
    return BackendSequence(backend, pages, loaded.subject.config.vocab_size)


def drafted_step(session: BackendSequence, backend: CudaBackend) -> int:
    """Run a step that verifies the draft of the previous one. Returns its number of tokens."""
    return len(session.step(backend.drafted(SLOT, session.num_tokens)))


def _drafted_ms(session: BackendSequence, num_steps: int) -> tuple[list[float], float]:
    """Intervals in ms between steps, and mean number of tokens of a step."""
    backend = session.backend
    assert isinstance(backend, CudaBackend)
    brought: list[int] = []
    step = partial(drafted_step, session, backend)
    found = interval_ms(session, num_steps, step=lambda: brought.append(step()))
    return found, statistics.mean(brought)
