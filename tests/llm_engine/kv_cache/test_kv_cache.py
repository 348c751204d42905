"""KV cache under pressure: eviction, preemption and pinned prefixes among concurrent calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.core.output import FinishReason
from llm_engine.core.request import RequestId
from llm_engine.errors import EngineError, RequestError
from tests.support.fakes.llm_core import Bench, alone


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
        bench.core.cache.check()
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


@pytest.mark.parametrize("shares_pages", [True, False])
def test_the_pinned_prefix_that_matches_furthest_is_taken_over(shares_pages: bool) -> None:
    bench = Bench(shares_pages=shares_pages)
    one, other = "You are brief.", "You chat a lot."
    for fixed in (one, other, other):
        request = bench.add(fixed + "One?", 2, num_fixed=len(fixed))
        bench.run()
    usage = bench.outputs[request][-1].usage
    assert usage is not None
    assert usage.cached_tokens == len(other)
    assert bench.text(request) == alone(other + "One?", 2)


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
    while talking not in bench.outputs:
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
