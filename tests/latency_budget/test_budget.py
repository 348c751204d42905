"""A budget adds up, or it is refused with the reason."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.schema import Config
from agent.session.api.settings import SessionSettings
from latency_budget import PROFILES, Allowance, Budget, BudgetError, Stage, budget_profile
from latency_budget.account.budget import TARGET_MS

EVEN = tuple(Allowance(stage, 50, "an even share") for stage in Stage)


def test_the_default_profile_is_half_a_second() -> None:
    budget = budget_profile()
    assert budget.name == "embedded"
    assert budget.total_ms == 500
    assert sum(budget.allowance_ms(stage) for stage in Stage) == 500
    assert all(name == profile.name for name, profile in PROFILES.items())


def test_the_target_is_the_same_everywhere() -> None:
    """Settings and sessions take it from here; the page has a copy of its own."""
    assert Config().latency_budget.total_ms == SessionSettings().budget_ms == TARGET_MS
    page = Path(__file__).parents[2] / "web_demo" / "ui" / "stages.js"
    assert f"export const BUDGET_MS = {TARGET_MS};" in page.read_text(encoding="utf-8")


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(
        BudgetError, match=r"there are: cpu, embedded, embedded-0\.5b, embedded-1\.5b, gpu"
    ):
        budget_profile("fast")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_ms": 500}, "add up to 450 ms, the total is 500 ms"),
        ({"total_ms": 0, "allowances": [Allowance(s, 0, "none") for s in Stage]}, "above 0"),
        ({"name": " "}, "needs a name"),
        ({"allowances": EVEN[1:]}, "no allowance for capture"),
        ({"allowances": (*EVEN, EVEN[0])}, "capture has two allowances"),
        ({"allowances": (Allowance(Stage.CAPTURE, -1, "?"), *EVEN[1:])}, "allowed -1 ms"),
        ({"allowances": (Allowance(Stage.CAPTURE, 50, ""), *EVEN[1:])}, "gives no reason"),
        ({"widened_ms": 451}, "widened by 451 ms"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {"name": "even", "total_ms": 450, "allowances": EVEN}
    assert Budget(**whole).allowance_ms(Stage.TTS) == 50
    with pytest.raises(BudgetError, match=re.escape(message)):
        Budget(**{**whole, **change})


@given(st.sampled_from(list(PROFILES.values())), st.integers(1, 60_000))
def test_another_total_is_divided_in_proportion(profile: Budget, total_ms: int) -> None:
    budget = profile.with_total(total_ms)
    assert sum(budget.allowance_ms(stage) for stage in Stage) == budget.total_ms == total_ms
    for stage in Stage:
        share_ms = profile.allowance_ms(stage) * total_ms / profile.total_ms
        assert abs(budget.allowance_ms(stage) - share_ms) < 1
    assert profile.with_total(profile.total_ms) is profile


def test_nothing_is_not_divided_and_a_wait_asked_for_is_not_scaled() -> None:
    with pytest.raises(BudgetError, match="cannot divide 0 ms"):
        budget_profile().with_total(0)
    with pytest.raises(BudgetError, match="widened by 300 ms"):
        budget_profile().widened(300).with_total(600)


def test_a_wait_asked_for_widens_the_endpoint_and_stays_visible() -> None:
    budget = budget_profile().widened(300)
    assert (budget.total_ms, budget.widened_ms) == (800, 300)
    assert budget.allowance_ms(Stage.ENDPOINT) == 400
    assert budget.allowance_ms(Stage.ASR) == budget_profile().allowance_ms(Stage.ASR)
    assert budget_profile().widened(0) == budget_profile()


def test_a_budget_is_widened_once_and_never_narrowed() -> None:
    with pytest.raises(BudgetError, match="already widened by 300 ms"):
        budget_profile().widened(300).widened(300)
    with pytest.raises(BudgetError, match="cannot widen by -1 ms"):
        budget_profile().widened(-1)
