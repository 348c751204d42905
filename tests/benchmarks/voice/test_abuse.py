"""Verdict of `bench abuse` on late answers; the attacks themselves are made in test_attacks_*."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from agent.cli.bench import main
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.callers.abusive_clients import AttackTarget
from benchmarks.signals.recordings import find_recordings
from benchmarks.voice import abuse
from benchmarks.voice.abuse import ATTACKS, QUIET, AbusePhase, show, verdicts
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
    found = verdicts({QUIET: AbusePhase(held(400.0, 500.0)), "attack": AbusePhase(during)})
    assert found[QUIET]["passes"]
    assert found["attack"]["passes"] == passes


def test_the_table_says_what_was_too_late(capsys: pytest.CaptureFixture[str]) -> None:
    phases = {
        QUIET: AbusePhase(held(400.0, 500.0), 700.2, 711.9),
        "attack": AbusePhase(held(900.0)),
        "after": AbusePhase(held(None)),
    }
    found = verdicts(phases)
    assert found[QUIET]["memory_mb"] == {"before": 700.2, "after": 711.9}
    show(found)
    quiet, attack, after = capsys.readouterr().out.splitlines()[1:]
    assert quiet.split() == [QUIET, "400", "500", "0", "700", "712"]
    assert attack.endswith("TOO LATE")
    assert after.split() == ["after", "-", "-", "1", "-", "-", "TOO", "LATE"]


async def test_memory_is_read_around_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the call of each phase, not before the warm-up."""
    events: list[str] = []

    async def hold(recordings: object, url: str, plan: object) -> HeldCall:
        events.append("call")
        return held(500.0)

    async def attack(target: object) -> None:
        raise AssertionError("it begins after the call")

    async def ready(url: str, timeout_s: float) -> None:
        return

    readings = iter(range(100))

    def memory_mb() -> float:
        events.append("memory")
        return next(readings)

    monkeypatch.setattr(abuse, "hold", hold)
    monkeypatch.setattr(abuse, "wait_ready", ready)
    monkeypatch.setattr(abuse, "RECOVERED_S", 0.0)
    recordings = find_recordings([Path("tests/recordings")], 2, 1)
    url = "ws://127.0.0.1:1/v1/realtime"
    phases = await abuse.measure(recordings, url, {"attack": attack}, memory_mb)
    assert events == ["call", *["memory", "call", "memory"] * 3]
    assert [(name, each.before_mb, each.after_mb) for name, each in phases.items()] == [
        (QUIET, 0, 1),
        ("attack", 2, 3),
        ("attack, after", 4, 5),
    ]


async def test_both_greedy_callers_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)
    met: list[str] = []
    have_met = asyncio.Event()

    def kind(name: str) -> Callable[[object, float], Awaitable[None]]:
        async def come(target: object, seconds: float) -> None:
            await both.wait()
            met.append(name)
            if len(met) == 2:
                have_met.set()
            await asyncio.Event().wait()

        return come

    for name in ("speak_too_fast", "ask_long"):
        monkeypatch.setattr(abuse, name, kind(name))

    async def attack() -> None:
        await ATTACKS["both of these callers"](AttackTarget("ws://127.0.0.1:1/"))

    async with asyncio.TaskGroup() as group:
        attacking = group.create_task(attack())
        await have_met.wait()
        attacking.cancel()
    assert sorted(met) == ["ask_long", "speak_too_fast"]


def test_attackers_need_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse, "ATTACKER", "192.0.2.1")
    with pytest.raises(BenchError, match=r"192\.0\.2\.1"):
        main(["abuse", "tests/recordings", "--turns", "1"])
