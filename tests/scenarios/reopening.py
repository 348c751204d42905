"""Calls in which the caller goes on just as the agent begins, and such as only look like that."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Agent, Caller
from agent.turn_taking.thresholds import REOPEN_MS
from tests.scenarios.steps import (
    NO_INTERRUPTS,
    NO_REPLIES,
    ONE,
    PUSH_TO_TALK,
    QUESTION,
    THREE,
    TWO,
    answered,
    asked,
    audible,
    commit,
    goes_on,
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
from tests.scenarios.timeline import QUICK, at, timeline, timer

SPEAKING = (Caller.SPEAKING, Agent.IDLE)
OVERLAPPING = (Caller.SPEAKING, Agent.HELD)

REOPENED = timeline(
    "the caller goes on twice: while the reply is heard, and while it is prepared",
    *asked(ONE),
    audible(1300, ONE),
    goes_on(1600, 2, ONE),
    at(1610, ev.ReplySent(ONE)),
    pauses(2200, 2),
    known(2400, 2, 1, "In Paris", TWO),
    resumes(2500, 2, cmd.DropGuess(TWO)),
    pauses(2700, 2, 2),
    known(2900, 2, 2, "In Paris, I mean.", TWO),
    silence(3050, 2, 350, commit(2, "In Paris, I mean."), cmd.StartReply(TWO)),
    goes_on(3100, 3, TWO),
    at(3110, ev.ReplyAudible(TWO)),
    pauses(3900, 3),
    known(4100, 3, 1, "Please.", THREE),
    silence(4250, 3, 350, commit(3, "Please."), cmd.StartReply(THREE)),
    *answered(THREE, 4300),
    stale=2,
)

NOISE = timeline(
    "noise re-opens a turn: its answer begins anew, and the caller may still go on with it",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    pauses(1500, 2),
    words(1700, 2, 1, " "),
    silence(1900, 2, 300),
    silence(2200, 2, 350, cmd.DropUtterance(2, announced=True), cmd.StartReply(TWO)),
    audible(2300, TWO),
    goes_on(2400, 3, TWO),
    pauses(3000, 3),
    known(3200, 3, 1, "In Paris.", THREE),
    silence(3350, 3, 350, commit(3, "In Paris."), cmd.StartReply(THREE)),
    *answered(THREE, 3400),
)

THROWN_AWAY = timeline(
    "the client throws the audio away that re-opened a turn",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1500, ev.BufferCleared(2), cmd.DropUtterance(2, announced=True), cmd.StartReply(TWO)),
    *answered(TWO, 1600),
)

JUST_IN_TIME = timeline(
    "the last moment at which a turn is re-opened",
    *asked(ONE),
    audible(1300, ONE),
    goes_on(1300 + REOPEN_MS - 1, 2, ONE),
    ends=SPEAKING,
)

TOO_LATE = timeline(
    "the first moment at which speech interrupts",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(1300 + REOPEN_MS, 2, ONE),
    ends=OVERLAPPING,
)

SHORT_REPLY = timeline(
    "a short reply is sent as a whole before the caller goes on",
    *asked(ONE),
    audible(1300, ONE),
    sent(1400, ONE),
    goes_on(1500, 2, ONE),
    at(1700, ev.ReplyPlayed(ONE)),
    ends=SPEAKING,
    stale=1,
)

PLAYED = timeline(
    "a reply that is over is none that could be taken back",
    *asked(ONE),
    audible(1300, ONE),
    sent(1400, ONE),
    played(1500, ONE),
    starts(1600, 2),
    ends=SPEAKING,
)

SILENT_REPLY = timeline(
    "nor is one that ended without a sound",
    *asked(ONE),
    sent(1300, ONE),
    *overlaps(1400, 2, ONE),
    ends=OVERLAPPING,
)

SILENT_REST = timeline(
    "nor is what is left of it when it was held",
    *asked(ONE),
    sent(1300, ONE),
    *overlaps(1400, 2, ONE),
    at(
        1500,
        ev.BufferCleared(2),
        cmd.DropUtterance(2, announced=True),
        cmd.ResumeReply(ONE),
    ),
    *overlaps(1600, 3, ONE),
    ends=OVERLAPPING,
)

ASKED_FOR = timeline(
    "a reply that the client asked for is interrupted, however early",
    *asked(ONE),
    *answered(ONE),
    at(3000, ev.ReplyRequested(), cmd.StartReply(TWO)),
    audible(3100, TWO),
    *overlaps(3200, 2, TWO),
    ends=OVERLAPPING,
)

ASKED_IN_SPEECH = timeline(
    "the client asks for a reply in the speech that re-opened the turn",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1400, ev.ReplyRequested(), cmd.StartReply(TWO)),
    audible(1500, TWO),
    pauses(1900, 2),
    words(2100, 2, 1, "In Paris."),
    silence(2250, 2, 350, commit(2, "In Paris.")),
    sent(2300, TWO, cmd.StartReply(THREE)),
    goes_on(2400, 3, THREE),
    ends=SPEAKING,
)

WAITING = timeline(
    "speech cuts an answer behind which another one waits: that one is still due",
    *asked(ONE),
    audible(1300, ONE),
    starts(1350, 2),
    pauses(1450, 2),
    words(1500, 2, 1, "In Paris."),
    silence(1600, 2, 350, commit(2, "In Paris.")),
    at(1610, ev.RulesChanged(QUICK)),
    *overlaps(1650, 3, ONE),
    at(1700, ev.BufferCleared(3), cmd.DropUtterance(3, announced=True), cmd.ResumeReply(ONE)),
    sent(1800, ONE, cmd.StartReply(TWO)),
    goes_on(2700, 4, TWO),
    rules=NO_INTERRUPTS,
    ends=SPEAKING,
)

NOT_INTERRUPTED = timeline(
    "where speech does not interrupt it re-opens nothing",
    *asked(ONE),
    starts(1280, 2),
    audible(1300, ONE),
    rules=NO_INTERRUPTS,
    ends=(Caller.SPEAKING, Agent.SPEAKING),
)

PUSHED = timeline(
    "what the client committed is answered because it asked, and is not gone on with",
    at(0, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    at(10, ev.ReplyRequested()),
    words(400, 1, 1, QUESTION, cmd.CompleteTranscript(1, QUESTION), cmd.StartReply(ONE)),
    at(410, ev.SpeechStarted(2, 6560)),
    at(420, ev.RulesChanged(TurnRules())),
    starts(500, 3, cmd.CutReply(ONE, "turn_detected")),
    rules=PUSH_TO_TALK,
    ends=SPEAKING,
    stale=1,
)

COMMITTED = timeline(
    "the client commits the second half: it is answered when the client asks",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1900, ev.BufferCommitted(2), commit(2, None), cmd.Transcribe(2, 1)),
    at(1910, ev.ReplyRequested()),
    words(2200, 2, 1, "In Paris.", cmd.CompleteTranscript(2, "In Paris."), cmd.StartReply(TWO)),
    audible(2300, TWO),
    *overlaps(2400, 3, TWO),
    ends=OVERLAPPING,
)

NO_MORE_ANSWERS = timeline(
    "the client stops automatic answers between the halves",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1300, ev.RulesChanged(NO_REPLIES)),
    pauses(1900, 2),
    words(2100, 2, 1, "In Paris."),
    silence(2250, 2, 350, commit(2, "In Paris.")),
)

APOLOGY = timeline(
    "an apology is no answer that the caller could go on before",
    *asked(ONE),
    at(1300, ev.ReplyFailed(ONE), cmd.Apologize(ONE)),
    starts(1400, 2, cmd.CutReply(ONE, "turn_detected")),
    ends=SPEAKING,
)

LISTENER_HANGS = timeline(
    "the recognizer hangs over the second half",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    pauses(1900, 2),
    timer(31_900, cmd.DropUtterance(2, announced=True), cmd.StartReply(TWO), cmd.Apologize(TWO)),
    starts(32_000, 3, cmd.CutReply(TWO, "turn_detected")),
    ends=SPEAKING,
)

REOPENING = (
    REOPENED,
    NOISE,
    THROWN_AWAY,
    JUST_IN_TIME,
    TOO_LATE,
    SHORT_REPLY,
    PLAYED,
    SILENT_REPLY,
    SILENT_REST,
    ASKED_FOR,
    ASKED_IN_SPEECH,
    WAITING,
    NOT_INTERRUPTED,
    PUSHED,
    COMMITTED,
    NO_MORE_ANSWERS,
    APOLOGY,
    LISTENER_HANGS,
)
