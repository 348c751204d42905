"""The steps that calls are made of."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from latency_budget.account.turn import TurnId
from tests.scenarios.timeline import Step, at

ONE, TWO, THREE = TurnId(1), TurnId(2), TurnId(3)
ACTIVE = cmd.RefuseRequest("conversation_already_has_active_response")
NOT_ACTIVE = cmd.RefuseRequest("response_cancel_not_active")

PUSH_TO_TALK = TurnRules(enabled=False)
NO_INTERRUPTS = TurnRules(silence_ms=350, interrupts=False)
NO_REPLIES = TurnRules(silence_ms=350, replies=False)
BY_SCORE = TurnRules()
LITERAL = TurnRules(silence_ms=700)
DUCKS = TurnRules(silence_ms=350, ducks=True)

QUESTION = "What time is it?"


def starts(at_ms: int, utterance: int, *more: cmd.Command) -> Step:
    sample = at_ms * 16
    announce = cmd.AnnounceSpeech(utterance, sample)
    return at(at_ms, ev.SpeechStarted(utterance, sample), announce, *more)


def goes_on(at_ms: int, utterance: int, turn: TurnId) -> Step:
    """Speech that takes the reply of this turn back."""
    return starts(at_ms, utterance, cmd.ReopenTurn(turn, utterance))


def pauses(at_ms: int, utterance: int, revision: int = 1) -> Step:
    event = ev.SpeechPaused(utterance, (at_ms - 100) * 16)
    return at(at_ms, event, cmd.Transcribe(utterance, revision))


def resumes(at_ms: int, utterance: int, *commands: cmd.Command) -> Step:
    return at(at_ms, ev.SpeechResumed(utterance, at_ms * 16), *commands)


def silence(at_ms: int, utterance: int, silence_ms: int, *commands: cmd.Command) -> Step:
    return at(at_ms, ev.SilenceGrew(utterance, silence_ms), *commands)


def words(at_ms: int, utterance: int, revision: int, text: str, *commands: cmd.Command) -> Step:
    return at(at_ms, ev.TranscriptReady(utterance, revision, text), *commands)


def known(
    at_ms: int, utterance: int, revision: int, text: str, turn: TurnId, *before: cmd.Command
) -> Step:
    """The words of a pause that may yet go on: a reply to them is prepared."""
    return words(at_ms, utterance, revision, text, *before, cmd.GuessReply(turn, text))


def audible(at_ms: int, turn: TurnId) -> Step:
    return at(at_ms, ev.ReplyAudible(turn), cmd.ReleaseReply(turn))


HEARD, LEFT = "Your table is", " booked for nine."


def stands(at_ms: int, turn: TurnId, heard: str = HEARD, left: str = LEFT) -> Step:
    return at(at_ms, ev.ReplyStands(turn, heard, left))


def overlaps(at_ms: int, utterance: int, turn: TurnId) -> tuple[Step, ...]:
    """The caller speaks over a reply, and the client is a stock one."""
    return (starts(at_ms, utterance, cmd.HoldReply(turn)), stands(at_ms, turn))


def ducks(at_ms: int, utterance: int, turn: TurnId) -> tuple[Step, ...]:
    """The same, of a client that can turn the reply down."""
    event = ev.SpeechStarted(utterance, at_ms * 16)
    return (at(at_ms, event, cmd.DuckReply(turn)), stands(at_ms, turn))


def so_far(at_ms: int, utterance: int, text: str, *commands: cmd.Command) -> Step:
    """What is understood of an utterance that goes on."""
    return at(at_ms, ev.WordsHeard(utterance, text), *commands)


def sent(at_ms: int, turn: TurnId, *commands: cmd.Command) -> Step:
    return at(at_ms, ev.ReplySent(turn), *commands)


def played(at_ms: int, turn: TurnId) -> Step:
    return at(at_ms, ev.ReplyPlayed(turn))


def commit(utterance: int, text: str | None = QUESTION) -> cmd.Command:
    return cmd.CommitUtterance(utterance, text, by_client=text is None)


def asked(turn: TurnId, at_ms: int = 0) -> tuple[Step, ...]:
    """Utterance number `turn`, 1 s long, answered by that turn's reply at `at_ms` + 1250."""
    n = int(turn)
    return (
        starts(at_ms, n),
        pauses(at_ms + 1000, n),
        silence(at_ms + 1050, n, 150),
        known(at_ms + 1180, n, 1, QUESTION, turn),
        silence(at_ms + 1250, n, 350, commit(n), cmd.StartReply(turn)),
    )


def answered(turn: TurnId, at_ms: int = 1300) -> tuple[Step, ...]:
    return (audible(at_ms, turn), sent(at_ms + 700, turn), played(at_ms + 1100, turn))
