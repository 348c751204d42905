"""Speculation bench: its order, its arithmetic, its gate, and a run with a small model."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm import __main__ as command
from benchmarks.llm import speculation as bench
from benchmarks.llm.contestant import Arrivals, Remote
from llm_engine.speculative.draft_length import DraftLengthPolicy
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.llm.local_contestant import LocalContestant

FIRST_MS = 50.0
PROMPTS: dict[str, list[Sequence[int]]] = {"talk": [(1, 2)], bench.REPEATS: [(3,), (4,)]}


class FakeContestant:
    """Takes a given time a token, and accepts a given number of tokens in each step."""

    def __init__(
        self, name: str, token_ms: Callable[[int], float], log: list[str], num_accepted: int = 0
    ) -> None:
        self.name = name
        self._token_ms, self._num_accepted, self._log = token_ms, num_accepted, log
        self._counts = [0, 0, 0]
        self._num_replies = 0

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "draft_counts":
            return tuple(self._counts)
        assert method == "timed_reply"
        self._log.append(self.name)
        arrivals = self._reply(arguments[1])
        return arrivals, 2 * (arrivals[-1][0] - FIRST_MS)

    def _reply(self, num_tokens: int) -> Arrivals:
        self._num_replies += 1
        arrivals: Arrivals = [(FIRST_MS, 1)]
        num_left = num_tokens - 1
        while num_left:
            step = min(num_left, 1 + self._num_accepted)
            step_ms = step * self._token_ms(self._num_replies)
            arrivals.append((arrivals[-1][0] + step_ms, step))
            num_left -= step
            if self._num_accepted:
                for index, more in enumerate((step, step, step - 1)):
                    self._counts[index] += more
        return arrivals


def measure(
    drafted_ms: Callable[[int], float],
    plain_ms: Callable[[int], float] = lambda number: 10.0,
    **more: Any,
) -> tuple[bench.Figures, list[str]]:
    log: list[str] = []
    plain = FakeContestant("plain", plain_ms, log)
    drafted = FakeContestant("n-gram", drafted_ms, log, num_accepted=1)
    options: dict[str, Any] = {"num_rounds": 3, "num_tokens": 9} | more
    figures = bench.measure(plain, [drafted], PROMPTS, on_progress=lambda text: None, **options)
    return figures, log


def test_sides_take_turns_there_and_back() -> None:
    _, log = measure(lambda number: 5.0, num_rounds=2)
    one_prompt = ["plain", "n-gram", "n-gram", "plain"]
    assert log == one_prompt * (2 + 2 * 3)


def test_figures_are_those_of_the_replies() -> None:
    figures, _ = measure(lambda number: 5.0)
    for kind, num_prompts in (("talk", 1), (bench.REPEATS, 2)):
        one = figures["n-gram"][kind]
        assert one.ratio == pytest.approx(0.5)
        assert one.num_tokens == 3 * num_prompts * 2 * 8
        assert one.acceptance == 0.5
        assert one.tokens_per_step == 2
        shown = one.summary()
        assert (shown["token_ms"], shown["plain_token_ms"]) == (5, 10)
        assert (shown["processor_ms"], shown["plain_processor_ms"]) == (10, 20)
        assert shown["ratios"] == [0.5] * 3 * num_prompts


def test_one_slow_round_does_not_decide() -> None:
    figures, _ = measure(lambda number: 100.0 if number in (5, 6) else 10.0)
    assert max(figures["n-gram"]["talk"].summary()["ratios"]) > 1
    assert figures["n-gram"][bench.REPEATS].ratio == pytest.approx(1)


def test_a_machine_that_slows_down_slows_both_sides() -> None:
    figures, _ = measure(lambda number: 10.0 + number, lambda number: 10.0 + number)
    for one in figures["n-gram"].values():
        assert one.ratio == pytest.approx(1)


@pytest.mark.parametrize(
    ("talk", "repeats", "held"),
    [
        (1.0, 0.5, True),
        (1.019, 0.769, True),
        (1.03, 0.5, False),
        (0.9, 0.78, False),
        (1.0, 1.0, False),
        (math.nan, 0.5, False),
    ],
)
def test_a_drafter_must_lose_nowhere_and_gain_where_text_repeats(
    talk: float, repeats: float, held: bool
) -> None:
    def kind(ratio: float) -> bench.KindFigures:
        found = bench.KindFigures()
        if not math.isnan(ratio):
            found.plain_ms, found.drafted_ms = [10.0], [10.0 * ratio]
            found.plain_processor_ms, found.drafted_processor_ms = [20.0], [60.0]
        return found

    figures = {"n-gram": {"talk": kind(talk), bench.REPEATS: kind(repeats)}}
    assert all(gate.is_held for gate in bench.gates(figures)) == held
    assert not any(gate.is_held for gate in bench.gates(figures, by_processor_time=True))


def test_calculated_gains() -> None:
    assert bench.calculated_gain(0.0, 0.1) == (0, 1.0)
    assert bench.calculated_gain(1.0, 0.0) == (7, 8.0)
    assert bench.calculated_gain(1.0, 1.0) == (0, 1.0)
    assert bench.calculated_gain(0.57, 1.0) == (0, 1.0)
    length, gain = bench.calculated_gain(0.8, 0.1)
    assert length == 6
    assert gain == pytest.approx(sum(0.8**place for place in range(7)) / 1.6)


def test_the_table_names_arithmetic_as_such() -> None:
    figures, _ = measure(lambda number: 5.0)
    shown = bench.table(figures, [0.1, 0.3])
    assert shown.count("Arithmetic, not measured") == 2
    assert "Arithmetic" not in bench.table(figures, [])
    assert "0.500" in shown


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--speculation", "--model", "no-such-model"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no-such-model: neither a path nor a fetched model" in error


def one_remote(name: str, make: Callable[..., Any], **options: Any) -> Remote | LocalContestant:
    """In place of `Remote`: one engine is in a process of its own."""
    kind = Remote if name == "no drafts" else LocalContestant
    return kind(name, make, **options)


@pytest.mark.slow
def test_a_small_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.setattr(bench, "Remote", one_remote)
    model, out = tmp_path / "tiny", tmp_path / "result.json"
    save_tiny_model(model, "llama", max_position_embeddings=1024)
    options = ["--model", str(model), "--rounds", "1", "--prompts", "1", "--tokens", "12"]
    options += ["--threads", "1", "--draft-cost", "0.1", "--json", str(out)]
    status = command.main(["--speculation", *options, "--draft-model", str(model)])
    result = json.loads(out.read_text())
    assert status == (0 if all(gate["is_held"] for gate in result["gates"]) else 1)
    assert set(result["drafters"]) == {"n-gram", "draft model"}
    assert "0.1" in result["calculated_gain_by_draft_cost"]


@pytest.mark.slow
def test_every_draft_has_the_length_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.setattr(bench, "Remote", LocalContestant)  # processes have the test above
    for name in ("choose", "num_worth"):  # put back at the end: the bench fixes a whole process
        monkeypatch.setattr(DraftLengthPolicy, name, getattr(DraftLengthPolicy, name))
    model, out = tmp_path / "tiny", tmp_path / "result.json"
    save_tiny_model(model, "llama", max_position_embeddings=1024)
    options = ["--model", str(model), "--rounds", "1", "--prompts", "1", "--tokens", "12"]
    options += ["--threads", "1", "--draft-length", "2", "--json", str(out)]
    assert command.main(["--speculation", *options, "--draft-model", str(model)]) == 0
    result = json.loads(out.read_text())
    assert result["gates"] == []
    assert "--draft-length 2" in result["command"]
    for figures in result["drafters"]["draft model"].values():
        assert figures["acceptance"] == 1.0, "a model agrees with itself"
        assert figures["drafted"] == figures["accepted"] > 0
