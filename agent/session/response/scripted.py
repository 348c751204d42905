"""A "language model" that says given words: greetings, and whatever else is decided beforehand."""

from collections.abc import AsyncGenerator, Sequence

from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import ChatMessage, OnMark, ReplyToken, Tools
from agent.turn_taking import commands as cmd
from latency_budget.account.turn import TurnId


class Script:
    """The words that a session has ready for its next reply, if any: a greeting, a question after a
    long silence. Where a noise cuts them off before they were heard, they are ready again."""

    def __init__(self) -> None:
        self.next: str | None = None
        self._unheard: str | None = None
        """Of the present reply."""

    def take(self) -> str | None:
        """For the reply that begins; None: the model's words."""
        self._unheard, self.next = self.next, None
        return self._unheard

    def follow(self, command: cmd.Command) -> None:
        """What the machine commands before it is done."""
        match command:
            case cmd.CutReply(reason="turn_detected"):
                self.next, self._unheard = self._unheard, None
            case cmd.ReleaseReply() | cmd.CutReply() | cmd.Apologize():
                self._unheard = None
            case cmd.CommitUtterance():
                self.next = None  # there is something to answer


class ScriptedChat:
    """A `ChatPort` whose every reply is the same text. It costs no tokens and keeps no history."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def check(self, message: ChatMessage) -> None:
        """Nothing is too long."""

    async def set_system(self, text: str) -> None:
        """Nothing to instruct."""

    async def check_tools(self, tools: Tools) -> None:
        """Nothing is called."""

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        """Nothing is called."""

    async def commit(self, message: ChatMessage) -> None:
        """Nothing is remembered."""

    async def take_back(self) -> None:
        """Nothing is remembered."""

    async def reset(self, messages: Sequence[ChatMessage]) -> None:
        """Nothing is remembered."""

    async def truncate_reply(self, num_chars: int) -> None:
        """Nothing is remembered."""

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        yield ReplyToken(self._text, Usage(), "stop")

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """Nobody to let pass."""

    async def preview(self, text: str) -> None:
        """Nothing to prefill."""

    def use_small_model(self, *, small: bool) -> bool:
        return False

    async def close(self) -> None:
        """Nothing to close."""
