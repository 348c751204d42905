"""Long service: memory stays what it was, and a request that finds none fails alone."""

import gc
import random
from dataclasses import dataclass, field

import pytest
import torch

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Backend, Plan, StepHandle
from llm_engine.backends.wrapper import BackendWrapper
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.device import Fault, fault_of
from llm_engine.errors import EngineError
from llm_engine.kv_cache.kv_cache import SequenceId
from llm_engine.speculative.ngram import NgramDrafter
from tests.gpu import ground

pytestmark = ground.pytestmark

CONTEXT = 512
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.6, repetition_penalty=1.1),
)


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return ground.backend(ground.model("1b", "fp8 by row", 2, CONTEXT), num_pages=256)


def core_of(backend: Backend) -> EngineCore:
    return EngineCore(
        backend,
        (b"x",) * ground.ground().config("1b", 2).vocab_size,
        context_length=CONTEXT,
        prefill_chunk=128,
        max_sequences=16,
        clock=ManualClock(),
        drafters=[NgramDrafter()],
    )


@dataclass(slots=True)
class Callers:
    """Ask for this and that, up to eight at a time, and hang up at any moment."""

    core: EngineCore
    chance: random.Random
    sequences: list[SequenceId] = field(default_factory=list)
    errors: list[EngineError] = field(default_factory=list)

    def request(self) -> None:
        chance, core = self.chance, self.core
        if len(self.sequences) >= 8 or (self.sequences and chance.random() < 0.3):
            core.close_sequence(self.sequences.pop(chance.randrange(len(self.sequences))))
        self.sequences.append(core.open_sequence())
        vocab_size = ground.ground().config("1b", 2).vocab_size
        length = chance.choice([1, 5, 8, 9, 30, 64, 100])
        prompt = tuple(chance.randrange(vocab_size) for _ in range(length))
        sampling, number = chance.choice(SAMPLINGS), chance.randint(1, 6)
        core.add(Request(prompt, sampling, frozenset(), number, self.sequences[-1]))

    def step(self) -> None:
        for output in self.core.step():
            if output.error is not None:
                self.errors.append(output.error)

    def finish(self) -> None:
        while self.core.has_work:
            self.step()
        for sequence in self.sequences:
            self.core.close_sequence(sequence)
        self.sequences.clear()
        self.core.cache.check()


def memory() -> tuple[int, int]:
    """Allocated and reserved, bytes."""
    here = ground.ground()
    if here.is_rehearsal:
        return 0, 0
    gc.collect()  # of tests before
    torch.cuda.synchronize(here.device)
    return torch.cuda.memory_allocated(here.device), torch.cuda.memory_reserved(here.device)


def test_ten_thousand_requests_leave_memory_as_it_was(backend: CudaBackend) -> None:
    callers = Callers(core_of(backend), random.Random(1))
    number = ground.ground().count(10_000)
    settled = (0, 0)
    for index in range(number):
        callers.request()
        for _ in range(callers.chance.randint(1, 4)):
            callers.step()
        if index == number // 10:
            callers.finish()
            settled = memory()
    callers.finish()
    assert not callers.errors
    assert callers.core.cache.pool.num_used <= 8 * CONTEXT // ground.PAGE_SIZE
    assert memory() == settled


class Hungry(BackendWrapper):
    """Now and then wants more memory than any GPU has."""

    is_hungry = False

    def launch(self, plan: Plan) -> StepHandle:
        if self.is_hungry:
            torch.empty(1 << 44, dtype=torch.uint8, device=ground.ground().device)
        return super().launch(plan)


def test_a_request_without_memory_fails_and_the_engine_lives(backend: CudaBackend) -> None:
    hungry = Hungry(backend)
    callers = Callers(core_of(hungry), random.Random(2))
    before = memory()
    for _ in range(20):
        callers.request()
        hungry.is_hungry = True
        callers.step()
        hungry.is_hungry = False
        callers.step()
    callers.finish()
    assert callers.errors
    if not ground.ground().is_rehearsal:
        assert {fault_of(error) for error in callers.errors} == {Fault.OUT_OF_MEMORY}
        assert memory()[0] == before[0]  # torch gave back what it had kept for later
    num_failed = len(callers.errors)
    for _ in range(20):
        callers.request()
        callers.step()
    callers.finish()
    assert len(callers.errors) == num_failed
