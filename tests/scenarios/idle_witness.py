"""Watches what is done about a caller's silence, beside the rest of the witness."""

from agent.turn_taking import commands as cmd
from agent.turn_taking.end_of_turn import IdleRules
from agent.turn_taking.thresholds import MAX_IDLE_PROMPTS
from latency_budget.account.turn import TurnId


class IdleWitness:
    """Who waits for whom, and since when. Raises AssertionError."""

    def __init__(self) -> None:
        self.rules = IdleRules()
        self.now_ns = 0
        self._awaits_caller = False
        """The last word was the agent's, or will be."""
        self._rested_ns: int | None = None
        """Since when everybody has been at rest after it."""
        self._num_prompts = 0
        """Since the caller's last words."""

    def is_due(self, *, is_rest: bool) -> bool:
        """Whether the machine has to do something about it some time."""
        if not (is_rest and self._awaits_caller):
            self._rested_ns = None
            return False
        if self._rested_ns is None:
            self._rested_ns = self.now_ns
        return self._wait_ms() > 0

    def begun(self) -> None:
        """A reply."""
        self._awaits_caller = True

    def answered(self) -> None:
        """The caller has the last word."""
        self._awaits_caller = False
        self._num_prompts = 0

    def acts(self, command: cmd.Command, after: tuple[cmd.Command, ...], turn: int) -> bool:
        """What is done about silence after this turn. Returns whether a reply is due for it."""
        assert self._rested_ns is not None, "somebody is busy"
        waited_ms = self._wait_ms()
        assert waited_ms > 0
        assert self.now_ns - self._rested_ns >= waited_ms * 1_000_000
        if isinstance(command, cmd.HangUp):
            assert waited_ms == self.rules.idle_hangup_ms
            assert not after
            self._awaits_caller = False
            return False
        assert after == (cmd.StartReply(TurnId(turn + 1)),)
        assert self.rules.idle_commits == isinstance(command, cmd.CommitSilence)
        if isinstance(command, cmd.CommitSilence):
            assert command.silence_ms == self.rules.idle_after_ms
        self._num_prompts += 1
        return True

    def _wait_ms(self) -> int:
        """0: for ever."""
        rules = self.rules
        is_endless = rules.idle_commits and not rules.idle_hangup_ms
        if rules.idle_after_ms and (is_endless or self._num_prompts < MAX_IDLE_PROMPTS):
            return rules.idle_after_ms
        return rules.idle_hangup_ms
