"""Watches a machine's events and commands, and objects to what no session could carry out."""

from agent import commands as cmd
from agent import events as ev
from agent.end_of_turn import TurnRules, required_silence_ms
from agent.guessing import MAX_GUESSES
from agent.reopening import REOPEN_NS
from agent.turn_tables import Agent, Caller
from agent.turn_taking import TurnTaking
from latency_budget.turn import TurnId

FOREVER_MS = 10**9


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
        self._silence_ms = 0
        self._replying = False
        self._released = 0
        self._cut = 0
        self._apologized = 0
        self.due = False
        """A reply was asked for and has not begun."""
        self._cut_unheard = False
        self._guess: tuple[int, str] | None = None
        """A reply that is prepared in secret: its turn, and the words that it answers."""
        self._num_guesses = 0
        """In the utterance that is open."""
        self._answers_caller = False
        """The reply that is due or under way answers what the caller said last, unasked."""
        self._audible_ns = 0
        """Since when what was released last can be heard."""
        self._played = 0
        self._now_ns = 0

    def event(self, event: ev.Event | None, now_ns: int) -> None:
        """Before the machine takes it. None: its timer."""
        self._now_ns = now_ns
        match event:
            case None:
                self._silence_ms = FOREVER_MS
            case ev.RulesChanged(rules):
                self._rules = rules
            case ev.TranscriptReady(utterance, revision, text):
                self._answers[utterance, revision] = text
            case ev.SilenceGrew(utterance, silence_ms) if utterance == self.open:
                self._silence_ms = max(self._silence_ms, silence_ms)
            case ev.AudioStalled(utterance) if utterance == self.open:
                self._silence_ms = FOREVER_MS
            case ev.SpeechPaused(utterance) if utterance == self.open:
                self._silence_ms = 0
            case ev.ReplySent(turn) if turn == self.turn:
                self._replying = False
            case ev.ReplyPlayed(turn):
                self._played = turn

    def commands(self, event: ev.Event | None, commands: tuple[cmd.Command, ...]) -> None:
        """What the machine made of the event."""
        refused = any(isinstance(command, cmd.RefuseRequest) for command in commands)
        if isinstance(event, ev.ReplyRequested):
            assert refused == (self._replying or self.due)
            self.due = self.due or not refused
            self._answers_caller = self._answers_caller and refused
        if isinstance(event, ev.ReplyCancelled):
            assert refused == (not self._replying and not self.due)
            self.due = self.due and self._replying
        for index, command in enumerate(commands):
            before = commands[index - 1] if index else None
            if self._guess is not None:
                self._with_guess(command, commands[index + 1 :])
            match command:
                case cmd.StartReply(turn):
                    self._begins(turn, before, apologizes=cmd.Apologize(turn) in commands[index:])
                case cmd.GuessReply(turn, text):
                    self._guesses(turn, text)
                case cmd.DropGuess(turn):
                    assert self._guess is not None
                    assert self._guess[0] == turn
                    self._guess = None
                case cmd.ReleaseReply(turn):
                    self._is_present(turn)
                    assert self._released < turn
                    self._released = turn
                    self._audible_ns = self._now_ns
                case cmd.Apologize(turn):
                    self._is_present(turn)
                    self._apologized = turn
                case cmd.CutReply() | cmd.ReopenTurn():
                    self._stops(command)
                case cmd.RefuseRequest():
                    assert commands == (command,)
                case _:
                    self._about_speech(event, command)

    def state(self, machine: TurnTaking) -> None:
        """After the commands: whatever is waited for has a deadline, and nothing else has."""
        waits = (
            machine.caller is Caller.PAUSING or machine.agent is Agent.PREPARING or bool(self.owed)
        )
        assert (machine.next_deadline_ns() is not None) == waits
        assert machine.turn == self.turn
        assert (machine.caller is Caller.QUIET) == (self.open is None)
        assert self._rules.enabled or self.open is None
        assert (machine.agent in (Agent.PREPARING, Agent.SPEAKING)) == self._replying
        waits_on = self._replying or self.owed or self.open is not None
        assert waits_on or not self.due, "a reply that was asked for is forgotten"
        if self._guess is not None:
            assert machine.caller is Caller.PAUSING, "a guess outlives the pause"
            assert not self._replying
            assert not self.owed
            assert self._rules.replies or self.due, "no reply would follow"

    def _guesses(self, turn: int, text: str) -> None:
        assert self._guess is None, "two guesses at a time"
        assert turn == self.turn + 1
        assert self.open is not None
        assert text.strip()
        assert text == self._answers[self.open, self._revisions[self.open]]
        assert self._silence_ms < required_silence_ms(self._rules, text), "the turn is over"
        self._guess = (turn, text)
        self._num_guesses += 1
        assert self._num_guesses <= MAX_GUESSES

    def _with_guess(self, command: cmd.Command, after: tuple[cmd.Command, ...]) -> None:
        """What may be done while a reply is prepared in secret: drop it or adopt it."""
        assert self._guess is not None
        turn, text = self._guess
        match command:
            case cmd.CommitUtterance(_, said):
                assert said == text
                assert after == (cmd.StartReply(TurnId(turn)),)
            case cmd.RefuseRequest():
                pass
            case _:
                assert command in (cmd.DropGuess(TurnId(turn)), cmd.StartReply(TurnId(turn)))

    def _begins(self, turn: int, before: cmd.Command | None, apologizes: bool) -> None:
        assert turn == self.turn + 1
        if self._guess is not None:
            assert isinstance(before, cmd.CommitUtterance)
            assert self._guess == (turn, before.text)
            self._guess = None
        assert not self._replying, "two replies at a time"
        if not apologizes:
            assert self.due, "nobody asked for this reply"
            assert not self.owed
            self.due = False
        self._cut_unheard = False
        self.turn = turn
        self._replying = True

    def _is_present(self, turn: int) -> None:
        assert turn == self.turn
        assert self._replying
        assert turn > max(self._cut, self._apologized)

    def _stops(self, command: cmd.CutReply | cmd.ReopenTurn) -> None:
        turn = command.turn
        assert turn == self.turn > self._cut
        by_speech = isinstance(command, cmd.ReopenTurn) or command.reason == "turn_detected"
        assert not by_speech or isinstance(command, cmd.ReopenTurn) == self._reopens()
        if isinstance(command, cmd.ReopenTurn):
            assert command.utterance == self.open
            heard = False
        else:
            heard = turn in (self._released, self._apologized) or not self._replying
        self._cut_unheard = by_speech and not heard
        self._cut = turn
        self._replying = False

    def _reopens(self) -> bool:
        """Whether the caller, who begins to speak, goes on with what is being answered."""
        is_own = self._answers_caller and not self.due and self._rules.interrupts
        if not is_own or self.turn in (self._cut, self._apologized, self._played):
            return False
        if self._released < self.turn:
            return self._replying  # else it ended without a sound
        return self._now_ns - self._audible_ns < REOPEN_NS

    def _about_speech(self, event: ev.Event | None, command: cmd.Command) -> None:
        match command:
            case cmd.AnnounceSpeech(utterance):
                assert self.open is None
                assert utterance not in self._closed
                self.open = utterance
                self._silence_ms = 0
                self._num_guesses = 0
            case cmd.Transcribe(utterance, revision):
                assert revision == self._revisions.get(utterance, 0) + 1
                assert utterance == self.open or utterance in self.owed
                self._revisions[utterance] = revision
                if utterance in self.owed:
                    self.owed[utterance] = revision
            case cmd.CommitUtterance(utterance, None, by_client):
                assert by_client
                self._answers_caller = False
                self._close(utterance)
                self.owed[utterance] = 0
            case cmd.CommitUtterance(utterance, str(text), by_client):
                assert not by_client
                assert utterance == self.open
                assert text.strip()
                assert text == self._answers[utterance, self._revisions[utterance]]
                assert self._silence_ms >= required_silence_ms(self._rules, text)
                is_own = self._answers_caller or not self.due
                self._answers_caller = self._rules.replies and is_own
                self.due = self.due or self._rules.replies
                self._close(utterance)
            case cmd.DropUtterance(utterance, announced):
                assert announced
                assert utterance == self.open
                answer = self._answers.get((utterance, self._revisions.get(utterance, 0)))
                failed = isinstance(event, ev.TranscriptFailed) or (event, answer) == (None, None)
                self.due = self.due or (self._cut_unheard and not failed)
                self._close(utterance)
            case cmd.CompleteTranscript(utterance, text):
                assert text == self._answers[utterance, self.owed[utterance]]
                self._settle(utterance)
            case cmd.FailTranscript(utterance):
                self._settle(utterance)

    def _close(self, utterance: int) -> None:
        assert utterance not in self._closed, "closed twice"
        assert self.open in (None, utterance)
        self._closed.add(utterance)
        self._cut_unheard = False
        self.open = None

    def _settle(self, utterance: int) -> None:
        assert utterance not in self._settled
        self._settled.add(utterance)
        del self.owed[utterance]
