"""Calibration of the end of turn: tables of what was said and what happened."""

import math

import pytest

from agent.turn_taking.end_of_turn_model import (
    ALL_KNOWN,
    EAGERNESS,
    SILENCE,
    Evidence,
    Release,
    TurnScore,
)
from benchmarks.end_of_turn.calibration import (
    SILENCES_MS,
    calibration,
    decision_times,
    judged_at,
    reliability,
    show,
)
from benchmarks.end_of_turn.evaluation import KnownTurn
from benchmarks.end_of_turn.turn_pauses import Pause

SCORE = TurnScore(
    {known: {"sound": 1.0, SILENCE: 2.0} for known in ALL_KNOWN},
    dict.fromkeys(EAGERNESS, Release(1.0, 256, 1000)),
)


def known(kind: str, *pauses: tuple[float, bool, int]) -> KnownTurn:
    """A turn of pauses with these log-odds of the sound, of these lengths in ms."""
    return KnownTurn(
        kind,
        tuple(
            (Pause("x.wav", kind, "b", 0, is_end, ms, 0, "Yes."), Evidence("Yes.", sound))
            for sound, is_end, ms in pauses
        ),
    )


def test_each_bin_has_what_was_said_and_what_happened() -> None:
    said = [0.0, 0.05, 0.55, 0.55, 0.59, 0.51, 1.0]
    table = reliability(said, [False, True, True, True, False, True, True])
    assert [one.count for one in table.bins] == [2, 0, 0, 0, 0, 4, 0, 0, 0, 1]
    first, sixth, empty = table.bins[0], table.bins[5], table.bins[1]
    assert (first.predicted, first.observed) == (0.025, 0.5)
    assert (sixth.low, sixth.high, sixth.predicted, sixth.observed) == (0.5, 0.6, 0.55, 0.75)
    assert sixth.interval == (0.3006, 0.9544)  # Wilson's, for 3 of 4
    assert (empty.predicted, empty.observed, empty.interval) == (None, None, (0.0, 1.0))


def test_brier_score_and_expected_calibration_error() -> None:
    table = reliability([0.2, 0.2, 0.8, 0.8], [False, True, True, True])
    assert table.brier == round((0.04 + 0.64 + 0.04 + 0.04) / 4, 4)
    assert table.base_brier == 0.1875
    assert table.expected_calibration_error == round((2 * 0.3 + 2 * 0.2) / 4, 4)
    perfect = reliability([0.0, 1.0], [False, True])
    assert (perfect.brier, perfect.expected_calibration_error) == (0.0, 0.0)


def test_a_pause_is_judged_at_the_silences_that_it_lasted() -> None:
    turns = [known("command", (-1.0, False, 350), (2.0, True, 2500))]
    predicted, observed = judged_at(turns, SCORE, 300)
    assert predicted == [pytest.approx(1 / (1 + math.e)), pytest.approx(1 / (1 + math.exp(-2)))]
    assert observed == [False, True]
    predicted, observed = judged_at(turns, SCORE, 600)
    assert observed == [True]
    assert predicted == [pytest.approx(1 / (1 + math.exp(-2 - 2 * math.log(2))))]


def test_kinds_stand_apart_and_together(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [known("command", (3.0, True, 2500)), known("numbers", (0.0, False, 500))]
    tables = calibration(turns, SCORE)
    counts = {
        silence: {kind: table["count"] for kind, table in found.items()}
        for silence, found in tables.items()
    }
    assert counts == {
        "300": {"all": 2, "command": 1, "numbers": 1},
        "416": {"all": 2, "command": 1, "numbers": 1},
        "800": {"all": 1, "command": 1},
    }
    assert list(map(int, counts)) == list(SILENCES_MS)
    assert tables["300"]["numbers"]["bins"][5]["observed"] == 0.0
    show(tables, decision_times(turns, SCORE))
    printed = capsys.readouterr().out
    assert "calibration after 300 ms, numbers      1 pauses: Brier 0.250" in printed
    assert "0.9-1.0     1 pauses  predicted  95.3 %  over 100.0 % (20.6-100.0)" in printed
    assert "2 decisions" in printed


def test_the_time_of_a_decision_is_that_of_every_pause() -> None:
    turns = [known("command", (0.0, False, 300), (1.0, True, 2500))]
    found = decision_times(turns, SCORE)
    assert found["decisions"] == 2
    assert 0 < found["p50_us"] <= found["p99_us"]
    assert decision_times([], SCORE) == {"decisions": 0, "p50_us": None, "p99_us": None}
