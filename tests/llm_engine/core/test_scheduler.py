"""Step scheduler: priorities for any mixture of work."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.core.scheduler import (
    PLAYBACK_SLACK_NS,
    PREVIEW_CHUNK,
    ScheduledTokens,
    ScheduleInput,
    schedule,
)

CHUNK = 64
NOW = 5 * PLAYBACK_SLACK_NS
LONG = 8000


def jobs(*work: ScheduleInput, prompt_was_last: bool = False) -> list[ScheduledTokens]:
    return schedule(work, NOW, prefill_chunk=CHUNK, prompt_was_last=prompt_was_last)


@st.composite
def works(draw: st.DrawFn) -> list[ScheduleInput]:
    kinds = st.tuples(
        st.integers(1, 200),
        st.booleans(),
        st.booleans(),
        st.none() | st.integers(0, 20 * PLAYBACK_SLACK_NS),
        st.integers(0, 9),
    )
    return [
        ScheduleInput(key, num, begun and not preview, preview, due, served)
        for key, (num, begun, preview, due, served) in enumerate(draw(st.lists(kinds, max_size=8)))
    ]


@given(works(), st.booleans())
def test_a_step_is_short_and_never_empty(work: list[ScheduleInput], prompt_was_last: bool) -> None:
    chosen = jobs(*work, prompt_was_last=prompt_was_last)
    assert bool(chosen) == bool(work)
    by_key = {each.key: each for each in work}
    assert len({job.key for job in chosen}) == len(chosen)
    prompts = [job for job in chosen if not by_key[job.key].is_decoding]
    assert len(prompts) <= 1
    for job in chosen:
        assert 1 <= job.num_tokens <= min(by_key[job.key].num_tokens, CHUNK)


@given(works())
def test_requests_do_not_wait_for_a_preview(work: list[ScheduleInput]) -> None:
    waiting = [each for each in work if not each.is_preview and not each.is_decoding]
    if waiting:
        (job,) = jobs(*work)
        assert job.key == min(waiting, key=lambda each: each.urgency).key


@given(works())
def test_pressed_replies_get_every_other_step(work: list[ScheduleInput]) -> None:
    pressed = {
        each.key
        for each in work
        if each.is_decoding and (each.due_ns is None or each.due_ns < NOW + PLAYBACK_SLACK_NS)
    }
    after_a_prompt = {job.key for job in jobs(*work, prompt_was_last=True)}
    assert pressed <= after_a_prompt
    longest = [job.num_tokens for job in jobs(*work, prompt_was_last=True)]
    if pressed and longest:
        assert max(longest) <= PREVIEW_CHUNK


def test_the_earliest_deadline_first() -> None:
    late, soon = (
        ScheduleInput(1, LONG, False, due_ns=900),
        ScheduleInput(2, LONG, False, due_ns=100),
    )
    never = ScheduleInput(3, LONG, False)
    assert jobs(never, late, soon) == [ScheduledTokens(2, CHUNK)]


def test_without_deadlines_prompts_take_turns() -> None:
    first = ScheduleInput(1, LONG, False, last_served=4)
    assert jobs(first, ScheduleInput(2, LONG, False, last_served=3)) == [ScheduledTokens(2, CHUNK)]


def test_replies_with_speech_to_spare_let_others_pass() -> None:
    rich, poor = (
        ScheduleInput(1, 1, True, due_ns=NOW + 2 * PLAYBACK_SLACK_NS),
        ScheduleInput(2, 1, True, due_ns=NOW),
    )
    assert jobs(rich, poor) == [ScheduledTokens(2, 1)]
    assert jobs(rich) == [ScheduledTokens(1, 1)]
    assert jobs(rich, ScheduleInput(3, LONG, False), prompt_was_last=True) == [
        ScheduledTokens(3, CHUNK)
    ]


def test_preview_runs_only_when_idle() -> None:
    preview = ScheduleInput(1, LONG, False, is_preview=True, due_ns=0)
    assert jobs(preview) == [ScheduledTokens(1, CHUNK)]
    assert jobs(preview, ScheduleInput(2, 1, True)) == [
        ScheduledTokens(2, 1),
        ScheduledTokens(1, PREVIEW_CHUNK),
    ]


def test_what_a_reply_lost_is_computed_like_a_prompt() -> None:
    lost = ScheduleInput(1, 90, True, due_ns=NOW)
    assert not lost.is_decoding
    assert jobs(lost, ScheduleInput(2, LONG, False, due_ns=NOW + 1)) == [ScheduledTokens(1, CHUNK)]


@given(works(), st.integers(1, 200))
def test_background_work_runs_alone_and_in_small_chunks(
    work: list[ScheduleInput], num_tokens: int
) -> None:
    rest = ScheduleInput(99, num_tokens, has_begun=False, is_background=True)
    alone = [ScheduledTokens(99, min(num_tokens, PREVIEW_CHUNK))]
    assert jobs(*work, rest) == (jobs(*work) or alone)


def test_background_requests_take_turns() -> None:
    first = ScheduleInput(1, 1, has_begun=True, is_background=True, last_served=5)
    second = ScheduleInput(2, 40, has_begun=False, is_background=True, last_served=4)
    assert jobs(first, second) == [ScheduledTokens(2, PREVIEW_CHUNK)]
