"""The one command of the end of turn: its steps, their order, and the subset that it takes."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.end_of_turn import __main__ as command
from benchmarks.end_of_turn import fit, message_ends, noisy_pauses, turn_data, turn_pauses
from benchmarks.end_of_turn.turn_data import LabelledTurn


def steps(out: Path, *more: str) -> list[command.PipelineStep]:
    corpora = ["--speechocean762", "so.git", "--alphanumeric", "an.git", "--sounds", "s", "t.txt"]
    return command.steps(command._parser().parse_args([str(out), *corpora, *more]))


def test_data_features_and_fit_are_one_chain_in_order(tmp_path: Path) -> None:
    """What a step reads, an earlier one has written."""
    found = steps(tmp_path, "--write")
    assert [one.run for one in found] == [
        turn_data.main, turn_pauses.main, noisy_pauses.main, turn_data.main, turn_pauses.main,
        noisy_pauses.main, message_ends.main, message_ends.main, fit.main,
    ]  # fmt: skip
    turns, pauses, noisy, more, more_pauses, more_noisy, ends, more_ends, fitted = (
        one.arguments for one in found
    )
    corpora = ("--speechocean762", "so.git")
    both = (*corpora, "--alphanumeric", "an.git", "--sounds", "s", "t.txt")
    seed = ("--seed", str(turn_data.SEED))
    names = ("--names", str(tmp_path / "names.txt"))
    assert turns == (str(tmp_path / "turns"), *both, *seed)
    assert pauses == (turns[0], str(tmp_path / "pauses.jsonl"), *names)
    assert more == (str(tmp_path / "more"), *corpora, "--per-speaker", "20", *seed)
    assert more_pauses == (more[0], str(tmp_path / "more.jsonl"), "--no-words", "--half", "a")
    assert noisy == (turns[0], pauses[1], str(tmp_path / "noisy.jsonl"))
    assert more_noisy == (more[0], more_pauses[1], str(tmp_path / "noisy_more.jsonl"))
    for asked, preset in ((ends, "embedded"), (more_ends, "embedded-0.5b")):
        path = str(tmp_path / f"message_ends-{preset}.json")
        assert asked == (path, pauses[1], "--preset", preset)
    assert fitted == (
        pauses[1], "--json", str(tmp_path / "figures.json"), "--message-ends", ends[0],
        "--message-ends", more_ends[0], "--more", noisy[2], "--more", more_pauses[1],
        "--more", more_noisy[2], "--write",
    )  # fmt: skip


def test_what_is_shipped_needs_no_fit(tmp_path: Path) -> None:
    found = steps(tmp_path, "--shipped", "--preset", "embedded")
    assert [one.name for one in found] == ["turns", "pauses", "in noise", "language model", "fit"]
    *_, option, noisy, last = found[-1].arguments
    assert (option, noisy, last) == ("--more", str(tmp_path / "noisy.jsonl"), "--shipped")


def test_a_subset_is_the_same_for_the_same_seed() -> None:
    names = [f"{number}.wav" for number in range(50)]
    chosen = command.chosen_names(names, 10, 3)
    assert len(set(chosen)) == 10
    shuffled = random.Random(1).sample(names, len(names))
    assert command.chosen_names(shuffled, 10, 3) == chosen
    assert command.chosen_names(names, 10, 4) != chosen
    assert command.chosen_names(names, 10, 3) == sorted(chosen)
    assert command.chosen_names(names, None, 3) == command.chosen_names(names, 99, 3)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that ran; the data is two turns that are there, the others do nothing."""
    found: list[str] = []
    (tmp_path / "turns").mkdir()
    turns = [LabelledTurn(name, "command", "a", f"{name}.wav", "", 9, ()) for name in "ab"]
    lines = "".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in turns)
    (tmp_path / "turns" / "turns.jsonl").write_text(lines)

    def noting(name: str) -> Callable[[list[str]], int]:
        def run(arguments: list[str]) -> int:
            found.append(name)
            return 3 if name == "message_ends" else 0

        return run

    for module in (turn_data, turn_pauses, noisy_pauses, message_ends, fit):
        name = module.__name__.rsplit(".", 1)[-1]
        monkeypatch.setattr(module, "main", noting(name))
    return found


def test_a_step_that_fails_ends_the_run_and_the_next_run_goes_on(
    tmp_path: Path, ran: list[str]
) -> None:
    asked = [str(tmp_path), "--speechocean762", "so.git", "--turns", "1"]
    assert command.main(asked) == 3
    heard = ["turn_pauses", "noisy_pauses"]
    assert ran == ["turn_data", *heard, "turn_data", *heard, "message_ends"]
    assert (tmp_path / "names.txt").read_text() in ("a.wav\n", "b.wav\n")
    for folder in ("turns", "more"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "card.json").write_text("{}")
    ran.clear()
    assert command.main(asked) == 3
    assert ran == [*heard, *heard, "message_ends"]


def test_a_list_of_names_is_taken_over(tmp_path: Path, ran: list[str]) -> None:
    (tmp_path / "list").write_text("b.wav\n")
    assert command.main([str(tmp_path), "--shipped", "--names", str(tmp_path / "list")]) == 3
    assert (tmp_path / "names.txt").read_text() == "b.wav\n"
    assert command.main([str(tmp_path), "--shipped", "--names", str(tmp_path / "none")]) == 2
