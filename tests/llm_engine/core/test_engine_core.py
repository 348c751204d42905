"""Step loop: requests share steps, reuse the cache, and fail alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.backends.base import Plan, StepHandle
from llm_engine.config import SamplingParams
from llm_engine.core.output import FinishReason
from llm_engine.core.request import EngineMark, RequestId
from llm_engine.errors import DeviceLostError, EngineError, RequestError
from tests.support.fakes.llm_core import END, Bench, alone, next_letter


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
        st.tuples(
            st.text("abc", min_size=1, max_size=40),
            st.integers(1, 10),
            st.integers(0, 6),
            st.integers(0, 100),
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_company_changes_nothing(
    requests: list[tuple[str, int, int, int]], shares_pages: bool
) -> None:
    bench = Bench(shares_pages=shares_pages)
    ids: dict[RequestId, tuple[str, int]] = {}
    for at_step in range(7):
        for text, max_tokens, start, num_fixed in requests:
            prompt = FIXED[:num_fixed] + text
            if start == at_step:
                request = bench.add(prompt, max_tokens, num_fixed=num_fixed)
                ids[request] = (prompt, max_tokens)
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


FIXED = "the same instructions and tools for everyone " * 3
"""The beginning of many prompts: 138 tokens."""


@pytest.mark.parametrize("shares_pages", [True, False])
def test_a_beginning_is_computed_once_by_all_that_come_at_once(shares_pages: bool) -> None:
    bench = Bench(max_sequences=8, shares_pages=shares_pages, prefill_chunk=16)
    prompts = [f"{FIXED}caller {index}" for index in range(4)]
    ids = [bench.add(prompt, 3, num_fixed=len(FIXED)) for prompt in prompts]
    preview = bench.add(FIXED, 0, num_fixed=len(FIXED))
    bench.run()
    for request, prompt in zip(ids, prompts, strict=True):
        assert bench.text(request) == alone(prompt, 3)
        usage = bench.outputs[request][-1].usage
        assert usage is not None
        assert usage.prompt_tokens == len(prompt)
    assert bench.outputs[preview][-1].finish_reason is FinishReason.LENGTH
    computed = sum(len(rows.token_ids) for step in bench.backend.steps for rows in step)
    own = sum(len(prompt) - len(FIXED) + 2 for prompt in prompts)
    # Each lags by less than a chunk, which is what is worth a copy.
    assert len(FIXED) + own <= computed < len(FIXED) + own + 5 * 16
    by_reply = [bench.outputs[request][-1].usage for request in ids]
    assert sum(usage.cached_tokens for usage in by_reply if usage) > 2.5 * len(FIXED)


def test_only_the_fixed_beginning_is_taken_from_another_request() -> None:
    """What callers said stays theirs, though it be the same."""
    bench = Bench()
    said = FIXED + "my number is 4471"
    ids = [bench.add(said, 2, num_fixed=40) for _ in range(2)]
    bench.run()
    assert [bench.text(request) for request in ids] == [alone(said, 2)] * 2
    for usage in (bench.outputs[request][-1].usage for request in ids):
        assert usage is not None
        assert usage.cached_tokens <= 40


def test_another_beginning_is_not_taken_over() -> None:
    bench = Bench()
    ids = {bench.add(prompt, 2, num_fixed=100): prompt for prompt in ("a" * 120, "b" * 120)}
    bench.run()
    for request, prompt in ids.items():
        assert bench.text(request) == alone(prompt, 2)
        usage = bench.outputs[request][-1].usage
        assert usage is not None
        assert usage.cached_tokens == 0


def test_a_beginning_of_an_aborted_request_is_not_lost_to_those_behind_it() -> None:
    bench = Bench(prefill_chunk=16)
    first = bench.add(FIXED + "first", 2, num_fixed=len(FIXED))
    second = bench.add(FIXED + "second", 2, num_fixed=len(FIXED))
    for _ in range(4):
        bench.step()
    bench.core.abort(first)
    bench.run()
    assert bench.text(second) == alone(FIXED + "second", 2)
    computed = sum(len(rows.token_ids) for step in bench.backend.steps for rows in step)
    assert computed < len(FIXED) + len("second") + 2 + 2 * 16


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


def test_a_step_that_fails_before_it_copied_a_page_leaves_no_wrong_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sequence goes on in a copy of the last page of the instructions, which others share."""
    bench = Bench()
    bench.add(FIXED + "first", 2, num_fixed=len(FIXED))
    bench.run()
    sequence = bench.core.open_sequence()

    def failing(plan: Plan) -> StepHandle:
        assert plan.copies
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(bench.backend, "launch", failing)
        failed = bench.add(FIXED + "second", 2, sequence, num_fixed=len(FIXED))
        bench.run()
    assert isinstance(bench.outputs[failed][-1].error, EngineError)
    again = bench.add(FIXED + "second", 2, sequence, num_fixed=len(FIXED))
    bench.run()
    assert bench.text(again) == alone(FIXED + "second", 2)


def test_a_device_that_is_lost_fails_all_at_once() -> None:
    """Trying them one by one could only wait for a dead device again."""

    def gone(held: list[int]) -> int:
        raise DeviceLostError("the GPU is lost: fallen off the bus")

    bench = Bench(gone)
    requests = [bench.add("one", 6), bench.add("two", 6)]
    bench.step()  # one prompt
    bench.run()
    for request in requests:
        assert isinstance(bench.outputs[request][-1].error, DeviceLostError)


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


@pytest.mark.parametrize(("token_ms", "long_chunk"), [(0.0, 64), (1.0, 64), (4.0, 25), (50.0, 16)])
def test_a_long_prompt_goes_on_in_chunks_of_a_tenth_of_a_second(
    token_ms: float, long_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(prefill_chunk=64)
    launch = bench.backend.launch

    def takes_time(plan: Plan) -> StepHandle:
        bench.clock.advance_ms(
            token_ms
            * sum(len(rows.token_ids) for each in plan.sub_batches for rows in each.sequences)
        )
        return launch(plan)

    monkeypatch.setattr(bench.backend, "launch", takes_time)
    bench.add("x" * 192, 1)
    bench.run()
    lengths = [len(rows[0].token_ids) for rows in bench.backend.steps]
    assert lengths[:2] == [64, long_chunk]
    assert sum(lengths) == 192


def test_a_reply_without_audio_is_not_kept_waiting_by_a_long_prompt() -> None:
    """Nor is a prompt by a reply whose text nobody plays."""
    bench = Bench(prefill_chunk=64, context_length=1000)
    bench.add("x" * 900, 1, deadline_ns=1)
    bench.step()
    talking = bench.add("a", 40, deadline_ns=2)
    assert [output.request_id for output in bench.step()] == [talking]
    first_tokens = len(bench.backend.steps)
    for _ in range(22):
        bench.step()
    rows = [len(each[0].token_ids) for each in bench.backend.steps[first_tokens:]]
    assert rows == [1] * 16 + [64, 1] * 3


def test_a_reply_with_audio_takes_turns_with_a_long_prompt() -> None:
    bench = Bench(prefill_chunk=64, context_length=1000)
    bench.add("x" * 900, 1, deadline_ns=1)
    bench.step()
    talking = bench.add("a", 40, deadline_ns=2)
    bench.step()
    bench.core.played_until(talking, 500_000_000)
    first_tokens = len(bench.backend.steps)
    for _ in range(6):
        bench.step()
    rows = [len(each[0].token_ids) for each in bench.backend.steps[first_tokens:]]
    assert rows == [1, 64] * 3


def test_a_turn_waits_for_one_chunk_of_another_callers_long_prompts() -> None:
    """One caller asks for one reply after the other to 100 tokens; then a turn of 12 tokens comes
    with a later deadline. Its first token is there after its own two chunks and one of the other's
    for each."""
    bench = Bench()
    greedy, chunk = bench.core.open_sequence(), 8
    asked = bench.add("x" * 100, 1, greedy, deadline_ns=1)
    for _ in range(3):
        bench.step()
    turn = bench.add("hello world!", 1, deadline_ns=500_000_000)
    num_before = len(bench.backend.steps)
    while turn not in bench.outputs:
        bench.step()
    lengths = [len(rows[0].token_ids) for rows in bench.backend.steps[num_before:]]
    assert lengths[:2] == [chunk, 4]
    assert asked not in bench.outputs
    again = bench.add("y" * 100, 1, greedy, deadline_ns=2)  # ends the one before it
    bench.step()
    turn = bench.add("hello again", 1, deadline_ns=300_000_000)
    num_before = len(bench.backend.steps)
    while turn not in bench.outputs:
        bench.step()
    assert len(bench.backend.steps) - num_before <= 4
    assert again not in bench.outputs
    bench.run()
