"""Requests share steps, reuse what is cached, and fail alone."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget.clock import ManualClock
from llm_engine.config import SamplingParams
from llm_engine.core import EngineCore
from llm_engine.errors import EngineError, RequestError
from llm_engine.reply import FinishReason
from llm_engine.requests import EngineMark, Output, Request, RequestId
from llm_engine.sequence import SequenceId
from tests.fakes.llm_models import ScriptedBackend

LETTERS = tuple(bytes([code]) for code in range(128))
END = 0


def next_letter(held: list[int]) -> int:
    """A token that depends on everything before it, never the end."""
    return 97 + (sum((index + 1) * token for index, token in enumerate(held)) % 26)


class Bench:
    """A core, its backend, and what came out for each request."""

    def __init__(
        self,
        next_token: Callable[[list[int]], int] = next_letter,
        *,
        num_pages: int = 1000,
        shares_pages: bool = True,
        **settings: Any,
    ) -> None:
        self.backend = ScriptedBackend(next_token, num_pages=num_pages, shares_pages=shares_pages)
        self.clock = ManualClock()
        defaults = {"context_length": 200, "prefill_chunk": 8, "max_sequences": 4}
        self.core = EngineCore(self.backend, LETTERS, clock=self.clock, **{**defaults, **settings})
        self.outputs: dict[RequestId, list[Output]] = {}

    def add(
        self, prompt: str, max_tokens: int = 5, sequence: SequenceId | None = None, **more: Any
    ) -> RequestId:
        return self.core.add(
            Request(
                prompt=tuple(prompt.encode()),
                sampling=more.pop("sampling", SamplingParams()),
                end_ids=frozenset([END]),
                max_tokens=max_tokens,
                sequence=self.core.open_sequence() if sequence is None else sequence,
                **more,
            )
        )

    def step(self) -> list[Output]:
        outputs = self.core.step()
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def run(self) -> None:
        while self.core.has_work:
            self.step()
            self.core.check()

    def text(self, request: RequestId) -> str:
        return "".join(output.text for output in self.outputs.get(request, []))


def alone(prompt: str, max_tokens: int) -> str:
    bench = Bench(prefill_chunk=1000)
    request = bench.add(prompt, max_tokens)
    bench.run()
    return bench.text(request)


def test_a_reply_from_prompt_to_end() -> None:
    bench = Bench(lambda held: END if len(held) == 12 else next_letter(held))
    request = bench.add("0123456789", 50)
    bench.run()
    last = bench.outputs[request][-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.cached_tokens, last.usage.output_tokens) == (
        10,
        0,
        2,
    )
    assert [len(rows[0].token_ids) for rows in bench.backend.steps] == [8, 2, 1, 1]
    assert [rows[0].num_sampled for rows in bench.backend.steps] == [0, 1, 1, 1]


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 6)),
        min_size=1,
        max_size=4,
    )
)
def test_company_changes_nothing(requests: list[tuple[str, int, int]]) -> None:
    bench = Bench()
    ids: dict[RequestId, tuple[str, int]] = {}
    for at_step in range(7):
        for prompt, max_tokens, start in requests:
            if start == at_step:
                ids[bench.add(prompt, max_tokens)] = (prompt, max_tokens)
        bench.step()
    bench.run()
    for request, (prompt, max_tokens) in ids.items():
        assert bench.text(request) == alone(prompt, max_tokens)


def test_a_long_prompt_adds_one_chunk_to_a_reply() -> None:
    bench = Bench()
    talking = bench.add("a", 30)
    bench.step()
    bench.add("x" * 100)
    for _ in range(10):
        token, nothing = bench.step(), bench.step()
        assert [output.request_id for output in token] == [talking]
        assert nothing == []
        assert [len(rows[0].token_ids) for rows in bench.backend.steps[-2:]] == [1, 8]


def test_prompts_take_turns() -> None:
    bench = Bench()
    first, second = bench.add("x" * 40, 1), bench.add("y" * 16, 1)
    bench.run()
    assert list(bench.outputs) == [second, first]


def test_deadlines_come_first_and_previews_last() -> None:
    bench = Bench()
    preview = bench.add("p" * 16, 0)
    plain = bench.add("n" * 16, 1)
    late = bench.add("l" * 16, 1, deadline_ns=900)
    soon = bench.add("s" * 16, 1, deadline_ns=100)
    bench.run()
    assert list(bench.outputs) == [soon, late, plain, preview]


def test_a_preview_beside_a_reply_goes_slowly() -> None:
    bench = Bench(prefill_chunk=64)
    bench.add("a", 20)
    bench.step()
    bench.add("p" * 100, 0)
    bench.step()
    assert [len(rows.token_ids) for rows in bench.backend.steps[-1]] == [1, 16]


def test_what_is_cached_is_not_computed_again() -> None:
    bench = Bench()
    sequence = bench.core.open_sequence()
    bench.add("hello wor", 0, sequence)
    bench.run()
    request = bench.add("hello there", 3, sequence)
    bench.run()
    usage = bench.outputs[request][-1].usage
    assert usage is not None
    assert usage.cached_tokens == len("hello ")
    assert bench.text(request) == alone("hello there", 3)
    again = bench.add("hello there", 3, sequence)
    bench.run()
    usage = bench.outputs[again][-1].usage
    assert usage is not None
    assert usage.cached_tokens == len("hello there") - 1
    assert bench.text(again) == alone("hello there", 3)


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=12), st.integers(0, 4)), max_size=8))
def test_any_history_of_prompts_equals_a_cold_start(requests: list[tuple[str, int]]) -> None:
    bench = Bench()
    sequence = bench.core.open_sequence()
    for index, (prompt, max_tokens) in enumerate(requests):
        request = bench.add(prompt, max_tokens, sequence)
        if index % 3 == 2:
            bench.step()  # and the next request cuts this one off
            continue
        bench.run()
        assert bench.text(request) == (alone(prompt, max_tokens) if max_tokens else "")


def test_a_new_request_ends_the_one_before_on_its_sequence() -> None:
    bench = Bench()
    sequence = bench.core.open_sequence()
    first = bench.add("hello", 50, sequence)
    bench.step()
    second = bench.add("other", 2, sequence)
    bench.run()
    assert bench.outputs[first][-1].finish_reason is FinishReason.CANCELLED
    assert bench.text(second) == alone("other", 2)


def test_aborting_stops_the_work_at_once() -> None:
    bench = Bench()
    request = bench.add("hello", 50)
    bench.step()
    bench.core.abort(request)
    num_steps = len(bench.backend.steps)
    assert not bench.core.has_work
    assert bench.step() == []
    assert len(bench.backend.steps) == num_steps
    bench.core.abort(request)


def test_a_backend_that_raises_fails_the_guilty_request_only() -> None:
    def poisoned(held: list[int]) -> int:
        if ord("!") in held and len(held) > 3:
            raise ValueError("no such tensor")
        return next_letter(held)

    bench = Bench(poisoned)
    good, bad = bench.add("good", 6), bench.add("b!", 6)
    bench.run()
    error = bench.outputs[bad][-1].error
    assert isinstance(error, EngineError)
    assert "no such tensor" in str(error)
    assert bench.text(good) == alone("good", 6)
    assert not bench.core.has_work


def test_marks_come_with_the_first_token() -> None:
    bench = Bench()
    request = bench.add("x" * 12, 3)
    bench.clock.advance_ms(2)
    bench.step()
    bench.clock.advance_ms(3)
    bench.run()
    first, *rest = bench.outputs[request]
    assert first.marks == (
        (EngineMark.QUEUED, 0),
        (EngineMark.PREFILL_START, 2_000_000),
        (EngineMark.FIRST_TOKEN, 5_000_000),
    )
    assert not any(output.marks for output in rest)


def test_the_context_ends_a_reply() -> None:
    bench = Bench(context_length=10)
    request = bench.add("12345678", 50)
    bench.run()
    last = bench.outputs[request][-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage is not None
    assert last.usage.output_tokens == 2


def test_a_penalty_knows_the_reply_and_nothing_else() -> None:
    bench = Bench()
    bench.add("ab", 3, sampling=SamplingParams(repetition_penalty=1.1))
    bench.run()
    rows = [step[0] for step in bench.backend.steps]
    assert [row.chosen for row in rows] == [
        (),
        rows[1].token_ids,
        rows[1].token_ids + rows[2].token_ids,
    ]
    bench.add("ab", 3)
    bench.run()
    assert bench.backend.steps[-1][0].chosen == ()


def test_stop_strings_end_a_reply() -> None:
    script = {4: "x", 5: "<", 6: "/", 7: "s"}
    bench = Bench(lambda held: ord(script[len(held)]))
    request = bench.add("abcd", 50, sampling=SamplingParams(stop=("</s",)))
    bench.run()
    assert bench.text(request) == "x"
    assert bench.outputs[request][-1].finish_reason is FinishReason.STOP


def test_what_is_refused() -> None:
    bench = Bench(context_length=10)
    with pytest.raises(RequestError, match="prompt: is empty"):
        bench.add("")
    with pytest.raises(RequestError, match="has 10 tokens; the context holds 10"):
        bench.add("x" * 10)
    bench.core.open_sequence()
    bench.core.open_sequence()
    with pytest.raises(RequestError, match="all 4 of the engine's sequences"):
        bench.core.open_sequence()
    assert not bench.core.has_work


def test_closing_a_sequence_releases_everything() -> None:
    bench = Bench()
    sequence = bench.core.open_sequence()
    request = bench.add("hello", 50, sequence)
    bench.step()
    bench.core.close_sequence(sequence)
    bench.core.close_sequence(sequence)
    bench.run()
    assert bench.outputs[request][-1].finish_reason is FinishReason.CANCELLED
    assert bench.backend.slots == {}
    assert bench.core.stats().num_sequences == 0
    with pytest.raises(RequestError, match="is closed"):
        bench.add("x", 1, sequence)


@pytest.mark.parametrize("shares_pages", [True, False])
@given(
    st.lists(
        st.tuples(
            st.text("ab", min_size=1, max_size=20),  # many begin alike
            st.integers(0, 12),
            st.integers(0, 9),  # the step in which it comes
            st.integers(0, 2),  # which conversation it belongs to
            st.booleans(),  # whether it is aborted after a while
        ),
        max_size=8,
    )
)
def test_a_full_cache_changes_nothing(
    shares_pages: bool, requests: list[tuple[str, int, int, int, bool]]
) -> None:
    bench = Bench(num_pages=9, shares_pages=shares_pages)  # 36 tokens; three calls want 96
    sequences = [bench.core.open_sequence() for _ in range(3)]
    wanted: dict[RequestId, tuple[str, int]] = {}
    doomed: list[RequestId] = []
    for at_step in range(10):
        for prompt, max_tokens, start, which, is_doomed in requests:
            if start == at_step:
                request = bench.add(
                    prompt, max_tokens, sequences[which], num_fixed=min(len(prompt), 6)
                )
                wanted[request] = (prompt, max_tokens)
                if is_doomed:
                    doomed.append(request)
        bench.step()
        bench.core.check()
        if doomed and at_step % 3 == 2:
            bench.core.abort(doomed.pop())
    bench.run()
    for request, (prompt, max_tokens) in wanted.items():
        outputs = bench.outputs.get(request)
        if outputs and outputs[-1].finish_reason in (FinishReason.LENGTH, FinishReason.STOP):
            assert bench.text(request) == (alone(prompt, max_tokens) if max_tokens else "")
        elif outputs:
            assert alone(prompt, 12).startswith(bench.text(request))


def test_replies_give_up_their_pages_and_go_on() -> None:
    bench = Bench(num_pages=8)  # 32 tokens for two that grow to 27
    first, second = bench.add("a" * 7, 20), bench.add("b" * 7, 20)
    bench.run()
    assert bench.core.stats().num_preempted > 0
    assert bench.text(first) == alone("a" * 7, 20)
    assert bench.text(second) == alone("b" * 7, 20)


def test_the_oldest_idle_conversation_goes_first() -> None:
    bench = Bench(num_pages=8)
    old, new = bench.core.open_sequence(), bench.core.open_sequence()
    bench.add("o" * 11, 1, old)
    bench.run()
    bench.add("n" * 11, 1, new)
    bench.run()
    bench.add("x" * 14, 1)
    bench.run()
    request = bench.add("n" * 11 + "!", 1, new)
    bench.run()
    usage = bench.outputs[request][-1].usage
    assert usage is not None
    assert usage.cached_tokens == 11
    request = bench.add("o" * 11 + "!", 1, old)
    bench.run()
    usage = bench.outputs[request][-1].usage
    assert usage is not None
    assert usage.cached_tokens == 0


@pytest.mark.parametrize("shares_pages", [True, False])
def test_calls_that_begin_alike_compute_it_once(shares_pages: bool) -> None:
    bench = Bench(shares_pages=shares_pages)
    fixed = "You are brief."
    bench.add(fixed + "One?", 2, num_fixed=len(fixed))
    bench.run()
    request = bench.add(fixed + "Two?", 2, num_fixed=len(fixed))
    bench.run()
    usage = bench.outputs[request][-1].usage
    assert usage is not None
    assert usage.cached_tokens == len(fixed)
    assert bench.text(request) == alone(fixed + "Two?", 2)


def test_pinned_prefixes_do_not_pile_up() -> None:
    bench = Bench(max_sequences=1)
    sequence = bench.core.open_sequence()
    for number in range(40):
        bench.add(f"{number:08d}hello", 1, sequence, num_fixed=8)
        bench.run()
    assert bench.core.stats().pages_used < 40


def test_a_prompt_that_finds_no_room_fails_at_its_deadline() -> None:
    bench = Bench(num_pages=4)
    talking = bench.add("a" * 10, 6, deadline_ns=1)
    bench.step()
    late = bench.add("b" * 8, 5, deadline_ns=1_000_000)
    bench.step()
    assert late not in bench.outputs
    bench.clock.advance_ms(2)
    bench.run()
    error = bench.outputs[late][-1].error
    assert isinstance(error, EngineError)
    assert "no room before the deadline" in str(error)
    assert bench.text(talking) == alone("a" * 10, 6)


def test_what_can_never_fit_is_refused_at_once() -> None:
    bench = Bench(num_pages=4)
    with pytest.raises(RequestError, match="the cache holds 16 in all"):
        bench.add("x" * 16)
    request = bench.add("x" * 14, 50)
    bench.run()
    last = bench.outputs[request][-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage is not None
    assert last.usage.output_tokens == 2


def test_a_reply_with_speech_to_spare_yields() -> None:
    bench = Bench()
    talking, quiet = bench.add("a", 30), bench.add("b", 30)
    for _ in range(3):
        bench.step()
    bench.core.played_until(talking, 3_000_000_000)
    for _ in range(3):
        assert [output.request_id for output in bench.step()] == [quiet]
    bench.clock.advance_ms(2500)
    assert {output.request_id for output in bench.step()} == {talking, quiet}


def test_a_preview_of_what_is_known_ends_at_once() -> None:
    bench = Bench()
    sequence = bench.core.open_sequence()
    bench.add("hello", 0, sequence)
    bench.run()
    num_steps = len(bench.backend.steps)
    request = bench.add("hello", 0, sequence)
    bench.run()
    assert bench.outputs[request][-1].finish_reason is FinishReason.LENGTH
    assert len(bench.backend.steps) == num_steps
