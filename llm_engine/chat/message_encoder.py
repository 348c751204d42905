"""Encodes messages to token ids, and lays a prompt out of messages and template gaps.

Encoding takes most of the time of the bookkeeping: 1 us a byte. So a text that is too long in any
encoding is refused unread, no text is encoded twice, and a `MessageEncoder` has no state, so that
any thread may encode while the conversation goes on.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from llm_engine.checkpoints.tokenizer import Detokenizer
from llm_engine.errors import RequestError

from .template import ROLES, ChatMessage, ChatTemplate, Gap, Role

SURE_BYTES_PER_TOKEN = 8
"""Bytes a token below which a text is surely not too long (text has about 4): the vocabulary's
longest token is looked up only beyond."""

FIXED_SHARE = 0.75
"""Share of the context that system prompt and examples may take. Higher: no room for a question and
its answer, and every turn fails. Lower: instructions are refused that would fit."""


class EncodedMessage:
    """A message and its token ids."""

    def __init__(
        self, role: Role, text: str | None, markup: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """`markup` as in `ChatMessage`."""
        self.role = role
        self._markup = markup
        self.text = text
        """None for a generated reply, which has only ids."""
        self.fixed_ids: list[int] | None = [] if text is None else None
        self._encoded: dict[str, list[int]] = {}
        self._decoded: tuple[list[int], ChatMessage] | None = None
        """Ids of a generated reply, and the message that they were decoded to."""

    def token_ids(self, template: ChatTemplate, gap: Gap) -> list[int]:
        """Ids of the content after this gap."""
        if self.fixed_ids is not None:
            return self.fixed_ids
        assert self.text is not None
        if gap.lead not in self._encoded:
            self._encoded[gap.lead] = template.content(self.role, self.text, gap, self._markup)
        return self._encoded[gap.lead]

    @property
    def num_tokens(self) -> int:
        """Tokens of the content (of one encoding, where different gaps need several)."""
        if self.fixed_ids is not None:
            return len(self.fixed_ids)
        return len(next(iter(self._encoded.values()), ()))

    def decoded(self, template: ChatTemplate, token_bytes: Sequence[bytes]) -> ChatMessage:
        """The message as text, with its markers; decoded where only the ids are known."""
        if self.text is not None:
            return ChatMessage(self.role, self.text, self._markup)
        if self._decoded is not None and self._decoded[0] == self.fixed_ids:
            return self._decoded[1]
        detokenizer = Detokenizer(token_bytes)
        pieces: list[str] = []
        markup: list[tuple[int, int]] = []
        for token_id in self.fixed_ids or ():
            pieces.append(detokenizer.push(token_id))
            if pieces[-1] and template.is_control(pieces[-1]):
                end = detokenizer.num_chars
                markup.append((end - len(pieces[-1]), end))
        message = ChatMessage(self.role, "".join(pieces), tuple(markup))
        self._decoded = list(self.fixed_ids or ()), message
        return message


class MessageEncoder:
    """Encodes messages for one template and context length. Any thread may use it."""

    def __init__(
        self, template: ChatTemplate, token_bytes: Sequence[bytes], context_length: int
    ) -> None:
        self._template = template
        self._token_bytes = token_bytes
        self._context_length = context_length

    def written(
        self,
        role: str,
        text: str,
        ready: Iterable[EncodedMessage] = (),
        markup: tuple[tuple[int, int], ...] = (),
    ) -> EncodedMessage:
        """A message with this text: one of `ready`, or a new one, encoded.

        Raises RequestError for an unknown role, for what is not text, and for one too long to fit.
        """
        for message in ready:
            if (message.role, message.text) == (role, text):
                return message
        known: Role | None = next((name for name in ROLES if name == role), None)
        if known is None:
            raise RequestError("role", f"must be one of {', '.join(ROLES)}, not {role!r}")
        self._refuse_oversized(known, text)
        message = EncodedMessage(known, text, markup)
        for lead in self._template.leads(role):
            message.token_ids(self._template, Gap((), lead))
        return message

    def system_message(
        self,
        text: str,
        examples: Sequence[EncodedMessage],
        template: ChatTemplate,
        ready: Iterable[EncodedMessage],
    ) -> EncodedMessage:
        """The system prompt with this text. Raises RequestError where it, with the examples and the
        tools in the template, leaves too little room."""
        message = self.written("system", text, ready)
        head = [message, *examples] if text else examples
        limit = int(self._context_length * FIXED_SHARE)
        num_tokens = PromptLayout(template, head).num_tokens() if head else 0
        if num_tokens > limit:
            raise RequestError(
                "system",
                f"too long: with examples and tools it makes {num_tokens} tokens; of the "
                f"context's {self._context_length} these may take {limit}",
            )
        return message

    def rewritten(
        self, messages: Sequence[ChatMessage], present: Iterable[EncodedMessage]
    ) -> list[EncodedMessage]:
        """Encode the newest of these messages that the context can hold, and hardly more: encoding
        the others would be in vain. Equal present ones keep their ids. Raises RequestError.
        """
        pool: dict[ChatMessage, deque[EncodedMessage]] = {}
        for old in present:
            text = old.decoded(self._template, self._token_bytes)
            pool.setdefault(text, deque()).append(old)
        # In order, so that the first of equal messages stays the first.
        equal = [pool.get(each) for each in messages]
        reused = [olds.popleft() if olds else None for olds in equal]
        fresh: list[EncodedMessage] = []
        num_tokens = 0
        for each, same in zip(reversed(messages), reversed(reused), strict=True):
            if num_tokens > self._context_length:
                break
            fresh.append(same or self.written(each.role, each.text, (), each.markup))
            num_tokens += fresh[-1].num_tokens
        return fresh[::-1]

    def too_long(self, role: str, what: str) -> RequestError:
        """The error for a message that does not fit; `what`: its size in tokens."""
        return RequestError(
            "system" if role == "system" else "text",
            f"too long: with the system prompt it makes {what}, and the context holds "
            f"{self._context_length} including the answer",
        )

    def _refuse_oversized(self, role: str, text: str) -> None:
        """Refuse a text that would not fit even if every token were the vocabulary's longest."""
        if 4 * len(text) <= self._context_length * SURE_BYTES_PER_TOKEN:
            return
        longest = max(map(len, self._token_bytes), default=1)
        num_bytes = len(text.strip().encode(errors="replace"))
        if num_bytes > self._context_length * longest:
            raise self.too_long(role, f"more than {num_bytes // longest} tokens")


class PromptLayout:
    """Layout of a prompt: messages, each after its gap, and the gap before the reply."""

    def __init__(self, template: ChatTemplate, messages: Sequence[EncodedMessage]) -> None:
        """Raises RequestError when the template refuses this order of roles."""
        *before, closing = template.gaps([message.role for message in messages])
        self._gaps = before
        self._parts = [
            (gap.token_ids, message.token_ids(template, gap))
            for message, gap in zip(messages, before, strict=True)
        ]
        self._closing = closing.token_ids

    def ids(self, *, is_open: bool = False) -> tuple[int, ...]:
        """Token ids of the prompt; `is_open`: only up to the end of the last message."""
        ids: list[int] = []
        for gap, content in self._parts:
            ids += gap
            ids += content
        return (*ids, *(() if is_open else self._closing))

    @property
    def last(self) -> tuple[Gap, list[int]]:
        """Gap before the last message, and the ids of its content. Raises IndexError where there is
        no message."""
        return self._gaps[-1], self._parts[-1][1]

    def sizes(self) -> list[int]:
        """Tokens of each message with its gap."""
        return [len(gap) + len(content) for gap, content in self._parts]

    def num_tokens(self) -> int:
        return sum(self.sizes()) + len(self._closing)
