"""Recorded graphs against the same work launched anew, over thousands of random schedules.

Both backends have the same weights and the same kernels. What differs is that one replays graphs,
whose operands are where they were when they were recorded: whatever the host forgot to say, or said
too late, shows as another token.
"""

import random
from dataclasses import dataclass, field

import pytest
import torch

from llm_engine.backends.base import Backend, PageCopy, PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.config import SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.graphs import EagerGraphs
from tests.gpu import ground

pytestmark = ground.pytestmark

CONTEXT = 768
PAGES_EACH = CONTEXT // ground.PAGE_SIZE
MAX_SEQUENCES = 10
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.2, top_k=40, min_p=0.02),
    SamplingParams(temperature=0.8, repetition_penalty=1.2),
)


@pytest.fixture(scope="module")
def backends() -> tuple[CudaBackend, CudaBackend]:
    weights = ground.model("1b", "fp8 by row", 2, CONTEXT)
    num_pages = (MAX_SEQUENCES + 2) * PAGES_EACH
    return (
        ground.backend(weights, num_pages=num_pages),
        ground.backend(weights, num_pages=num_pages, graphs=EagerGraphs()),
    )


@dataclass(slots=True)
class Talk:
    """A sequence, and what has been said."""

    slot: Slot
    pages: list[PageId]
    sampling: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    num_cached: int = 0


@dataclass(slots=True)
class Schedule:
    """What an engine may ask for, drawn at random; the same for the same seed."""

    chance: random.Random
    vocab_size: int
    talks: list[Talk] = field(default_factory=list)
    num_slots: int = 0

    def plan(self) -> tuple[Plan, dict[Slot, tuple[Talk, tuple[int, ...]]]]:
        """The next step, and each sequence's draft in it."""
        chance = self.chance
        if chance.random() < 0.15 and self.talks:
            self.talks.remove(chance.choice(self.talks))
        if chance.random() < 0.15 and self.talks:
            self._cut_back(chance.choice(self.talks))
        copies = self._move() if chance.random() < 0.05 else ()
        if not self.talks or (len(self.talks) < MAX_SEQUENCES and chance.random() < 0.25):
            self._open()
        chosen = self._chosen()
        drafts = {talk.slot: (talk, self._draft(talk, chosen)) for talk in chosen}
        rows = tuple(self._rows(talk, draft) for talk, draft in drafts.values())
        return Plan((SubBatch(rows),), copies), drafts

    def take(
        self, drafts: dict[Slot, tuple[Talk, tuple[int, ...]]], found: dict[Slot, tuple[int, ...]]
    ) -> None:
        """Go on with what was chosen."""
        for slot, (talk, draft) in drafts.items():
            chosen = found.get(slot, ())
            if not chosen:
                continue
            num_right = 0
            while num_right < len(draft) and chosen[num_right] == draft[num_right]:
                num_right += 1
            talk.num_cached = len(talk.tokens) + num_right
            talk.tokens += chosen[: num_right + 1]

    def _open(self) -> None:
        chance = self.chance
        self.num_slots += 1
        taken = {talk.pages[0] // PAGES_EACH for talk in self.talks}
        place = chance.choice([each for each in range(MAX_SEQUENCES) if each not in taken])
        length = chance.choice([1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65, 130, 500, 600])
        tokens = [chance.randrange(self.vocab_size) for _ in range(length)]
        pages = [PageId(place * PAGES_EACH + index) for index in range(PAGES_EACH)]
        self.talks.append(
            Talk(Slot(self.num_slots), pages, chance.choice(SAMPLINGS), length, tokens, length)
        )

    def _cut_back(self, talk: Talk) -> None:
        """The caller interrupted: some of the reply was never heard, something else was said."""
        kept = self.chance.randint(1, len(talk.tokens))
        said = [self.chance.randrange(self.vocab_size) for _ in range(self.chance.randint(1, 20))]
        talk.tokens = [*talk.tokens[:kept], *said]
        talk.num_cached = min(talk.num_cached, kept)
        talk.num_prompt = len(talk.tokens)

    def _move(self) -> tuple[PageCopy, ...]:
        """A shared page is written: it becomes a page of one's own, among the spare ones."""
        if not self.talks:
            return ()
        talk = self.chance.choice(self.talks)
        index = self.chance.randrange(PAGES_EACH)
        spare = MAX_SEQUENCES * PAGES_EACH
        used = {page for each in self.talks for page in each.pages}
        free = [page for page in range(spare, spare + 2 * PAGES_EACH) if page not in used]
        copy = PageCopy(talk.pages[index], PageId(self.chance.choice(free)))
        talk.pages[index] = copy.target
        return (copy,)

    def _chosen(self) -> list[Talk]:
        for talk in self.talks:  # a full one begins anew
            if len(talk.tokens) + 16 > CONTEXT:
                talk.tokens, talk.num_cached, talk.num_prompt = talk.tokens[:40], 0, 40
        if self.chance.random() < 0.5:
            return [self.chance.choice(self.talks)]
        return [talk for talk in self.talks if self.chance.random() < 0.8] or [self.talks[0]]

    def _draft(self, talk: Talk, chosen: list[Talk]) -> tuple[int, ...]:
        is_decoding = len(talk.tokens) == talk.num_cached + 1
        if len(chosen) > 1 or not is_decoding or self.chance.random() < 0.5:
            return ()
        length = self.chance.randint(1, 7)
        return tuple(self.chance.randrange(self.vocab_size) for _ in range(length))

    def _rows(self, talk: Talk, draft: tuple[int, ...]) -> SequenceRows:
        is_penalized = talk.sampling.repetition_penalty != 1
        return SequenceRows(
            slot=talk.slot,
            token_ids=(*talk.tokens[talk.num_cached :], *draft),
            first_position=talk.num_cached,
            num_sampled=1 + len(draft),
            sampling=talk.sampling,
            seed=talk.seed,
            chosen=tuple(talk.tokens[talk.num_prompt :]) if is_penalized else (),
            pages=talk.pages,
        )


def run(backend: Backend, plan: Plan) -> dict[Slot, tuple[int, ...]]:
    return dict(backend.collect(backend.launch(plan)).tokens)


@pytest.mark.parametrize("part", range(4))
def test_recorded_and_launched_anew_say_the_same(
    backends: tuple[CudaBackend, CudaBackend], part: int
) -> None:
    recorded, anew = backends
    vocab_size = ground.ground().config("1b", 2).vocab_size
    for seed in range(ground.ground().count(500)):
        schedule = Schedule(random.Random(1000 * part + seed), vocab_size)
        for number in range(12):
            plan, drafts = schedule.plan()
            found, expected = run(recorded, plan), run(anew, plan)
            assert found == expected, f"schedule {part}/{seed}, step {number}"
            schedule.take(drafts, found)


def test_what_is_stored_is_the_same_to_the_last_bit(
    backends: tuple[CudaBackend, CudaBackend],
) -> None:
    """Tokens may agree by luck; logits do not."""
    vocab_size = ground.ground().config("1b", 2).vocab_size
    schedule = Schedule(random.Random(7), vocab_size)
    for _ in range(ground.ground().count(300)):
        plan, drafts = schedule.plan()
        outcomes = [run(backend, plan) for backend in backends]
        schedule.take(drafts, outcomes[0])
    for talk in schedule.talks:
        rows = SequenceRows(
            talk.slot, (talk.tokens[-1],), len(talk.tokens) - 1, 1, SamplingParams(), 0,
            pages=talk.pages,
        )  # fmt: skip
        if talk.num_cached == len(talk.tokens) - 1:
            recorded, anew = (backend.logits(rows) for backend in backends)
            assert torch.equal(recorded, anew)
