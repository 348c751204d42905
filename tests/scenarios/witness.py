"""Watches a machine's events and commands, and objects to what no session could carry out."""

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.backchannel import meaning, with_begun_sentence
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from agent.turn_taking.thresholds import (
    MAX_PREEMPTIVE,
    OPENER_LEAD_MS,
    REOPEN_NS,
    RESUME_AFTER_BACKCHANNEL_MS,
    RESUME_AFTER_BRIEF_MS,
)
from asr.audio.samples import ms_from_samples
from latency_budget.account.turn import TurnId
from tests.scenarios.idle_witness import IdleWitness
from tests.scenarios.pause import HeardPause


class Witness:
    """What a session has been told to do so far. Raises AssertionError."""

    def __init__(self, rules: TurnRules) -> None:
        self.open: int | None = None
        """The utterance that was announced and not closed."""
        self.owed: dict[int, int] = {}
        """Utterances committed without words, with the revision that is to bring them."""
        self.turn = 0
        self._rules = rules
        self._closed: set[int] = set()
        self._settled: set[int] = set()
        self._revisions: dict[int, int] = {}
        self._answers: dict[tuple[int, int], str] = {}
        self._pause = HeardPause()
        self._replying = False
        self._held_back = 0
        """The turn whose answer was to come behind an opener last."""
        self._opened = 0
        self._released = 0
        self._cut = 0
        self._apologized = 0
        self.due = False
        """A reply was asked for and has not begun."""
        self._cut_unheard = False
        self._announced = False
        """The client was told of the utterance that is open."""
        self._held: int | None = None
        """The turn whose reply was stopped, and may go on."""
        self._last_held = 0
        """The turn whose reply was stopped like that last."""
        self._ducked: int | None = None
        """The turn whose reply the client has turned down."""
        self._stood = ("", "")
        """What was heard of it, and the rest."""
        self._guess: tuple[int, str] | None = None
        """A reply that is prepared in secret: its turn, and the words that it answers."""
        self._num_guesses = 0
        """In the utterance that is open."""
        self.away = False
        """The client has no connection."""
        self._may_be_due = False
        """The client was lost just now, while the caller may have been waiting for a reply."""
        self._answers_caller = False
        """The reply that is due or under way answers what the caller said last, unasked."""
        self._audible_ns = 0
        """Since when what was released last can be heard."""
        self._played = 0
        self._now_ns = 0
        self._idle = IdleWitness()
        self._is_silent = True
        """The agent's reply is over or held."""
        self._voice: tuple[int, int | None] = 0, None
        """First voiced sample of the open utterance, and first silent one of its pause."""

    def event(self, event: ev.Event | None, now_ns: int) -> None:
        """Before the machine takes it. None: its timer."""
        self._now_ns = self._idle.now_ns = now_ns
        is_of_open = getattr(event, "utterance", None) == self.open is not None
        if event is None or is_of_open or isinstance(event, ev.ClientLost):
            self._pause.event(event, self._revisions.get(self.open or 0, 0))
        self._note_voice(event, is_of_open=bool(is_of_open))
        match event:
            case ev.RulesChanged(rules):
                self._rules = rules
            case ev.TranscriptReady(utterance, revision, text):
                self._answers[utterance, revision] = text
            case ev.ReplySent(turn) if turn == self.turn and self._held is None:
                self._replying = False
            case ev.ReplyStands(_, heard, left):
                self._stood = heard, left
                self._pause.agent_said(self._rules, with_begun_sentence(heard, left))
            case ev.ReplyPlayed(turn, text):
                self._played = turn
                if turn == self.turn and not self._is_silent:
                    is_heard = turn > self._apologized
                    self._pause.agent_said(self._rules, text if is_heard else "")
            case ev.ClientLost(unheard):
                self.away = True
                was_waiting = self._answers_caller and unheard and self._apologized < self.turn
                self._may_be_due = was_waiting or self._cut_unheard
                self._cut_unheard = False
                self._ducked = None
            case ev.ClientBack():
                self.away = False

    def _note_voice(self, event: ev.Event | None, *, is_of_open: bool) -> None:
        match event:
            case ev.SpeechStarted(_, at_sample) if self.open is None:
                self._voice = at_sample, None
            case ev.SpeechPaused(_, at_sample) if is_of_open:
                self._voice = self._voice[0], at_sample
            case ev.SpeechResumed() if is_of_open:
                self._voice = self._voice[0], None

    def commands(self, event: ev.Event | None, commands: tuple[cmd.Command, ...]) -> None:
        """What the machine made of the event."""
        self._asked(event, any(isinstance(command, cmd.RefuseRequest) for command in commands))
        for index, command in enumerate(commands):
            before = commands[index - 1] if index else None
            if self._guess is not None:
                check_guessed(self._guess, command, commands[index + 1 :])
            match command:
                case cmd.StartReply(turn, answer_after_ms):
                    if answer_after_ms:
                        self._opens_early(turn, before, answer_after_ms)
                    self._pause.agent_prepares()
                    self._begins(turn, before, apologizes=cmd.Apologize(turn) in commands[index:])
                case cmd.GuessReply(turn, text):
                    self._guesses(turn, text)
                case cmd.DropGuess(turn):
                    assert self._guess is not None
                    assert self._guess[0] == turn
                    self._guess = None
                case (
                    cmd.ReleaseOpener() | cmd.ReleaseReply() | cmd.Apologize() | cmd.AbandonReply()
                ):
                    self._about_reply(command)
                case cmd.CutReply() | cmd.ReopenTurn():
                    self._stops(command)
                case cmd.PromptCaller() | cmd.CommitSilence() | cmd.HangUp():
                    assert event is None
                    assert index == 0
                    self.due |= self._idle.acts(command, commands[1:], self.turn)
                    self._answers_caller = False
                case cmd.HoldReply() | cmd.ResumeReply() | cmd.DuckReply() | cmd.UnduckReply():
                    self._over_reply(event, commands, index)
                case cmd.RefuseRequest():
                    assert commands == (command,)
                case _:
                    self._about_speech(event, command)

    def state(self, machine: TurnTaking) -> None:
        """After the commands: whatever is waited for has a deadline, and nothing else has."""
        self._is_silent = machine.agent in (Agent.IDLE, Agent.HELD)
        if self._may_be_due:
            self.due, self._may_be_due = self.due or machine.is_asked, False
        is_rest = machine.caller is Caller.QUIET and machine.agent is Agent.IDLE and not self.owed
        self._idle.rules = self._rules.idle
        is_silence = is_rest and self._rules.enabled and not (self.due or self.away)
        is_idle = self._idle.is_due(is_rest=is_silence)
        waits = not is_rest or is_idle
        assert (machine.agent is Agent.HELD) == (self._held is not None)
        assert self._held is None or self.open is not None, "held for nobody"
        assert self._ducked is None or self.open is not None, "turned down for nobody"
        assert self._ducked is None or not self._announced
        assert (machine.next_deadline_ns() is not None) == waits
        assert machine.turn == self.turn
        assert (machine.caller is Caller.QUIET) == (self.open is None)
        assert self._rules.enabled or self.open is None
        is_made = machine.agent in (Agent.PREPARING, Agent.OPENING, Agent.SPEAKING)
        assert is_made == self._replying
        assert (machine.agent is Agent.OPENING) == self._is_opening
        waits_on = self._replying or self.owed or self.open is not None or self.away
        assert waits_on or not self.due, "a reply that was asked for is forgotten"
        if self._guess is not None:
            assert machine.caller is Caller.PAUSING, "a guess outlives the pause"
            assert not self._replying
            assert not self.owed
            assert self._rules.replies or self.due, "no reply would follow"
            assert not self.away
        assert machine.is_asked == self.due

    def _asked(self, event: ev.Event | None, refused: bool) -> None:
        """What the client has asked for, if anything."""
        if isinstance(event, ev.ReplyRequested):
            self._pause.caller_has_spoken |= event.caller_has_spoken
            assert refused == (self._replying or self.due)
            self.due = self.due or not refused
            self._answers_caller = self._answers_caller and refused
        if isinstance(event, ev.FollowUpRequested):
            assert refused == self.due, "it may wait for the present one"
            self.due = True
            self._answers_caller = self._answers_caller and refused
        if isinstance(event, ev.ReplyCancelled):
            is_held = self._held is not None
            assert refused == (not self._replying and not is_held and not self.due)
            self.due = self.due and (self._replying or is_held)
            self._cut_unheard &= self._answers_caller or not refused

    def _over_reply(
        self, event: ev.Event | None, commands: tuple[cmd.Command, ...], index: int
    ) -> None:
        """What is done to a reply that the caller speaks over."""
        command = commands[index]
        if isinstance(command, cmd.HoldReply | cmd.DuckReply):
            assert self._rules.interrupts
            assert command.turn == self.turn > self._cut
            assert self._released == self.turn or not self._replying
            assert self._apologized != self.turn
            assert self._held is self._ducked is None
            assert not self._reopens(), "the caller goes on with what is being answered"
        match command:
            case cmd.HoldReply(turn):
                assert isinstance(commands[index - 1], cmd.AnnounceSpeech)
                assert commands[index + 1 :] == (), "how it stands is told at once"
                assert not self._rules.ducks
                self._held, self._replying = turn, False
                self._last_held = turn
            case cmd.DuckReply(turn):
                assert isinstance(event, ev.SpeechStarted)
                assert commands == (cmd.DuckReply(turn),)
                assert self._rules.ducks
                self._ducked = turn
                self._open(event.utterance, announced=False)
            case cmd.ResumeReply(turn):
                assert turn == self._held
                assert commands[index + 1 :] == ()
                assert self._was_nothing(event)
                self._held, self._replying = None, True
            case cmd.UnduckReply(turn):
                assert turn == self._ducked
                assert self._was_nothing(event)
                self._ducked = None

    def _was_nothing(self, event: ev.Event | None) -> bool:
        """Whether there is a reason for the reply to go on."""
        utterance = max(self._closed) if self.open is None else self.open
        text = self._answers.get((utterance, self._revisions.get(utterance, 0)))
        if isinstance(event, ev.BufferCleared | ev.RulesChanged | ev.TranscriptFailed):
            return True
        if text is None:
            return event is None  # a deadline has passed
        first, end = self._voice
        length_ms = None if end is None else max(0, round(ms_from_samples(end - first)))
        known = self._rules.words
        said = meaning(text, *self._stood, known, length_ms if self._rules.weighs_length else None)
        after_ms = RESUME_AFTER_BRIEF_MS if said == "brief" else RESUME_AFTER_BACKCHANNEL_MS
        is_silent = event is None or self._pause.silence_ms >= after_ms
        return is_silent and said != "words"

    def _open(self, utterance: int, *, announced: bool) -> None:
        assert self.open is None
        assert utterance not in self._closed
        self.open = utterance
        self._announced = announced
        self._pause.begin()
        self._num_guesses = 0

    def _guesses(self, turn: int, text: str) -> None:
        assert self._guess is None, "two guesses at a time"
        assert turn == self.turn + 1
        assert self.open is not None
        assert text.strip()
        assert text == self._answers[self.open, self._revisions[self.open]]
        assert not self._pause.is_over(self._rules, text), "the turn is over"
        self._guess = (turn, text)
        self._num_guesses += 1
        assert self._num_guesses <= MAX_PREEMPTIVE

    @property
    def _is_opening(self) -> bool:
        """An opener can be heard, and no answer yet."""
        answered = max(self._released, self._apologized)
        return self._replying and self._opened == self.turn > answered

    def _opens_early(self, turn: int, before: cmd.Command | None, after_ms: int) -> None:
        assert isinstance(before, cmd.CommitUtterance)
        assert self._guess == (turn, before.text), "nothing is prepared to follow the opener"
        assert self._pause.may_open(self._rules, before.text or "")
        assert after_ms >= OPENER_LEAD_MS
        self._held_back = turn

    def _begins(self, turn: int, before: cmd.Command | None, apologizes: bool) -> None:
        assert turn == self.turn + 1
        if self._guess is not None:
            assert isinstance(before, cmd.CommitUtterance)
            assert self._guess == (turn, before.text)
            self._guess = None
        assert not self._replying, "two replies at a time"
        assert not self.away, "nobody would hear it"
        if not apologizes:
            assert self.due, "nobody asked for this reply"
            assert not self.owed
            self.due = False
        self._cut_unheard = False
        self._idle.begun()
        self.turn = turn
        self._replying = True

    def _stops(self, command: cmd.CutReply | cmd.ReopenTurn) -> None:
        turn = command.turn
        assert turn == self.turn > self._cut
        self._held = None
        by_speech = isinstance(command, cmd.ReopenTurn) or command.reason == "turn_detected"
        assert not by_speech or isinstance(command, cmd.ReopenTurn) == self._reopens()
        if isinstance(command, cmd.ReopenTurn):
            assert command.utterance == self.open
            heard = False
            self._pause.caller_goes_on()
        else:
            heard = turn in (self._released, self._apologized) or not self._replying
        self._cut_unheard = by_speech and not heard
        self._cut = turn
        self._replying = False

    def _reopens(self) -> bool:
        """Whether the caller, who begins to speak, goes on with what is being answered."""
        is_own = self._answers_caller and not self.due and self._rules.interrupts
        is_over = self.turn in (self._cut, self._apologized, self._played)
        if not is_own or is_over or self.turn == self._last_held:
            return False
        if self._released < self.turn:
            return self._replying  # else it ended without a sound
        return self._now_ns - self._audible_ns < REOPEN_NS

    def _about_reply(self, command: cmd.Command) -> None:
        match command:
            case cmd.ReleaseOpener(turn):
                _is_present(self, turn)
                assert turn == self._held_back > max(self._opened, self._released)
                self._opened = turn
            case cmd.ReleaseReply(turn):
                _is_present(self, turn)
                assert self._released < turn
                self._released, self._audible_ns = turn, self._now_ns
                self._pause.agent_begins()
            case cmd.Apologize(turn):
                _is_present(self, turn)
                self._apologized = turn
                self._pause.agent_is_denied()
            case cmd.AbandonReply(turn):
                assert turn == self.turn == self._apologized > self._cut
                assert self._replying
                self._cut = turn
                self._replying = False

    def _about_speech(self, event: ev.Event | None, command: cmd.Command) -> None:
        match command:
            case cmd.AnnounceSpeech(utterance):
                if self.open != utterance or self._announced:
                    self._open(utterance, announced=True)
                assert utterance == self.open
                self._announced, self._ducked = True, None
            case cmd.Transcribe(utterance, revision):
                assert revision == self._revisions.get(utterance, 0) + 1
                assert utterance == self.open or utterance in self.owed
                self._revisions[utterance] = revision
                if utterance in self.owed:
                    self.owed[utterance] = revision
            case cmd.CommitUtterance(utterance, None, by_client):
                assert by_client
                self._answers_caller = False
                self._pause.caller_has_spoken = True
                self._idle.answered()
                self._close(utterance)
                self.owed[utterance] = 0
            case cmd.CommitUtterance(utterance, str(text), by_client):
                assert not by_client
                assert utterance == self.open
                assert text.strip()
                assert text == self._answers[utterance, self._revisions[utterance]]
                is_over = self._pause.may_be_over(self._rules, text)
                assert is_over or self._pause.may_open(self._rules, text)
                is_own = self._answers_caller or not self.due
                self._answers_caller = self._rules.replies and is_own
                self.due = self.due or self._rules.replies
                self._pause.caller_has_spoken = True
                self._idle.answered()
                self._close(utterance)
            case cmd.DropUtterance(utterance, announced):
                assert announced == self._announced
                assert utterance == self.open
                answer = self._answers.get((utterance, self._revisions.get(utterance, 0)))
                failed = isinstance(event, ev.TranscriptFailed) or (event, answer) == (None, None)
                self.due = self.due or (self._cut_unheard and not failed)
                self._close(utterance)
            case cmd.CompleteTranscript(utterance) | cmd.FailTranscript(utterance):
                if isinstance(command, cmd.CompleteTranscript):
                    assert command.text == self._answers[utterance, self.owed[utterance]]
                assert utterance not in self._settled
                self._settled.add(utterance)
                del self.owed[utterance]

    def _close(self, utterance: int) -> None:
        assert utterance not in self._closed, "closed twice"
        assert self.open in (None, utterance)
        self._closed.add(utterance)
        self._cut_unheard = False
        self.open = None


def _is_present(witness: Witness, turn: int) -> None:
    assert turn == witness.turn
    assert witness._replying
    assert turn > max(witness._cut, witness._apologized)


def check_guessed(
    guess: tuple[int, str], command: cmd.Command, after: tuple[cmd.Command, ...]
) -> None:
    """What may be done while a reply is prepared in secret: drop it or adopt it."""
    turn, text = guess
    match command:
        case cmd.CommitUtterance(_, said):
            assert said == text
            (begun,) = after
            assert isinstance(begun, cmd.StartReply)
        case cmd.RefuseRequest():
            pass
        case _:
            assert isinstance(command, cmd.DropGuess | cmd.StartReply)
            assert command.turn == TurnId(turn)
