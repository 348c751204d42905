"""A conversation's history as token ids: the state, without an engine.

A message keeps the ids it came with: a reply those the model chose, a caller's words those they
were first encoded to. A prompt is these ids with the template's gaps between them, and is the same,
id for id, as long as the messages are. What a caller did not hear of a reply is cut off its ids.

When a prompt grows beyond the context, the oldest exchanges go (never the system prompt or the
examples), and enough of them at once that the next turns need not drop again: everything after a
gap in the history has to be computed anew.
"""

import logging
from collections.abc import Sequence

from llm_engine.detokenizer import Detokenizer, char_starts
from llm_engine.errors import RequestError
from llm_engine.template import ROLES, ChatMessage, ChatTemplate, Gap, Role

_log = logging.getLogger(__name__)

KEPT_SHARE = 0.75
"""Of the context, filled after turns were dropped. Higher: turns are dropped, and the history
computed anew, more often. Lower: the model forgets more than it must."""


class Message:
    """One message and its ids."""

    def __init__(self, role: Role, text: str | None) -> None:
        self.role = role
        self.text = text
        """None for a generated reply, which has only its ids."""
        self.fixed_ids: list[int] | None = [] if text is None else None
        self._encoded: dict[str, list[int]] = {}

    def token_ids(self, template: ChatTemplate, gap: Gap) -> list[int]:
        """The content's ids after this gap."""
        if self.fixed_ids is not None:
            return self.fixed_ids
        assert self.text is not None
        if gap.lead not in self._encoded:
            self._encoded[gap.lead] = template.content(self.role, self.text, gap)
        return self._encoded[gap.lead]

    def spelled(self, token_bytes: Sequence[bytes]) -> str:
        """Its text, decoded where only the ids are known."""
        if self.text is not None:
            return self.text
        detokenizer = Detokenizer(token_bytes)
        return "".join(map(detokenizer.push, self.fixed_ids or []))


class Dialogue:
    """System prompt, examples and turns. Not for use across threads."""

    def __init__(
        self,
        template: ChatTemplate,
        token_bytes: Sequence[bytes],
        context_length: int,
        system: str,
        examples: Sequence[ChatMessage],
    ) -> None:
        """Raises RequestError when the system prompt is not text or leaves no room."""
        self._template = template
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._system: Message | None = None
        self._examples = [written(template, m.role, m.text) for m in examples]
        self._turns: list[Message] = []
        self._last_reply: Message | None = None
        self.num_dropped_messages = 0
        self.set_system(system)

    def set_system(self, text: str) -> None:
        """Replace the system prompt; "" leaves the template's own default, if it has one."""
        before = self._system
        self._system = written(self._template, "system", text) if text else None
        try:
            self._check_room([], "system")
        except RequestError:
            self._system = before
            raise

    def append(self, role: str, text: str) -> None:
        """A complete message. Raises RequestError, and changes nothing, when it cannot be one."""
        if not text.strip():
            raise RequestError("text", "is empty")
        message = written(self._template, role, text)
        self._check_room([message], "text")
        self._turns.append(message)
        if role == "assistant":
            self._last_reply = message

    def begin_reply(self) -> Message:
        """A generated reply, empty so far; extend its `fixed_ids`."""
        reply = Message("assistant", None)
        self._turns.append(reply)
        self._last_reply = reply
        return reply

    def forget_if_empty(self, reply: Message) -> None:
        """Take a reply out again that never got a token."""
        if not reply.fixed_ids:
            self._turns = [message for message in self._turns if message is not reply]

    def truncate_reply(self, num_chars: int) -> None:
        """Of the last reply keep every token that starts before this character."""
        reply = self._last_reply
        if reply is None or not any(message is reply for message in self._turns):
            return
        if reply.fixed_ids is None:
            reply.fixed_ids = list(reply.token_ids(self._template, Gap(())))
        starts = char_starts(reply.fixed_ids, self._token_bytes)
        kept = sum(start < num_chars for start in starts)
        if kept < len(reply.fixed_ids):
            del reply.fixed_ids[kept:]
            reply.text = None
        self.forget_if_empty(reply)

    def uncommit(self) -> None:
        """Take back the last user message and what followed it."""
        for index in reversed(range(len(self._turns))):
            if self._turns[index].role == "user":
                del self._turns[index:]
                return

    def reset(self, messages: Sequence[ChatMessage]) -> None:
        """Replace the turns. Leading ones that are equal to the present keep their ids."""
        fresh = [written(self._template, message.role, message.text) for message in messages]
        if fresh and fresh[0].role == "system":
            self.set_system(fresh.pop(0).text or "")
        for index, (old, new) in enumerate(zip(self._turns, fresh, strict=False)):
            if old.role != new.role or old.spelled(self._token_bytes) != new.text:
                break
            fresh[index] = old
        self._turns = fresh
        replies = [message for message in fresh if message.role == "assistant"]
        self._last_reply = replies[-1] if replies else None

    def messages(self) -> list[ChatMessage]:
        """The turns as text, without system prompt and examples."""
        return [
            ChatMessage(message.role, message.spelled(self._token_bytes)) for message in self._turns
        ]

    def prompt(self, reserve: int) -> tuple[int, ...]:
        """Ids up to where the reply begins, leaving room for `reserve` more in the context.

        Drops the oldest turns where they do not fit; raises RequestError if nothing can go.
        """
        self._drop_to_fit([], reserve)
        return tuple(self._ids([]))

    def open_prompt(self, text: str, reserve: int) -> tuple[int, ...]:
        """Ids up to the end of a user message that still goes on."""
        opened = [written(self._template, "user", text)]
        self._drop_to_fit(opened, reserve)
        return tuple(self._ids(opened, is_open=True))

    def num_fixed(self) -> int:
        """How many ids every prompt begins with: those of system prompt and examples."""
        system = [] if self._system is None else [self._system]
        fixed = [*system, *self._examples]
        gaps = self._template.gaps([message.role for message in fixed])
        return sum(
            len(gap.token_ids) + len(message.token_ids(self._template, gap))
            for message, gap in zip(fixed, gaps, strict=False)
        )

    def _ids(self, more: Sequence[Message], *, is_open: bool = False) -> list[int]:
        system = [] if self._system is None else [self._system]
        messages = [*system, *self._examples, *self._turns, *more]
        gaps = self._template.gaps([message.role for message in messages])
        ids: list[int] = []
        for message, gap in zip(messages, gaps, strict=False):
            ids += gap.token_ids
            ids += message.token_ids(self._template, gap)
        return ids if is_open else [*ids, *gaps[-1].token_ids]

    def _drop_to_fit(self, more: Sequence[Message], reserve: int) -> None:
        if len(self._ids(more)) + reserve <= self._context_length:
            return
        num_before = len(self._turns)
        wanted = int(self._context_length * KEPT_SHARE)
        while len(self._ids(more)) + reserve > wanted and (end := self._first_exchange(more)):
            del self._turns[:end]
        if num_dropped := num_before - len(self._turns):
            self.num_dropped_messages += num_dropped
            _log.warning(
                "context of %d tokens is full: dropped the oldest %d messages",
                self._context_length,
                num_dropped,
            )
        num_tokens = len(self._ids(more))
        if num_tokens >= self._context_length:
            raise _too_long(num_tokens, self._context_length, "text")

    def _first_exchange(self, more: Sequence[Message]) -> int:
        """How many messages the oldest exchange has; 0 when it is the one to be answered.

        That is the last one, unless `more` follows it.
        """
        for index, message in enumerate(self._turns):
            if index and message.role == "user":
                return index
        return len(self._turns) if more else 0

    def _check_room(self, more: Sequence[Message], field: str) -> None:
        """Raise unless system prompt, examples and this message alone leave room for a reply."""
        turns, self._turns = self._turns, []
        try:
            num_tokens = len(self._ids(more))
        finally:
            self._turns = turns
        if num_tokens >= self._context_length:
            raise _too_long(num_tokens, self._context_length, field)


def written(template: ChatTemplate, role: str, text: str) -> Message:
    """A message of given text. Raises RequestError when it cannot be one."""
    known: Role | None = next((name for name in ROLES if name == role), None)
    if known is None:
        raise RequestError("role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    message = Message(known, text)
    message.token_ids(template, Gap(()))  # raises for text that cannot be encoded
    return message


def _too_long(num_tokens: int, context_length: int, field: str) -> RequestError:
    return RequestError(
        field,
        f"too long: with the system prompt it makes {num_tokens} tokens, and the context holds "
        f"{context_length} including the answer",
    )
