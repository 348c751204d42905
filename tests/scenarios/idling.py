"""Calls with a silent party: a caller who says nothing, and parts that never answer."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import IdleRules, TurnRules
from latency_budget.account.turn import TurnId
from tests.scenarios.steps import (
    NO_INTERRUPTS,
    ONE,
    PUSH_TO_TALK,
    QUESTION,
    THREE,
    TWO,
    answered,
    asked,
    audible,
    commit,
    pauses,
    played,
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import at, timeline, timer

FOUR, FIVE = TurnId(4), TurnId(5)
ASKS = TurnRules(silence_ms=350, idle=IdleRules(idle_after_ms=10_000))
ASKS_AND_HANGS_UP = TurnRules(
    silence_ms=350, idle=IdleRules(idle_after_ms=10_000, idle_hangup_ms=30_000)
)
TIMES_OUT = TurnRules(silence_ms=350, idle=IdleRules(idle_after_ms=6000, idle_commits=True))
AN_HOUR_MS = 3_600_000
PROMPT = cmd.PromptCaller()

STILL_THERE = timeline(
    "a silent caller is asked twice, and again after the next words",
    *asked(ONE),
    *answered(ONE),
    timer(2400 + 10_000, PROMPT, cmd.StartReply(TWO)),
    *answered(TWO, 12_500),
    timer(13_600 + 10_000, PROMPT, cmd.StartReply(THREE)),
    *answered(THREE, 23_700),
    *asked(FOUR, AN_HOUR_MS),
    *answered(FOUR, AN_HOUR_MS + 1300),
    timer(AN_HOUR_MS + 2400 + 10_000, PROMPT, cmd.StartReply(FIVE)),
    *answered(FIVE, AN_HOUR_MS + 12_500),
    rules=ASKS,
)

HUNG_UP = timeline(
    "a caller who does not answer twice is hung up on",
    *asked(ONE),
    *answered(ONE),
    timer(12_400, PROMPT, cmd.StartReply(TWO)),
    *answered(TWO, 12_500),
    timer(23_600, PROMPT, cmd.StartReply(THREE)),
    *answered(THREE, 23_700),
    timer(24_800 + 30_000, cmd.HangUp()),
    at(AN_HOUR_MS, ev.BufferCleared(1)),  # nothing is due in the meantime
    rules=ASKS_AND_HANGS_UP,
)

HUNG_UP_UNASKED = timeline(
    "nobody is asked where the call is only to end",
    *asked(ONE),
    *answered(ONE),
    timer(2400 + 5000, cmd.HangUp()),
    rules=TurnRules(silence_ms=350, idle=IdleRules(idle_hangup_ms=5000)),
)

TIMED_OUT = timeline(
    "the model answers each silence, for as long as the client wants it to",
    *asked(ONE),
    *answered(ONE),
    *(
        step
        for turn in range(2, 6)
        for step in (
            timer(turn * 8000 - 7600, cmd.CommitSilence(6000), cmd.StartReply(TurnId(turn))),
            *answered(TurnId(turn), turn * 8000 - 6700),
        )
    ),
    rules=TIMES_OUT,
)

NOISE_WHILE_WAITING = timeline(
    "the wait begins anew behind a noise",
    *asked(ONE),
    *answered(ONE),
    starts(12_000, 2),
    pauses(12_300, 2),
    words(12_500, 2, 1, ""),
    silence(13_000, 2, 800, cmd.DropUtterance(2, announced=True)),
    timer(23_000, PROMPT, cmd.StartReply(TWO)),
    *answered(TWO, 23_100),
    rules=ASKS,
)

LONG_TURN = timeline(
    "nobody is asked who is speaking, or waits for an answer",
    *asked(ONE),
    *answered(ONE),
    at(3000, ev.RulesChanged(TurnRules(silence_ms=350, replies=False, idle=ASKS.idle))),
    starts(12_000, 2),
    pauses(60_000, 2),
    words(60_200, 2, 1, QUESTION),
    silence(60_350, 2, 350, commit(2)),
    at(AN_HOUR_MS, ev.ReplyRequested(), cmd.StartReply(TWO)),
    audible(AN_HOUR_MS + 5000, TWO),
    at(AN_HOUR_MS + 10_000, ev.ReplyContinued(TWO)),
    sent(AN_HOUR_MS + 30_000, TWO),
    played(AN_HOUR_MS + 30_400, TWO),
    timer(AN_HOUR_MS + 40_400, PROMPT, cmd.StartReply(THREE)),
    *answered(THREE, AN_HOUR_MS + 40_500),
    rules=ASKS,
)

NOBODY_BEGAN = timeline(
    "nobody is asked before the agent has said something",
    starts(0, 1),
    pauses(200, 1),
    words(400, 1, 1, ""),
    silence(900, 1, 800, cmd.DropUtterance(1, announced=True)),
    at(AN_HOUR_MS, ev.BufferCleared(1)),
    rules=ASKS,
)

RULES_CHANGE = timeline(
    "rules that change while a caller is waited for count from where the wait began",
    *asked(ONE),
    *answered(ONE),
    at(5000, ev.RulesChanged(PUSH_TO_TALK)),
    at(60_000, ev.RulesChanged(ASKS)),
    at(61_000, ev.RulesChanged(TurnRules(silence_ms=350, idle=IdleRules(idle_after_ms=20_000)))),
    timer(80_000, PROMPT, cmd.StartReply(TWO)),
    *answered(TWO, 80_100),
    rules=ASKS,
)

SPEECH_WITHOUT_END = timeline(
    "speech without a pause is taken for what it holds after two minutes",
    starts(0, 1),
    timer(120_000, cmd.Transcribe(1, 1)),
    words(120_400, 1, 1, QUESTION, commit(1), cmd.StartReply(ONE)),
    *answered(ONE, 121_000),
)

EARS_GO = timeline(
    "ears and recognizer fall silent in mid-word",
    starts(0, 1),
    timer(120_000, cmd.Transcribe(1, 1)),
    timer(150_000, cmd.DropUtterance(1, announced=True), cmd.StartReply(ONE), cmd.Apologize(ONE)),
    sent(152_000, ONE),
    played(152_400, ONE),
)

REPLY_STALLS = timeline(
    "a reply that does not go on is apologized for, and a stuck apology given up",
    *asked(ONE),
    audible(1300, ONE),
    at(6300, ev.ReplyContinued(ONE)),
    at(11_300, ev.ReplyContinued(ONE)),
    timer(71_300, cmd.Apologize(ONE)),
    timer(131_300, cmd.AbandonReply(ONE)),
    sent(131_400, ONE),
    *asked(TWO, 140_000),
    *answered(TWO, 141_300),
    stale=1,
)

REPLY_STALLS_BEFORE_ANOTHER = timeline(
    "a reply that waits behind a stuck one begins in the end",
    *asked(ONE),
    audible(1300, ONE),
    starts(2000, 2),
    pauses(3000, 2),
    words(3200, 2, 1, QUESTION),
    silence(3350, 2, 350, commit(2)),
    timer(61_300, cmd.Apologize(ONE)),
    timer(121_300, cmd.AbandonReply(ONE), cmd.StartReply(TWO)),
    *answered(TWO, 121_400),
    rules=NO_INTERRUPTS,
)

NEVER_PLAYED = timeline(
    "nobody says that the reply was played",
    *asked(ONE),
    audible(1300, ONE),
    sent(2000, ONE),
    timer(22_000),
    played(22_100, ONE),
    stale=1,
)

IDLING = (
    STILL_THERE,
    HUNG_UP,
    HUNG_UP_UNASKED,
    TIMED_OUT,
    NOISE_WHILE_WAITING,
    LONG_TURN,
    NOBODY_BEGAN,
    RULES_CHANGE,
    SPEECH_WITHOUT_END,
    EARS_GO,
    REPLY_STALLS,
    REPLY_STALLS_BEFORE_ANOTHER,
    NEVER_PLAYED,
)
