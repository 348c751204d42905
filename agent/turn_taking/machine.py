"""Turn-taking machine: one automaton for the caller, one for the agent, and their coupling.

Theory of operation
-------------------
Two parties take turns, so there are two small automata rather than one enum of combinations:

    caller   QUIET -> SPEAKING -> PAUSING -> QUIET        (PAUSING -> SPEAKING: was only thinking)
    agent    IDLE -> PREPARING -> SPEAKING -> TRAILING -> IDLE     (HELD: until words are checked)

TRAILING means that the whole reply has been handed to the transport and the client still plays it.
OPENING, between PREPARING and SPEAKING, means that an early opener can be heard, and no answer yet.
The tables in `tables.py` are the whole of the automata, and the diagram is drawn from them. A
pair that is not in its table raises `IllegalEvent`. What each event does stands in
`user_handlers.py` and `agent_handlers.py`, how they move each other in `transitions.py`.

Both see every event that concerns them. The coupling, in the order in which it is applied:

1. *Speculative transcript.* Each pause starts a final pass (`Transcribe`) at once: by the time the
   silence is long enough to end the turn, its words are known. Resuming makes the pass stale.
2. *End of turn.* While PAUSING, every further silence, the transcript and the turn model's answer
   ask `required_silence_ms` whether the silence suffices for what is known, the agent's last
   question included (`dialogue/`). If so the utterance is committed and, if the rules say
   so, a reply begins. No words: it is dropped, nothing happened. With early openers a lower
   certainty commits it for an opener, and the answer is held back: see `preemptive.py`.
3. *Re-opened turn.* SpeechStarted where the agent answers the caller and has hardly been heard: the
   caller was not done. The reply never was, and the utterance goes on with the message before it
   (`ReopenTurn`). See `reopening.py`.
4. *Barge-in.* SpeechStarted later than that silences the agent: first `speech_started` is sent
   (stock clients stop playing on it), then the response ends. A reply of which
   nothing was heard is cut at once; one that can be heard is held, or only turned down, until it is
   known whether there are words. See `barge_in.py`.
5. *Noise.* If the utterance that cut a reply turns out to hold no words, and nothing of that reply
   counts as heard, the reply begins anew: otherwise a cough would leave the line dead. One that the
   client had asked for does not where the client cancels it meanwhile. Nor does one that has called
   a function of the client, which asks for the next with the result: anew, it would call once more.
6. *Preemptive generation.* Words that may or may not end the turn get a response in advance
   (`GuessReply`): model and voice work while the silence grows. The end of the turn only releases
   it; a caller who continues discards it (`DropGuess`). See `preemptive.py`.
7. *One reply at a time.* A reply that is wanted while one is running, or while the transcript it
   needs is outstanding, waits in `wanted` and begins when both are settled.
8. *Idle.* A caller who stays silent after a reply is prompted, if the rules say so, and in the end
   the call is hung up; not while a tool goes on in the background. See `user_idle.py`.
9. *Away.* A disconnected client gets no audio; what the caller said before is transcribed all the
   same, and answered after the resumption. See `connection_handlers.py`.

Deterministic and total: `apply(event, now_ns)` and `on_timer(now_ns)` return commands, nothing else
happens, no clock is read. Events of an older utterance, revision or turn are dropped and counted in
`stale_events`: threads answer late, and a late answer is no error. Every state in which the machine
waits for another part has a deadline (`watchdogs.py`), so that a silent detector, stage or client
can not leave it there: from any state the timer alone leads back to QUIET and IDLE.

What was tried: deciding the end of turn from wall-clock timers alone. A client that sends a file
faster than real time, or in bursts, then gets cut in on; silence is counted in samples for that
reason.

The numbers are in `thresholds.py`, the fitted ones in `end_of_turn_model.json`. Those of one rule
alone stand in its module: `sound_rule.py`, `dialogue/`.
"""

from typing import Final

from latency_budget.account.turn import TurnId

from . import agent_handlers, barge_in, connection_handlers, user_handlers, user_idle, watchdogs
from .commands import Command
from .end_of_turn import TurnRules
from .events import Event
from .state import Handlers, TurnState
from .tables import Agent, Caller
from .transitions import is_quiet, takes_items, takes_requests


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
        """Number of the newest response; 0 before the first."""
        return self._state.turn

    @property
    def utterance(self) -> int:
        """Number of the newest utterance."""
        return self._state.utterance

    @property
    def takes_requests(self) -> bool:
        """True if a ReplyRequested would be accepted."""
        return takes_requests(self._state)

    @property
    def takes_items(self) -> bool:
        """True while an item of the agent's own may join the conversation, such as the result of a
        tool: no response is made, heard or about to be."""
        return takes_items(self._state)

    @property
    def takes_announcements(self) -> bool:
        """True while both parties are silent and wait for nothing, in a call whose turns are
        answered without a request: the agent may speak of its own accord."""
        s = self._state
        return is_quiet(s) and s.rules.enabled and s.rules.replies

    @property
    def is_asked(self) -> bool:
        """True if a response waits for the end of the current one, or for a transcript."""
        return self._state.wanted

    @property
    def answer_due(self) -> bool:
        """True if a response would begin after a lost connection, whatever was heard of this
        one."""
        return self._state.wanted or self._state.unheard_cut

    @property
    def answers_caller(self) -> bool:
        """True while a response that answers the caller is in progress, and has not failed."""
        s = self._state
        return s.answers_caller and s.agent is not Agent.IDLE and not s.apologized

    @property
    def apologizes(self) -> bool:
        """True from the decision to apologize on, until the next response begins."""
        return self._state.apologized

    @property
    def awaits_words(self) -> bool:
        """True while the transcript that would be answered next is outstanding."""
        s = self._state
        is_open = s.caller is Caller.PAUSING and s.text is None
        return s.agent is Agent.IDLE and (is_open or bool(s.awaited))

    @property
    def awaits_transcript(self) -> bool:
        """True while an utterance was committed whose transcript is outstanding."""
        return bool(self._state.awaited)

    @property
    def checks_words(self) -> bool:
        """True if partial transcripts (WordsHeard) matter: an overlap is open."""
        return self._state.overlap is not None

    @property
    def stale_events(self) -> int:
        """Number of late events dropped."""
        return self._state.stale_events

    def apply(self, event: Event, now_ns: int) -> tuple[Command, ...]:
        """Apply one event and return commands in order. Raises IllegalEvent for an illegal pair."""
        commands = tuple(_HANDLERS[type(event)](self._state, event, now_ns))
        user_idle.follow(self._state, commands, now_ns)
        return commands

    def next_deadline_ns(self) -> int | None:
        """Time at which `on_timer` is due, ns; None: never."""
        s = self._state
        deadlines = (*watchdogs.deadlines(s), user_idle.idle_deadline_ns(s))
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def on_timer(self, now_ns: int) -> tuple[Command, ...]:
        """Act on expired deadlines. No effect when none has expired."""
        s = self._state
        idle_ns = user_idle.idle_deadline_ns(s)
        out = watchdogs.expire(s, now_ns)
        if idle_ns is not None and now_ns >= idle_ns:
            out += user_idle.end_silence(s, now_ns)
        user_idle.follow(s, out, now_ns)
        return tuple(out)


_HANDLERS: Final[Handlers] = {
    **user_handlers.HANDLERS,
    **agent_handlers.HANDLERS,
    **barge_in.HANDLERS,
    **connection_handlers.HANDLERS,
}
