"""Whatever a session can send, in any order: the machine's promises hold.

The promises themselves stand in `tests/scenarios/witness.py`, checked after each step.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.turn import TurnId
from tests.scenarios.plausible import DUCKS, RULES, Session, time_out
from tests.scenarios.timeline import QUICK

DATA = st.data()
MAX_MOVES = 60

MAX_TIME_OUT_MS = 9 * 60_000
"""Speech 120 s, its words 30, a reply that is cut off by nothing 20 + 60 + 60, and another one that
was wanted meanwhile, with 20 to be played."""


def some_call(data: st.DataObject, rules: TurnRules | None = None) -> Session:
    """A call, left in the middle. Its witness has objected to nothing so far."""
    rules = rules or replace(data.draw(RULES), ducks=data.draw(DUCKS))
    session = Session(rules)
    for _ in range(data.draw(st.integers(0, MAX_MOVES))):
        moves = session.moves()
        moves[data.draw(st.sampled_from(sorted(moves)))](data.draw)
    return session


@settings(max_examples=400, deadline=None, derandomize=True)
@given(DATA)
def test_promises_hold_and_rest_is_reached(data: st.DataObject) -> None:
    session = some_call(data)
    session.settle()
    assert session.machine.caller is Caller.QUIET
    assert session.machine.agent is Agent.IDLE
    assert session.witness.open is None
    assert not session.witness.owed


@settings(max_examples=300, deadline=None, derandomize=True)
@given(DATA)
def test_the_timer_alone_leads_back_to_listening(data: st.DataObject) -> None:
    """Ears, recognizer, stages and client all fall silent in any state: nobody is waited for
    longer than nine minutes, and the next question is answered."""
    session = some_call(data)
    assert time_out(session) <= MAX_TIME_OUT_MS
    assert (session.machine.caller, session.machine.agent) == (Caller.QUIET, Agent.IDLE)
    ask_and_be_answered(session)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(DATA)
def test_rest_is_as_good_as_new(data: st.DataObject) -> None:
    """Nothing of the past comes up again: noise starts no reply, and a question gets one."""
    session = some_call(data)
    session.settle()
    if session.machine.agent is Agent.TRAILING:  # noise would hold it, and let it go on
        session.feed(ev.ReplyPlayed(session.machine.turn))
    ask_and_be_answered(session)


def ask_and_be_answered(session: Session) -> None:
    """A noise, and then a turn, at rest."""
    session.feed(ev.RulesChanged(QUICK))
    noise, question = session.ears.utterance + 1, session.ears.utterance + 2
    session.feed(ev.SpeechStarted(noise, 0))
    session.feed(ev.SpeechPaused(noise, 0))
    session.feed(ev.TranscriptReady(noise, 1, ""))
    assert session.feed(ev.SilenceGrew(noise, 800)) == (cmd.DropUtterance(noise, announced=True),)
    session.feed(ev.SpeechStarted(question, 0))
    session.feed(ev.SpeechPaused(question, 0))
    session.feed(ev.SilenceGrew(question, 350))
    turn = TurnId(session.machine.turn + 1)
    assert session.feed(ev.TranscriptReady(question, 1, "Why?")) == (
        cmd.CommitUtterance(question, "Why?", by_client=False),
        cmd.StartReply(turn),
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(DATA, st.integers(0, 2**62))
def test_same_events_same_commands_whenever_they_happen(data: st.DataObject, later: int) -> None:
    rules = replace(data.draw(RULES), ducks=data.draw(DUCKS))
    session = some_call(data, rules=rules)
    machine = TurnTaking(rules)
    for event, at_ns, commands in session.log:
        now_ns = at_ns + later
        again = machine.on_timer(now_ns) if event is None else machine.apply(event, now_ns)
        assert again == commands
    assert machine.stale_events == session.machine.stale_events


@settings(max_examples=100, deadline=None, derandomize=True)
@given(DATA)
def test_timer_is_harmless_before_it_is_due(data: st.DataObject) -> None:
    session = some_call(data)
    due_ns = session.machine.next_deadline_ns()
    before_ns = session.now_ns if due_ns is None else min(session.now_ns, due_ns - 1)
    assert session.machine.on_timer(before_ns) == ()
    assert session.machine.next_deadline_ns() == due_ns
