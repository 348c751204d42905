"""A whole session on fake stages: what its turns are held to."""

from agent.config.layers import load_config
from agent.session.api import server_events as say
from agent.session.api.settings import SemanticVad, ServerVad
from agent.turn_taking.end_of_turn import asked_wait_ms
from tests.support.session.guess_call import change, end, pause, remembering


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


async def test_a_session_that_allows_more_is_held_to_that() -> None:
    async with remembering("One.", "Two.") as (call, _):
        await change(call, budget_ms=900)
        await pause(call, "Hello?")
        await end(call)
        await call.until(say.ReplyEnded)
        await change(call, turn_detection=ServerVad(silence_duration_ms=700))
        await pause(call, "Hello?")
        await end(call)
        await call.until(say.ReplyEnded, 2)
    assert [turn.budget.total_ms for turn in call.turns] == [900, 1600]
    assert sum(a.ms for a in call.turns[0].budget.allowances) == 900


def test_an_agent_may_have_a_budget_of_its_own() -> None:
    agents = "[agents.slow]\nbudget_ms = 900\n[agents.other]\n"
    config = load_config(file_text=f"[latency_budget]\ntotal_ms = 600\n{agents}")
    found = {name: config.budget_ms(profile) for name, profile in config.agents.items()}
    assert found == {"default": 600, "slow": 900, "other": 600}
