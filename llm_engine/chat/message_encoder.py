"""Messages as token ids, and how they are made of text.

Encoding takes most of the time that bookkeeping takes: 1 us a byte. So a text that is too long
whatever its tokens are is refused unread, no text is encoded twice, and a `MessageEncoder` changes
nothing, so that any thread may encode while a dialogue goes on.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from llm_engine.checkpoints.detokenizer import Detokenizer
from llm_engine.errors import RequestError

from .template import ROLES, ChatMessage, ChatTemplate, Gap, Role

SURE_BYTES_PER_TOKEN = 8
"""Text has about 4. No need to look for the vocabulary's longest token below this."""

FIXED_SHARE = 0.75
"""Of the context, that system prompt and examples may take. Higher: no room for a question and its
answer, and every turn fails. Lower: instructions are refused that would do."""


class Message:
    """One message and its ids."""

    def __init__(
        self, role: Role, text: str | None, markup: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """`markup` as in `ChatMessage`."""
        self.role = role
        self._markup = markup
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
            self._encoded[gap.lead] = template.content(self.role, self.text, gap, self._markup)
        return self._encoded[gap.lead]

    @property
    def num_tokens(self) -> int:
        """Of the content; of one encoding where its gaps ask for several."""
        if self.fixed_ids is not None:
            return len(self.fixed_ids)
        return len(next(iter(self._encoded.values()), ()))

    def spelled(self, token_bytes: Sequence[bytes]) -> str:
        """Its text, decoded where only the ids are known."""
        if self.text is not None:
            return self.text
        detokenizer = Detokenizer(token_bytes)
        return "".join(map(detokenizer.push, self.fixed_ids or []))


class MessageEncoder:
    """Makes messages for one context. Any thread may use it."""

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
        ready: Iterable[Message] = (),
        markup: tuple[tuple[int, int], ...] = (),
    ) -> Message:
        """A message of given text: one of those that are ready, or a new one, encoded.

        Raises RequestError when it cannot be one, or is longer than any that fits.
        """
        for message in ready:
            if (message.role, message.text) == (role, text):
                return message
        known: Role | None = next((name for name in ROLES if name == role), None)
        if known is None:
            raise RequestError("role", f"must be one of {', '.join(ROLES)}, not {role!r}")
        self._refuse_giant(known, text)
        message = Message(known, text, markup)
        for lead in self._template.leads(role):
            message.token_ids(self._template, Gap((), lead))
        return message

    def head(
        self,
        text: str,
        examples: Sequence[Message],
        template: ChatTemplate,
        ready: Iterable[Message],
    ) -> Message:
        """The system prompt of this text. Raises RequestError where it, with the examples and what
        the template tells of tools, leaves too little room."""
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
        self, messages: Sequence[ChatMessage], present: Iterable[Message]
    ) -> list[Message]:
        """The newest of these messages that the context can hold, and hardly more: encoding the
        others would be in vain. Present ones that are equal keep their ids. Raises RequestError.
        """
        pool: dict[tuple[str, str], deque[Message]] = {}
        for old in present:
            pool.setdefault((old.role, old.spelled(self._token_bytes)), deque()).append(old)
        # In order, so that the first of equal messages stays the first.
        equal = [pool.get((each.role, each.text)) for each in messages]
        reused = [olds.popleft() if olds else None for olds in equal]
        fresh: list[Message] = []
        num_tokens = 0
        for each, same in zip(reversed(messages), reversed(reused), strict=True):
            if num_tokens > self._context_length:
                break
            fresh.append(same or self.written(each.role, each.text, (), each.markup))
            num_tokens += fresh[-1].num_tokens
        return fresh[::-1]

    def too_long(self, role: str, what: str) -> RequestError:
        """`what` it comes to, in tokens."""
        return RequestError(
            "system" if role == "system" else "text",
            f"too long: with the system prompt it makes {what}, and the context holds "
            f"{self._context_length} including the answer",
        )

    def _refuse_giant(self, role: str, text: str) -> None:
        """Even if every token were as long as the vocabulary's longest, it would not fit."""
        if 4 * len(text) <= self._context_length * SURE_BYTES_PER_TOKEN:
            return
        longest = max(map(len, self._token_bytes), default=1)
        num_bytes = len(text.strip().encode(errors="replace"))
        if num_bytes > self._context_length * longest:
            raise self.too_long(role, f"more than {num_bytes // longest} tokens")


class PromptLayout:
    """A prompt in its parts: messages, each with the gap before it, and the gap before a reply."""

    def __init__(self, template: ChatTemplate, messages: Sequence[Message]) -> None:
        """Raises RequestError when the template refuses this order of roles."""
        *before, closing = template.gaps([message.role for message in messages])
        self._parts = [
            (gap.token_ids, message.token_ids(template, gap))
            for message, gap in zip(messages, before, strict=True)
        ]
        self._closing = closing.token_ids

    def ids(self, *, is_open: bool = False) -> tuple[int, ...]:
        """The prompt; `is_open`: up to the end of the last message."""
        ids: list[int] = []
        for gap, content in self._parts:
            ids += gap
            ids += content
        return (*ids, *(() if is_open else self._closing))

    def sizes(self) -> list[int]:
        """Tokens of each message with its gap."""
        return [len(gap) + len(content) for gap, content in self._parts]

    def num_tokens(self) -> int:
        return sum(self.sizes()) + len(self._closing)
