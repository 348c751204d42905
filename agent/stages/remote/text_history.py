"""History of a conversation as text, for a model whose tokens are counted elsewhere. Pure.

How many tokens a text has is estimated from its characters, by the server's own counts once it has
sent some. Where the context (`llm_engine.context`) is full, the oldest exchanges are dropped
(`llm_engine/chat/exchanges.py`), many at a time: the server's prefix cache then fits again for a
while.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

from agent.session.api.conversation import ModelCall
from agent.session.api.settings import AUTO_TRUNCATION
from agent.session.ports.stage_ports import NO_RESULT, ChatMessage
from llm_engine.chat.exchanges import (
    KEPT_SHARE,
    begins_with,
    end_beyond,
    ends_of_exchanges,
    num_condensed,
)
from llm_engine.chat.summary import KEPT, TOLD

FIRST_CHARS_PER_TOKEN: Final = 3.0
"""Characters of a token before the server has counted any. English text has four to five, code and
other languages less. Higher: a first prompt may not fit. Lower: a long one is cut too early."""

MIN_CHARS_PER_TOKEN: Final = 1.0
MAX_CHARS_PER_TOKEN: Final = 6.0
"""Bounds of what the server's counts can make of it: one that counts wrongly must not switch the
limit off."""

MESSAGE_CHARS: Final = 16
"""Characters that a message counts beside its text: its role and the marks around it."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of a conversation, and what stands for older ones."""

    messages: tuple[ChatMessage, ...]
    summary: tuple[str, ...]
    num_left_out: int


class TextHistory:
    """Instructions, examples, summary and turns of one conversation."""

    def __init__(
        self, instructions: str, examples: Sequence[ChatMessage], context_tokens: int
    ) -> None:
        self.instructions = instructions
        self.tools: tuple[dict[str, Any], ...] = ()
        """Tools in the prompt, in the form of OpenAI's `tools`."""
        self.with_examples = True
        self.summary: tuple[str, ...] = ()
        self.messages: list[ChatMessage] = []
        self.num_left_out = 0
        """Messages since the last `reset` that were dropped or condensed."""
        self.context_tokens = context_tokens
        self.examples = tuple(examples)
        self.truncation = AUTO_TRUNCATION
        """Rule by which the oldest exchanges are dropped."""
        self._chars_per_token = FIRST_CHARS_PER_TOKEN
        self._reply: ChatMessage | None = None
        """The last reply."""

    def append(self, message: ChatMessage) -> None:
        self.messages.append(message)
        if message.role == "assistant":
            self._reply = message

    def extend_reply(self, text: str, calls: tuple[ModelCall, ...], *, begins: bool) -> None:
        """Add what the model has generated. `begins`: it is the first of this reply."""
        before = ChatMessage("assistant", "")
        if not begins and self.messages and self.messages[-1] is self._reply:
            before = self.messages.pop()
        self.append(ChatMessage("assistant", before.text + text, before.calls + calls))

    def truncate_reply(self, num_chars: int) -> None:
        """Cut the last reply to its first characters. Without any it is removed; calls, which come
        after its text, stay only where all of that does and more."""
        reply, self._reply = self._reply, None
        at = next(
            (i for i in reversed(range(len(self.messages))) if self.messages[i] is reply), None
        )
        if reply is None or at is None:
            return
        calls = reply.calls if num_chars > len(reply.text) else ()
        text = reply.text[:num_chars]
        if text or calls:
            self.messages[at] = self._reply = ChatMessage("assistant", text, calls)
        else:
            del self.messages[at]
            self._reply = self._last_reply()

    def take_back(self) -> None:
        """Remove the last user message and everything after it."""
        begins = [index for index, each in enumerate(self.messages) if each.role == "user"]
        if begins:
            del self.messages[begins[-1] :]
        self._reply = self._last_reply()

    def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...]) -> None:
        """Replace the turns and what stands for older ones."""
        self.messages, self.summary, self.num_left_out = list(messages), summary, 0
        self._reply = self._last_reply()

    # --- size ---

    def count(self, text: str) -> int:
        """Tokens of a text, estimated."""
        return self._tokens(len(text)) if text else 0

    def counted(self, num_chars: int, num_tokens: int) -> None:
        """The server has counted so many tokens in a prompt of so many characters."""
        if num_chars > 0 and num_tokens > 0:
            found = num_chars / num_tokens
            self._chars_per_token = min(max(found, MIN_CHARS_PER_TOKEN), MAX_CHARS_PER_TOKEN)

    def num_chars(self) -> int:
        """Characters of the prompt, as `count` takes them."""
        return self._fixed_chars() + sum(map(_size, [*self._told(), *self.messages]))

    def num_fixed(self) -> int:
        """Tokens of instructions, tools and examples."""
        return self._tokens(self._fixed_chars())

    def num_turns(self) -> int:
        """Tokens of summary and turns."""
        return self._tokens(self.num_chars()) - self.num_fixed()

    def drop_to_fit(self, num_reserved: int) -> int:
        """Drop the oldest exchanges where a reply of so many tokens would not fit; returns how many
        messages went. The last one stays, whatever its length: what is too long for the server it
        refuses itself."""
        if self.truncation.is_disabled or not self.is_over(num_reserved):
            return 0
        if self.truncation.retention_ratio is not None:
            kept = int(self._room(num_reserved) * self.truncation.retention_ratio)
            return self._drop(self.num_turns() - kept)
        limit = int(self.context_tokens * KEPT_SHARE)
        return self._drop(self._tokens(self.num_chars()) + num_reserved - limit)

    def is_over(self, num_reserved: int) -> bool:
        """True if the turns have more tokens than there is room for, beside a reply of so many."""
        return self.num_turns() > self._room(num_reserved)

    def _room(self, num_reserved: int) -> int:
        """Most tokens of summary and turns."""
        room = self.context_tokens - num_reserved - self.num_fixed()
        most = self.truncation.post_instructions_tokens
        return room if most is None else min(room, most)

    def drop_half(self) -> int:
        """Drop about half of the turns: the server says that the prompt is too long. Returns how
        many messages went."""
        return self._drop(max(1, self.num_turns() // 2))

    def turns(self) -> Turns:
        """The turns as they are now, for `put_back`."""
        return Turns(tuple(self.messages), self.summary, self.num_left_out)

    def put_back(self, before: Turns) -> None:
        """Put back what was dropped since. Does nothing where the turns have changed otherwise."""
        num_gone = len(before.messages) - len(self.messages)
        rest = before.messages[num_gone:] if num_gone >= 0 else ()
        is_rest = len(rest) == len(self.messages) and all(map(is_, rest, self.messages))
        if is_rest and self.summary in ((), before.summary):
            self.messages, self.summary = list(before.messages), before.summary
            self.num_left_out = before.num_left_out

    def _drop(self, surplus: int) -> int:
        ends = ends_of_exchanges(self.messages, is_last_over=False)
        if self.summary and (self.truncation != AUTO_TRUNCATION or not ends):
            # By a client's rule the oldest goes first; by our own the summary is all that is left
            # of what went before.
            surplus -= self._tokens(sum(map(_size, self._told())))
            self.summary = ()
            if surplus <= 0:
                return 0
        if not ends:
            return 0
        num_gone = end_beyond(ends, self._sizes(), surplus)
        del self.messages[:num_gone]
        self.num_left_out += num_gone
        return num_gone

    # --- condensing ---

    def oldest(self, max_kept_tokens: int) -> tuple[ChatMessage, ...]:
        """The whole exchanges from the beginning whose removal leaves at most so many tokens of
        turns; fewer where the newest two alone have more."""
        return tuple(self.messages[: num_condensed(self.messages, self._sizes(), max_kept_tokens)])

    def begins_with(self, messages: Sequence[ChatMessage]) -> bool:
        """True if the turns still begin with these very messages."""
        return begins_with(self.messages, messages)

    def condense(self, num_messages: int, summary: tuple[str, ...]) -> None:
        """Replace the oldest messages, and the summary before them, by this summary."""
        self.summary = summary
        del self.messages[:num_messages]
        self.num_left_out += num_messages

    # --- what is sent ---

    def prompt(self, opened: str = "") -> list[dict[str, Any]]:
        """The messages in OpenAI's form. `opened`: beginning of the user's next one.

        Messages of the user that follow each other (a reply of which nothing was heard is gone)
        become one: many chat templates take only turns. Servers refuse a call without its result
        right behind it, and a result without its call.
        """
        turns = [*self.messages, *([ChatMessage("user", opened)] if opened else [])]
        sent: list[dict[str, Any]] = []
        if self.instructions:
            sent.append({"role": "system", "content": self.instructions})
        num_calls = 0
        unanswered: list[str] = []
        """Ids of the newest calls, as far as no result has come of them."""
        for message in [*self._shown_examples(), *self._told(), *turns]:
            body: dict[str, Any] = {"role": message.role, "content": message.text}
            if message.role == "tool":
                if not unanswered:
                    continue
                body["tool_call_id"] = unanswered.pop(0)
            else:
                sent += map(_no_result, unanswered)
                unanswered.clear()
            if message.calls:
                made = [
                    _call(num_calls + number, call) for number, call in enumerate(message.calls)
                ]
                body["tool_calls"] = made
                unanswered = [call["id"] for call in made]
                num_calls += len(made)
            if message.role == "user" and sent and sent[-1]["role"] == "user":
                sent[-1]["content"] += f"\n{message.text}"
            else:
                sent.append(body)
        return [*sent, *map(_no_result, unanswered)]

    def _told(self) -> list[ChatMessage]:
        """The exchange that stands for the summary."""
        if not self.summary:
            return []
        told = TOLD.format(text=" ".join(self.summary))
        return [ChatMessage("user", told), ChatMessage("assistant", KEPT)]

    def _shown_examples(self) -> tuple[ChatMessage, ...]:
        return self.examples if self.with_examples or not self.tools else ()

    def _fixed_chars(self) -> int:
        tools = sum(len(json.dumps(tool)) + MESSAGE_CHARS for tool in self.tools)
        shown = sum(map(_size, self._shown_examples()))
        return len(self.instructions) + MESSAGE_CHARS + tools + shown

    def _sizes(self) -> list[int]:
        """Tokens of each turn."""
        return [self._tokens(_size(each)) for each in self.messages]

    def _tokens(self, num_chars: int) -> int:
        return int(num_chars / self._chars_per_token) + 1

    def _last_reply(self) -> ChatMessage | None:
        return next((each for each in reversed(self.messages) if each.role == "assistant"), None)


def _size(message: ChatMessage) -> int:
    calls = sum(len(call.name) + len(call.arguments) + MESSAGE_CHARS for call in message.calls)
    return len(message.text) + calls + MESSAGE_CHARS


def _call(number: int, call: ModelCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": _call_id(number), "type": "function", "function": function}


def _no_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": NO_RESULT, "tool_call_id": call_id}


def _call_id(number: int) -> str:
    """Nine letters and digits: Mistral's chat templates take no other ids."""
    return f"call{number:05d}"
