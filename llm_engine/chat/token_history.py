"""History of a conversation as token ids: the state, without an engine.

A message keeps its first ids: a reply those that the model chose, a user message those that it was
first encoded to. The model's thoughts are no part of a reply (`thinking`). A prompt is
these ids with the template's gaps between them, and stays the same, id for id, as long as the
messages do. What the caller did not hear of a reply is cut off its ids.

The oldest turns may be replaced by a summary of them (`condense`), which stands behind the system
prompt and the examples as a second system message (`summary.NOTES`).

When a prompt grows beyond the context nevertheless, the oldest exchanges are dropped (never the
system prompt or the examples), and enough of them at once that the next turns need not drop again:
everything after the dropped part has to be computed anew.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from llm_engine.checkpoints.tokenizer import char_starts
from llm_engine.errors import RequestError

from .exchanges import (
    KEPT_SHARE,
    begins_exchange,
    begins_with,
    end_beyond,
    ends_of_exchanges,
    num_condensed,
)
from .message_encoder import EncodedMessage, MessageEncoder, PromptLayout
from .summary import KEPT, NOTES, TOLD, listed
from .template import ChatMessage, ChatTemplate, Gap
from .thinking import WordIds

_log = logging.getLogger(__name__)

SENTENCE_ENDS: Final = (b".", b"?", b"!")


@dataclass(frozen=True, slots=True)
class ContextTokens:
    """Tokens of a conversation's context."""

    length: int
    """All that the context holds."""
    num_fixed: int
    """System prompt, tools and examples."""
    num_turns: int
    """Summary and turns."""
    num_reserved: int
    """Kept free for a reply."""


@dataclass(frozen=True, slots=True)
class HistoryTruncation:
    """Rule by which the oldest exchanges of a conversation are dropped, in place of the default."""

    keeps_all: bool = False
    """Drop nothing: a prompt for which there is no room is refused."""
    kept_share: float | None = None
    """Share of the room for turns that is still filled after some were dropped, 0..1. None:
    `KEPT_SHARE` of the context."""
    max_turn_tokens: int | None = None
    """Most tokens of summary and turns. None: as many as the context holds."""

    @property
    def is_clients(self) -> bool:
        """True if a client has set how much is kept."""
        return self.kept_share is not None or self.max_turn_tokens is not None


class TokenHistory:
    """System prompt, examples and turns of one conversation. Not thread-safe."""

    def __init__(
        self,
        template: ChatTemplate,
        token_bytes: Sequence[bytes],
        context_length: int,
        system: str,
        examples: Sequence[ChatMessage],
        *,
        keep_all: bool = False,
    ) -> None:
        """`keep_all`: refuse a history beyond the context instead of dropping its beginning.

        Raises RequestError when the system prompt is not text or leaves no room.
        """
        self._template = template
        self._token_bytes = token_bytes
        self.context_length = context_length
        self._keeps_all = keep_all
        self.truncation = HistoryTruncation()
        self._system: EncodedMessage | None = None
        self._head: list[EncodedMessage] = []
        """Messages at the front of every prompt: system prompt and examples."""
        self._encoder = MessageEncoder(template, token_bytes, context_length)
        self._ready: list[EncodedMessage] = []
        self._examples = [self._encoder.written(m.role, m.text) for m in examples]
        self._shows_examples = True
        self._turns: list[EncodedMessage] = []
        self._summary: list[EncodedMessage] = []
        """The messages that stand for older turns; empty where there is none."""
        self.summary: tuple[str, ...] = ()
        """Its sentences."""
        self._last_reply: EncodedMessage | None = None
        self.num_left_out = 0
        """Messages since the last `reset`, its own included, that were dropped or condensed."""
        self.num_fixed = 0
        """Leading ids of the newest prompt that are the system prompt and the examples, with which
        the prompts of other conversations begin too."""
        self.set_system(system)

    def prepare(self, messages: Sequence[ChatMessage]) -> None:
        """Encode ahead the messages of the next `check`, `set_system`, `append` or `reset`.

        Changes nothing else; on any thread; 100 kB take 0.1 s. Raises RequestError as those would.
        """
        self._ready = self._encoder.rewritten(messages, ())

    def check(
        self,
        role: str,
        text: str,
        markup: tuple[tuple[int, int], ...] = (),
        template: ChatTemplate | None = None,
    ) -> EncodedMessage:
        """Encode a message; `markup` as in `ChatMessage`. Raises RequestError where it would not
        fit even into an empty history, or, with the role "system", can't be the system prompt, in
        `template` where one is given."""
        if role == "system":
            return self._encoder.system_message(
                text, self._examples, template or self._template, self._ready
            )
        if role != "tool" and not text.strip():
            raise RequestError("text", "is empty")
        message = self._encoder.written(role, text, self._ready, markup)
        num_tokens = PromptLayout(self._template, [*self._head, message]).num_tokens()
        if num_tokens >= self.context_length:
            raise self._encoder.too_long(role, f"{num_tokens} tokens")
        return message

    def set_system(
        self,
        text: str,
        template: ChatTemplate | None = None,
        *,
        with_examples: bool | None = None,
        examples: Sequence[ChatMessage] | None = None,
    ) -> None:
        """Replace the system prompt ("": the template's own default, if it has one) and, where
        given, the template, by one with other tools in it. `with_examples`: show the examples from
        now on, or leave them out. `examples`: others in place of them. Raises RequestError,
        changing nothing."""
        shown = self._examples
        if examples is not None:
            shown = [self._encoder.written(each.role, each.text) for each in examples]
        system = self._encoder.system_message(text, shown, template or self._template, self._ready)
        self._examples = shown
        if template is not None:
            self._template = template
            self._encoder = MessageEncoder(template, self._token_bytes, self.context_length)
        if with_examples is not None:
            self._shows_examples = with_examples
        self._system = system if text else None
        self._head = [
            *([system] if text else []),
            *(self._examples if self._shows_examples else []),
        ]
        self._summary = self._told(self.summary)

    def append(self, role: str, text: str, markup: tuple[tuple[int, int], ...] = ()) -> None:
        """Append a complete message; `markup` as in `ChatMessage`. Raises RequestError, changing
        nothing."""
        message = self.check(role, text, markup)
        self._ready = []
        self._turns.append(message)
        if role == "assistant":
            self._last_reply = message

    def begin_reply(self) -> EncodedMessage:
        """Append a reply that is being generated, empty so far; extend its `fixed_ids`."""
        reply = EncodedMessage("assistant", None)
        self._turns.append(reply)
        self._last_reply = reply
        return reply

    @property
    def opens_thought(self) -> bool:
        """True if the prompt ends inside a thought."""
        return self._template.opens_thought

    def word_ids(self) -> WordIds:
        """What chooses the ids of a reply that stay in the history: those of its words."""
        gap = Gap(())
        return WordIds(
            self._token_bytes, lambda text: self._template.content("assistant", text, gap)
        )

    def forget_if_empty(self, reply: EncodedMessage) -> None:
        """Remove a reply that never got a token."""
        if not reply.fixed_ids:
            self._turns = [message for message in self._turns if message is not reply]

    def truncate_reply(self, num_chars: int) -> None:
        """Cut the last reply: keep every token that starts before this character."""
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
        """Remove the last user message and everything after it."""
        for index in reversed(range(len(self._turns))):
            if begins_exchange(self._turns[index]):
                del self._turns[index:]
                break
        self._last_reply = _last_reply(self._turns)

    def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        """Replace the turns, and what stands for older ones. Those equal to present ones keep their
        ids; turns older than the context can hold are dropped, or refused with `keep_all`. Raises
        RequestError."""
        system = messages[0].text if messages and messages[0].role == "system" else None
        turns = messages if system is None else messages[1:]
        fresh = self._encoder.rewritten(turns, [*self._turns, *self._ready])
        if (self._keeps_all or self.truncation.keeps_all) and len(fresh) < len(turns):
            num_tokens = sum(message.num_tokens for message in fresh)
            raise self._encoder.too_long("user", f"more than {num_tokens} tokens")
        if system is not None:
            self.set_system(system)
        self._summary, self.summary = self._told(summary), summary
        self.num_left_out = 0
        self._count_dropped(len(turns) - len(fresh))
        self._turns, self._ready = fresh, []
        self._last_reply = _last_reply(self._turns)

    # --- condensing ---

    def use(self, reserve: int) -> ContextTokens:
        """Tokens of the context, with `reserve` for a reply."""
        num_tokens = self._layout([]).num_tokens()
        return ContextTokens(
            self.context_length, self.num_fixed, num_tokens - self.num_fixed, reserve
        )

    def oldest(self, max_kept_tokens: int) -> tuple[EncodedMessage, ...]:
        """The whole exchanges from the beginning whose removal leaves at most so many tokens of
        turns; fewer where the newest two alone have more."""
        sizes = self._layout([]).sizes()[len(self._head) + len(self._summary) :]
        return tuple(self._turns[: num_condensed(self._turns, sizes, max_kept_tokens)])

    def begins_with(self, messages: Sequence[EncodedMessage]) -> bool:
        """True if the turns still begin with these very messages."""
        return begins_with(self._turns, messages)

    def condensed_prompt(
        self, num_messages: int, summary: tuple[str, ...]
    ) -> tuple[tuple[int, ...], int]:
        """Token ids up to where the next user message begins, and how many of them are fixed, as
        they will be once that many messages are replaced by this summary."""
        opened = self._encoder.written("user", "")
        parts = [*self._head, *self._told(summary), *self._turns[num_messages:], opened]
        layout = PromptLayout(self._template, parts)
        return layout.ids(is_open=True), sum(layout.sizes()[: len(self._head)])

    def is_full(self, opened: str | None, reserve: int) -> bool:
        """True if the oldest turns are to be dropped for the next prompt: with the user message
        `opened`, where it is an open one, and room for `reserve` more."""
        more = [] if opened is None else [self._encoder.written("user", opened)]
        num_tokens = self._layout(more).num_tokens()
        keeps_all = self._keeps_all or self.truncation.keeps_all
        return num_tokens > self._limits(reserve)[0] and not keeps_all

    def condense(self, num_messages: int, summary: tuple[str, ...]) -> None:
        """Replace the oldest messages, and the summary before them, by this summary."""
        self._summary, self.summary = self._told(summary), summary
        del self._turns[:num_messages]
        self.num_left_out += num_messages

    def count(self, text: str) -> int:
        """Tokens of a text in a user message."""
        return self._encoder.written("user", text).num_tokens if text else 0

    def written(self, messages: Sequence[EncodedMessage]) -> list[ChatMessage]:
        """Messages of this history as text, with the markers of tool calls: another conversation
        reads them as this one did."""
        return [each.decoded(self._template, self._token_bytes) for each in messages]

    def _told(self, summary: tuple[str, ...]) -> list[EncodedMessage]:
        """Messages that tell the model a summary."""
        if not summary:
            return []
        try:
            self._template.gaps([*(each.role for each in self._head), "system", "user"])
        except RequestError:
            pass
        else:
            return [self._encoder.written("system", NOTES.format(lines=listed(summary)))]
        told = self._encoder.written("user", TOLD.format(text=" ".join(summary)))
        return [told, self._encoder.written("assistant", KEPT)]

    def _count_dropped(self, num_messages: int) -> None:
        self.num_left_out += num_messages
        _warn_of_dropped(num_messages, self.context_length)

    # --- prompts ---

    def messages(self) -> list[ChatMessage]:
        """The turns as text, without system prompt, examples and summary."""
        return self.written(self._turns)

    def prompt(self, reserve: int) -> tuple[int, ...]:
        """Token ids up to where the reply begins, leaving room for `reserve` more in the context.

        Drops the oldest turns where they do not fit; raises RequestError if none can be dropped.
        """
        return self._drop_to_fit([], reserve).ids()

    def open_prompt(self, text: str, reserve: int) -> tuple[int, ...]:
        """Token ids of a prompt with a user message that may still go on, as if it were complete:
        up to where the reply would begin. Without text yet, up to where the message begins."""
        opened = self._encoder.written("user", text)
        return self._drop_to_fit([opened], reserve).ids(is_open=not text)

    def message_end(self, opened: str | None = None) -> tuple[str, int] | None:
        """Text of the user's message at the end of the newest prompt, and how many tokens of the
        prompt there are up to its last word, without the punctuation behind that word.

        `opened`: text of the open prompt, where the newest was one. None where the prompt doesn't
        end with words of the user, or the words alone are encoded in another way.
        """
        more = [] if opened is None else [self._encoder.written("user", opened)]
        messages = [*self._turns, *more]
        text = messages[-1].text if messages and begins_exchange(messages[-1]) else None
        if text is None:
            return None
        words = without_end_marks(text)
        layout = self._layout(more)
        gap, content = layout.last
        alone = self._template.content("user", words, gap, ()) if words else []
        if not alone or content[: len(alone)] != alone:
            return None
        return text, sum(layout.sizes()) - len(content) + len(alone)

    def _layout(self, more: Sequence[EncodedMessage]) -> PromptLayout:
        parts = [*self._head, *self._summary, *self._turns, *more]
        layout = PromptLayout(self._template, parts)
        self.num_fixed = sum(layout.sizes()[: len(self._head)])
        return layout

    def _drop_to_fit(self, more: Sequence[EncodedMessage], reserve: int) -> PromptLayout:
        """Drop as many of the oldest exchanges as needed, in one pass. Returns the prompt's layout.

        Then count again: the gap between examples and history may be another one now. Where the
        template makes it longer, one more exchange is dropped.
        """
        num_before = len(self._turns)
        keeps_all, has_dropped = self._keeps_all or self.truncation.keeps_all, False
        while True:
            layout = self._layout(more)
            num_tokens = layout.num_tokens()
            ends = ends_of_exchanges(self._turns, is_last_over=bool(more))
            most, kept = self._limits(reserve)
            if num_tokens <= (kept if has_dropped else most) or keeps_all:
                break
            if self._summary and (self.truncation.is_clients or not ends):
                self._summary, self.summary = [], ()  # by a client's rule the oldest goes first
                has_dropped = has_dropped or bool(ends)
                continue
            if not ends:
                break
            has_dropped = True
            first = len(self._head) + len(self._summary)
            sizes = layout.sizes()[first:][: len(self._turns)]
            del self._turns[: end_beyond(ends, sizes, num_tokens - kept)]
        self._count_dropped(num_before - len(self._turns))
        is_refused = self.truncation.keeps_all and num_tokens > most
        if num_tokens >= self.context_length or is_refused:
            raise self._encoder.too_long("user", f"{num_tokens} tokens")
        return layout

    def _limits(self, reserve: int) -> tuple[int, int]:
        """Most tokens of a prompt, and of one from which exchanges were dropped, beside `reserve`
        for a reply."""
        most, rule = self.context_length - reserve, self.truncation
        if rule.max_turn_tokens is not None:
            most = min(most, self.num_fixed + rule.max_turn_tokens)
        if rule.kept_share is None:
            return most, min(most, int(self.context_length * KEPT_SHARE) - reserve)
        return most, self.num_fixed + int(max(0, most - self.num_fixed) * rule.kept_share)


def message_end_ids(token_bytes: Sequence[bytes], end_ids: Iterable[int]) -> tuple[int, ...]:
    """Tokens that end a message (`end_ids`) or a sentence, with and without white space,
    ascending."""
    marks = (index for index, each in enumerate(token_bytes) if each.strip() in SENTENCE_ENDS)
    return tuple(sorted({*end_ids, *marks}))


def without_end_marks(text: str) -> str:
    """Text without the white space and punctuation behind its last word."""
    return text.rstrip(" \t\n.,;:?!…-—\"'")


def _last_reply(turns: Sequence[EncodedMessage]) -> EncodedMessage | None:
    return next((each for each in reversed(turns) if each.role == "assistant"), None)


def _warn_of_dropped(num_dropped: int, context_length: int) -> None:
    if num_dropped:
        _log.warning(
            "context of %d tokens is full: dropped the oldest %d messages",
            context_length,
            num_dropped,
        )
