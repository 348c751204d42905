"""Thoughts of a reply, apart from its words. Pure.

Some models think before they answer: `<think>` and `</think>` stand around the thought, and what
follows is the answer. A thought is neither spoken nor shown as the reply, and is not part of the
history: the templates of Qwen3 and DeepSeek-R1 drop the thoughts of earlier turns. So the ids of a
reply in the history are those of its words alone. The cache then fits up to where the reply begins,
and the words are computed anew behind it, once, while the caller listens.

A block may be empty, may stand anywhere in the reply, may never be closed (then all of the rest is
thought), or may have been opened by the chat template, whose prompt then ends in `<think>`.

Where a reply may call tools, a call ends a thought and is not looked into: the grammar lets nothing
but the call follow its marker, and JSON may contain any text.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from llm_engine.checkpoints.tokenizer import THOUGHT_TAGS, Detokenizer
from llm_engine.core.output import overlap

_OPENING: Final = tuple(opening for opening, _ in THOUGHT_TAGS)
_CLOSING: Final = tuple(closing for _, closing in THOUGHT_TAGS)
_SPACE: Final = re.compile(r"\s*")

Kind = Literal["words", "thought", "mark"]
"""What a character of a reply is. "mark": a tag, or white space around a thought."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters of one kind."""

    kind: Kind
    text: str


class ThoughtReader:
    """Parser of one reply. The pieces joined are the reply's text; every character gets the same
    kind however the text is cut. The time of a push is linear in its text and the held one."""

    def __init__(self, *, is_open: bool = False, calls: str | None = None) -> None:
        """`is_open`: the prompt ends inside a thought. `calls`: marker of a tool call where the
        reply may make some ("": a call is the whole reply); None: there are none."""
        self._calls = calls
        markers = (*_OPENING, *_CLOSING, *((calls,) if calls else ()))
        # Sorted: of two that begin at the same place, the shorter one.
        self._marker = re.compile("|".join(re.escape(marker) for marker in sorted(markers)))
        self._markers = markers
        self._max_unsure = max(map(len, markers)) - 1
        self._held = ""
        self._at = 0
        """Number of characters of the held text that are released."""
        self._in_thought = is_open
        self._has_thought = False
        """The present thought has a character that is not white space."""
        self._step = self._begin

    def push(self, text: str) -> list[Piece]:
        """Add text; returns the pieces that are decided now."""
        self._held, self._at = self._held[self._at :] + text, 0
        pieces: list[Piece] = []
        while True:
            before = self._step, self._at
            pieces += self._step()
            if (self._step, self._at) == before:
                return [piece for piece in pieces if piece.text]

    def flush(self) -> list[Piece]:
        """Return the held text at the end of the reply: a mere beginning of a tag is text."""
        held = self._take(len(self._held) - self._at)
        kind: Kind = "words"
        if self._in_thought:
            kind = "thought" if held.strip() else "mark"
        return [Piece(kind, held)] if held else []

    def _take(self, num_chars: int) -> str:
        start, self._at = self._at, self._at + num_chars
        return self._held[start : self._at]

    def _begin(self) -> list[Piece]:
        """Decide by the first characters, before any is released: a brace begins a call, and white
        space before a tag is part of the mark."""
        bare = self._held.lstrip()
        if not bare:
            return []
        if self._calls is not None and self._held.startswith("{"):
            self._in_thought, self._step = False, self._all
        elif bare.startswith(_OPENING):
            opening = next(tag for tag in _OPENING if bare.startswith(tag))
            self._in_thought, self._step = True, self._read
            return [Piece("mark", self._take(len(self._held) - len(bare) + len(opening)))]
        elif not any(tag.startswith(bare) for tag in _OPENING):
            self._step = self._read
        return []

    def _read(self) -> list[Piece]:
        """Release up to the next marker."""
        found = self._marker.search(self._held, self._at)
        if found is None:
            end = self._held[max(self._at, len(self._held) - self._max_unsure) :]
            num_unsure = max(overlap(end, each) for each in self._markers)
            return self._released(len(self._held) - self._at - num_unsure, is_end=False)
        marker = found[0]
        pieces = self._released(found.start() - self._at, is_end=True)
        if marker == self._calls:
            self._in_thought, self._step = False, self._all
            return pieces
        pieces.append(Piece("mark", self._take(len(marker))))
        self._in_thought, self._has_thought = marker in _OPENING, False
        self._step = self._read if self._in_thought else self._after
        return pieces

    def _released(self, num_chars: int, *, is_end: bool) -> list[Piece]:
        """Release so many characters. White space at either end of a thought is part of the
        marks."""
        if not self._in_thought:
            return [Piece("words", self._take(num_chars))]
        body = self._held[self._at : self._at + num_chars]
        lead = 0 if self._has_thought else len(body) - len(body.lstrip())
        pieces = [Piece("mark", self._take(lead))]
        thought = body[lead:].rstrip()
        self._has_thought = self._has_thought or bool(thought)
        pieces.append(Piece("thought", self._take(len(thought))))
        if is_end:
            pieces.append(Piece("mark", self._take(num_chars - lead - len(thought))))
        return pieces

    def _after(self) -> list[Piece]:
        """Behind a thought: white space is part of the mark."""
        space = _SPACE.match(self._held, self._at)
        pieces = [Piece("mark", self._take(len(space[0]) if space else 0))]
        if self._at < len(self._held):
            self._step = self._read
        return pieces

    def _all(self) -> list[Piece]:
        """Calls: everything belongs to the reply."""
        return [Piece("words", self._take(len(self._held) - self._at))]


class WordIds:
    """Chooses the token ids of a reply's words from those of the whole reply, as it grows.

    Tokens that a thought shares with the words, which only tokenizers without tags of their own
    have, are replaced by the encoding of their words.
    """

    def __init__(self, token_bytes: Sequence[bytes], encode: Callable[[str], list[int]]) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._encode = encode
        self._units: deque[_Unit] = deque()
        """Tokens whose kind is not known. The last may end inside a character."""
        self._is_word = bytearray()
        """1 for each character that is one of the words, 0 for others."""

    def push(
        self, token_ids: Sequence[int], pieces: Sequence[Piece], *, is_last: bool
    ) -> list[int]:
        """Add the next ids and pieces. Returns more ids of words."""
        for token_id in token_ids:
            if not self._units or self._units[-1].is_whole:
                self._units.append(_Unit(self._detokenizer.num_chars))
            unit = self._units[-1]
            unit.token_ids.append(token_id)
            unit.text += self._detokenizer.push(token_id)
            unit.is_whole = not self._detokenizer.is_inside_character
        for piece in pieces:
            self._is_word += (b"\1" if piece.kind == "words" else b"\0") * len(piece.text)
        chosen: list[int] = []
        while self._units and (is_last or self._is_known(self._units[0])):
            unit = self._units.popleft()
            end = unit.start + max(1, len(unit.text))
            flags = self._is_word[unit.start : end] or self._is_word[-1:]
            if all(flags):
                chosen += unit.token_ids
            elif any(flags):
                text = zip(unit.text, flags, strict=False)  # a stop string may have cut it
                chosen += self._encode("".join(each for each, is_word in text if is_word))
        return chosen

    def _is_known(self, unit: "_Unit") -> bool:
        """True if the kinds of all its characters are known; without any, that of the next."""
        return unit.is_whole and unit.start + max(1, len(unit.text)) <= len(self._is_word)


@dataclass(slots=True)
class _Unit:
    """Tokens that together end at the end of a character."""

    start: int
    """First character."""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    is_whole: bool = False


def without_first_thought(text: str) -> str:
    """A complete reply that a client sends back, without the thought that begins it.

    The thought has to be closed; its opening tag is missing where the chat template wrote it.
    Any other tag is part of the words, as in an answer about such tags.
    """
    bare = text.lstrip()
    for opening, closing in THOUGHT_TAGS:
        has_opening = bare.startswith(opening)
        if has_opening or not any(tag in bare for tag in _OPENING):
            _, closed, words = bare.partition(closing)
            if closed:
                return words.lstrip()
    return text


def opens_thought(prompt: str) -> bool:
    """True if a prompt ends inside a thought."""
    return prompt.rstrip().endswith(_OPENING)
