"""Watches a machine's events and commands, and objects to what no session could carry out."""

from agent import commands as cmd
from agent import events as ev
from agent.backchannel import meaning
from agent.barge_in import GO_ON_MS
from agent.end_of_turn import TurnRules, required_silence_ms
from agent.guessing import MAX_GUESSES
from agent.turn_score import Evidence, OwnPauses
from agent.turn_tables import Agent, Caller
from agent.turn_taking import TurnTaking
from latency_budget.turn import TurnId

from .idle_witness import IdleWitness

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
        self._timed_out = False
        """A timer fired after the newest silence: perhaps the one that stands for more of it."""
        self._sound: float | None = None
        """Of the present pause."""
        self._own_pauses = OwnPauses()
        self._replying = False
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
        self._ducked: int | None = None
        """The turn whose reply the client has turned down."""
        self._stood = ("", "")
        """What was heard of it, and the rest."""
        self._guess: tuple[int, str] | None = None
        """A reply that is prepared in secret: its turn, and the words that it answers."""
        self._num_guesses = 0
        """In the utterance that is open."""
        self._idle = IdleWitness()

    def event(self, event: ev.Event | None, now_ns: int) -> None:
        """Before the machine takes it. None: its timer."""
        self._idle.now_ns = now_ns
        match event:
            case None:
                self._timed_out = True
            case ev.RulesChanged(rules):
                self._rules = rules
            case ev.TranscriptReady(utterance, revision, text):
                self._answers[utterance, revision] = text
            case ev.PauseJudged(utterance, revision, log_odds) if utterance == self.open:
                if revision == self._revisions.get(utterance):
                    self._sound = log_odds
            case ev.SilenceGrew(utterance, silence_ms) if utterance == self.open:
                self._silence_ms, self._timed_out = silence_ms, False
            case ev.SpeechResumed(utterance) if utterance == self.open:
                self._own_pauses.add(self._silence_ms)
                self._sound = None
            case ev.AudioStalled(utterance) if utterance == self.open:
                self._silence_ms = FOREVER_MS
            case ev.SpeechPaused(utterance) if utterance == self.open:
                self._silence_ms, self._timed_out = 0, False
                self._sound = None
            case ev.ReplySent(turn) if turn == self.turn and self._held is None:
                self._replying = False
            case ev.ReplyStands(_, heard, left):
                self._stood = heard, left

    def commands(self, event: ev.Event | None, commands: tuple[cmd.Command, ...]) -> None:
        """What the machine made of the event."""
        self._asked(event, any(isinstance(command, cmd.RefuseRequest) for command in commands))
        for index, command in enumerate(commands):
            before = commands[index - 1] if index else None
            if self._guess is not None:
                check_guessed(self._guess, command, commands[index + 1 :])
            match command:
                case cmd.StartReply(turn):
                    self._begins(turn, before, apologizes=cmd.Apologize(turn) in commands[index:])
                case cmd.GuessReply(turn, text):
                    self._guesses(turn, text)
                case cmd.DropGuess(turn):
                    assert self._guess is not None
                    assert self._guess[0] == turn
                    self._guess = None
                case cmd.ReleaseReply() | cmd.Apologize() | cmd.CutReply() | cmd.AbandonReply():
                    self._about_reply(command)
                case cmd.PromptCaller() | cmd.CommitSilence() | cmd.HangUp():
                    assert event is None
                    assert index == 0
                    self.due |= self._idle.acts(command, commands[1:], self.turn)
                case cmd.HoldReply() | cmd.ResumeReply() | cmd.DuckReply() | cmd.UnduckReply():
                    self._over_reply(event, commands, index)
                case cmd.RefuseRequest():
                    assert commands == (command,)
                case _:
                    self._about_speech(event, command)

    def state(self, machine: TurnTaking) -> None:
        """After the commands: whatever is waited for has a deadline, and nothing else has."""
        is_rest = machine.caller is Caller.QUIET and machine.agent is Agent.IDLE and not self.owed
        self._idle.rules = self._rules.idle
        is_idle = self._idle.is_due(is_rest=is_rest and self._rules.enabled and not self.due)
        waits = not is_rest or is_idle
        assert (machine.agent is Agent.HELD) == (self._held is not None)
        assert self._held is None or self.open is not None, "held for nobody"
        assert self._ducked is None or self.open is not None, "turned down for nobody"
        assert self._ducked is None or not self._announced
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

    def _asked(self, event: ev.Event | None, refused: bool) -> None:
        """What the client has asked for, if anything."""
        if isinstance(event, ev.ReplyRequested):
            assert refused == (self._replying or self.due)
            self.due = self.due or not refused
        if isinstance(event, ev.ReplyCancelled):
            is_held = self._held is not None
            assert refused == (not self._replying and not is_held and not self.due)
            self.due = self.due and (self._replying or is_held)

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
        match command:
            case cmd.HoldReply(turn):
                assert isinstance(commands[index - 1], cmd.AnnounceSpeech)
                assert commands[index + 1 :] == (), "how it stands is told at once"
                assert not self._rules.ducks
                self._held, self._replying = turn, False
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
        return meaning(text, *self._stood) != "words" and self._silence_ms >= GO_ON_MS

    def _open(self, utterance: int, *, announced: bool) -> None:
        assert self.open is None
        assert utterance not in self._closed
        self.open = utterance
        self._announced = announced
        self._silence_ms, self._timed_out = 0, False
        self._sound = None
        self._num_guesses = 0

    def _guesses(self, turn: int, text: str) -> None:
        assert self._guess is None, "two guesses at a time"
        assert turn == self.turn + 1
        assert self.open is not None
        assert text.strip()
        assert text == self._answers[self.open, self._revisions[self.open]]
        assert self._silence_ms < required_silence_ms(
            self._rules, Evidence(text, self._sound, self._own_pauses.quantile_ms)
        ), "the turn is over"
        self._guess = (turn, text)
        self._num_guesses += 1
        assert self._num_guesses <= MAX_GUESSES

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
        self._idle.begun()
        self.turn = turn
        self._replying = True

    def _is_present(self, turn: int) -> None:
        assert turn == self.turn
        assert self._replying
        assert turn > max(self._cut, self._apologized)

    def _about_reply(self, command: cmd.Command) -> None:
        match command:
            case cmd.ReleaseReply(turn):
                self._is_present(turn)
                assert self._released < turn
                self._released = turn
            case cmd.Apologize(turn):
                self._is_present(turn)
                self._apologized = turn
            case cmd.CutReply(turn, reason):
                assert turn == self.turn > self._cut
                self._held = None
                heard = turn in (self._released, self._apologized) or not self._replying
                self._cut_unheard = reason == "turn_detected" and not heard
                self._cut = turn
                self._replying = False
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
                self._idle.answered()
                self._close(utterance)
                self.owed[utterance] = 0
            case cmd.CommitUtterance(utterance, str(text), by_client):
                assert not by_client
                assert utterance == self.open
                assert text.strip()
                assert text == self._answers[utterance, self._revisions[utterance]]
                assert self._timed_out or self._silence_ms >= required_silence_ms(
                    self._rules, Evidence(text, self._sound, self._own_pauses.quantile_ms)
                )
                self.due = self.due or self._rules.replies
                self._idle.answered()
                self._close(utterance)
            case cmd.DropUtterance(utterance, announced):
                assert announced == self._announced
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


def check_guessed(
    guess: tuple[int, str], command: cmd.Command, after: tuple[cmd.Command, ...]
) -> None:
    """What may be done while a reply is prepared in secret: drop it or adopt it."""
    turn, text = guess
    match command:
        case cmd.CommitUtterance(_, said):
            assert said == text
            assert after == (cmd.StartReply(TurnId(turn)),)
        case cmd.RefuseRequest():
            pass
        case _:
            assert command in (cmd.DropGuess(TurnId(turn)), cmd.StartReply(TurnId(turn)))
