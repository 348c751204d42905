"""Who may speak: the caller's automaton, the agent's automaton, and how they are coupled.

Theory of operation
-------------------
Two parties take turns, so there are two small automata rather than one enum of combinations:

    caller   QUIET -> SPEAKING -> PAUSING -> QUIET        (PAUSING -> SPEAKING: was only thinking)
    agent    IDLE -> PREPARING -> SPEAKING -> TRAILING -> IDLE

TRAILING means that the whole reply has been handed to the transport and the client still plays it.
The tables in `turn_tables.py` are the whole of the automata, and the
diagram is drawn from them. A pair that is not in its table raises `IllegalEvent`.

Both see every event that concerns them. The coupling, in the order in which it is applied:

1. *Speculative transcript.* Each pause starts a final pass (`Transcribe`) at once: by the time the
   silence is long enough to end the turn, its words are known. Resuming makes the pass stale.
2. *End of turn.* While PAUSING, every further silence and the transcript's arrival ask
   `required_silence_ms` whether words and silence suffice. If so the utterance is committed and,
   if the rules say so, a reply begins. No words: the utterance is dropped and nothing happened.
3. *Barge-in.* SpeechStarted while the agent is not IDLE cuts the reply: first the client is told
   that the caller speaks (stock clients stop playing on that), then the reply ends.
4. *Noise.* If the utterance that cut a reply turns out to hold no words, and nothing of that reply
   had been heard, the reply begins anew: otherwise a cough would leave the line dead.
5. *Guess.* Words of which it is not known yet whether they end the turn get a reply in secret
   (`GuessReply`): model and voice work while the silence grows. The end of the turn then only lets
   it be heard; a caller who goes on makes it vanish (`DropGuess`). See `guessing.py`.
6. *One reply at a time.* A reply that is wanted while one is running, or while the transcript it
   needs is outstanding, waits in `wanted` and begins when both are settled.

Deterministic and total: `apply(event, now_ns)` and `on_timer(now_ns)` return commands, nothing else
happens, no clock is read. Events of an older utterance, revision or turn are dropped and counted in
`stale_events`: threads answer late, and a late answer is no error. Every state in which the machine
waits for somebody else has a deadline (`next_deadline_ns`), so that no silence of a stage or of a
client can leave it there.

What was tried: deciding the end of turn from wall-clock timers alone. A client that sends a file
faster than real time, or in bursts, then gets cut in on; samples do not lie about silence.
"""

from collections.abc import Callable
from typing import Any, Final

from latency_budget.turn import TurnId

from . import commands as cmd
from . import events as ev
from .commands import Command
from .end_of_turn import TurnRules, required_silence_ms
from .events import Event
from .guessing import drop_guess, guess, would_reply
from .turn_state import TurnState
from .turn_tables import Agent, Caller, Signal

STALL_GRACE_NS: Final = 400_000_000
"""Added to the silence that is still missing, when no audio arrives to count it. Lower would race
ordinary network jitter; higher is dead air for clients that stop sending when the caller does."""

TRANSCRIPT_DEADLINE_NS: Final = 8_000_000_000
"""A final pass takes 0.2 s, 2 s on a loaded machine for a long utterance. Beyond this it hangs."""

PREPARING_DEADLINE_NS: Final = 20_000_000_000
"""The stages have deadlines of their own, all shorter. This one is the last resort."""

STALL_SILENCE_MS: Final = 60_000
"""The silence an utterance is credited with when its audio stops: more than any rule asks for."""


class TurnTaking:
    """The machine of one session. Not thread-safe; no method blocks or reads a clock."""

    def __init__(self, rules: TurnRules) -> None:
        self._state = TurnState(rules)

    @property
    def caller(self) -> Caller:
        return self._state.caller

    @property
    def agent(self) -> Agent:
        return self._state.agent

    @property
    def turn(self) -> TurnId:
        """Of the newest reply; 0 before the first."""
        return self._state.turn

    @property
    def utterance(self) -> int:
        """The newest one heard of."""
        return self._state.utterance

    @property
    def takes_requests(self) -> bool:
        """Whether a ReplyRequested would be honoured."""
        return _takes_requests(self._state)

    @property
    def stale_events(self) -> int:
        """Late answers that were dropped so far."""
        return self._state.stale_events

    def apply(self, event: Event, now_ns: int) -> tuple[Command, ...]:
        """Take in one event. Raises IllegalEvent for a pair that no table and no rule knows."""
        return tuple(_HANDLERS[type(event)](self._state, event, now_ns))

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` is due, unless an event comes first."""
        s = self._state
        deadlines = (s.pause_deadline_ns, s.awaited_deadline_ns, s.reply_deadline_ns)
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def on_timer(self, now_ns: int) -> tuple[Command, ...]:
        """Act on the deadlines that have passed. Harmless when none has."""
        s = self._state
        out: list[Command] = []
        if s.pause_deadline_ns is not None and now_ns >= s.pause_deadline_ns:
            s.pause_deadline_ns = None
            s.silence_ms = STALL_SILENCE_MS
            out += _fail_utterance(s, now_ns) if s.text is None else _decide(s, now_ns)
        if s.awaited_deadline_ns is not None and now_ns >= s.awaited_deadline_ns:
            out += [cmd.FailTranscript(utterance) for utterance in s.awaited]
            s.awaited.clear()
            s.awaited_deadline_ns = None
            out += _begin_if_wanted(s, now_ns)
        if s.reply_deadline_ns is not None and now_ns >= s.reply_deadline_ns:
            out += _on_reply_failed(s, ev.ReplyFailed(s.turn), now_ns)
        return tuple(out)


# --- the caller ---


def _on_speech_started(s: TurnState, event: ev.SpeechStarted, now_ns: int) -> list[Command]:
    if not s.rules.enabled or event.utterance <= s.utterance:
        return s.stale()
    s.move_caller(type(event))
    s.utterance = event.utterance
    s.revision = 0
    s.text = None
    s.num_guesses = 0
    s.announced = True
    out: list[Command] = [cmd.AnnounceSpeech(event.utterance, event.at_sample)]
    if s.rules.interrupts and s.agent is not Agent.IDLE:
        unheard = s.agent is Agent.PREPARING
        out += _cut(s, "turn_detected")
        s.unheard_cut = unheard
    return out


def _on_speech_paused(s: TurnState, event: ev.SpeechPaused, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    return _start_final_pass(s, 0, now_ns)


def _on_audio_stalled(s: TurnState, event: ev.AudioStalled, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    was_speaking = s.caller is Caller.SPEAKING
    s.move_caller(type(event))
    if was_speaking:
        return _start_final_pass(s, STALL_SILENCE_MS, now_ns)
    s.silence_ms = STALL_SILENCE_MS
    return _decide(s, now_ns)


def _on_silence_grew(s: TurnState, event: ev.SilenceGrew, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    s.silence_ms = max(s.silence_ms, event.silence_ms)
    return _decide(s, now_ns)


def _on_speech_resumed(s: TurnState, event: ev.SpeechResumed, now_ns: int) -> list[Command]:
    if not s.is_current(event.utterance):
        return s.stale()
    s.move_caller(type(event))
    s.text = None
    s.pause_deadline_ns = None
    return drop_guess(s)


def _on_transcript_ready(s: TurnState, event: ev.TranscriptReady, now_ns: int) -> list[Command]:
    if s.awaited.get(event.utterance) == event.revision:
        out: list[Command] = [cmd.CompleteTranscript(event.utterance, event.text)]
        return out + _settle_awaited(s, event.utterance, now_ns)
    if not s.awaits_words_of(event.utterance, event.revision):
        return s.stale()
    s.text = event.text
    return _decide(s, now_ns)


def _on_transcript_failed(s: TurnState, event: ev.TranscriptFailed, now_ns: int) -> list[Command]:
    if s.awaited.get(event.utterance) == event.revision:
        out: list[Command] = [cmd.FailTranscript(event.utterance)]
        return out + _settle_awaited(s, event.utterance, now_ns)
    if not s.awaits_words_of(event.utterance, event.revision):
        return s.stale()
    return _fail_utterance(s, now_ns)


def _on_buffer_committed(s: TurnState, event: ev.BufferCommitted, now_ns: int) -> list[Command]:
    by_itself = s.caller is not Caller.QUIET and event.utterance == s.utterance
    if not by_itself:
        if event.utterance <= s.utterance:
            return s.stale()
        s.utterance = event.utterance
        s.revision = 0
    else:
        s.close_utterance()
    s.unheard_cut = False
    s.revision += 1
    s.awaited[event.utterance] = s.revision
    s.awaited_deadline_ns = now_ns + TRANSCRIPT_DEADLINE_NS
    return [
        *drop_guess(s),
        cmd.CommitUtterance(event.utterance, None, by_client=True),
        cmd.Transcribe(event.utterance, s.revision),
    ]


def _on_buffer_cleared(s: TurnState, event: ev.BufferCleared, now_ns: int) -> list[Command]:
    if s.caller is Caller.QUIET:
        return []
    return _drop_utterance(s, now_ns)


def _on_rules_changed(s: TurnState, event: ev.RulesChanged, now_ns: int) -> list[Command]:
    s.rules = event.rules
    if not event.rules.enabled and s.caller is not Caller.QUIET:
        return _drop_utterance(s, now_ns)
    return [] if would_reply(s) else drop_guess(s)


# --- the agent ---


def _takes_requests(s: TurnState) -> bool:
    return s.agent in (Agent.IDLE, Agent.TRAILING) and not s.wanted


def _on_reply_requested(s: TurnState, event: ev.ReplyRequested, now_ns: int) -> list[Command]:
    if not _takes_requests(s):
        return [cmd.RefuseRequest("conversation_already_has_active_response")]
    s.wanted = True
    return _begin_if_wanted(s, now_ns)


def _on_reply_cancelled(s: TurnState, event: ev.ReplyCancelled, now_ns: int) -> list[Command]:
    if s.agent in (Agent.PREPARING, Agent.SPEAKING):
        return _cut(s, "client_cancelled") + _begin_if_wanted(s, now_ns)
    if not s.wanted:
        return [cmd.RefuseRequest("response_cancel_not_active")]
    s.wanted = False
    return []


def _on_reply_audible(s: TurnState, event: ev.ReplyAudible, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE or s.apologized:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = None
    return [cmd.ReleaseReply(event.turn)]


def _on_reply_failed(s: TurnState, event: ev.ReplyFailed, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE or s.apologized:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = None
    s.apologized = True
    return [cmd.Apologize(event.turn)]


def _on_reply_sent(s: TurnState, event: ev.ReplySent, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE:
        return s.stale()
    s.move_agent(type(event))
    s.reply_deadline_ns = None
    return _begin_if_wanted(s, now_ns)


def _on_reply_played(s: TurnState, event: ev.ReplyPlayed, now_ns: int) -> list[Command]:
    if event.turn != s.turn or s.agent is Agent.IDLE:
        return s.stale()
    s.move_agent(type(event))
    return []


# --- the coupling ---


def _decide(s: TurnState, now_ns: int) -> list[Command]:
    """Is the caller's turn over? If not, re-arm the watchdog for audio that stops coming."""
    if s.text is None:
        return []
    missing_ms = required_silence_ms(s.rules, s.text) - s.silence_ms
    if missing_ms > 0:
        s.pause_deadline_ns = now_ns + missing_ms * 1_000_000 + STALL_GRACE_NS
        return guess(s)
    text = s.text
    if not text.strip():
        return _drop_utterance(s, now_ns)
    s.close_utterance()
    s.unheard_cut = False
    s.wanted = s.wanted or s.rules.replies
    committed = cmd.CommitUtterance(s.utterance, text, by_client=False)
    if _may_begin(s) and s.guess == text:
        s.guess = None  # what StartReply begins with
        return [committed, *_begin_if_wanted(s, now_ns)]
    return [*drop_guess(s), committed, *_begin_if_wanted(s, now_ns)]


def _start_final_pass(s: TurnState, silence_ms: int, now_ns: int) -> list[Command]:
    s.revision += 1
    s.text = None
    s.silence_ms = silence_ms
    s.pause_deadline_ns = now_ns + TRANSCRIPT_DEADLINE_NS
    return [*drop_guess(s), cmd.Transcribe(s.utterance, s.revision)]


def _drop_utterance(s: TurnState, now_ns: int) -> list[Command]:
    out = drop_guess(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced))
    s.close_utterance()
    if s.unheard_cut:
        s.unheard_cut = False
        s.wanted = True
    return out + _begin_if_wanted(s, now_ns)


def _fail_utterance(s: TurnState, now_ns: int) -> list[Command]:
    """The recognizer is broken: close the utterance and say so."""
    out = drop_guess(s)
    out.append(cmd.DropUtterance(s.utterance, s.announced))
    s.close_utterance()
    if s.agent in (Agent.PREPARING, Agent.SPEAKING):
        return out
    out += _begin(s, now_ns)
    return out + _on_reply_failed(s, ev.ReplyFailed(s.turn), now_ns)


def _settle_awaited(s: TurnState, utterance: int, now_ns: int) -> list[Command]:
    del s.awaited[utterance]
    if not s.awaited:
        s.awaited_deadline_ns = None
    return _begin_if_wanted(s, now_ns)


def _begin_if_wanted(s: TurnState, now_ns: int) -> list[Command]:
    if not _may_begin(s):
        return []
    s.wanted = False
    return _begin(s, now_ns)


def _may_begin(s: TurnState) -> bool:
    return s.wanted and s.agent in (Agent.IDLE, Agent.TRAILING) and not s.awaited


def _begin(s: TurnState, now_ns: int) -> list[Command]:
    out = drop_guess(s)
    s.move_agent(Signal.BEGUN)
    s.turn = TurnId(s.turn + 1)
    s.apologized = False
    s.unheard_cut = False
    s.reply_deadline_ns = now_ns + PREPARING_DEADLINE_NS
    out.append(cmd.StartReply(s.turn))
    return out


def _cut(s: TurnState, reason: cmd.CutReason) -> list[Command]:
    s.move_agent(Signal.CUT)
    s.reply_deadline_ns = None
    return [cmd.CutReply(s.turn, reason)]


_HANDLERS: Final[dict[type, Callable[[TurnState, Any, int], list[Command]]]] = {
    ev.SpeechStarted: _on_speech_started,
    ev.SpeechPaused: _on_speech_paused,
    ev.SilenceGrew: _on_silence_grew,
    ev.SpeechResumed: _on_speech_resumed,
    ev.AudioStalled: _on_audio_stalled,
    ev.BufferCommitted: _on_buffer_committed,
    ev.BufferCleared: _on_buffer_cleared,
    ev.TranscriptReady: _on_transcript_ready,
    ev.TranscriptFailed: _on_transcript_failed,
    ev.ReplyRequested: _on_reply_requested,
    ev.ReplyCancelled: _on_reply_cancelled,
    ev.ReplyAudible: _on_reply_audible,
    ev.ReplySent: _on_reply_sent,
    ev.ReplyPlayed: _on_reply_played,
    ev.ReplyFailed: _on_reply_failed,
    ev.RulesChanged: _on_rules_changed,
}
