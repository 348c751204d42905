"""The two tables, their diagram, and what is in neither."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import (
    AGENT,
    CALLER,
    Agent,
    Caller,
    Cause,
    IllegalEvent,
    Signal,
    State,
    cause_name,
    diagram,
    next_state,
)
from latency_budget.account.turn import TurnId

ROOT = Path(__file__).resolve().parents[3]
EVENTS: tuple[type, ...] = get_args(ev.Event)
CAUSES: tuple[Cause, ...] = (*EVENTS, *Signal)
ONE = TurnId(1)

SPEAKS = (ev.SpeechStarted(1, 0),)
PAUSES = (*SPEAKS, ev.SpeechPaused(1, 0))
PREPARES = (ev.ReplyRequested(),)
TALKS = (*PREPARES, ev.ReplyAudible(ONE))
TRAILS = (*TALKS, ev.ReplySent(ONE))

ILLEGAL: list[tuple[tuple[ev.Event, ...], ev.Event, str]] = [
    (SPEAKS, ev.SpeechStarted(2, 0), "SpeechStarted while the caller is speaking"),
    (SPEAKS, ev.SilenceGrew(1, 200), "SilenceGrew while the caller is speaking"),
    (SPEAKS, ev.SpeechResumed(1, 0), "SpeechResumed while the caller is speaking"),
    (PAUSES, ev.SpeechStarted(2, 0), "SpeechStarted while the caller is pausing"),
    (PREPARES, ev.ReplyPlayed(ONE), "ReplyPlayed while the agent is preparing"),
    (TALKS, ev.ReplyAudible(ONE), "ReplyAudible while the agent is speaking"),
    (TALKS, ev.OpenerAudible(ONE), "OpenerAudible while the agent is speaking"),
    (TALKS, ev.ReplyPlayed(ONE), "ReplyPlayed while the agent is speaking"),
    (TRAILS, ev.ReplyAudible(ONE), "ReplyAudible while the agent is trailing"),
    (TRAILS, ev.ReplySent(ONE), "ReplySent while the agent is trailing"),
    (TRAILS, ev.ReplyFailed(ONE), "ReplyFailed while the agent is trailing"),
]

CLOSED = (*PAUSES, ev.BufferCleared(1))
CUT = (*TALKS, ev.ReplyCancelled())
STALE: list[tuple[tuple[ev.Event, ...], ev.Event]] = [
    *((CLOSED, event) for event in (
        ev.SpeechStarted(1, 0), ev.SpeechPaused(1, 0), ev.SilenceGrew(1, 999),
        ev.SpeechResumed(1, 0), ev.AudioStalled(1),
        ev.TranscriptReady(1, 1, "Late."), ev.TranscriptFailed(1, 1),
        ev.MessageEndScored(1, "Late.", -1.0),
    )),
    *((PAUSES, event) for event in (
        ev.SpeechStarted(1, 0), ev.SpeechPaused(9, 0), ev.SilenceGrew(9, 999),
        ev.SpeechResumed(9, 0), ev.AudioStalled(9), ev.TranscriptReady(1, 0, "Old."),
        ev.TranscriptFailed(1, 2),
    )),
    (SPEAKS, ev.TranscriptReady(1, 0, "Before any pause.")),
    (TRAILS, ev.ReplyContinued(ONE)),
    *((state, kind(turn)) for state, turn in ((CUT, ONE), (TALKS, TurnId(0)), (TRAILS, TurnId(9)))
      for kind in (
          ev.OpenerAudible, ev.ReplyAudible, ev.ReplyContinued, ev.ReplySent, ev.ReplyPlayed,
          ev.ReplyFailed,
      )),
]  # fmt: skip


def machine_after(events: tuple[ev.Event, ...]) -> TurnTaking:
    machine = TurnTaking(TurnRules())
    for event in events:
        machine.apply(event, 0)
    return machine


@pytest.mark.parametrize(("past", "event", "message"), ILLEGAL, ids=lambda value: str(value)[:40])
def test_illegal_event_names_itself_and_the_state(
    past: tuple[ev.Event, ...], event: ev.Event, message: str
) -> None:
    machine = machine_after(past)
    before = (machine.caller, machine.agent, machine.turn, machine.next_deadline_ns())
    with pytest.raises(IllegalEvent, match=f"^{message}$"):
        machine.apply(event, 10)
    assert (machine.caller, machine.agent, machine.turn, machine.next_deadline_ns()) == before


@pytest.mark.parametrize(("past", "event"), STALE, ids=lambda value: str(value)[:60])
def test_late_event_is_dropped_and_counted(past: tuple[ev.Event, ...], event: ev.Event) -> None:
    machine = machine_after(past)
    before = (machine.caller, machine.agent, machine.turn, machine.next_deadline_ns())
    assert machine.stale_events == 0
    assert machine.apply(event, 10) == ()
    assert machine.stale_events == 1
    assert (machine.caller, machine.agent, machine.turn, machine.next_deadline_ns()) == before


def test_no_detection_no_speech() -> None:
    machine = TurnTaking(TurnRules(enabled=False))
    assert machine.apply(ev.SpeechStarted(1, 0), 0) == ()
    assert (machine.caller, machine.stale_events) == (Caller.QUIET, 1)


def check_pairs(table: Mapping[tuple[State, Cause], State], state: State, cause: Cause) -> None:
    if (state, cause) in table:
        assert next_state(table, state, cause) is table[state, cause]
        return
    with pytest.raises(IllegalEvent) as raised:
        next_state(table, state, cause)
    assert cause_name(cause) in str(raised.value)
    assert str(raised.value).endswith(f"is {state.value}")


def test_a_pair_is_in_its_table_or_raises() -> None:
    for cause in CAUSES:
        for caller in Caller:
            check_pairs(CALLER, caller, cause)
        for agent in Agent:
            check_pairs(AGENT, agent, cause)


def check_connected(table: Mapping[tuple[State, Cause], State], start: State) -> None:
    edges = {(state, after) for (state, _), after in table.items()}
    reached = {start}
    leads_back = {start}
    for _ in edges:
        reached |= {after for state, after in edges if state in reached}
        leads_back |= {state for state, after in edges if after in leads_back}
    assert reached == leads_back == set(type(start))


def test_each_state_can_be_reached_and_left_for_the_start() -> None:
    check_connected(CALLER, Caller.QUIET)
    check_connected(AGENT, Agent.IDLE)


def test_each_kind_of_event_is_known() -> None:
    examples: dict[type, ev.Event] = {type(event): event for _, event in STALE} | {
        ev.BufferCommitted: ev.BufferCommitted(1),
        ev.BufferCleared: ev.BufferCleared(1),
        ev.ReplyRequested: ev.ReplyRequested(),
        ev.FollowUpRequested: ev.FollowUpRequested(),
        ev.ReplyCancelled: ev.ReplyCancelled(),
        ev.PauseJudged: ev.PauseJudged(1, 1, 0.5),
        ev.RulesChanged: ev.RulesChanged(TurnRules()),
        ev.ReplyStands: ev.ReplyStands(ONE, "", ""),
        ev.WordsHeard: ev.WordsHeard(1, ""),
        ev.BackgroundChanged: ev.BackgroundChanged(1),
        ev.ReplyCalledClient: ev.ReplyCalledClient(ONE),
        ev.ClientLost: ev.ClientLost(unheard=True),
        ev.ClientBack: ev.ClientBack(),
        ev.CallTakenOver: ev.CallTakenOver(answer_due=True, caller_has_spoken=True),
    }
    assert examples.keys() == set(EVENTS)
    for event in examples.values():
        TurnTaking(TurnRules()).apply(event, 0)


def test_diagram_draws_each_row_once() -> None:
    drawn = re.findall(r"^    (caller|agent)_(\w+) --> \1_(\w+): (.+)$", diagram(), re.MULTILINE)
    rows = [("caller", str(a), str(b), cause_name(cause)) for (a, cause), b in CALLER.items()]
    rows += [("agent", str(a), str(b), cause_name(cause)) for (a, cause), b in AGENT.items()]
    assert drawn == rows


def test_diagram_is_printed_by_the_module() -> None:
    command = [sys.executable, "-m", "agent.turn_taking.tables"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == diagram() + "\n"


def test_architecture_shows_the_present_diagram() -> None:
    text = (ROOT / "agent" / "turn_taking" / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```mermaid\n(stateDiagram-v2\n.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert shown == [diagram()], "paste what `python -m agent.turn_taking.tables` prints"
