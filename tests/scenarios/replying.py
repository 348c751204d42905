"""Calls in which it matters what becomes of the reply."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent, Caller
from tests.scenarios.steps import (
    ACTIVE,
    NO_INTERRUPTS,
    NO_REPLIES,
    NOT_ACTIVE,
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
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import at, timeline, timer

BARGE_IN_PREPARING = timeline(
    "barge-in while a reply is prepared that the client asked for",
    at(1250, ev.ReplyRequested(), cmd.StartReply(ONE)),
    starts(1280, 1, cmd.CutReply(ONE, "turn_detected")),
    at(1290, ev.ReplyAudible(ONE)),  # was on its way
    pauses(2000, 1),
    known(2200, 1, 1, "I mean, tomorrow.", TWO),
    silence(2350, 1, 350, commit(1, "I mean, tomorrow."), cmd.StartReply(TWO)),
    *answered(TWO, 2400),
    stale=1,
)

BARGE_IN_SPEAKING = timeline(
    "barge-in while the agent speaks",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(1900, 2, ONE),
    at(1910, ev.ReplySent(ONE)),  # was on its way
    pauses(2500, 2),
    known(2700, 2, 1, "Stop.", TWO, cmd.CutReply(ONE, "turn_detected")),
    at(2710, ev.ReplyFailed(ONE)),
    silence(2850, 2, 350, commit(2, "Stop."), cmd.StartReply(TWO)),
    *answered(TWO, 2900),
    stale=2,
)

BARGE_IN_TRAILING = timeline(
    "barge-in while the client plays the rest",
    *asked(ONE),
    audible(1300, ONE),
    sent(2000, ONE),
    *overlaps(2100, 2, ONE),
    at(2400, ev.ReplyPlayed(ONE)),
    ends=(Caller.SPEAKING, Agent.HELD),
    stale=1,
)

NO_BARGE_IN = timeline(
    "speech that does not interrupt",
    *asked(ONE),
    audible(1300, ONE),
    starts(1900, 2),
    pauses(2500, 2),
    words(2700, 2, 1, "And where?"),
    silence(2850, 2, 350, commit(2, "And where?")),
    at(2900, ev.ReplyRequested(), ACTIVE),
    sent(3300, ONE, cmd.StartReply(TWO)),
    *answered(TWO, 3400),
    rules=NO_INTERRUPTS,
)

CANCEL_WITH_ONE_WAITING = timeline(
    "cancel while another reply waits",
    *asked(ONE),
    audible(1300, ONE),
    starts(1900, 2),
    pauses(2500, 2),
    words(2700, 2, 1, "And where?"),
    silence(2850, 2, 350, commit(2, "And where?")),
    at(2900, ev.ReplyCancelled(), cmd.CutReply(ONE, "client_cancelled"), cmd.StartReply(TWO)),
    *answered(TWO, 3000),
    rules=NO_INTERRUPTS,
)

NOISE = timeline(
    "noise cuts a reply that nobody has heard",
    at(1250, ev.ReplyRequested(), cmd.StartReply(ONE)),
    starts(1280, 1, cmd.CutReply(ONE, "turn_detected")),
    pauses(1500, 1),
    words(1700, 1, 1, " "),
    silence(1800, 1, 300),
    silence(1900, 1, 400, cmd.DropUtterance(1, announced=True), cmd.StartReply(TWO)),
    *answered(TWO, 2300),
)

CANCELLED_DURING_NOISE = timeline(
    "a reply that the client asked for and cancels, after noise has cut it, does not begin anew",
    at(1250, ev.ReplyRequested(), cmd.StartReply(ONE)),
    starts(1280, 1, cmd.CutReply(ONE, "turn_detected")),
    at(1400, ev.ReplyCancelled(), NOT_ACTIVE),
    pauses(1500, 1),
    words(1700, 1, 1, " "),
    silence(1800, 1, 300),
    silence(1900, 1, 400, cmd.DropUtterance(1, announced=True)),
)

ANSWER_CANCELLED_DURING_NOISE = timeline(
    "an answer that the caller waits for begins anew all the same",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1400, ev.ReplyCancelled(), NOT_ACTIVE),
    pauses(1500, 2),
    words(1700, 2, 1, ""),
    silence(2200, 2, 800, cmd.DropUtterance(2, announced=True), cmd.StartReply(TWO)),
    *answered(TWO, 2300),
)

NOISE_OVER_SPEECH = timeline(
    "noise holds a reply that was heard, and it goes on",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(1750, 2, ONE),
    pauses(1950, 2),
    words(2000, 2, 1, ""),
    silence(2090, 2, 290),
    silence(2120, 2, 320, cmd.DropUtterance(2, announced=True), cmd.ResumeReply(ONE)),
    sent(3000, ONE),
    played(3400, ONE),
)

NOISE_TAKEN_AS_MESSAGE = timeline(
    "a commit settles what noise had cut",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1400, ev.BufferCommitted(2), commit(2, None), cmd.Transcribe(2, 1)),
    words(1600, 2, 1, "", cmd.CompleteTranscript(2, "")),
    starts(5000, 3),
    pauses(5200, 3),
    words(5400, 3, 1, ""),
    silence(5900, 3, 800, cmd.DropUtterance(3, announced=True)),
)

COMMIT_WITHOUT_REPLY = timeline(
    "a message without a reply settles what it had cut",
    at(0, ev.ReplyRequested(), cmd.StartReply(ONE)),
    starts(100, 1, cmd.CutReply(ONE, "turn_detected")),
    pauses(1000, 1),
    words(1200, 1, 1, QUESTION),
    silence(1250, 1, 350, commit(1)),
    starts(5000, 2),
    pauses(5200, 2),
    words(5400, 2, 1, ""),
    silence(5900, 2, 800, cmd.DropUtterance(2, announced=True)),
    rules=NO_REPLIES,
)

ASKED_DURING_NOISE = timeline(
    "a reply that the client asks for replaces the one that noise had cut",
    *asked(ONE),
    goes_on(1280, 2, ONE),
    at(1300, ev.ReplyRequested(), cmd.StartReply(TWO)),
    audible(1400, TWO),
    pauses(1500, 2),
    words(1700, 2, 1, ""),
    sent(1800, TWO),
    silence(2200, 2, 800, cmd.DropUtterance(2, announced=True)),
    played(2400, TWO),
)

REQUESTS = timeline(
    "requests that make sense, and those that do not",
    at(0, ev.ReplyCancelled(), NOT_ACTIVE),
    at(10, ev.ReplyRequested(), cmd.StartReply(ONE)),
    at(20, ev.ReplyRequested(), ACTIVE),
    audible(100, ONE),
    at(200, ev.ReplyRequested(), ACTIVE),
    at(300, ev.ReplyCancelled(), cmd.CutReply(ONE, "client_cancelled")),
    at(310, ev.ReplyCancelled(), NOT_ACTIVE),
    at(400, ev.ReplyRequested(), cmd.StartReply(TWO)),
    audible(500, TWO),
    sent(900, TWO),
    at(910, ev.ReplyCancelled(), NOT_ACTIVE),
    at(950, ev.ReplyRequested(), cmd.StartReply(THREE)),
    at(1000, ev.ReplyPlayed(TWO)),
    *answered(THREE, 1100),
    stale=1,
)

NO_WORDS_REPLY = timeline(
    "a reply without a word",
    at(0, ev.ReplyRequested(), cmd.StartReply(ONE)),
    sent(100, ONE),
    played(100, ONE),
)

REPLY_FAILS = timeline(
    "the language model raises",
    *asked(ONE),
    at(1400, ev.ReplyFailed(ONE), cmd.Apologize(ONE)),
    at(1401, ev.ReplyAudible(ONE)),  # both were on their way already
    at(1402, ev.ReplyFailed(ONE)),
    sent(2400, ONE),
    at(2500, ev.ReplyFailed(ONE)),
    played(2800, ONE),
    *asked(TWO, 3000),
    *answered(TWO, 4300),
    stale=3,
)

REPLY_FAILS_IN_SPEECH = timeline(
    "the voice raises in mid-sentence",
    *asked(ONE),
    audible(1300, ONE),
    at(1700, ev.ReplyFailed(ONE), cmd.Apologize(ONE)),
    starts(1800, 2, cmd.CutReply(ONE, "turn_detected")),
    ends=(Caller.SPEAKING, Agent.IDLE),
)

REPLY_HANGS = timeline(
    "the language model hangs",
    *asked(ONE),
    timer(21_250, cmd.Apologize(ONE)),
    sent(22_000, ONE),
    played(22_400, ONE),
)

NO_REPLY_OF_ITSELF = timeline(
    "the client asks for each reply itself",
    starts(0, 1),
    pauses(1000, 1),
    words(1200, 1, 1, QUESTION),
    silence(1250, 1, 350, commit(1)),
    at(1300, ev.ReplyRequested(), cmd.StartReply(ONE)),
    *answered(ONE, 1400),
    rules=NO_REPLIES,
)

CANCELLED_BEFORE_BEGUN = timeline(
    "cancel before the reply could begin",
    at(0, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    at(10, ev.ReplyRequested()),
    at(20, ev.ReplyCancelled()),
    at(30, ev.ReplyCancelled(), NOT_ACTIVE),
    words(300, 1, 1, QUESTION, cmd.CompleteTranscript(1, QUESTION)),
    rules=PUSH_TO_TALK,
)

REPLYING = (
    BARGE_IN_PREPARING,
    BARGE_IN_SPEAKING,
    BARGE_IN_TRAILING,
    NO_BARGE_IN,
    CANCEL_WITH_ONE_WAITING,
    NOISE,
    CANCELLED_DURING_NOISE,
    ANSWER_CANCELLED_DURING_NOISE,
    NOISE_OVER_SPEECH,
    NOISE_TAKEN_AS_MESSAGE,
    COMMIT_WITHOUT_REPLY,
    ASKED_DURING_NOISE,
    REQUESTS,
    NO_WORDS_REPLY,
    REPLY_FAILS,
    REPLY_FAILS_IN_SPEECH,
    REPLY_HANGS,
    NO_REPLY_OF_ITSELF,
    CANCELLED_BEFORE_BEGUN,
)
