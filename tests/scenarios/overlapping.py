"""Calls in which the caller speaks while the agent can be heard."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Agent, Caller
from agent.turn_taking.thresholds import MAX_HOLD_NS, OVERLAP_WITHOUT_WORDS_NS
from tests.scenarios.steps import (
    DUCKS,
    ONE,
    TWO,
    answered,
    asked,
    audible,
    commit,
    ducks,
    known,
    overlaps,
    pauses,
    played,
    resumes,
    sent,
    silence,
    so_far,
    stands,
    starts,
    words,
)
from tests.scenarios.timeline import NS_PER_MS, at, timeline, timer

LIMIT_MS = MAX_HOLD_NS // NS_PER_MS
PATIENCE_MS = OVERLAP_WITHOUT_WORDS_NS // NS_PER_MS
CUT = cmd.CutReply(ONE, "turn_detected")
DROPPED = cmd.DropUtterance(2, announced=True)
UNHEARD_OF = cmd.DropUtterance(2, announced=False)
RESUMED = cmd.ResumeReply(ONE)

BACKCHANNEL = timeline(
    "a backchannel holds the reply for as long as it takes to know it",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    so_far(2300, 2, "Mm"),
    pauses(2500, 2),
    words(2680, 2, 1, "Mm-hmm."),
    silence(2690, 2, 290),
    silence(2720, 2, 320, DROPPED, RESUMED),
    sent(4000, ONE),
    played(4400, ONE),
)

MISHEARD = timeline(
    "a backchannel that is recognized as something else is known by its length",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    so_far(2350, 2, "You do"),
    pauses(2400, 2),
    words(2580, 2, 1, "You do."),
    silence(2620, 2, 320),
    silence(2900, 2, 590),
    silence(2930, 2, 620, DROPPED, RESUMED),
    sent(4000, ONE),
    played(4400, ONE),
)

IN_OLDER_TRACES = timeline(
    "where its length is not weighed, its words stop the reply",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    so_far(2350, 2, "You do", CUT),
    pauses(2400, 2),
    known(2580, 2, 1, "You do.", TWO),
    silence(2650, 2, 350, commit(2, "You do."), cmd.StartReply(TWO)),
    *answered(TWO, 2700),
    rules=TurnRules(silence_ms=350, weighs_length=False),
)

TOO_LONG = timeline(
    "the same words said at length are words",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    pauses(2450, 2),
    known(2630, 2, 1, "You do.", TWO, CUT),
    silence(2700, 2, 350, commit(2, "You do."), cmd.StartReply(TWO)),
    *answered(TWO, 2750),
)

AS_SHORT = timeline(
    "a word that interrupts does so however short",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    pauses(2300, 2),
    known(2480, 2, 1, "Stop.", TWO, CUT),
    silence(2550, 2, 350, commit(2, "Stop."), cmd.StartReply(TWO)),
    *answered(TWO, 2600),
)

YEAH_BUT = timeline(
    "what began like a backchannel goes on",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    pauses(2500, 2),
    words(2650, 2, 1, "Yeah."),
    resumes(2700, 2),
    so_far(3000, 2, "Yeah."),
    so_far(3400, 2, "Yeah, but", CUT),
    pauses(3900, 2, 2),
    known(4050, 2, 2, "Yeah, but not at nine.", TWO),
    silence(4150, 2, 350, commit(2, "Yeah, but not at nine."), cmd.StartReply(TWO)),
    *answered(TWO, 4200),
)

ANSWER = timeline(
    "after a question the same word is an answer",
    *asked(ONE),
    audible(1300, ONE),
    starts(2000, 2, cmd.HoldReply(ONE)),
    stands(2000, ONE, "Shall I book", " it?"),
    pauses(2500, 2),
    known(2700, 2, 1, "Yeah.", TWO, CUT),
    silence(2750, 2, 350, commit(2, "Yeah."), cmd.StartReply(TWO)),
    *answered(TWO, 2800),
)

ECHO = timeline(
    "the agent hears itself",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(1800, 2, ONE),
    so_far(1900, 2, "Your table"),
    pauses(2500, 2),
    words(2700, 2, 1, "table is booked"),
    silence(2720, 2, 320, cmd.DropUtterance(2, announced=True, was_echo=True), RESUMED),
    sent(4000, ONE),
    played(4400, ONE),
)

NEVER_STOPS = timeline(
    "a caller who never stops, and of whom no words are known",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    timer(2000 + LIMIT_MS, CUT),
    ends=(Caller.SPEAKING, Agent.IDLE),
)

MUSIC = timeline(
    "a noise that does not end, and words at last",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    so_far(3000, 2, ""),
    timer(2000 + LIMIT_MS, RESUMED),
    so_far(7500, 2, ""),
    so_far(8000, 2, "Wait", CUT),
    ends=(Caller.SPEAKING, Agent.IDLE),
)

MUSIC_ENDS = timeline(
    "a noise over which the agent went on, and which ends",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    so_far(3000, 2, ""),
    timer(2000 + LIMIT_MS, RESUMED),
    pauses(7500, 2),
    words(7700, 2, 1, ""),
    silence(7800, 2, 400, DROPPED),
    sent(9000, ONE),
    played(9400, ONE),
)

HELD_FAILS = timeline(
    "a reply fails while it is held, and could go on",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.ReplyFailed(ONE)),
    pauses(2500, 2),
    words(2680, 2, 1, "Right."),
    silence(2750, 2, 350, CUT, DROPPED, cmd.StartReply(TWO), cmd.Apologize(TWO)),
    sent(3000, TWO),
    played(3400, TWO),
)

RECOGNIZER_FAILS = timeline(
    "what was said over a reply will never be known",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    pauses(2500, 2),
    at(2700, ev.TranscriptFailed(2, 1), CUT, DROPPED, cmd.StartReply(TWO), cmd.Apologize(TWO)),
    sent(3000, TWO),
    played(3400, TWO),
)

CANCELLED = timeline(
    "the client wants no more of a held reply",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.ReplyCancelled(), cmd.CutReply(ONE, "client_cancelled")),
    at(2200, ev.ReplyCancelled(), cmd.RefuseRequest("response_cancel_not_active")),
    pauses(2500, 2),
    words(2700, 2, 1, ""),
    silence(3300, 2, 900, DROPPED),
)

ASKED_FOR_ANOTHER = timeline(
    "the client wants another reply than the held one",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.ReplyRequested(), CUT, cmd.StartReply(TWO)),
    pauses(2500, 2),
    *answered(TWO, 2600),
    words(3800, 2, 1, ""),
    silence(3900, 2, 900, DROPPED),
)

THROWN_AWAY = timeline(
    "the client throws the audio away that holds a reply",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.BufferCleared(2), DROPPED, RESUMED),
    sent(4000, ONE),
    played(4400, ONE),
)

COMMITTED = timeline(
    "the client says that what holds a reply is a message",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.BufferCommitted(2), CUT, commit(2, None), cmd.Transcribe(2, 1)),
    words(2300, 2, 1, "Yeah.", cmd.CompleteTranscript(2, "Yeah.")),
)

DETECTION_OFF = timeline(
    "turn detection is switched off while a reply is held",
    *asked(ONE),
    audible(1300, ONE),
    *overlaps(2000, 2, ONE),
    at(2100, ev.RulesChanged(TurnRules(enabled=False)), DROPPED, RESUMED),
    sent(4000, ONE),
    played(4400, ONE),
)

DUCKED = timeline(
    "a client that can turns the reply down for a backchannel",
    *asked(ONE),
    audible(1300, ONE),
    *ducks(2000, 2, ONE),
    so_far(2350, 2, "Yeah"),
    pauses(2400, 2),
    words(2530, 2, 1, "Yeah, okay."),
    timer(2000 + PATIENCE_MS),
    silence(2620, 2, 320, cmd.UnduckReply(ONE), UNHEARD_OF),
    sent(4000, ONE),
    played(4400, ONE),
    rules=DUCKS,
)

DUCKED_WORDS = timeline(
    "and stops it when there are words",
    *asked(ONE),
    audible(1300, ONE),
    *ducks(2000, 2, ONE),
    so_far(2200, 2, "No"),  # it may become "Now", which is a misheard "Wow"
    so_far(2400, 2, "No, at", cmd.AnnounceSpeech(2, 32_000), CUT),
    pauses(2800, 2),
    known(2950, 2, 1, "No, at ten.", TWO),
    silence(3050, 2, 350, commit(2, "No, at ten."), cmd.StartReply(TWO)),
    *answered(TWO, 3100),
    rules=DUCKS,
)

DUCKED_VOICE = timeline(
    "or voice for too long, and no words known",
    *asked(ONE),
    audible(1300, ONE),
    *ducks(2000, 2, ONE),
    timer(2000 + PATIENCE_MS, cmd.AnnounceSpeech(2, 32_000), CUT),
    ends=(Caller.SPEAKING, Agent.IDLE),
    rules=DUCKS,
)

DUCKED_TO_THE_END = timeline(
    "a reply that ends while it is turned down, and words after it",
    *asked(ONE),
    audible(1300, ONE),
    *ducks(2000, 2, ONE),
    sent(2100, ONE),
    so_far(2300, 2, "I see"),
    pauses(2450, 2),
    played(2500, ONE),
    known(2530, 2, 1, "I see no window.", TWO, cmd.AnnounceSpeech(2, 32_000)),
    silence(2700, 2, 350, commit(2, "I see no window."), cmd.StartReply(TWO)),
    *answered(TWO, 2800),
    rules=DUCKS,
)

OVERLAPPING = (
    BACKCHANNEL,
    MISHEARD,
    IN_OLDER_TRACES,
    TOO_LONG,
    AS_SHORT,
    YEAH_BUT,
    ANSWER,
    ECHO,
    NEVER_STOPS,
    MUSIC,
    MUSIC_ENDS,
    HELD_FAILS,
    RECOGNIZER_FAILS,
    CANCELLED,
    ASKED_FOR_ANOTHER,
    THROWN_AWAY,
    COMMITTED,
    DETECTION_OFF,
    DUCKED,
    DUCKED_WORDS,
    DUCKED_VOICE,
    DUCKED_TO_THE_END,
)
