"""Tokenizer: text to token ids, and token ids to bytes.

Two ways to encode, separate on purpose: `encode` treats its input as plain text, so that
`<|im_end|>` from a client is those ten characters and not the end of a turn; `encode_template`
encodes control tokens and is used only for text that comes out of the chat template.

A token may end inside a character: byte-level vocabularies split emoji and rare letters. The
detokenizer therefore releases text in whole characters. Invalid bytes (models do produce them,
rarely) are dropped rather than shown as U+FFFD: a replacement character cannot be spoken.
"""

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer as Bpe

from llm_engine.errors import RequestError

LONG_TEXT_CHARS = 2_000
"""Length beyond which a text, at about 1 us a character, is encoded as a batch of one: only that
call releases the GIL. For short ones it costs more than it saves."""

THOUGHT_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Texts that stand before and after a model's thoughts: those of Qwen3 and DeepSeek-R1, and of
Magistral, whose are control tokens. They are spelled, so that a reply shows what is a thought."""
_SPELLED_CONTROLS = frozenset(tag for pair in THOUGHT_TAGS for tag in pair)


class Detokenizer:
    """Converts one reply's ids to text. Not thread-safe."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_chars = 0

    @property
    def num_chars(self) -> int:
        """Characters released so far. The next token's text starts here, and so does a character
        that the last token left unfinished."""
        return self._num_chars

    @property
    def is_inside_character(self) -> bool:
        """True if the last token left a character unfinished."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """Add a token; returns the characters that it completes, perhaps none.

        Ids beyond the vocabulary (models pad their output) have no text.
        """
        known = 0 <= token_id < len(self._token_bytes)
        text = self._decoder.decode(self._token_bytes[token_id] if known else b"")
        self._num_chars += len(text)
        return text


def char_starts(token_ids: Iterable[int], token_bytes: Sequence[bytes]) -> list[int]:
    """Index of the character at which each token's text begins."""
    detokenizer = Detokenizer(token_bytes)
    starts = []
    for token_id in token_ids:
        starts.append(detokenizer.num_chars)
        detokenizer.push(token_id)
    return starts


@dataclass(frozen=True)
class Tokenizer:
    """A model's vocabulary. Immutable; any thread may use it."""

    plain: Bpe
    """Encoder without control and added tokens."""
    full: Bpe
    """Encoder with all tokens."""
    token_bytes: tuple[bytes, ...]
    """Bytes that each id adds to the text; control tokens add none, except for `THOUGHT_TAGS`."""
    control_ids: frozenset[int]
    end_ids: frozenset[int]
    """Tokens that end the model's turn, as its file declares them."""
    bos: str
    """Text of the beginning-of-sequence token, as chat templates write it; "" where unused."""
    eos: str
    chat_template: str | None

    def encode(self, text: str) -> list[int]:
        """Encode plain text. Raises RequestError for text that is not Unicode (lone surrogates)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "text", f"character {error.start} is half of a surrogate pair, not text"
            ) from None
        if len(text) > LONG_TEXT_CHARS:
            batch: list[int] = self.plain.encode_batch([text], add_special_tokens=False)[0].ids
            return batch
        ids: list[int] = self.plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_template(self, text: str) -> list[int]:
        """Encode text from the chat template, control tokens included."""
        ids: list[int] = self.full.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def added_texts(self) -> Mapping[str, int]:
        """Ids of the tokens outside the plain vocabulary, control tokens included, by text."""
        added = self.full.get_added_tokens_decoder()
        return {str(token.content): token_id for token_id, token in added.items()}

    @cached_property
    def largest_used_id(self) -> int:
        """Largest id that a prompt may hold or a reply may wait for: of the plain vocabulary, of
        the added tokens in the chat template, of the end tokens. Other added tokens, as for images
        in a vocabulary that several models share, are never used."""
        template = f"{self.chat_template or ''}{self.bos}{self.eos}"
        added = self.added_texts
        used = {token_id for text, token_id in added.items() if text and text in template}
        ids = set(added.values())
        num_tokens = len(self.token_bytes)
        plain = next((each for each in reversed(range(num_tokens)) if each not in ids), -1)
        return max(used | self.end_ids | {plain})

    def encode_spelled(self, text: str) -> list[int]:
        """Encode text as a model writes it: a marker that is one token becomes that token, if its
        bytes are its own spelling. Control tokens have none."""
        ids: list[int] = []
        for index, part in enumerate(self._markers.split(text)):
            ids += [self.added_texts[part]] if index % 2 else self.encode(part) if part else []
        return ids

    @cached_property
    def _markers(self) -> re.Pattern[str]:
        texts = [
            text
            for text, token_id in self.added_texts.items()
            if text and self.token_bytes[token_id] == text.encode(errors="replace")
        ]
        longest_first = sorted(texts, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})" if texts else "(?!)")


END_OF_TURN_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
"""Texts of known end tokens: files often declare only one of the two that a model uses."""


def end_ids(
    tokens: Sequence[str], control_ids: frozenset[int], declared: set[int]
) -> frozenset[int]:
    """The declared end tokens that exist, and the control tokens known to end a turn."""
    known = {index for index in control_ids if tokens[index] in END_OF_TURN_TEXTS}
    return frozenset(known | {index for index in declared if 0 <= index < len(tokens)})


def bytes_of_tokens(
    tokens: Sequence[str], *, byte_level: bool, added: Mapping[int, bool]
) -> tuple[bytes, ...]:
    """Bytes that each token adds to the text.

    `added` has the ids outside the vocabulary's own spelling, True for control tokens. Others are
    spelled in GPT-2's byte alphabet (`byte_level`) or the SentencePiece way: `<0x0A>` is one byte,
    U+2581 a space.
    """
    alphabet = _byte_alphabet()
    is_spelled = re.compile(f"[{re.escape(''.join(alphabet))}]*").fullmatch
    to_latin1 = {ord(character): chr(byte) for character, byte in alphabet.items()}

    def spell(index: int, token: str) -> bytes:
        if index in added:
            is_hidden = added[index] and token not in _SPELLED_CONTROLS
            return b"" if is_hidden else token.encode(errors="ignore")
        if not byte_level:
            return _sentencepiece_bytes(token)
        if is_spelled(token):
            return token.translate(to_latin1).encode("latin-1")
        return token.encode(errors="ignore")

    return tuple(spell(index, token) for index, token in enumerate(tokens))


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character in byte-level vocabularies: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _sentencepiece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    if match is not None:
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode(errors="ignore")
