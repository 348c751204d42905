"""Whole replies through the engine: drafts and companions change nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Slot
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request, RequestId
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.megakernel.tables import unsupported
from llm_engine.cuda.model import DeviceModel
from llm_engine.speculative.drafter import Draft, Drafter
from llm_engine.speculative.ngram import NgramDrafter
from tests.gpu import ground

pytestmark = ground.pytestmark

CONTEXT = 1024
NUM_TOKENS = 20 if ground.MODE == "rehearse" else 96
SAMPLINGS = {
    "greedy": SamplingParams(),
    "unfiltered": SamplingParams(temperature=0.8, seed=4),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=5),
    "penalized": SamplingParams(temperature=0.7, repetition_penalty=1.2, seed=6),
}


class Erring:
    """Knows the reply, and errs now and then."""

    name = "erring"
    grade = 0

    def __init__(self, texts: Sequence[Sequence[int]], share_right: float) -> None:
        self._texts = [list(text) for text in texts]
        self._share_right = share_right
        self._chance = random.Random(3)
        self.num_proposed = 0

    def begin(self, slot: Slot) -> Draft:
        return self

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        told = list(tokens)
        for text in self._texts:
            if text[: len(told)] == told:
                following = text[len(told) : len(told) + max_tokens]
                self.num_proposed += len(following)
                return [
                    token if self._chance.random() < self._share_right else token ^ 1
                    for token in following
                ]
        return ()

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as it is served."""

    model: DeviceModel
    backend: CudaBackend

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size


KINDS = {
    "bfloat16": ("1b", "bfloat16", torch.bfloat16),
    "fp8, its cache as well": ("1b", "fp8 by row", torch.float8_e4m3fn),
    "fp8 by block": ("1b", "fp8 by block", torch.bfloat16),
    "int4": ("1b", "int4", torch.bfloat16),
    "norms of heads": ("qwen3-8b", "fp8 by row", torch.bfloat16),
    "one kernel": ("1b", "fp8 by row", torch.bfloat16),
}


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest) -> Subject:
    shape, weights, cache_dtype = KINDS[request.param]
    model = ground.model(shape, weights, 4, CONTEXT)
    has_megakernel = request.param == "one kernel"
    if has_megakernel and not ground.ground().is_rehearsal:
        assert unsupported(model, ()) is None
    made = ground.backend(
        model,
        num_pages=600,
        cache_dtype=cache_dtype,
        has_megakernel=has_megakernel,
    )
    return Subject(model, made)


def prompts(subject: Subject, number: int) -> list[tuple[int, ...]]:
    chance = random.Random(number)
    vocab_size = subject.vocab_size
    lengths = [5, 40, 64, 130, 700, 8, 9, 16]
    return [
        tuple(chance.randrange(vocab_size) for _ in range(length)) for length in lengths[:number]
    ]


def replies(
    subject: Subject,
    asked: Sequence[tuple[int, ...]],
    sampling: SamplingParams,
    *,
    drafters: Sequence[Drafter] = (),
    at_once: bool = False,
    backend: CudaBackend | None = None,
) -> list[list[int]]:
    """The tokens after each prompt, one after the other or all at once; of another backend than the
    subject's, if there is one. However many there are, each prompt is read in one step: a library's
    product rounds otherwise for another number of rows."""
    core = EngineCore(
        backend or subject.backend,
        (b"x",) * subject.vocab_size,
        context_length=CONTEXT,
        prefill_chunk=CONTEXT,
        max_sequences=len(asked),
        clock=ManualClock(),
        drafters=drafters,
    )
    found: dict[RequestId, list[int]] = {}
    sequences = [core.open_sequence() for _ in asked]
    for prompt, sequence in zip(asked, sequences, strict=True):
        request = Request(prompt, sampling, frozenset(), NUM_TOKENS, sequence)
        found[core.add(request)] = []
        while core.has_work and not at_once:
            take(core, found)
    while core.has_work:
        take(core, found)
    for sequence in sequences:
        core.close_sequence(sequence)
    core.cache.check()
    return list(found.values())


def take(core: EngineCore, found: dict[RequestId, list[int]]) -> None:
    for output in core.step():
        assert output.error is None, output.error
        found[output.request_id] += output.token_ids


@pytest.mark.parametrize("name", SAMPLINGS)
def test_drafts_change_nothing(subject: Subject, name: str) -> None:
    asked, sampling = prompts(subject, 5), SAMPLINGS[name]
    plain = replies(subject, asked, sampling)
    assert all(len(reply) == NUM_TOKENS for reply in plain)
    texts = [[*prompt, *reply] for prompt, reply in zip(asked, plain, strict=True)]
    for share_right in (0.0, 0.5, 0.9, 1.0):
        drafter = Erring(texts, share_right)
        drafted = replies(subject, asked, sampling, drafters=[drafter])
        assert drafted == plain, f"{share_right:.0%} right"
        assert drafter.num_proposed > 0
    assert replies(subject, asked, sampling, drafters=[NgramDrafter()]) == plain


@pytest.mark.parametrize("name", SAMPLINGS)
def test_companions_change_nothing(subject: Subject, name: str) -> None:
    asked, sampling = prompts(subject, 8), SAMPLINGS[name]
    assert replies(subject, asked, sampling, at_once=True) == replies(subject, asked, sampling)


def test_the_same_twice_is_the_same(subject: Subject) -> None:
    asked = prompts(subject, 8)
    first = replies(subject, asked, SAMPLINGS["sampled"])
    for _ in range(1 if ground.ground().is_rehearsal else 20):
        assert replies(subject, asked, SAMPLINGS["sampled"]) == first


def test_a_short_prompt_is_read_as_it_was_said(subject: Subject) -> None:
    """Up to eight rows one arithmetic holds, for prompts as for replies."""
    (prompt,) = prompts(subject, 1)
    (reply,) = replies(subject, [prompt], SAMPLINGS["greedy"])
    (again,) = replies(subject, [(*prompt, *reply[:3])], SAMPLINGS["greedy"])
    assert again[: NUM_TOKENS - 3] == reply[3:]
