"""Drafting changes the speed of a reply and nothing else."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget.account.clock import ManualClock, SystemClock
from llm_engine.backends.base import Plan, Slot, StepHandle
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Output, Request
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from llm_engine.speculative.draft_model import ModelDrafter
from llm_engine.speculative.drafter import Draft, Drafter
from llm_engine.speculative.ngram import LONGEST_MATCH, NgramDrafter
from tests.support.fakes.llm_decoding import CPU_PRECISIONS
from tests.support.fakes.llm_models import ScriptedBackend, save_tiny_model
from tests.support.models import model_path

LETTERS = tuple(bytes([code]) for code in range(128))
END = 0


class GivenDrafter:
    """Proposes what a function says."""

    name = "given"
    grade = 0

    def __init__(self, propose: Any) -> None:
        self.propose = propose
        self.num_open = 0

    def begin(self, slot: Slot) -> Draft:
        self.num_open += 1
        return self  # one for all

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        self.num_open -= 1


class TimedBackend(ScriptedBackend):
    """Takes 10 ms a step and 2 ms for each row more."""

    def __init__(self, next_token: Any, clock: ManualClock) -> None:
        super().__init__(next_token)
        self._clock = clock

    def launch(self, plan: Plan) -> StepHandle:
        for batch in plan.sub_batches:
            for rows in batch.sequences:
                self._clock.advance_ms(8 + 2 * len(rows.token_ids))
        return super().launch(plan)


def reply_of(
    next_token: Any,
    drafters: Sequence[Drafter],
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 40,
) -> tuple[str, list[Output], ScriptedBackend, EngineCore]:
    clock = ManualClock()
    backend = TimedBackend(next_token, clock)
    core = EngineCore(
        backend,
        LETTERS,
        context_length=100,
        prefill_chunk=8,
        max_sequences=2,
        clock=clock,
        drafters=drafters,
    )
    core.add(
        Request(
            prompt=tuple(b"the cat sat"),
            sampling=sampling or SamplingParams(),
            end_ids=frozenset([END]),
            max_tokens=max_tokens,
            sequence=core.open_sequence(),
        )
    )
    outputs: list[Output] = []
    while core.has_work:
        outputs += core.step()
        core.cache.check()
    return "".join(output.text for output in outputs), outputs, backend, core


def lettered(held: list[int]) -> int:
    return 97 + sum((index + 1) * token for index, token in enumerate(held)) % 5


@st.composite
def drafts(draw: st.DrawFn) -> Any:
    """Right for a while, then wrong, of any length; sometimes none."""
    plans = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=9))
    plan = itertools.cycle(plans)

    def propose(tokens: Sequence[int], max_tokens: int) -> list[int]:
        num_right, num_wrong = next(plan)
        held = list(tokens)
        for _ in range(num_right):
            held.append(lettered(held))
        return [*held[len(tokens) :], *[33] * num_wrong][:max_tokens]

    return propose


@given(drafts(), st.integers(12, 60), st.sampled_from([(), ("ab",), ("c", "dd")]))
def test_any_draft_gives_the_same_reply(propose: Any, end: int, stop: tuple[str, ...]) -> None:
    def next_token(held: list[int]) -> int:
        return END if len(held) >= end else lettered(held)

    sampling = SamplingParams(stop=stop)
    expected = reply_of(next_token, [], sampling=sampling)
    drafter = GivenDrafter(propose)
    drafted = reply_of(next_token, [drafter], sampling=sampling)
    assert drafted[0] == expected[0]
    assert drafted[1][-1].finish_reason == expected[1][-1].finish_reason
    assert drafted[1][-1].usage == expected[1][-1].usage
    ids = [
        [i for output in outputs for i in output.token_ids]
        for _, outputs, *_ in (drafted, expected)
    ]
    assert ids[0] == ids[1]
    assert drafter.num_open == 0


def test_right_drafts_save_steps_and_are_counted() -> None:
    def propose(tokens: Sequence[int], max_tokens: int) -> list[int]:
        held = list(tokens)
        for _ in range(max_tokens):
            held.append(lettered(held))
        return held[len(tokens) :]

    _, outputs, backend, core = reply_of(lettered, [GivenDrafter(propose)])
    assert len(backend.steps) < 2 + 40 / 3
    counts = core.stats().drafts["given"]
    assert counts.num_accepted == counts.num_drafted > 25
    assert outputs[-1].usage is not None
    assert core.stats().output_tokens == outputs[-1].usage.output_tokens == 40


def test_wrong_drafts_are_soon_given_up() -> None:
    asked = GivenDrafter(lambda tokens, max_tokens: [33] * max_tokens)
    _, _, backend, core = reply_of(lettered, [asked], max_tokens=80)
    wasted = [len(rows.token_ids) - 1 for (rows,) in backend.steps[2:]]
    counts = core.stats().drafts["given"]
    assert counts.num_accepted == 0
    assert counts.num_drafted == sum(wasted)
    assert sum(wasted[-40:]) <= 2  # a probe now and then


def test_the_first_drafter_with_an_idea_is_taken() -> None:
    silent = GivenDrafter(lambda tokens, max_tokens: [])
    other = GivenDrafter(lambda tokens, max_tokens: [lettered(list(tokens))][:max_tokens])
    silent.name, other.name = "silent", "other"
    _, _, _, core = reply_of(lettered, [silent, other])
    assert core.stats().drafts["silent"].num_drafted == 0
    assert core.stats().drafts["other"].num_accepted > 10


def test_no_drafting_with_two_active_sequences() -> None:
    backend = ScriptedBackend(lettered)
    always = GivenDrafter(lambda tokens, max_tokens: [33][:max_tokens])
    core = EngineCore(
        backend,
        LETTERS,
        context_length=100,
        prefill_chunk=8,
        max_sequences=2,
        clock=ManualClock(),
        drafters=[always],
    )
    for _ in range(2):
        core.add(Request((97,), SamplingParams(), frozenset([END]), 9, core.open_sequence()))
    while core.has_work:
        core.step()
    assert {len(rows.token_ids) for step in backend.steps for rows in step if len(step) == 2} == {1}


def test_a_drafter_that_raises_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail(tokens: Sequence[int], max_tokens: int) -> list[int]:
        raise RuntimeError("no idea")

    text, *_ = reply_of(lettered, [GivenDrafter(fail)])
    assert text == reply_of(lettered, [])[0]
    assert caplog.text.count("drafting failed") == 1


def test_repetitions_are_found() -> None:
    draft = NgramDrafter().begin(Slot(1))
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    assert list(draft.propose(tokens, 3)) == [3, 4, 5]
    assert list(draft.propose([*tokens, 3, 9], 3)) == []
    assert list(draft.propose([*tokens, 3, 9, 1, 2], 2)) == [3, 9]  # the last time counts
    assert list(NgramDrafter().begin(Slot(1)).propose([7], 3)) == []


ODD_IDS = (0, 0xD800, 0xDC00, 0xFEFF)
"""As characters: none, halves of a pair, and a mark of byte order."""


@given(st.lists(st.sampled_from(ODD_IDS), min_size=1, max_size=60))
def test_what_is_proposed_did_follow_the_longest_match(tokens: list[int]) -> None:
    draft = NgramDrafter().begin(Slot(1))
    for end in range(1, len(tokens) + 1):
        matches = (
            (length, start + length)
            for length in range(2, min(LONGEST_MATCH, end - 1) + 1)
            for start in range(end - length)
            if tokens[start : start + length] == tokens[end - length : end]
        )
        _, after = max(matches, default=(0, end))
        assert list(draft.propose(tokens[:end], 4)) == tokens[after:end][:4]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large")
    save_tiny_model(path, "llama")
    return path


SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=60),
    "seeded": SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=60),
    "penalized": SamplingParams(repetition_penalty=1.2, max_tokens=60),
}


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_model_drafts_for_another(
    tiny: Path, tmp_path: Path, sampling: str, precision: Precision
) -> None:
    """The larger as its own draft, so that drafts are right, and a smaller one that seldom is."""
    save_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)
    ids: list[list[int]] = []
    accepted: list[int] = []
    for draft_model in (None, tiny, tmp_path):
        config = EngineConfig(
            precision=precision, num_threads=1, ngram_drafts=False, draft_model=draft_model
        )
        engine = Engine.load(tiny, config, clock=SystemClock())
        try:
            chunks = [c async for c in engine.generate([5, 17, 30] * 20, SAMPLINGS[sampling])]
            ids.append([token_id for chunk in chunks for token_id in chunk.token_ids])
            counts = (await engine.stats()).drafts.get("model")
            accepted.append(0 if counts is None else counts.num_accepted)
            assert chunks[-1].finish_reason is not None
        finally:
            engine.close()
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) > 20
    if sampling == "greedy":
        assert accepted[1] > 0


async def test_repetitions_change_nothing(tiny: Path) -> None:
    ids: list[list[int]] = []
    for ngram_drafts in (True, False):
        engine = Engine.load(tiny, EngineConfig(num_threads=1, ngram_drafts=ngram_drafts))
        try:
            chunks = [c async for c in engine.generate([5, 17, 30] * 20, SAMPLINGS["greedy"])]
            ids.append([token_id for chunk in chunks for token_id in chunk.token_ids])
            if ngram_drafts:
                assert (await engine.stats()).drafts["ngram"].num_drafted > 0
        finally:
            engine.close()
    assert ids[0] == ids[1]


def test_a_draft_model_that_runs_out_of_room_is_silent() -> None:
    backend = ScriptedBackend(lettered, num_pages=20)  # 80 tokens
    drafter = ModelDrafter(backend, context_length=200, max_sequences=1, prefill_chunk=16)
    first, second = drafter.begin(Slot(1)), drafter.begin(Slot(2))
    assert len(first.propose([5] * 10, 3)) == 3
    assert list(second.propose([5] * 10, 3)) == []  # one at a time
    first.close()
    assert list(second.propose([5] * 40, 3)) == []  # reads 16 at a time
    assert list(second.propose([5] * 40, 3)) == []
    assert len(second.propose([5] * 40, 3)) == 3
    for _ in range(7):
        assert list(second.propose([5] * 90, 3)) == []  # no room
    assert list(second.propose([5] * 199, 3)) == []  # beyond its context
    assert len(second.propose([5] * 40, 3)) == 3
    drafter.cache.check()


def test_a_draft_model_needs_the_same_vocabulary(tiny: Path) -> None:
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    with pytest.raises(ModelError, match="vocabulary is not the model's"):
        Engine.load(tiny, EngineConfig(draft_model=path))
