"""Calls with early openers: an opener is spoken before the answer is certain."""

from dataclasses import replace
from typing import Final

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules, opener_silence_ms, required_silence_ms
from agent.turn_taking.end_of_turn_model import Evidence
from agent.turn_taking.tables import Agent, Caller
from agent.turn_taking.thresholds import OPENER_LEAD_MS, REOPEN_MS
from tests.scenarios.steps import (
    ONE,
    TWO,
    answered,
    audible,
    commit,
    goes_on,
    known,
    overlaps,
    pauses,
    played,
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import Step, at, timeline, timer

EARLY: Final = TurnRules(opens_early=True)
FIRST, REST = "Book a table.", "For two."
PAUSED_MS = 1000
"""Time of the first pause."""


def opens_ms(text: str) -> int:
    """Silence that is enough for an opener."""
    wait_ms = opener_silence_ms(EARLY, Evidence(text))
    assert wait_ms is not None
    return wait_ms


def ends_ms(text: str) -> int:
    """Silence that is enough for the answer."""
    return required_silence_ms(EARLY, Evidence(text))


OPENS_AT = PAUSED_MS + opens_ms(FIRST)
ENDS_AT = PAUSED_MS + ends_ms(FIRST)
assert ENDS_AT - OPENS_AT >= OPENER_LEAD_MS


def opened() -> tuple[Step, ...]:
    """The turn is committed for an opener."""
    return (
        starts(0, 1),
        pauses(PAUSED_MS, 1),
        known(1180, 1, 1, FIRST, ONE),
        silence(OPENS_AT - 1, 1, OPENS_AT - 1 - PAUSED_MS),
        silence(
            OPENS_AT,
            1,
            OPENS_AT - PAUSED_MS,
            commit(1, FIRST),
            cmd.StartReply(ONE, ENDS_AT - OPENS_AT),
        ),
    )


def opener(at_ms: int = OPENS_AT + 10) -> Step:
    return at(at_ms, ev.OpenerAudible(ONE), cmd.ReleaseOpener(ONE))


OPENED = timeline(
    "an opener is heard, and the answer behind it",
    *opened(),
    opener(),
    *answered(ONE, ENDS_AT),
    rules=EARLY,
)

GOES_ON = timeline(
    "speech over the opener goes on with the turn, however late, and gets no second opener",
    *opened(),
    opener(),
    goes_on(OPENS_AT + 20 + REOPEN_MS, 2, ONE),
    at(2100, ev.ReplyAudible(ONE)),
    pauses(2500, 2),
    known(2700, 2, 1, REST, TWO),
    silence(2500 + opens_ms(REST), 2, opens_ms(REST)),
    silence(2500 + ends_ms(REST), 2, ends_ms(REST), commit(2, REST), cmd.StartReply(TWO)),
    *answered(TWO, 4000),
    rules=EARLY,
    stale=1,
)

GOES_ON_BEFORE_IT = timeline(
    "speech before the opener can be heard goes on with the turn",
    *opened(),
    goes_on(OPENS_AT + 5, 2, ONE),
    at(OPENS_AT + 10, ev.OpenerAudible(ONE)),
    rules=EARLY,
    ends=(Caller.SPEAKING, Agent.IDLE),
    stale=1,
)

NOISE = timeline(
    "noise over the opener: the answer begins anew, without one",
    *opened(),
    opener(),
    goes_on(OPENS_AT + 300, 2, ONE),
    pauses(2000, 2),
    words(2200, 2, 1, ""),
    silence(3100, 2, 1000, cmd.DropUtterance(2, announced=True), cmd.StartReply(TWO)),
    *answered(TWO, 3200),
    rules=EARLY,
)

INTERRUPTED = timeline(
    "speech over the answer interrupts it as ever",
    *opened(),
    opener(),
    audible(ENDS_AT, ONE),
    *overlaps(ENDS_AT + REOPEN_MS, 2, ONE),
    rules=EARLY,
    ends=(Caller.SPEAKING, Agent.HELD),
)

CANCELLED = timeline(
    "the client cancels the response of which an opener was heard",
    *opened(),
    opener(),
    at(OPENS_AT + 100, ev.ReplyCancelled(), cmd.CutReply(ONE, "client_cancelled")),
    rules=EARLY,
)

LOST = timeline(
    "a client that is lost over an opener is answered when it is back",
    *opened(),
    opener(),
    at(OPENS_AT + 100, ev.ClientLost(unheard=True), cmd.CutReply(ONE, "client_cancelled")),
    at(3000, ev.ClientBack(), cmd.StartReply(TWO)),
    *answered(TWO, 3100),
    rules=EARLY,
)

FAILED = timeline(
    "an apology behind an opener",
    *opened(),
    opener(),
    at(OPENS_AT + 100, ev.ReplyFailed(ONE), cmd.Apologize(ONE)),
    sent(OPENS_AT + 200, ONE),
    played(OPENS_AT + 900, ONE),
    rules=EARLY,
)

HANGS = timeline(
    "an answer that never comes behind an opener",
    *opened(),
    opener(),
    timer(OPENS_AT + 20_000, cmd.Apologize(ONE)),
    sent(OPENS_AT + 20_200, ONE),
    played(OPENS_AT + 20_900, ONE),
    rules=EARLY,
)

NOTHING_BEHIND = timeline(
    "a reply with no words but the opener",
    *opened(),
    opener(),
    sent(OPENS_AT + 300, ONE),
    played(OPENS_AT + 600, ONE),
    rules=EARLY,
)

SURE = timeline(
    "no opener where the answer is certain soon",
    starts(0, 1),
    pauses(PAUSED_MS, 1),
    at(1100, ev.PauseJudged(1, 1, 3.0)),
    known(1180, 1, 1, FIRST, ONE),
    silence(1384, 1, 384),
    silence(1416, 1, 416, commit(1, FIRST), cmd.StartReply(ONE)),
    *answered(ONE, 1500),
    rules=EARLY,
)

LATE_WORDS = timeline(
    "no opener before a reply to these words is being prepared",
    starts(0, 1),
    pauses(PAUSED_MS, 1),
    silence(OPENS_AT, 1, OPENS_AT - PAUSED_MS),
    known(OPENS_AT + 10, 1, 1, FIRST, ONE),
    silence(
        OPENS_AT + 32,
        1,
        OPENS_AT + 32 - PAUSED_MS,
        commit(1, FIRST),
        cmd.StartReply(ONE, ENDS_AT - OPENS_AT - 32),
    ),
    opener(OPENS_AT + 40),
    *answered(ONE, ENDS_AT),
    rules=EARLY,
)

UNINTERRUPTED = timeline(
    "no opener where speech could not stop it",
    starts(0, 1),
    pauses(PAUSED_MS, 1),
    known(1180, 1, 1, FIRST, ONE),
    silence(OPENS_AT, 1, OPENS_AT - PAUSED_MS),
    silence(ENDS_AT, 1, ENDS_AT - PAUSED_MS, commit(1, FIRST), cmd.StartReply(ONE)),
    *answered(ONE, ENDS_AT + 100),
    rules=replace(EARLY, interrupts=False),
)

OPENING = (
    OPENED,
    GOES_ON,
    GOES_ON_BEFORE_IT,
    NOISE,
    INTERRUPTED,
    CANCELLED,
    LOST,
    FAILED,
    HANGS,
    NOTHING_BEHIND,
    SURE,
    LATE_WORDS,
    UNINTERRUPTED,
)
