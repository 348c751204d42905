"""Transitions for events of the caller's speech: onset, pause, silence, transcript, commit."""

from typing import Final

from . import barge_in
from . import commands as cmd
from . import events as ev
from .commands import Command
from .preemptive import discard_preemptive, would_reply
from .reopening import reopen, reopens
from .state import Handlers, TurnState
from .tables import Agent, Caller
from .thresholds import SPEECH_DEADLINE_NS, STALL_SILENCE_MS, TRANSCRIPT_DEADLINE_NS
from .transitions import cut, decide, settle_awaited, start_final_pass


def _on_speech_started(s: TurnState, event: ev.SpeechStarted, now_ns: int) -> list[Command]:
    if not s.rules.enabled or event.utterance <= s.utterance:
        return s.stale()
    s.move_caller(type(event))
    s.utterance = event.utterance
    s.revision = 0
    s.text = None
    s.message_end = None
    s.num_guesses = 0
    s.announced = True
    s.pause_deadline_ns = now_ns + SPEECH_DEADLINE_NS
    out: list[Command] = [cmd.AnnounceSpeech(event.utterance, event.at_sample)]
    if s.rules.interrupts and reopens(s, now_ns):
        return out + reopen(s)
    if s.rules.interrupts and barge_in.can_be_heard(s):
        return barge_in.overlap(s, event, now_ns)
    if s.rules.interrupts and s.agent is not Agent.IDLE:
        unheard = s.agent in (Agent.PREPARING, Agent.OPENING)
        out += cut(s, "turn_detected")
        s.unheard_cut = unheard and not s.has_called
    return out


def pause_evidence(s: TurnState, now_ns: int) -> list[Command]:
    """Decide a pause anew: its words, its silence or the turn model's answer has changed.

    Over the agent's audio the question is barge-in (`barge_in.py`); otherwise it is the end of the
    turn (`transitions.decide`).
    """
    if s.overlap is not None and s.text is not None:
        return barge_in.decide_overlap(s, s.overlap, now_ns)
    return decide(s, now_ns)


def _on_speech_paused(s: TurnState, event: ev.SpeechPaused, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    if s.overlap is not None:
        s.overlap.end = event.at_sample
    return start_final_pass(s, 0, now_ns)


def _on_audio_stalled(s: TurnState, event: ev.AudioStalled, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    was_speaking = s.caller is Caller.SPEAKING
    s.move_caller(type(event))
    if was_speaking:
        return start_final_pass(s, STALL_SILENCE_MS, now_ns)
    s.silence_ms = STALL_SILENCE_MS
    return pause_evidence(s, now_ns)


def _on_silence_grew(s: TurnState, event: ev.SilenceGrew, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    s.silence_ms = event.silence_ms
    return pause_evidence(s, now_ns)


def _on_speech_resumed(s: TurnState, event: ev.SpeechResumed, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    s.own_pauses.add(s.silence_ms)
    if s.overlap is not None:
        s.overlap.end = None
    s.text = None
    s.pause_deadline_ns = now_ns + SPEECH_DEADLINE_NS
    return discard_preemptive(s)


def _on_transcript_ready(s: TurnState, event: ev.TranscriptReady, now_ns: int) -> list[Command]:
    if s.awaited.get(event.utterance) == event.revision:
        out: list[Command] = [cmd.CompleteTranscript(event.utterance, event.text)]
        return out + settle_awaited(s, event.utterance, now_ns)
    if not s.is_pause(event.utterance, event.revision):
        return s.stale()
    s.text = event.text
    return pause_evidence(s, now_ns)


def _on_pause_judged(s: TurnState, event: ev.PauseJudged, now_ns: int) -> list[Command]:
    if not s.is_pause(event.utterance, event.revision):
        return s.stale()
    s.sound = event.log_odds
    return pause_evidence(s, now_ns)


def _on_message_end_scored(s: TurnState, event: ev.MessageEndScored, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.message_end = event.text, event.log_prob
    is_new_evidence = s.caller is Caller.PAUSING and s.message_end_log_prob is not None
    return pause_evidence(s, now_ns) if is_new_evidence else []


def _on_transcript_failed(s: TurnState, event: ev.TranscriptFailed, now_ns: int) -> list[Command]:
    if s.awaited.get(event.utterance) == event.revision:
        out: list[Command] = [cmd.FailTranscript(event.utterance)]
        return out + settle_awaited(s, event.utterance, now_ns)
    if not s.is_pause(event.utterance, event.revision):
        return s.stale()
    return barge_in.give_up(s, now_ns)


def _on_buffer_committed(s: TurnState, event: ev.BufferCommitted, now_ns: int) -> list[Command]:
    by_itself = s.caller is not Caller.QUIET and event.utterance == s.utterance
    if not by_itself:
        if event.utterance <= s.utterance:  # no speech since the last commit
            return [*s.stale(), cmd.RefuseRequest("input_audio_buffer_commit_empty")]
        s.utterance = event.utterance
        s.revision = 0
        out: list[Command] = []
    else:
        out = barge_in.stop(s)
        s.close_utterance()
    s.unheard_cut = s.answers_caller = False
    s.caller_has_spoken = True
    s.revision += 1
    s.awaited[event.utterance] = s.revision
    s.awaited_deadline_ns = now_ns + TRANSCRIPT_DEADLINE_NS
    return [
        *out,
        *discard_preemptive(s),
        cmd.CommitUtterance(event.utterance, None, by_client=True),
        cmd.Transcribe(event.utterance, s.revision),
    ]


def _on_buffer_cleared(s: TurnState, event: ev.BufferCleared, now_ns: int) -> list[Command]:
    if s.caller is Caller.QUIET:
        return []
    return barge_in.resume_overlapped(s, now_ns)


def _on_rules_changed(s: TurnState, event: ev.RulesChanged, now_ns: int) -> list[Command]:
    s.rules = event.rules
    if not event.rules.enabled and s.caller is not Caller.QUIET:
        return barge_in.resume_overlapped(s, now_ns)
    out = barge_in.follow_rules(s)
    return out if would_reply(s) else out + discard_preemptive(s)


HANDLERS: Final[Handlers] = {
    ev.SpeechStarted: _on_speech_started,
    ev.SpeechPaused: _on_speech_paused,
    ev.SilenceGrew: _on_silence_grew,
    ev.SpeechResumed: _on_speech_resumed,
    ev.AudioStalled: _on_audio_stalled,
    ev.BufferCommitted: _on_buffer_committed,
    ev.BufferCleared: _on_buffer_cleared,
    ev.TranscriptReady: _on_transcript_ready,
    ev.PauseJudged: _on_pause_judged,
    ev.MessageEndScored: _on_message_end_scored,
    ev.TranscriptFailed: _on_transcript_failed,
    ev.RulesChanged: _on_rules_changed,
}
