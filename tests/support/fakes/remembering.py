"""A model that remembers, so that what it knows can be compared with what was said and heard."""

from collections.abc import AsyncGenerator, Sequence

from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import ChatMessage, OnMark, ReplyToken, Tools
from latency_budget.account.turn import TurnId
from tests.support.fakes.stages import Calling, FakeChat


class RememberingChat(FakeChat):
    """Keeps its history as the engine does: what has been yielded of a reply is part of it."""

    def __init__(self, replies: Sequence[str | Exception | Calling] = ()) -> None:
        super().__init__(replies)
        self.system = "Be brief."
        self.history: list[ChatMessage] = []
        self.asked: list[tuple[ChatMessage, ...]] = []
        """History at the beginning of each reply."""

        self._last_reply: int | None = None
        """Index of the last reply in the history; of its place, if it has no words."""

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        await super().set_system(text, examples)
        self.system = text

    async def commit(self, message: ChatMessage) -> None:
        await super().commit(message)
        self.history.append(message)
        if message.role == "assistant":
            self._last_reply = len(self.history) - 1

    async def take_back(self) -> None:
        await super().take_back()
        del self.history[max(i for i, each in enumerate(self.history) if each.role == "user") :]
        self._find_last_reply()

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        await super().reset(messages, summary)
        self.history = list(messages)
        self._find_last_reply()

    async def truncate_reply(self, num_chars: int) -> None:
        await super().truncate_reply(num_chars)
        at = self._last_reply
        if at is not None and at < len(self.history) and self.history[at].role == "assistant":
            text = self.history[at].text[:num_chars]
            self.history[at : at + 1] = [ChatMessage("assistant", text)] if text else []

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        before = tuple(self.history)
        self.asked.append(before)
        self._last_reply = len(before)
        said = ""
        calls: tuple[ModelCall, ...] = ()
        tokens = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async for token in tokens:
            said, calls = said + token.text, calls + token.calls
            self.history[len(before) :] = [ChatMessage("assistant", said, calls)]
            yield token

    def _find_last_reply(self) -> None:
        replies = [i for i, each in enumerate(self.history) if each.role == "assistant"]
        self._last_reply = replies[-1] if replies else None
