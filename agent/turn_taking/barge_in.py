"""The caller speaks while the agent can be heard: an interruption, or nothing of the kind?

Theory of operation
-------------------
Speech has to silence the agent within a quarter of a second, and what was said is known half a
second later at the earliest. So the agent falls silent first and the words are checked after that
(`backchannel.py`); while they are, the machine remembers an `Overlap`.

*Stock clients* stop playing at `speech_started` and can't be asked to go on. Their response ends
(`HoldReply`), but the run behind it is kept: the agent is HELD. Words end it for good (`CutReply`);
a backchannel or noise lets the rest be said in a response of its own (`ResumeReply`), as soon as
the pause is long enough, and not only when a turn would be over.

*Clients that duck* play on at a lower volume (`DuckReply`) and are told that somebody speaks when
there are words, or voice for too long without any. Otherwise nothing has happened (`UnduckReply`).

Either way an overlap that no words settle is settled by its deadline: whatever a recognizer or a
caller does, no reply is held for much longer than `LIMIT_NS`.
"""

from typing import Final

from . import commands as cmd
from . import events as ev
from .backchannel import meaning, takes_floor
from .commands import Command
from .state import Handlers, Overlap, TurnState
from .tables import Agent, Caller, Signal
from .transitions import (
    SPEAKING_DEADLINE_NS,
    STALL_GRACE_NS,
    cut,
    decide,
    drop_utterance,
    fail_utterance,
)

GO_ON_MS: Final = 300
"""Silence after a backchannel before the agent goes on. Lower talks over "yeah, but"; higher is a
hole in the reply."""

WITHOUT_WORDS_NS: Final = 540_000_000
"""From the onset, which itself takes 160 ms of voice: somebody who has spoken for 700 ms and of
whom no words are known is taken at his voice. The first pass begins 200 ms after the first voiced
sample and takes 150 to 200."""

LOOK_AGAIN_NS: Final = 500_000_000
"""Where the words so far say nothing yet. Partials come every 600 ms of voice."""

LIMIT_NS: Final = 5_000_000_000
"""The longest that a reply is held: a final pass takes 2 s on a loaded machine."""


def can_be_heard(s: TurnState) -> bool:
    """Whether speech at this moment overlaps with a reply that could go on. An apology can't."""
    return s.agent in (Agent.SPEAKING, Agent.TRAILING) and not s.apologized


def overlap(s: TurnState, event: ev.SpeechStarted, now_ns: int) -> list[Command]:
    """Speech began over a reply that can be heard."""
    after_ns = WITHOUT_WORDS_NS if s.rules.ducks else LIMIT_NS
    s.overlap = Overlap(s.turn, event.at_sample, now_ns, now_ns + after_ns)
    s.unheard_cut = False
    if s.rules.ducks:
        s.announced = False
        s.overlap.is_ducked = True
        return [cmd.DuckReply(s.turn)]
    s.move_agent(Signal.HELD)
    s.reply_deadline_ns = None  # the overlap's takes its place
    s.audible_ns = None
    return [cmd.AnnounceSpeech(event.utterance, event.at_sample), cmd.HoldReply(s.turn)]


def weigh(s: TurnState, now_ns: int) -> list[Command]:
    """The pause has words, or more silence: is it a turn, or nothing that stops the agent?"""
    over = s.overlap
    if over is None or s.text is None:
        return decide(s, now_ns)
    if meaning(s.text, over.heard, over.left) == "words":
        return [*stop(s), *decide(s, now_ns)]
    missing_ms = GO_ON_MS - s.silence_ms
    if missing_ms > 0:
        s.pause_deadline_ns = now_ns + missing_ms * 1_000_000 + STALL_GRACE_NS
        return []
    return let_go(s, now_ns)


def stop(s: TurnState, reason: cmd.CutReason = "turn_detected") -> list[Command]:
    """It is an interruption: the reply ends for good. Nothing, where no reply is overlapped."""
    over, s.overlap = s.overlap, None
    if over is None:
        return []
    out: list[Command] = []
    if not s.announced:
        s.announced = True
        out.append(cmd.AnnounceSpeech(s.utterance, over.onset))
    if s.turn == over.turn and s.agent is not Agent.IDLE:
        out += cut(s, reason)
    return out


def let_go(s: TurnState, now_ns: int) -> list[Command]:
    """The utterance comes to nothing. The reply that it overlapped, if any, goes on."""
    over, s.overlap = s.overlap, None
    if over is None:
        return drop_utterance(s, now_ns)
    text = s.text or ""
    was_echo = meaning(text, over.heard, over.left) == "echo"
    if s.agent is Agent.HELD:
        if over.has_failed:
            return [*cut(s, "turn_detected"), *fail_utterance(s, now_ns)]
        _resume(s, now_ns)
        dropped = drop_utterance(s, now_ns, was_echo=was_echo)
        return [*dropped, cmd.ResumeReply(over.turn)]
    out: list[Command] = [cmd.UnduckReply(over.turn)] if over.is_ducked else []
    return out + drop_utterance(s, now_ns, was_echo=was_echo)


def give_up(s: TurnState, now_ns: int) -> list[Command]:
    """The utterance's words will never be known."""
    over, s.overlap = s.overlap, None
    out: list[Command] = []
    if over is not None and s.agent is Agent.HELD:
        out += cut(s, "turn_detected")
    elif over is not None and over.is_ducked:
        out.append(cmd.UnduckReply(over.turn))
    return out + fail_utterance(s, now_ns)


def on_deadline(s: TurnState, now_ns: int) -> list[Command]:
    """No words have settled the overlap in time."""
    over = s.overlap
    assert over is not None
    is_pausing = s.caller is Caller.PAUSING  # then words are on their way, with a deadline
    is_early = now_ns < over.began_ns + LIMIT_NS and over.words is not None
    if is_pausing or is_early:
        over.deadline_ns = now_ns + LOOK_AGAIN_NS
        return []
    if over.words is None or meaning(over.words, over.heard, over.left) == "words":
        return stop(s)
    return _go_on_over_it(s, over, now_ns)


def _resume(s: TurnState, now_ns: int) -> None:
    s.move_agent(Signal.RESUMED)
    s.reply_deadline_ns = now_ns + SPEAKING_DEADLINE_NS


def _go_on_over_it(s: TurnState, over: Overlap, now_ns: int) -> list[Command]:
    """A noise that does not end, music say: the agent speaks, and words would still stop it."""
    over.deadline_ns = None
    if s.agent is Agent.HELD:
        if over.has_failed:
            return stop(s)
        _resume(s, now_ns)
        return [cmd.ResumeReply(over.turn)]
    over.is_ducked = False
    return [cmd.UnduckReply(over.turn)]


def _on_reply_stands(s: TurnState, event: ev.ReplyStands, now_ns: int) -> list[Command]:
    if s.overlap is None or event.turn != s.overlap.turn:
        return s.stale()
    s.overlap.heard, s.overlap.left = event.heard, event.left
    return []


def _on_words_heard(s: TurnState, event: ev.WordsHeard, now_ns: int) -> list[Command]:
    over = s.overlap
    if over is None or not s.is_current(event.utterance):
        return s.stale()
    over.words = event.text
    return stop(s) if takes_floor(event.text, over.heard, over.left) else []


HANDLERS: Final[Handlers] = {ev.ReplyStands: _on_reply_stands, ev.WordsHeard: _on_words_heard}
