"""A session in small: sends the turn-taking machine all that a session can send, and nothing else.

The ears number utterances and learn late that one was closed; what they say arrives in order, but
late. The recognizer answers in any order, or fails, or never answers. A reply's stage works,
speaks, fails or hangs; what it had on its way when it was cut or apologized for still arrives. The
client asks for anything at any time. Whoever drives this picks one of the possible `moves` a time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import IdleRules, TurnRules
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.turn import TurnId
from tests.scenarios.steps import HEARD, LEFT
from tests.scenarios.timeline import NS_PER_MS
from tests.scenarios.witness import Witness

Drawn = TypeVar("Drawn")
Draw = Callable[[SearchStrategy[Any]], Any]
Moves = dict[str, Callable[[Draw], None]]

TEXTS = st.sampled_from(
    ["", " ", "Yes.", "Mm-hmm.", "Why?", "I would like to", "And so, um", "is booked for nine"]
)
STANDS = (("It is nine. Shall I", " book it?"), (HEARD, LEFT))
"""Of a reply that is a question, and of one that is none: which, goes by its turn's number."""
PLAYED = ("Shall I book it?", "It is booked.", "What is your phone number?")
"""The newest words of a reply that was played: which, goes by its turn's number."""
IDLE_RULES = st.builds(
    IdleRules,
    idle_after_ms=st.sampled_from([0, 0, 5000, 20_000]),
    idle_commits=st.booleans(),
    idle_hangup_ms=st.sampled_from([0, 0, 30_000]),
)
RULES = st.builds(
    TurnRules,
    enabled=st.sampled_from([True, True, True, False]),
    silence_ms=st.sampled_from([None, None, 200, 700, 5000]),
    eagerness=st.sampled_from(["low", "medium", "high", "auto"]),
    replies=st.booleans(),
    interrupts=st.booleans(),
    idle=IDLE_RULES,
    opens_early=st.booleans(),
)
DUCKS = st.booleans()
"""A kind of client, and so the same for a whole call."""


class Ears:
    """The endpointer: its own view of the caller, ahead of the machine's by what is on its way."""

    def __init__(self) -> None:
        self.utterance = 0
        self.state = Caller.QUIET
        self.on_its_way: deque[ev.Event] = deque()
        self.to_close: deque[int] = deque()
        self._silence_ms = 0

    def moves(self) -> Moves:
        moves: Moves = {}
        if self.to_close:
            moves["ears learn of a close"] = self._learn
        match self.state:
            case Caller.QUIET:
                moves["caller speaks"] = self._start
            case Caller.SPEAKING:
                moves["caller pauses"] = self._pause
            case Caller.PAUSING:
                moves["silence grows"] = self._grow
                moves["caller resumes"] = self._resume
        return moves

    def take_open(self) -> int:
        """Close what is open, at the client's wish; a new utterance where nothing is."""
        if self.state is Caller.QUIET:
            self.utterance += 1
        self.state = Caller.QUIET
        return self.utterance

    def _learn(self, draw: Draw) -> None:
        if self.to_close.popleft() == self.utterance:
            self.state = Caller.QUIET

    def _start(self, draw: Draw) -> None:
        self.utterance += 1
        self.state = Caller.SPEAKING
        self.on_its_way.append(ev.SpeechStarted(self.utterance, 0))

    def _pause(self, draw: Draw) -> None:
        self.state = Caller.PAUSING
        self._silence_ms = 96
        self.on_its_way.append(ev.SpeechPaused(self.utterance, 0))

    def _grow(self, draw: Draw) -> None:
        self._silence_ms += draw(st.sampled_from([32, 200, 1500]))
        self.on_its_way.append(ev.SilenceGrew(self.utterance, self._silence_ms))

    def _resume(self, draw: Draw) -> None:
        self.state = Caller.SPEAKING
        self.on_its_way.append(ev.SpeechResumed(self.utterance, 0))


class ReplyStage:
    """One reply. `can_say` is what may still come of it, in the order of its phases."""

    def __init__(self, turn: TurnId, *, opens: bool) -> None:
        self.turn = turn
        self.can_say: set[type] = {
            ev.ReplyAudible,
            ev.ReplyContinued,  # while its tools run
            ev.ReplySent,
            ev.ReplyFailed,
        }
        if opens:
            self.can_say.add(ev.OpenerAudible)

    def say(self, kind: type) -> ev.Event:
        if kind is ev.ReplyAudible:
            self.can_say -= {ev.OpenerAudible, ev.ReplyAudible}
        elif kind is ev.ReplyContinued:
            pass  # any number of them
        elif kind is ev.ReplySent:
            self.can_say = (self.can_say & self._late) | {ev.ReplyPlayed}
        else:
            self.can_say -= {kind}
        if kind is ev.ReplyPlayed:
            return ev.ReplyPlayed(self.turn, PLAYED[self.turn % 3])
        event: ev.Event = kind(self.turn)
        return event

    _late: frozenset[type] = frozenset()

    def apologize(self) -> None:
        """Its tasks are cancelled, but what they had said by then arrives."""
        self._late = frozenset({ev.ReplyAudible, ev.ReplyFailed})
        self.can_say |= {ev.ReplyFailed, ev.ReplyContinued, ev.ReplySent}

    def go_on(self) -> None:
        """After it was held."""
        self.can_say = {ev.ReplyContinued, ev.ReplySent, ev.ReplyFailed}

    def hold(self) -> None:
        self.can_say &= {ev.ReplyFailed, ev.ReplySent}

    def hang(self, draw: Draw) -> None:
        self.can_say = set()


class Session:
    """Machine, witness, and the parts that speak to them."""

    def __init__(self, rules: TurnRules) -> None:
        self.rules = rules
        self.machine = TurnTaking(rules)
        self.witness = Witness(rules)
        self.now_ns = 0
        self.log: list[tuple[ev.Event | None, int, tuple[cmd.Command, ...]]] = []
        self.ears = Ears()
        self._passes: list[tuple[int, int]] = []
        self._unjudged: list[tuple[int, int]] = []
        """Pauses that the turn model has not answered for."""
        self._stages: dict[TurnId, ReplyStage] = {}

    def feed(self, event: ev.Event | None) -> tuple[cmd.Command, ...]:
        """Give the machine an event, or its timer (None); check and carry out its commands."""
        machine, now_ns = self.machine, self.now_ns
        self.witness.event(event, now_ns)
        commands = machine.on_timer(now_ns) if event is None else machine.apply(event, now_ns)
        self.log.append((event, now_ns, commands))
        self.witness.commands(event, commands)
        self.witness.state(machine)
        due_ns = machine.next_deadline_ns()
        assert event is not None or due_ns is None or due_ns > now_ns
        for command in commands:
            self._carry_out(command)
        return commands

    def moves(self) -> Moves:
        """What may happen next."""
        moves = self.ears.moves()
        if "caller pauses" in moves:
            moves["caller hesitates"] = self._hesitate
        if self.ears.on_its_way:
            moves["ears are heard"] = lambda draw: self._tell(self.ears.on_its_way.popleft())
        if self.machine.caller is not Caller.QUIET:
            moves["audio stalls"] = lambda draw: self._tell(ev.AudioStalled(self.ears.utterance))
        if self.machine.checks_words:
            moves["words are understood"] = self._understand
        due_ns = self.machine.next_deadline_ns()
        if due_ns is not None and due_ns <= self.now_ns:
            moves["timer fires"] = lambda draw: self._tell(None)
        moves["time passes"] = self._pass_time
        if self._passes:
            moves["recognizer answers"] = self._answer
        moves["language model scores"] = self._score
        if self._unjudged:
            moves["turn model answers"] = self._judge
        for stage in self._stages.values():
            for kind in stage.can_say:
                moves[f"{kind.__name__} of {stage.turn}"] = self._say(stage, kind)
            if ev.ReplyAudible in stage.can_say:
                moves[f"reply {stage.turn} hangs"] = stage.hang
        if self.witness.away:
            moves["client comes back"] = lambda draw: self._tell(ev.ClientBack())
        else:
            moves["client asks"] = self._ask
            moves["client is lost"] = lambda draw: lose_client(self, draw)
        return moves

    def _ask(self, draw: Draw) -> None:
        match draw(st.sampled_from(["reply", "follow up", "cancel", "commit", "clear", "rules"])):
            case "reply":
                self.feed(ev.ReplyRequested())
            case "follow up":
                self.feed(ev.FollowUpRequested())
            case "cancel":
                self.feed(ev.ReplyCancelled())
            case "commit":
                self._take_open(ev.BufferCommitted)
            case "clear":
                self._take_open(ev.BufferCleared)
            case "rules":
                self.feed(ev.RulesChanged(replace(draw(RULES), ducks=self.rules.ducks)))

    def _tell(self, event: ev.Event | None) -> None:
        self.feed(event)

    def _understand(self, draw: Draw) -> None:
        self.feed(ev.WordsHeard(self.machine.utterance, draw(TEXTS)))

    def _hesitate(self, draw: Draw) -> None:
        """Pauses whose words are known before the caller goes on, if at all."""
        for is_last in [False] * draw(st.integers(0, 4)) + [True]:
            self.ears.moves()["caller pauses"](draw)
            self._hear_all()
            if self._passes and self._passes[-1][0] == self.ears.utterance:
                self.feed(ev.TranscriptReady(*self._passes.pop(), draw(TEXTS)))
            if not is_last:
                self.ears.moves()["caller resumes"](draw)

    def _hear_all(self) -> None:
        while self.ears.on_its_way:
            self.feed(self.ears.on_its_way.popleft())

    def _take_open(self, kind: Callable[[int], ev.Event]) -> None:
        # What the ears have said by then arrives before the commit: it waits for their answer.
        self._hear_all()
        self.feed(kind(self.ears.take_open()))

    def _pass_time(self, draw: Draw) -> None:
        self.now_ns += draw(st.sampled_from([1, 100, 900, 9000, 25_000, 130_000])) * NS_PER_MS

    def _judge(self, draw: Draw) -> None:
        utterance, revision = self._unjudged.pop(0)
        log_odds = draw(st.sampled_from([-6.0, -0.5, 0.0, 1.0, 6.0]))
        self.feed(ev.PauseJudged(utterance, revision, log_odds))

    def _score(self, draw: Draw) -> None:
        """Of words that may be those of the pause or not, in time or late."""
        log_prob = draw(st.sampled_from([-9.0, -2.0, -0.1]))
        utterance = self.machine.utterance - draw(st.integers(0, 1))
        self.feed(ev.MessageEndScored(utterance, draw(TEXTS), log_prob))

    def _answer(self, draw: Draw) -> None:
        index = draw(st.integers(0, len(self._passes) - 1))
        utterance, revision = self._passes.pop(index)
        match draw(st.sampled_from(["words", "words", "words", "failure", "nothing"])):
            case "words":
                self.feed(ev.TranscriptReady(utterance, revision, draw(TEXTS)))
            case "failure":
                self.feed(ev.TranscriptFailed(utterance, revision))

    def _say(self, stage: ReplyStage, kind: type) -> Callable[[Draw], None]:
        return lambda draw: self._tell(stage.say(kind))

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.Transcribe(utterance, revision):
                self._passes.append((utterance, revision))
                self._unjudged.append((utterance, revision))
            case cmd.CommitUtterance(utterance) | cmd.DropUtterance(utterance):
                self.ears.to_close.append(utterance)
            case cmd.StartReply(turn, answer_after_ms):
                self._stages[turn] = ReplyStage(turn, opens=answer_after_ms > 0)
            case cmd.Apologize(turn):
                self._stages[turn].apologize()
            case cmd.HoldReply(turn):
                self._stages[turn].hold()
                self.feed(ev.ReplyStands(turn, *STANDS[turn % 2]))
            case cmd.DuckReply(turn):
                self.feed(ev.ReplyStands(turn, *STANDS[turn % 2]))
            case cmd.ResumeReply(turn):
                self._stages[turn].go_on()

    def settle(self) -> None:
        """Let nobody say anything more, but that speech stops and a reply in progress ends."""
        if self.witness.away:
            self.feed(ev.ClientBack())
        for _ in range(100):
            due_ns = self.machine.next_deadline_ns()
            if self.machine.caller is Caller.SPEAKING:
                assert self.witness.open is not None
                self.feed(ev.AudioStalled(self.witness.open))
            elif self.machine.agent is Agent.SPEAKING:
                self.feed(ev.ReplySent(self.machine.turn))
            elif not is_over(self):
                assert due_ns is not None
                self.now_ns = max(self.now_ns, due_ns)
                self.feed(None)
            else:
                return
        raise AssertionError("the machine does not come to rest")


def lose_client(session: Session, draw: Draw) -> None:
    """More often than not it stays."""
    if draw(st.integers(0, 3)) == 0:
        session.feed(ev.ClientLost(unheard=draw(st.booleans())))


def is_over(session: Session) -> bool:
    """Nobody has anything to do for anybody, but to ask a caller who stays silent."""
    machine = session.machine
    quiet = machine.caller is Caller.QUIET and machine.agent is Agent.IDLE
    return quiet and not session.witness.owed


def time_out(session: Session) -> int:
    """Let nobody say anything more at all. Returns how many ms of deadlines that takes."""
    passed_ns = 0
    for _ in range(100):
        if is_over(session) and not session.witness.away:
            return passed_ns // NS_PER_MS
        if is_over(session):
            session.feed(ev.ClientBack())
            continue
        due_ns = session.machine.next_deadline_ns()
        assert due_ns is not None, "it waits for somebody for ever"
        passed_ns += max(0, due_ns - session.now_ns)
        session.now_ns = max(session.now_ns, due_ns)
        session.feed(None)
    raise AssertionError("the machine does not come to rest")
