"""Calls in which it matters how the caller is heard."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Agent, Caller
from tests.scenarios.steps import (
    ACTIVE,
    BY_SCORE,
    LITERAL,
    NO_INTERRUPTS,
    ONE,
    PUSH_TO_TALK,
    QUESTION,
    TWO,
    answered,
    asked,
    audible,
    commit,
    known,
    pauses,
    played,
    resumes,
    sent,
    silence,
    starts,
    words,
)
from tests.scenarios.timeline import at, timeline, timer

NORMAL = timeline("normal turn", *asked(ONE), *answered(ONE))

HESITATION = timeline(
    "hesitation",
    starts(0, 1),
    pauses(900, 1),
    silence(1100, 1, 300),
    known(1150, 1, 1, "I'd like a table for", ONE),
    resumes(1400, 1, cmd.DropGuess(ONE)),
    pauses(1900, 1, 2),
    resumes(2050, 1),
    words(2100, 1, 2, "I'd like a table for two"),  # of a pause that is over
    pauses(2600, 1, 3),
    known(2800, 1, 3, "I'd like a table for two and", ONE),
    silence(3500, 1, 1000),
    silence(3800, 1, 1200, commit(1, "I'd like a table for two and"), cmd.StartReply(ONE)),
    *answered(ONE, 3900),
    rules=BY_SCORE,
    stale=1,
)

EMPTY = timeline(
    "no words",
    starts(0, 1),
    pauses(300, 1),
    words(500, 1, 1, ""),
    silence(1000, 1, 800, cmd.DropUtterance(1, announced=True)),
)

WORDS_COME_LAST = timeline(
    "the silence is long enough before the words are known",
    starts(0, 1),
    pauses(1000, 1),
    silence(2000, 1, 1100),
    words(2100, 1, 1, QUESTION, commit(1), cmd.StartReply(ONE)),
    *answered(ONE, 2200),
)

LITERAL_SILENCE = timeline(
    "server_vad waits for its silence and no longer, whatever the words",
    starts(0, 1),
    pauses(1000, 1),
    known(1200, 1, 1, "Because the", ONE),
    silence(1590, 1, 699),
    silence(1591, 1, 700, commit(1, "Because the"), cmd.StartReply(ONE)),
    *answered(ONE, 1700),
    rules=LITERAL,
)

LONGER_SILENCE = timeline(
    "turn detection is slowed down in mid-speech",
    starts(0, 1),
    at(500, ev.RulesChanged(LITERAL)),
    pauses(1000, 1),
    known(1200, 1, 1, QUESTION, ONE),
    silence(1600, 1, 690),
    silence(1632, 1, 722, commit(1), cmd.StartReply(ONE)),
    *answered(ONE, 1700),
)

SWITCHED_OFF = timeline(
    "turn detection is switched off in mid-speech",
    starts(0, 1),
    at(500, ev.RulesChanged(PUSH_TO_TALK), cmd.DropUtterance(1, announced=True)),
    at(600, ev.SpeechPaused(1, 8000)),
    at(700, ev.SpeechStarted(2, 11_200)),
    at(800, ev.RulesChanged(TurnRules())),
    at(900, ev.SpeechPaused(2, 12_800)),
    starts(1200, 3),
    stale=3,
    ends=(Caller.SPEAKING, Agent.IDLE),
)

CLEARED = timeline(
    "the client throws the audio away",
    at(0, ev.BufferCleared(0)),
    starts(100, 1),
    at(500, ev.BufferCleared(1), cmd.DropUtterance(1, announced=True)),
    at(600, ev.BufferCleared(1)),
    at(700, ev.SpeechPaused(1, 9600)),
    stale=1,
)

AUDIO_STOPS_IN_WORD = timeline(
    "audio stops in mid-word",
    starts(0, 1),
    at(2500, ev.AudioStalled(1), cmd.Transcribe(1, 1)),
    words(2700, 1, 1, "I was", commit(1, "I was"), cmd.StartReply(ONE)),
    *answered(ONE, 2800),
)

AUDIO_COMES_BACK = timeline(
    "audio comes back before the words of the stall are known",
    starts(0, 1),
    at(2500, ev.AudioStalled(1), cmd.Transcribe(1, 1)),
    pauses(2600, 1, 2),
    words(2700, 1, 1, "I was"),
    known(2800, 1, 2, "I was here.", ONE),
    silence(2950, 1, 350, commit(1, "I was here."), cmd.StartReply(ONE)),
    *answered(ONE, 3000),
    stale=1,
)

AUDIO_STOPS_IN_PAUSE = timeline(
    "audio stops in a pause: the rest of the silence is waited for, and a little more",
    starts(0, 1),
    pauses(1000, 1),
    silence(1050, 1, 150),
    known(1200, 1, 1, QUESTION, ONE),
    timer(1200 + 200 + 400, commit(1), cmd.StartReply(ONE)),
    *answered(ONE, 1900),
)

STALL_IS_TOLD_IN_PAUSE = timeline(
    "the session tells of the stall in a pause",
    starts(0, 1),
    pauses(1000, 1),
    at(1100, ev.AudioStalled(1)),
    words(1200, 1, 1, "So", commit(1, "So"), cmd.StartReply(ONE)),
    *answered(ONE, 1300),
    starts(3000, 2),
    pauses(4000, 2),
    known(4100, 2, 1, QUESTION, TWO),
    at(4200, ev.AudioStalled(2), commit(2), cmd.StartReply(TWO)),
    *answered(TWO, 4300),
)

PUSHED = timeline(
    "push to talk",
    at(0, ev.SpeechStarted(1, 0)),
    at(1000, ev.SpeechPaused(1, 14_400)),
    at(1100, ev.BufferCommitted(2), commit(2, None), cmd.Transcribe(2, 1)),
    at(1110, ev.ReplyRequested()),
    at(1120, ev.ReplyRequested(), ACTIVE),
    words(1400, 2, 1, QUESTION, cmd.CompleteTranscript(2, QUESTION), cmd.StartReply(ONE)),
    *answered(ONE, 1500),
    rules=PUSH_TO_TALK,
    stale=2,
)

TWO_COMMITS = timeline(
    "two messages before one reply",
    at(0, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    at(100, ev.BufferCommitted(2), commit(2, None), cmd.Transcribe(2, 1)),
    at(110, ev.BufferCommitted(2), cmd.RefuseRequest("input_audio_buffer_commit_empty")),
    at(120, ev.ReplyRequested()),
    words(300, 2, 1, "Two.", cmd.CompleteTranscript(2, "Two.")),
    at(400, ev.TranscriptFailed(1, 1), cmd.FailTranscript(1), cmd.StartReply(ONE)),
    words(500, 1, 1, "One."),
    *answered(ONE, 600),
    rules=PUSH_TO_TALK,
    stale=2,
)

COMMIT_WITHOUT_WORDS = timeline(
    "the recognizer never answers a commit",
    at(0, ev.BufferCommitted(1), commit(1, None), cmd.Transcribe(1, 1)),
    at(10, ev.ReplyRequested()),
    timer(30_000, cmd.FailTranscript(1), cmd.StartReply(ONE)),
    *answered(ONE, 30_100),
    rules=PUSH_TO_TALK,
)

COMMIT_IN_SPEECH = timeline(
    "the client commits while it listens to turn detection",
    starts(0, 1),
    pauses(900, 1),
    known(1100, 1, 1, "And", ONE),
    at(1200, ev.BufferCommitted(1), cmd.DropGuess(ONE), commit(1, None), cmd.Transcribe(1, 2)),
    silence(1300, 1, 500),
    words(1400, 1, 2, "And go.", cmd.CompleteTranscript(1, "And go.")),
    stale=1,
)

LISTENER_FAILS = timeline(
    "the recognizer raises",
    starts(0, 1),
    pauses(900, 1),
    at(
        1000,
        ev.TranscriptFailed(1, 1),
        cmd.DropUtterance(1, announced=True),
        cmd.StartReply(ONE),
        cmd.Apologize(ONE),
    ),
    sent(2000, ONE),
    played(2400, ONE),
)

LISTENER_FAILS_IN_REPLY = timeline(
    "the recognizer raises while the agent speaks",
    *asked(ONE),
    audible(1300, ONE),
    starts(1400, 2),
    pauses(1600, 2),
    at(1700, ev.TranscriptFailed(2, 1), cmd.DropUtterance(2, announced=True)),
    sent(2000, ONE),
    played(2400, ONE),
    rules=NO_INTERRUPTS,
)

LISTENER_HANGS = timeline(
    "the recognizer hangs",
    starts(0, 1),
    pauses(900, 1),
    silence(2000, 1, 1200),
    timer(30_900, cmd.DropUtterance(1, announced=True), cmd.StartReply(ONE), cmd.Apologize(ONE)),
    words(31_000, 1, 1, QUESTION),
    sent(31_500, ONE),
    played(31_900, ONE),
    stale=1,
)

LISTENING = (
    NORMAL,
    HESITATION,
    EMPTY,
    WORDS_COME_LAST,
    LITERAL_SILENCE,
    LONGER_SILENCE,
    SWITCHED_OFF,
    CLEARED,
    AUDIO_STOPS_IN_WORD,
    AUDIO_COMES_BACK,
    AUDIO_STOPS_IN_PAUSE,
    STALL_IS_TOLD_IN_PAUSE,
    PUSHED,
    TWO_COMMITS,
    COMMIT_WITHOUT_WORDS,
    COMMIT_IN_SPEECH,
    LISTENER_FAILS,
    LISTENER_FAILS_IN_REPLY,
    LISTENER_HANGS,
)
