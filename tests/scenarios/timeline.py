"""Timelines: what happens to the turn-taking machine, when, and what it must do about it."""

from dataclasses import dataclass

from agent.turn_taking.commands import Command
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.events import Event
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller

NS_PER_MS = 1_000_000

QUICK = TurnRules(silence_ms=350)
"""Where it does not matter how an end of turn is known, one silence tells it: what the fitted score
makes of words and sound has tests of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    at_ms: int
    event: Event | None
    """None: the machine's timer is due at exactly this time."""
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    name: str
    steps: tuple[Step, ...]
    rules: TurnRules
    ends: tuple[Caller, Agent]
    stale: int
    """Late answers among the events."""


def timeline(
    name: str,
    *steps: Step,
    rules: TurnRules | None = None,
    ends: tuple[Caller, Agent] = (Caller.QUIET, Agent.IDLE),
    stale: int = 0,
) -> Timeline:
    return Timeline(name, steps, rules or QUICK, ends, stale)


def at(at_ms: int, event: Event, *commands: Command) -> Step:
    return Step(at_ms, event, commands)


def timer(at_ms: int, *commands: Command) -> Step:
    return Step(at_ms, None, commands)


def play(story: Timeline) -> TurnTaking:
    """Run it through a fresh machine. Fails where the machine does anything else."""
    machine = TurnTaking(story.rules)
    for step in story.steps:
        now_ns = step.at_ms * NS_PER_MS
        due_ns = machine.next_deadline_ns()
        where = f"{story.name} at {step.at_ms} ms: {step.event or 'timer'}"
        if step.event is None:
            assert due_ns == now_ns, where
            assert machine.on_timer(now_ns - 1) == (), where
            commands = machine.on_timer(now_ns)
        else:
            assert due_ns is None or due_ns > now_ns, f"{where}: the timer was due before"
            commands = machine.apply(step.event, now_ns)
        assert commands == step.commands, where
    return machine
