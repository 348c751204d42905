"""What an engine may ask of a backend, drawn at random: prompts, replies, drafts, interruptions and
copied pages, in any mixture."""

import random
from dataclasses import dataclass, field

from llm_engine.backends.base import PageCopy, PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.config import SamplingParams
from llm_engine.cuda.backend import PAGE_SIZE

CONTEXT = 768
PAGES_EACH = CONTEXT // PAGE_SIZE
MAX_SEQUENCES = 10
NUM_PAGES = (MAX_SEQUENCES + 2) * PAGES_EACH
"""Of a backend that a schedule is for: some are spare."""

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=1.2, top_k=40, min_p=0.02),
    SamplingParams(temperature=0.8, repetition_penalty=1.2),
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

    def _grammar(self, num_rows: int) -> tuple[bytes, ...]:
        """Half of the vocabulary, and some token in any case."""
        width = -(-self.vocab_size // 8)
        return tuple(b"\x01" + self.chance.randbytes(width - 1) for _ in range(num_rows))

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
            allowed=self._grammar(1 + len(draft)) if self.chance.random() < 0.1 else (),
            pages=talk.pages,
        )
