"""Calls whose client loses its connection, and comes back."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from tests.scenarios.steps import (
    DUCKS,
    ONE,
    PUSH_TO_TALK,
    QUESTION,
    TWO,
    answered,
    asked,
    audible,
    commit,
    ducks,
    known,
    overlaps,
    pauses,
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import Step, at, timeline, timer

CUT = cmd.CutReply(ONE, "client_cancelled")


def lost(at_ms: int, *commands: cmd.Command, unheard: bool = True) -> Step:
    return at(at_ms, ev.ClientLost(unheard), *commands)


def back(at_ms: int, *commands: cmd.Command) -> Step:
    return at(at_ms, ev.ClientBack(), *commands)


LOST_BEFORE_THE_ANSWER = timeline(
    "a caller who was waiting for his answer gets it when he is back",
    *asked(ONE),
    lost(1260, CUT),
    back(9000, cmd.StartReply(TWO)),
    *answered(TWO, 9100),
)

LOST_IN_MID_ANSWER = timeline(
    "an answer that was heard in part is not taken up",
    *asked(ONE),
    audible(1300, ONE),
    lost(1900, CUT, unheard=False),
    back(9000),
)

LOST_BEFORE_A_WORD = timeline(
    "an answer of which no word was heard is given when the caller is back",
    *asked(ONE),
    audible(1300, ONE),
    lost(1350, CUT),
    back(9000, cmd.StartReply(TWO)),
    *answered(TWO, 9100),
)

LOST_WHILE_IT_IS_PLAYED = timeline(
    "what was sent and not played is cut",
    *asked(ONE),
    audible(1300, ONE),
    sent(1900, ONE),
    lost(2000, CUT, unheard=False),
    back(2500),
)

LOST_AT_REST = timeline(
    "nothing happens where nobody was busy, and what is asked later is answered",
    lost(100),
    back(5000),
    *asked(ONE, 6000),
    *answered(ONE, 7300),
)

LOST_WHILE_SPEAKING = timeline(
    "what was said by then is a message, answered when the caller is back",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    words(1200, 1, 1, QUESTION, commit(1)),
    back(4000, cmd.StartReply(ONE)),
    *answered(ONE, 4100),
)

LOST_IN_A_PAUSE = timeline(
    "a pause in which the caller is lost ends his turn",
    starts(100, 1),
    pauses(1000, 1),
    known(1180, 1, 1, QUESTION, ONE),
    lost(1200, cmd.DropGuess(ONE), commit(1)),
    back(4000, cmd.StartReply(ONE)),
    *answered(ONE, 4100),
)

GOES_ON_WHEN_BACK = timeline(
    "who goes on with his sentence when he is back has said one thing",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    words(1200, 1, 1, "What time", commit(1, "What time")),
    back(1500, cmd.StartReply(ONE)),
    starts(1700, 2, cmd.ReopenTurn(ONE, 2)),
    pauses(2500, 2),
    known(2600, 2, 1, "is it?", TWO),
    silence(2850, 2, 350, commit(2, "is it?"), cmd.StartReply(TWO)),
    *answered(TWO, 2900),
)

NOISE_WHEN_LOST = timeline(
    "noise comes to nothing",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    words(1200, 1, 1, "", cmd.DropUtterance(1, announced=True)),
    back(4000),
)

LOST_BEFORE_THE_WORDS = timeline(
    "words that are known only when the caller is back are answered then",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    back(1100),
    words(1200, 1, 1, QUESTION, commit(1), cmd.StartReply(ONE)),
    *answered(ONE, 1300),
)

LOST_WHILE_HELD = timeline(
    "a reply that is held for the caller's words is over",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    lost(2200, CUT, cmd.Transcribe(2, 1), unheard=False),
    words(2400, 2, 1, "Mm-hmm.", commit(2, "Mm-hmm.")),
    back(3000, cmd.StartReply(TWO)),
    *answered(TWO, 3100),
)

LOST_WHILE_DUCKED = timeline(
    "and so is one that is turned down",
    *asked(ONE),
    audible(1300, ONE),
    *ducks(2000, 2, ONE),
    lost(2200, CUT, cmd.Transcribe(2, 1), unheard=False),
    words(2400, 2, 1, "", cmd.DropUtterance(2, announced=False)),
    back(3000),
    rules=DUCKS,
)

RECOGNIZER_FAILS_MEANWHILE = timeline(
    "no apology is said to nobody",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    at(1200, ev.TranscriptFailed(1, 1), cmd.DropUtterance(1, announced=True)),
    back(4000),
)

ASKED_BY_CLIENT = timeline(
    "a reply that the client asked for is its own business",
    at(100, ev.ReplyRequested(), cmd.StartReply(ONE)),
    lost(200, CUT),
    back(4000),
    rules=PUSH_TO_TALK,
)

ASKED_BEFORE_THE_WORDS = timeline(
    "a reply that the client asked for, and that has not begun, waits for it",
    at(100, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    at(110, ev.ReplyRequested()),
    lost(200),
    at(400, ev.TranscriptReady(1, 1, QUESTION), cmd.CompleteTranscript(1, QUESTION)),
    back(4000, cmd.StartReply(ONE)),
    *answered(ONE, 4100),
    rules=PUSH_TO_TALK,
)

NEVER_TRANSCRIBED = timeline(
    "words that never come hold nothing up",
    starts(100, 1),
    lost(1000, cmd.Transcribe(1, 1)),
    timer(31_000, cmd.DropUtterance(1, announced=True)),
    back(31_500),
)

LEAVING = (
    LOST_BEFORE_THE_ANSWER,
    LOST_IN_MID_ANSWER,
    LOST_BEFORE_A_WORD,
    LOST_WHILE_IT_IS_PLAYED,
    LOST_AT_REST,
    LOST_WHILE_SPEAKING,
    LOST_IN_A_PAUSE,
    GOES_ON_WHEN_BACK,
    NOISE_WHEN_LOST,
    LOST_BEFORE_THE_WORDS,
    LOST_WHILE_HELD,
    LOST_WHILE_DUCKED,
    RECOGNIZER_FAILS_MEANWHILE,
    ASKED_BY_CLIENT,
    ASKED_BEFORE_THE_WORDS,
    NEVER_TRANSCRIBED,
)
