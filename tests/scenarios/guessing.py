"""Calls in which it matters when a reply is prepared in secret, and what ends that."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Agent, Caller
from agent.turn_taking.thresholds import MAX_PREEMPTIVE
from tests.scenarios.steps import (
    NO_INTERRUPTS,
    NO_REPLIES,
    ONE,
    QUESTION,
    TWO,
    answered,
    asked,
    audible,
    commit,
    known,
    overlaps,
    pauses,
    played,
    resumes,
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import at, timeline

_IN_VAIN = [
    entry
    for number in range(1, MAX_PREEMPTIVE + 1)
    for entry in (
        pauses(500 * number, 1, number),
        known(500 * number + 200, 1, number, "Well," + " I" * number, ONE),
        silence(500 * number + 220, 1, 300),  # what is prepared need not be begun again
        resumes(500 * number + 300, 1, cmd.DropGuess(ONE)),
    )
]

THINKS_ALOUD = timeline(
    "after so many guesses in vain the next pause is waited for",
    starts(0, 1),
    *_IN_VAIN,
    pauses(6000, 1, MAX_PREEMPTIVE + 1),
    words(6200, 1, MAX_PREEMPTIVE + 1, "Well, I would go."),
    silence(6250, 1, 350, commit(1, "Well, I would go."), cmd.StartReply(ONE)),
    *answered(ONE, 6300),
    *asked(TWO, 8000),
    *answered(TWO, 9300),
)

CUT_GUESS = timeline(
    "a guess that became the reply is cut like any other",
    *asked(ONE),
    audible(1250, ONE),
    *overlaps(1750, 2, ONE),
    pauses(2000, 2),
    known(2200, 2, 1, QUESTION, TWO, cmd.CutReply(ONE, "turn_detected")),
    silence(2350, 2, 350, commit(2), cmd.StartReply(TWO)),
    *answered(TWO, 2350),
)

BUSY = timeline(
    "nothing is guessed before the agent has sent its reply",
    *asked(ONE),
    audible(1300, ONE),
    starts(1900, 2),
    pauses(2500, 2),
    words(2700, 2, 1, "And where"),
    silence(2750, 2, 250),
    sent(2800, ONE),
    silence(2850, 2, 300, cmd.GuessReply(TWO, "And where")),
    played(2900, ONE),
    silence(3200, 2, 350, commit(2, "And where"), cmd.StartReply(TWO)),
    *answered(TWO, 3250),
    rules=NO_INTERRUPTS,
)

WORDS_OUTSTANDING = timeline(
    "nothing is guessed while the words of another message are outstanding",
    at(0, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    starts(100, 2),
    pauses(1000, 2),
    words(1100, 2, 1, QUESTION),
    words(1200, 1, 1, "Hello.", cmd.CompleteTranscript(1, "Hello.")),
    silence(1210, 2, 310, cmd.GuessReply(ONE, QUESTION)),
    silence(1250, 2, 350, commit(2), cmd.StartReply(ONE)),
    *answered(ONE, 1300),
)

ASKED_IN_PAUSE = timeline(
    "the client asks for a reply of its own in the pause",
    starts(0, 1),
    pauses(1000, 1),
    known(1100, 1, 1, QUESTION, ONE),
    at(1150, ev.ReplyRequested(), cmd.DropGuess(ONE), cmd.StartReply(ONE)),
    silence(1250, 1, 350, commit(1)),
    audible(1300, ONE),
    sent(1800, ONE, cmd.StartReply(TWO)),
    *answered(TWO, 1900),
)

THROWN_AWAY = timeline(
    "the client throws away the audio of a pause",
    starts(0, 1),
    pauses(1000, 1),
    known(1100, 1, 1, QUESTION, ONE),
    at(1150, ev.BufferCleared(1), cmd.DropGuess(ONE), cmd.DropUtterance(1, announced=True)),
)

DETECTION_CHANGED = timeline(
    "turn detection changes in the pause",
    starts(0, 1),
    pauses(1000, 1),
    known(1100, 1, 1, QUESTION, ONE),
    at(1110, ev.RulesChanged(TurnRules(eagerness="low"))),
    at(1120, ev.RulesChanged(NO_REPLIES), cmd.DropGuess(ONE)),
    silence(1140, 1, 240),
    at(1150, ev.RulesChanged(TurnRules())),
    silence(1160, 1, 260, cmd.GuessReply(ONE, QUESTION)),
    at(
        1170,
        ev.RulesChanged(TurnRules(enabled=False)),
        cmd.DropGuess(ONE),
        cmd.DropUtterance(1, announced=True),
    ),
)

NOT_ANSWERED = timeline(
    "nothing is guessed where no reply would follow",
    starts(0, 1),
    pauses(1000, 1),
    words(1100, 1, 1, QUESTION),
    silence(1250, 1, 350, commit(1)),
    rules=NO_REPLIES,
)

NO_WORDS_YET = timeline(
    "nothing is guessed of noise",
    starts(0, 1),
    pauses(1000, 1),
    words(1100, 1, 1, "  "),
    silence(1150, 1, 250),
    resumes(1200, 1),
    ends=(Caller.SPEAKING, Agent.IDLE),
)

GUESSING = (
    THINKS_ALOUD,
    CUT_GUESS,
    BUSY,
    WORDS_OUTSTANDING,
    ASKED_IN_PAUSE,
    THROWN_AWAY,
    DETECTION_CHANGED,
    NOT_ANSWERED,
    NO_WORDS_YET,
)
