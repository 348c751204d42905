"""Barge-in: speech over the agent's audio is an interruption, a backchannel, noise or echo.

Theory of operation
-------------------
Speech has to silence the agent within a quarter of a second, and what was said is known half a
second later at the earliest. So the agent falls silent first and the words are checked after that
(`backchannel.py`); while they are, the machine remembers an `Overlap`.

*Stock clients* stop playing at `speech_started` and have no way to continue. Their response ends
(`HoldReply`), but its generation is kept: the agent is HELD. Words end it for good (`CutReply`);
a backchannel or noise lets the rest be said in a response of its own (`ResumeReply`), as soon as
the pause is long enough, and not only when a turn would be over.

*Clients that duck* play on at a lower volume (`DuckReply`). They receive `speech_started` when
there are words, or voice for too long without words; otherwise the volume comes back
(`UnduckReply`).

An overlap without words is settled by its deadline, `MAX_HOLD_NS`. Only while the caller pauses and
the recognizer still owes the words, the deadline moves on, up to that of the transcript.
"""

from typing import Final

from asr.audio.samples import ms_from_samples

from . import commands as cmd
from . import events as ev
from .backchannel import meaning, takes_floor, with_begun_sentence
from .commands import Command
from .state import Handlers, Overlap, TurnState
from .tables import Agent, Caller, Signal
from .thresholds import (
    MAX_HOLD_NS,
    OVERLAP_RECHECK_NS,
    OVERLAP_WITHOUT_WORDS_NS,
    RESUME_AFTER_BACKCHANNEL_MS,
    RESUME_AFTER_BRIEF_MS,
    SAID_AGAIN_NS,
    SPEAKING_DEADLINE_NS,
    STALL_GRACE_NS,
)
from .transitions import cut, decide, drop_utterance, fail_utterance


def can_be_heard(s: TurnState) -> bool:
    """True while speech overlaps with a response that could resume. An apology can not."""
    return s.agent in (Agent.SPEAKING, Agent.TRAILING) and not s.apologized


def overlap(s: TurnState, event: ev.SpeechStarted, now_ns: int) -> list[Command]:
    """Start an overlap: hold or duck the response that is audible."""
    after_ns = OVERLAP_WITHOUT_WORDS_NS if s.rules.ducks else MAX_HOLD_NS
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


def decide_overlap(s: TurnState, over: Overlap, now_ns: int) -> list[Command]:
    """Settle an overlap at a pause whose words are known: interruption, or resume the response."""
    assert s.text is not None
    said = meaning(s.text, over.heard, over.left, s.rules.words, _voice_ms(s, over))
    if said == "words" or (said == "brief" and _is_said_again(s, now_ns)):
        return [*stop(s), *decide(s, now_ns)]
    after_ms = RESUME_AFTER_BRIEF_MS if said == "brief" else RESUME_AFTER_BACKCHANNEL_MS
    missing_ms = after_ms - s.silence_ms
    if missing_ms > 0:
        s.pause_deadline_ns = now_ns + missing_ms * 1_000_000 + STALL_GRACE_NS
        return []
    if said == "brief":
        s.last_brief = s.text, now_ns
    return resume_overlapped(s, now_ns)


def _is_said_again(s: TurnState, now_ns: int) -> bool:
    """True if the words were taken for a backchannel just before: who says them again means
    them."""
    if s.last_brief is None:
        return False
    text, at_ns = s.last_brief
    return text == s.text and now_ns - at_ns < SAID_AGAIN_NS


def _voice_ms(s: TurnState, over: Overlap) -> int | None:
    """Length of the utterance, from its first voiced sample to its last; None: not to be weighed,
    or not known."""
    if not s.rules.weighs_length or over.end is None or over.end <= over.onset:
        return None
    return round(ms_from_samples(over.end - over.onset))


def stop(s: TurnState, reason: cmd.CutReason = "turn_detected") -> list[Command]:
    """Interrupt: end the overlapped response for good. No effect without an overlap. Where speech
    interrupts no more, a response that still plays goes on."""
    over, s.overlap = s.overlap, None
    if over is None:
        return []
    out: list[Command] = []
    if not s.announced:
        s.announced = True
        out.append(cmd.AnnounceSpeech(s.utterance, over.onset))
    if _plays_on(s):
        return out + _unduck(over)
    if s.agent is not Agent.IDLE:
        # Another response may have begun meanwhile: the client stops playing that one as well.
        s.unheard_cut = s.agent in (Agent.PREPARING, Agent.OPENING) and not s.has_called
        out += cut(s, reason)
    return out


def follow_rules(s: TurnState) -> list[Command]:
    """Play a ducked response at its volume again where speech interrupts no more. The speech stays
    an overlap: `speech_started` would be sent before the client learns of its new settings, and
    still stop its playback."""
    if s.overlap is None or not _plays_on(s):
        return []
    return _unduck(s.overlap)


def _plays_on(s: TurnState) -> bool:
    """True where the overlapped response is not held, and speech interrupts no more: the client has
    changed that since the speech began."""
    return not s.rules.interrupts and s.agent is not Agent.HELD


def _unduck(over: Overlap) -> list[Command]:
    was_ducked, over.is_ducked = over.is_ducked, False
    return [cmd.UnduckReply(over.turn)] if was_ducked else []


def resume_overlapped(s: TurnState, now_ns: int) -> list[Command]:
    """Drop the utterance and resume the response that it overlapped, if any."""
    over, s.overlap = s.overlap, None
    if over is None:
        return drop_utterance(s, now_ns)
    text = s.text or ""
    was_echo = meaning(text, over.heard, over.left, s.rules.words) == "echo"
    if s.agent is Agent.HELD:
        if over.has_failed:
            return [*cut(s, "turn_detected"), *fail_utterance(s, now_ns)]
        _resume(s, now_ns)
        dropped = drop_utterance(s, now_ns, was_echo=was_echo)
        return [*dropped, cmd.ResumeReply(over.turn)]
    out: list[Command] = [cmd.UnduckReply(over.turn)] if over.is_ducked else []
    return out + drop_utterance(s, now_ns, was_echo=was_echo)


def give_up(s: TurnState, now_ns: int) -> list[Command]:
    """Close an utterance whose transcript will never arrive; its overlapped response is cut."""
    over, s.overlap = s.overlap, None
    out: list[Command] = []
    if over is not None and s.agent is Agent.HELD:
        out += cut(s, "turn_detected")
    elif over is not None and over.is_ducked:
        out.append(cmd.UnduckReply(over.turn))
    return out + fail_utterance(s, now_ns)


def on_deadline(s: TurnState, now_ns: int) -> list[Command]:
    """Settle an overlap at its deadline, by the voice alone where there are no words."""
    over = s.overlap
    assert over is not None
    is_pausing = s.caller is Caller.PAUSING  # a final transcript is due, with its own deadline
    is_weighed = over.words is not None and s.rules.weighs_length and not is_pausing
    if is_weighed and _takes_floor(s, over, over.words or "", now_ns):  # by now
        return stop(s)
    is_early = now_ns < over.began_ns + MAX_HOLD_NS and over.words is not None
    if is_pausing or is_early:
        over.deadline_ns = now_ns + OVERLAP_RECHECK_NS
        return []
    if over.words is None or meaning(over.words, over.heard, over.left, s.rules.words) == "words":
        return stop(s)
    return _go_on_over_it(s, over, now_ns)


def _resume(s: TurnState, now_ns: int) -> None:
    s.move_agent(Signal.RESUMED)
    s.reply_deadline_ns = now_ns + SPEAKING_DEADLINE_NS


def _go_on_over_it(s: TurnState, over: Overlap, now_ns: int) -> list[Command]:
    """Resume over endless noise, such as music; words still interrupt."""
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
    s.agent_said(with_begun_sentence(event.heard, event.left))
    return []


def _on_words_heard(s: TurnState, event: ev.WordsHeard, now_ns: int) -> list[Command]:
    over = s.overlap
    if over is None or not s.is_current(event.utterance):
        return s.stale()
    over.words = event.text
    return stop(s) if _takes_floor(s, over, event.text, now_ns) else []


def _takes_floor(s: TurnState, over: Overlap, text: str, now_ns: int) -> bool:
    voice_ms = _voice_ms(s, over)
    if voice_ms is None and s.rules.weighs_length:
        # The onset event comes about as long after the onset as the partial pass takes.
        voice_ms = (now_ns - over.began_ns) // 1_000_000
    return takes_floor(text, over.heard, over.left, s.rules.words, voice_ms)


HANDLERS: Final[Handlers] = {ev.ReplyStands: _on_reply_stands, ev.WordsHeard: _on_words_heard}
