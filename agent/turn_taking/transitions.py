"""Coupling of the two automata: decide, commit, drop, begin, cut.

`machine.py` has the rules. Each function changes the given state and returns commands in order.
"""

from latency_budget.account.turn import TurnId

from . import commands as cmd
from . import events as ev
from .commands import Command
from .end_of_turn import required_silence_ms
from .end_of_turn_model import Evidence
from .preemptive import discard_preemptive, may_open, start_preemptive
from .reopening import caller_said
from .state import TurnState
from .tables import Agent, Caller, Signal
from .thresholds import (
    PREPARING_DEADLINE_NS,
    SPEAKING_DEADLINE_NS,
    STALL_GRACE_NS,
    TRANSCRIPT_DEADLINE_NS,
)


def decide(s: TurnState, now_ns: int) -> list[Command]:
    """End of turn: commit if the silence suffices for the evidence, or for an opener in front of an
    answer that is held back; else wait and prepare.

    Re-arms the watchdog for audio that stops arriving.
    """
    if s.text is None:
        return []
    evidence = Evidence(
        s.text, s.sound, s.own_pauses.quantile_ms, s.message_end_log_prob, s.question
    )
    missing_ms = required_silence_ms(s.rules, evidence) - s.silence_ms
    if missing_ms > 0 and not may_open(s, evidence, missing_ms):
        s.pause_deadline_ns = now_ns + missing_ms * 1_000_000 + STALL_GRACE_NS
        return start_preemptive(s)
    text = s.text
    if not text.strip():
        return drop_utterance(s, now_ns)
    s.close_utterance()
    s.unheard_cut = False
    s.caller_has_spoken = True
    caller_said(s)
    s.wanted = s.wanted or s.rules.replies
    committed = cmd.CommitUtterance(s.utterance, text, by_client=False)
    before: list[Command] = []
    if _may_begin(s) and s.guess == text:
        s.guess = None  # what StartReply begins with
    else:
        before = discard_preemptive(s)
    return [*before, committed, *begin_if_wanted(s, now_ns, max(0, missing_ms))]


def start_final_pass(s: TurnState, silence_ms: int, now_ns: int) -> list[Command]:
    """Request the final transcript of a pause. A preemptive response stays: its words may match."""
    s.revision += 1
    s.text = None
    s.sound = None
    s.silence_ms = silence_ms
    s.pause_deadline_ns = now_ns + TRANSCRIPT_DEADLINE_NS
    return [cmd.Transcribe(s.utterance, s.revision)]


def drop_utterance(s: TurnState, now_ns: int, *, was_echo: bool = False) -> list[Command]:
    out = discard_preemptive(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced, was_echo))
    s.close_utterance()
    if s.unheard_cut:
        s.unheard_cut = False
        s.wanted = True
    return out + begin_if_wanted(s, now_ns)


def fail_utterance(s: TurnState, now_ns: int) -> list[Command]:
    """Close an utterance that the recognizer failed on, and apologize."""
    out = discard_preemptive(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced))
    s.close_utterance()
    if s.away or s.agent in (Agent.PREPARING, Agent.OPENING, Agent.SPEAKING):
        return out
    out += _begin(s, now_ns)
    return out + fail_reply(s, now_ns)


def settle_awaited(s: TurnState, utterance: int, now_ns: int) -> list[Command]:
    del s.awaited[utterance]
    if not s.awaited:
        s.awaited_deadline_ns = None
    return begin_if_wanted(s, now_ns)


def begin_if_wanted(s: TurnState, now_ns: int, answer_after_ms: int = 0) -> list[Command]:
    """Begin the response that is wanted, if it may. `answer_after_ms`: as in `StartReply`."""
    if not _may_begin(s):
        return []
    s.wanted = False
    return _begin(s, now_ns, answer_after_ms)


def _may_begin(s: TurnState) -> bool:
    is_free = s.agent in (Agent.IDLE, Agent.TRAILING) and not s.away
    return s.wanted and is_free and not s.awaited


def _begin(s: TurnState, now_ns: int, answer_after_ms: int = 0) -> list[Command]:
    out = discard_preemptive(s)
    s.move_agent(Signal.BEGUN)
    s.turn = TurnId(s.turn + 1)
    s.apologized = False
    s.unheard_cut = s.has_called = False
    s.audible_ns = None
    s.question_before = s.question
    s.reply_deadline_ns = now_ns + PREPARING_DEADLINE_NS
    out.append(cmd.StartReply(s.turn, answer_after_ms))
    return out


def cut(s: TurnState, reason: cmd.CutReason) -> list[Command]:
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    return [cmd.CutReply(s.turn, reason)]


def fail_reply(s: TurnState, now_ns: int) -> list[Command]:
    """End the current response with an apology: one of its stages failed."""
    s.move_agent(ev.ReplyFailed)
    s.reply_deadline_ns = now_ns + SPEAKING_DEADLINE_NS
    s.apologized = True
    s.question = s.question_before
    return [cmd.Apologize(s.turn)]


def is_quiet(s: TurnState) -> bool:
    """True while neither party speaks, and no response is wanted, made or played."""
    is_silent = s.caller is Caller.QUIET and s.agent is Agent.IDLE
    return is_silent and not (s.away or s.wanted or s.awaited)


def takes_items(s: TurnState) -> bool:
    """True while an item of the agent's own may join the conversation: no response is made, heard
    or about to be, and none is prepared that would have to be prepared anew."""
    is_free = s.agent is Agent.IDLE and s.caller is not Caller.PAUSING
    return is_free and not (s.away or s.wanted or s.awaited)


def takes_requests(s: TurnState) -> bool:
    return s.agent in (Agent.IDLE, Agent.TRAILING, Agent.HELD) and not s.wanted
