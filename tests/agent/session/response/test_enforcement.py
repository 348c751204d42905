"""A whole session on fake stages: what the policy decides is done, and stands in the turn."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from agent.session.api import server_events as say
from agent.session.api.settings import ServerVad
from agent.session.ports.stage_ports import FULL_EFFORT, Effort, ReplyToken, Speech
from agent.session.response.budget_actions import SLOW_PASS_MS
from agent.turn_taking import reopening
from latency_budget.account.actions import Action
from latency_budget.enforcement.action_effect import MIN_TURNS, TRY_EVERY
from latency_budget.enforcement.policy import Policy
from tests.support.fakes import stages
from tests.support.fakes.stages import FakeChat, FakeVoice
from tests.support.session.chain_turns import chain_turn
from tests.support.session.guess_call import change, end, last_voiced, let_work, pause
from tests.support.session.session_call import Call, call_with
from tests.support.session.virtual_time import clock_of_loop
from tts.text_chunker import SpeakablePiece

pytestmark = pytest.mark.virtual_time

REPLY = "I believe that you could ask somebody about it."


class NotingVoice(FakeVoice):
    """Notes its pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._has_spoken = asyncio.Event()

    async def until(self, end: str) -> None:
        """Wait for a piece with this end."""
        while not (self.pieces and self.pieces[-1].endswith(end)):
            self._has_spoken.clear()
            await self._has_spoken.wait()

    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        self.pieces.append(piece.text.strip())
        self._has_spoken.set()
        async for speech in super().speak(piece):
            yield speech


def late_policy(*available: Action, **links: float) -> Policy:
    """Has seen turns that were late."""
    policy = Policy(available)
    for _ in range(MIN_TURNS):
        policy.observe(chain_turn(**links), 500)
    return policy


async def ask(call: Call, text: str, *, voiced_ms_ago: int) -> None:
    last_voiced(call, clock_of_loop().now_ns() - voiced_ms_ago * 1_000_000)
    await pause(call, text)
    await end(call)


@pytest.mark.parametrize(("voiced_ms_ago", "is_short"), [(5000, True), (0, False)])
async def test_only_a_reply_that_would_be_late_begins_short(
    voiced_ms_ago: int, is_short: bool
) -> None:
    voice, policy = NotingVoice(), late_policy(Action.SHORT_CLAUSE)
    async with call_with(REPLY, voice=voice, policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=voiced_ms_ago)
        await call.until(say.ReplyEnded)
    assert " ".join(voice.pieces) == REPLY, "no word of it changes"
    assert (len(voice.pieces[0].split()) <= 3) == is_short
    taken = [each.action for each in call.turns[0].record.actions]
    assert taken == ([Action.SHORT_CLAUSE] if is_short else [])


@pytest.mark.parametrize(
    ("voiced_ms_ago", "pieces"),
    [(0, [REPLY]), (5000, ["I believe that you", "could ask somebody about it."])],
)
async def test_first_piece_that_is_due_ends_at_the_next_gap(
    voiced_ms_ago: int, pieces: list[str]
) -> None:
    voice = NotingVoice()
    async with call_with(REPLY, voice=voice) as call:
        await ask(call, "How are you?", voiced_ms_ago=voiced_ms_ago)
        await voice.until("it.")
    assert voice.pieces == pieces


class HaltingChat(FakeChat):
    """Says its first sentence, and goes on when it may."""

    def __init__(self, reply: str) -> None:
        super().__init__([reply])
        self.may_go_on = asyncio.Event()

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        async with aclosing(super().generate(*args, **options)) as tokens:
            async for token in tokens:
                yield token
                if token.text.startswith("Because"):
                    await self.may_go_on.wait()


@pytest.mark.parametrize(
    ("samples_per_char", "pieces"),
    [
        (1, ["Because the people", "here know what is right."]),
        (24_000, ["Because the people here know what is right."]),
    ],
)
async def test_later_piece_is_cut_where_the_speech_runs_dry(
    samples_per_char: int, pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", samples_per_char)
    first = "I believe that you could ask somebody."
    chat = HaltingChat(" ".join([first, *pieces]))
    voice = NotingVoice()
    async with call_with(chat=chat, voice=voice) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyAudio)
        chat.may_go_on.set()
        await voice.until("right.")
    assert voice.pieces == [first, *pieces]


async def test_recognizer_skips_partials_in_the_next_turn() -> None:
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=300)
    async with call_with(REPLY, policy=policy) as call:
        await change(call, turn_detection=ServerVad(interrupt_response=False))
        assert call.ears.effort == FULL_EFFORT
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        assert call.ears.effort == Effort(skips_partials=True)
        assert call.ears.detection == ServerVad(interrupt_response=False)
        await change(call, turn_detection=None)
        assert call.ears.effort == FULL_EFFORT, "nobody would switch it off again"
    (taken,) = call.turns[0].record.actions
    assert taken.action is Action.SKIP_PARTIALS
    assert taken.predicted_ms > 0


async def test_where_a_pass_takes_long_none_is_begun_at_a_short_pause() -> None:
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=SLOW_PASS_MS)
    async with call_with(REPLY, policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        assert call.ears.effort == Effort(skips_partials=True, pauses_later=True)


@pytest.mark.parametrize("has_small", [True, False])
async def test_a_smaller_model_answers_the_next_turn_where_there_is_one(has_small: bool) -> None:
    chat = FakeChat([REPLY])
    chat.has_small = has_small
    async with call_with(chat=chat, policy=late_policy(Action.SMALL_MODEL, clause=900)) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        assert chat.is_small == has_small
        await change(call, turn_detection=None)
        assert not chat.is_small
    taken = [each.action for each in call.turns[0].record.actions]
    assert taken == ([Action.SMALL_MODEL] if has_small else [])


async def test_some_turns_run_without_the_action_and_record_it() -> None:
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=300)
    for _ in range(TRY_EVERY - 1):
        policy.active()
    async with call_with(REPLY, policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        assert call.ears.effort == FULL_EFFORT
    record = call.turns[0].record
    assert record.actions == ()
    assert [each.action for each in record.left_out] == [Action.SKIP_PARTIALS]


async def test_noise_before_a_turn_does_not_take_the_place_of_the_turn_without_the_action() -> None:
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=300)
    for _ in range(TRY_EVERY - 1):
        policy.active()
    async with call_with(REPLY, policy=policy) as call:
        await ask(call, "", voiced_ms_ago=0)
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        assert call.ears.effort == FULL_EFFORT
    assert [each.action for each in call.turns[0].record.left_out] == [Action.SKIP_PARTIALS]


async def test_partials_are_not_skipped_during_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial words tell a backchannel from an interruption."""
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=300)
    async with call_with(REPLY, "Fine.", policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyAudio)
        assert call.ears.effort == Effort(skips_partials=True)
        call.ears.pause("Mm.")
        await let_work()
        assert call.ears.effort == FULL_EFFORT


async def test_a_change_of_turn_detection_keeps_what_is_spared() -> None:
    policy = late_policy(Action.SKIP_PARTIALS, words=900, pass_ms=300)
    async with call_with(REPLY, policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=0)
        await call.until(say.ReplyEnded)
        await change(call, turn_detection=ServerVad(threshold=0.7))
        assert call.ears.detection == ServerVad(threshold=0.7)
        assert call.ears.effort == Effort(skips_partials=True)


async def test_observing_policy_applies_no_action() -> None:
    policy = late_policy(words=900, pass_ms=500)
    voice = NotingVoice()
    async with call_with(REPLY, voice=voice, policy=policy) as call:
        await ask(call, "How are you?", voiced_ms_ago=5000)
        await call.until(say.ReplyEnded)
        assert call.ears.effort == FULL_EFFORT
    assert call.turns[0].record.actions == ()
    assert len(voice.pieces[0].split()) > 3


async def test_what_an_opener_saves_is_seen_when_the_reply_sounds() -> None:
    policy = late_policy(Action.OPENER)
    chat = FakeChat([REPLY])
    async with call_with(chat=chat, openers=("One moment,",), policy=policy) as call:
        chat.hold = asyncio.Event()
        await ask(call, "How are you?", voiced_ms_ago=5000)
        await call.until(say.ReplyAudio)
        await asyncio.sleep(0.1)  # of the manual clock
        chat.hold.set()
        await call.until(say.ReplyEnded)
    (taken,) = call.turns[0].record.actions
    assert taken.action is Action.OPENER
    assert taken.saved_ms is not None
    assert taken.saved_ms > 0
