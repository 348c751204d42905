"""Verdict of `bench abuse` on late answers; the attacks themselves are made in test_attacks_*."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from agent.cli.bench import main
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.voice import abuse
from benchmarks.voice.abuse import QUIET, show, verdicts
from benchmarks.voice.harness import HeldCall


@dataclass
class Turn:
    """An exchange as far as it is judged."""

    e2e_ear_ms: float | None
    errors: list[str] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return self.e2e_ear_ms is not None


def held(*times_ms: float | None, errors: tuple[str, ...] = ()) -> HeldCall:
    turns = [cast(SpokenTurn, Turn(each)) for each in times_ms]
    return HeldCall([], turns, errors=list(errors))


@pytest.mark.parametrize(
    ("during", "passes"),
    [
        (held(500.0, 640.0), True),
        (held(500.0, 660.0), False),
        (held(500.0, None), False),
        (held(500.0, 500.0, errors=("The call has ended.",)), False),
        (held(), False),
    ],
    ids=["three tenths longer", "longer", "not answered", "broken off", "nothing"],
)
def test_three_tenths_longer_is_the_most(during: HeldCall, passes: bool) -> None:
    found = verdicts({QUIET: held(400.0, 500.0), "attack": during})
    assert found[QUIET]["passes"]
    assert found["attack"]["passes"] == passes


def test_the_table_says_what_was_too_late(capsys: pytest.CaptureFixture[str]) -> None:
    show(verdicts({QUIET: held(400.0, 500.0), "attack": held(900.0), "after": held(None)}))
    quiet, attack, after = capsys.readouterr().out.splitlines()[1:]
    assert quiet.split() == [QUIET, "400", "500", "0"]
    assert attack.endswith("TOO LATE")
    assert after.split() == ["after", "-", "-", "1", "TOO", "LATE"]


def test_attackers_need_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse, "ATTACKER", "192.0.2.1")
    with pytest.raises(BenchError, match=r"192\.0\.2\.1"):
        main(["abuse", "tests/recordings", "--turns", "1"])
