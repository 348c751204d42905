"""Step scheduler: priorities for any mixture of work."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.core.scheduler import (
    CHUNK_DELAY_NS,
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


def test_a_reply_without_audio_goes_before_a_long_prompt() -> None:
    """Not only every other step: until there is audio, its caller hears nothing."""
    reply = ScheduleInput(1, 1, True, first_due_ns=CHUNK_DELAY_NS)
    long = ScheduleInput(2, LONG, False, due_ns=10, num_computed=CHUNK)
    assert jobs(reply, long) == [ScheduledTokens(1, 1)]
    assert jobs(reply, replace(long, num_computed=0)) == [ScheduledTokens(2, CHUNK)]
    heard = replace(reply, first_due_ns=None, due_ns=NOW)
    assert jobs(heard, long) == [ScheduledTokens(2, CHUNK)]


def test_a_reply_without_audio_does_not_starve_a_prompt() -> None:
    """What it has had puts its deadline off as well."""
    reply = ScheduleInput(1, 1, True, first_due_ns=0, num_computed=8 * CHUNK)
    long = ScheduleInput(2, LONG, False, due_ns=10, num_computed=CHUNK)
    assert jobs(reply, long) == [ScheduledTokens(2, CHUNK)]


def test_a_long_prompt_goes_on_in_shorter_chunks() -> None:
    first = ScheduleInput(1, LONG, False, due_ns=10)
    for num_computed, num_tokens in ((0, CHUNK), (CHUNK - 1, CHUNK), (CHUNK, 20)):
        work = [replace(first, num_computed=num_computed)]
        (job,) = schedule(work, NOW, prefill_chunk=CHUNK, long_chunk=20, prompt_was_last=False)
        assert job == ScheduledTokens(1, num_tokens)


def test_previews_get_a_small_chunk_between_those_of_a_long_prompt() -> None:
    preview = ScheduleInput(1, LONG, False, is_preview=True)
    long = ScheduleInput(2, LONG, False, due_ns=10, num_computed=2 * CHUNK)
    small = ScheduledTokens(1, PREVIEW_CHUNK)
    assert jobs(preview, long, prompt_was_last=True) == [small]
    assert jobs(preview, long) == [ScheduledTokens(2, CHUNK)]
    short = replace(long, num_computed=2 * CHUNK - 1)
    assert jobs(preview, short, prompt_was_last=True) == [ScheduledTokens(2, CHUNK)]
    reply = ScheduleInput(3, 1, True)
    assert jobs(preview, long, reply, prompt_was_last=True) == [ScheduledTokens(3, 1), small]


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


def test_a_prompt_that_has_had_chunks_yields_to_a_later_one() -> None:
    """Up to half a second later for each chunk."""
    begun = ScheduleInput(1, LONG, False, due_ns=100, num_computed=CHUNK)
    new = ScheduleInput(2, LONG, False, due_ns=CHUNK_DELAY_NS)
    assert jobs(begun, new) == [ScheduledTokens(2, CHUNK)]
    assert jobs(begun, replace(new, num_computed=CHUNK)) == [ScheduledTokens(1, CHUNK)]
    assert jobs(begun, replace(new, due_ns=CHUNK_DELAY_NS + 200)) == [ScheduledTokens(1, CHUNK)]
    preview = ScheduleInput(3, LONG, False, is_preview=True)
    assert jobs(preview, begun) == [ScheduledTokens(1, CHUNK)]


STEP_NS = 100_000_000
BUDGET_NS = 500_000_000


class Prompts:
    """Prompts of several callers, served a chunk a step. Some ask for the next one when theirs is
    done."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.order: list[int] = []
        """Callers in the order in which they were served."""
        self._work: dict[int, ScheduleInput] = {}
        self._again: dict[int, int] = {}

    def ask(self, caller: int, num_tokens: int, *, again: bool = False) -> None:
        due_ns = self.now_ns + BUDGET_NS
        self._work[caller] = ScheduleInput(caller, num_tokens, False, due_ns=due_ns)
        if again:
            self._again[caller] = num_tokens

    def step(self) -> None:
        (job,) = jobs(*self._work.values())
        self.order.append(job.key)
        self.now_ns += STEP_NS
        done = self._work.pop(job.key)
        left = done.num_tokens - job.num_tokens
        if left:
            self._work[job.key] = replace(
                done, num_tokens=left, num_computed=done.num_computed + job.num_tokens
            )
        elif job.key in self._again:
            self.ask(job.key, self._again[job.key])

    def waits(self, caller: int, num_steps: int = 1000) -> int:
        """Steps of others until this caller's prompt is done."""
        for number in range(num_steps):
            if caller not in self._work:
                return sum(key != caller for key in self.order[-number:])
            self.step()
        raise AssertionError("it starves")


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 100))
def test_one_prompt_after_the_other_delays_a_turn_by_a_chunk(
    num_long: int, num_short: int, start: int
) -> None:
    prompts = Prompts()
    prompts.ask(1, num_long * CHUNK, again=True)
    for _ in range(start):
        prompts.step()
    prompts.ask(2, num_short * CHUNK)
    chunks_for_one = -(-CHUNK_DELAY_NS // STEP_NS)
    assert prompts.waits(2) <= 1 + (num_short - 1) * chunks_for_one


@given(st.integers(2, 40), st.integers(1, 3), st.integers(0, 30), st.integers(1, 3))
def test_no_flood_of_short_prompts_starves_a_long_one(
    num_long: int, num_short: int, start: int, num_callers: int
) -> None:
    prompts = Prompts()
    for caller in range(num_callers):
        prompts.ask(10 + caller, num_short * CHUNK, again=True)
    for _ in range(start):
        prompts.step()
    prompts.ask(1, num_long * CHUNK)
    assert prompts.waits(1) <= (num_long + 1) * (CHUNK_DELAY_NS // STEP_NS + num_callers)
