"""How the two automata of turn-taking move each other: decide, commit, drop, begin, cut.

The rules are told in `machine.py`. Everything here changes the state that it is given and
returns the commands that follow, in order.
"""

from typing import Final

from latency_budget.account.turn import TurnId

from . import commands as cmd
from . import events as ev
from .commands import Command
from .end_of_turn import required_silence_ms
from .end_of_turn_model import Evidence
from .preemptive import drop_guess, guess
from .reopening import caller_said
from .state import TurnState
from .tables import Agent, Signal

STALL_GRACE_NS: Final = 400_000_000
"""Added to the silence that is still missing, when no audio arrives to count it. Lower would race
ordinary network jitter; higher is dead air for clients that stop sending when the caller does."""

TRANSCRIPT_DEADLINE_NS: Final = 30_000_000_000
"""The ears give a final pass 10 s, and longer utterances more. This one is the last resort: lower
than theirs, it would end turns that they still mean to answer, as a minute's speech that comes at
once to a busy machine."""

SPEECH_DEADLINE_NS: Final = 120_000_000_000
"""Of speech without a pause. People breathe every few seconds, so this is noise, or ears that have
lost the utterance; lower would cut off somebody who reads aloud beside a running fan."""

PREPARING_DEADLINE_NS: Final = 20_000_000_000
"""The stages have deadlines of their own, all shorter. This one is the last resort."""

SPEAKING_DEADLINE_NS: Final = 60_000_000_000
"""Without a sign that the reply goes on. It says so every five seconds while it sends; a stage that
others keep busy may be silent for long in between, but not for so long."""

TRAILING_DEADLINE_NS: Final = 20_000_000_000
"""Audio is sent at most five seconds ahead (the bound of `agent.lead_ms`), so after that it must
have been played."""

STALL_SILENCE_MS: Final = 60_000
"""The silence an utterance is credited with when its audio stops: more than any rule asks for."""


def decide(s: TurnState, now_ns: int) -> list[Command]:
    """Is the caller's turn over? If not, re-arm the watchdog for audio that stops coming."""
    if s.text is None:
        return []
    evidence = Evidence(s.text, s.sound, s.own_pauses.quantile_ms)
    missing_ms = required_silence_ms(s.rules, evidence) - s.silence_ms
    if missing_ms > 0:
        s.pause_deadline_ns = now_ns + missing_ms * 1_000_000 + STALL_GRACE_NS
        return guess(s)
    text = s.text
    if not text.strip():
        return drop_utterance(s, now_ns)
    s.close_utterance()
    s.unheard_cut = False
    caller_said(s)
    s.wanted = s.wanted or s.rules.replies
    committed = cmd.CommitUtterance(s.utterance, text, by_client=False)
    if _may_begin(s) and s.guess == text:
        s.guess = None  # what StartReply begins with
        return [committed, *begin_if_wanted(s, now_ns)]
    return [*drop_guess(s), committed, *begin_if_wanted(s, now_ns)]


def start_final_pass(s: TurnState, silence_ms: int, now_ns: int) -> list[Command]:
    """The guess stays where a pause only begins anew: its words may be the same."""
    s.revision += 1
    s.text = None
    s.sound = None
    s.silence_ms = silence_ms
    s.pause_deadline_ns = now_ns + TRANSCRIPT_DEADLINE_NS
    return [cmd.Transcribe(s.utterance, s.revision)]


def drop_utterance(s: TurnState, now_ns: int, *, was_echo: bool = False) -> list[Command]:
    out = drop_guess(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced, was_echo))
    s.close_utterance()
    if s.unheard_cut:
        s.unheard_cut = False
        s.wanted = True
    return out + begin_if_wanted(s, now_ns)


def fail_utterance(s: TurnState, now_ns: int) -> list[Command]:
    """The recognizer is broken: close the utterance and say so."""
    out = drop_guess(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced))
    s.close_utterance()
    if s.away or s.agent in (Agent.PREPARING, Agent.SPEAKING):
        return out
    out += _begin(s, now_ns)
    return out + fail_reply(s, now_ns)


def settle_awaited(s: TurnState, utterance: int, now_ns: int) -> list[Command]:
    del s.awaited[utterance]
    if not s.awaited:
        s.awaited_deadline_ns = None
    return begin_if_wanted(s, now_ns)


def begin_if_wanted(s: TurnState, now_ns: int) -> list[Command]:
    if not _may_begin(s):
        return []
    s.wanted = False
    return _begin(s, now_ns)


def _may_begin(s: TurnState) -> bool:
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not s.away
    return s.wanted and is_free and not s.awaited


def _begin(s: TurnState, now_ns: int) -> list[Command]:
    out = drop_guess(s)
    s.move_agent(Signal.BEGUN)
    s.turn = TurnId(s.turn + 1)
    s.apologized = False
    s.unheard_cut = False
    s.audible_ns = None
    s.reply_deadline_ns = now_ns + PREPARING_DEADLINE_NS
    out.append(cmd.StartReply(s.turn))
    return out


def cut(s: TurnState, reason: cmd.CutReason) -> list[Command]:
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    return [cmd.CutReply(s.turn, reason)]


def fail_reply(s: TurnState, now_ns: int) -> list[Command]:
    """A stage that the present reply needs is broken: it ends with an apology."""
    s.move_agent(ev.ReplyFailed)
    s.reply_deadline_ns = now_ns + SPEAKING_DEADLINE_NS
    s.apologized = True
    return [cmd.Apologize(s.turn)]


def takes_requests(s: TurnState) -> bool:
    return s.agent in (Agent.IDLE, Agent.TRAILING, Agent.HELD) and not s.wanted
