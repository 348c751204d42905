"""Streaming parser of tool calls in a reply's text. Pure.

Text that may be the beginning of a marker is held back until it is decided. The grammar fixes the
form of a call, so its arguments are the JSON object after the name: they end where the object's
bracket closes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from llm_engine.core.output import overlap

from .tool_calls import HERMES, Dialect, Tool

_CLOSING: Final = re.compile(re.escape(HERMES.closing))
_MARKER: Final = re.compile(f"{re.escape(HERMES.opening)}|{_CLOSING.pattern}")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Next piece of the reply's spoken text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Start of the reply's next tool call, without its arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Next piece of the arguments of the call that started last."""

    text: str


ReplyEvent = TextDelta | CallStarted | ArgumentsDelta


class CallReader:
    """Parser of one reply. Gives the same events however the text is cut into pieces, except for
    where text and arguments are cut."""

    def __init__(
        self, dialect: Dialect, tools: Iterable[Tool], *, reply_heads: Sequence[str] = ()
    ) -> None:
        """`reply_heads`: `Dialect.reply_heads`."""
        self._tools = tuple(tool.name for tool in tools)
        self._bare = dialect.bare
        self._reply_heads = tuple(reply_heads)
        self.num_hidden = 0
        """Characters before the words of a reply by call."""
        self._use(dialect)
        self._held = ""
        self._step = self._begin if dialect.opening else self._name
        self._object = _ObjectEnd()
        self.num_calls = 0
        """Calls that have started."""
        self.num_whole = 0
        """Calls that are complete: all that have started but the last, or all."""
        self.is_whole = True
        """True unless a call is unfinished."""

    def push(self, text: str) -> list[ReplyEvent]:
        """Add text; returns the events that are decided now."""
        self._held += text
        events: list[ReplyEvent] = []
        while True:
            step = self._step
            events += step()
            if self._step == step:
                return events

    def flush(self) -> list[ReplyEvent]:
        """Return the held text at the end of the reply. The beginning of a call without its name is
        dropped."""
        held, self._held = self._held, ""
        is_text = self._step == self._text and not self.num_calls
        return [TextDelta(held)] if held and is_text else []

    def _use(self, form: Dialect) -> None:
        self._opening = form.opening
        self._heads = {f"{form.head}{name}{form.middle}": name for name in self._tools}
        self._tail = form.tail + form.closing

    def _begin(self) -> list[ReplyEvent]:
        """Decide by the first character: a brace begins calls without tags."""
        if self._held.startswith("{"):
            self._use(self._bare)
            self._step, self.is_whole = self._name, False
        elif self._held:
            self._step = self._text
        return []

    def _text(self) -> list[ReplyEvent]:
        before, found, after = self._held.partition(self._opening)
        if found:
            self._step, self._held, self.is_whole = self._name, after, False
            before = before.removesuffix("\n")  # which stands before a call that follows words
        else:
            marker = f"\n{self._opening}"
            held = max(overlap(self._held, marker), overlap(self._held, self._opening))
            before = self._held[: len(self._held) - held]
            self._held = self._held[len(before) :]
        return [TextDelta(before)] if before and not self.num_calls else []

    def _name(self) -> list[ReplyEvent]:
        for head in self._reply_heads:
            if self._held.startswith(head):
                self.num_hidden = len(self._opening) + len(head)
                self._held = self._held[len(head) :]
                self._step, self.is_whole = self._words, True
                return []
        for head, name in self._heads.items():
            if self._held.startswith(head):
                self._held = self._held[len(head) :]
                self._step, self._object = self._arguments, _ObjectEnd()
                self.num_calls += 1
                self.is_whole = False
                return [CallStarted(name)]
        heads = [*self._heads, *self._reply_heads]
        if self._opening or any(head.startswith(self._held) for head in heads):
            return []
        self._step = self._only_text
        return []

    def _words(self) -> list[ReplyEvent]:
        words, quote, _ = self._held.partition('"')
        self._held = ""
        if quote:
            self._step = self._nothing
        return [TextDelta(words)] if words else []

    def _nothing(self) -> list[ReplyEvent]:
        self._held = ""
        return []

    def _only_text(self) -> list[ReplyEvent]:
        text, self._held = self._held, ""
        return [TextDelta(text)] if text else []

    def _arguments(self) -> list[ReplyEvent]:
        end = self._object.find(self._held)
        if end is None:
            text, self._held = self._held, ""
        else:
            text, self._held = self._held[:end], self._held[end:]
            self._step = self._after
        return [ArgumentsDelta(text)] if text else []

    def _after(self) -> list[ReplyEvent]:
        if self._held.startswith(self._tail):
            self._held = self._held[len(self._tail) :]
            self._step = self._text if self._opening else self._next_bare
            self.num_whole += 1
            self.is_whole = True
        return []

    def _next_bare(self) -> list[ReplyEvent]:
        if self._held.startswith("\n"):
            self._held, self._step = self._held[1:], self._name
            self.is_whole = False
        return []


class CallFilter:
    """Drops calls in the Hermes form from the text of a reply that may make none: from the marker
    to its end, or to the reply's where it has none. Gives the same text however the pieces are
    cut. The time of a push is linear in its text."""

    def __init__(self) -> None:
        self.has_dropped = False
        """The reply had a marker."""
        self._held = ""
        self._in_call = False
        self._num_chars = 0
        """Characters of the reply so far."""
        self._num_words = 0
        """Of these, those that were returned."""
        self._dropped: list[tuple[int, int]] = []
        """At each marker, the characters returned and those dropped by then."""

    def num_chars(self, num_words: int) -> int:
        """Characters of the reply that end with so many of those returned."""
        return num_words + max((gone for at, gone in self._dropped if at < num_words), default=0)

    def push(self, text: str) -> str:
        """Add text; returns what is known to be none of a call."""
        held, begin = self._held + text, 0
        self._num_chars += len(text)
        words = ""
        while found := (_CLOSING if self._in_call else _MARKER).search(held, begin):
            words += "" if self._in_call else held[begin : found.start()]
            begin = found.end()
            self._in_call, self.has_dropped = found[0] == HERMES.opening, True
            num_words = self._num_words + len(words)
            self._dropped.append((num_words, self._num_chars - len(held) + begin - num_words))
        markers = (HERMES.closing,) if self._in_call else (HERMES.opening, HERMES.closing)
        end = len(held) - max(overlap(held[begin:], each) for each in markers)
        self._held = held[end:]
        words += "" if self._in_call else held[begin:end]
        self._num_words += len(words)
        return words

    def flush(self) -> str:
        """Return the held text at the end of the reply: a mere beginning of a marker is text."""
        held, self._held = self._held, ""
        return "" if self._in_call else held


class _ObjectEnd:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def find(self, piece: str) -> int | None:
        """Index after the closing bracket; None while it has not come."""
        for index, character in enumerate(piece):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None
