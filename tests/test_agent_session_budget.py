"""A whole session on fake stages: what its turns are held to."""

from agent import notices as say
from agent.end_of_turn import asked_wait_ms
from agent.settings import SemanticVad, ServerVad

from .guess_call import change, end, pause, remembering


async def test_the_silence_that_a_client_asks_for_widens_the_budget() -> None:
    async with remembering("One.", "Two.", "Three.") as (call, _):
        for number, detection in enumerate(
            (SemanticVad(), ServerVad(silence_duration_ms=700), SemanticVad("low")), start=1
        ):
            await change(call, turn_detection=detection)
            await pause(call, f"Number {number}?")
            await end(call)
            await call.until(say.ReplyEnded, number)
    budgets = [turn.budget for turn in call.turns]
    assert [budget.total_ms for budget in budgets] == [500, 1200, 500]
    assert [budget.widened_ms for budget in budgets] == [0, 700, 0]


def test_with_push_to_talk_nothing_is_waited_for() -> None:
    assert asked_wait_ms(None) == asked_wait_ms(SemanticVad()) == 0
