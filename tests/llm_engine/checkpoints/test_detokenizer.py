"""Detokenizing releases whole characters, wherever tokens end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.checkpoints.tokenizer import Detokenizer, char_starts

BYTES = tuple(bytes([value]) for value in range(256))
TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"),
        st.sampled_from("héñ日本語한국어👩‍👩‍👧🏽😀"),
    ),
    max_size=60,
)


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    text = draw(TEXT)
    raw = text.encode()
    borders = sorted(draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    return text, [raw[a:b] for a, b in pairwise(borders)]


@given(split_texts())
def test_any_split_gives_the_same_text(case: tuple[str, list[bytes]]) -> None:
    text, pieces = case
    detokenizer = Detokenizer(pieces)
    shown = ""
    for index in range(len(pieces)):
        shown += detokenizer.push(index)
        assert text.startswith(shown)
        assert detokenizer.num_chars == len(shown)
    assert shown == text


@given(split_texts())
def test_starts_say_where_each_token_begins(case: tuple[str, list[bytes]]) -> None:
    text, pieces = case
    starts = char_starts(range(len(pieces)), pieces)
    assert starts == sorted(starts)
    for index, start in enumerate(starts):
        num_bytes = len(b"".join(pieces[:index]))
        assert start == len(text.encode()[:num_bytes].decode(errors="ignore"))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_are_left_out(raw: bytes) -> None:
    detokenizer = Detokenizer(BYTES)
    shown = "".join(map(detokenizer.push, raw))
    assert raw.decode(errors="ignore") == shown
    assert "\ufffd" not in shown


def test_an_unfinished_character_is_not_shown() -> None:
    detokenizer = Detokenizer(BYTES)
    emoji = "😀".encode()
    assert [detokenizer.push(byte) for byte in emoji] == ["", "", "", "😀"]
    assert [detokenizer.push(byte) for byte in (*emoji[:2], 0x21)] == ["", "", "!"]


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    detokenizer = Detokenizer((b"a",))
    assert [detokenizer.push(token_id) for token_id in (7, 0, -1)] == ["", "a", ""]


def test_all_tokens_of_a_split_character_start_at_it() -> None:
    assert char_starts(b"ab" + "é".encode() + b"c", BYTES) == [0, 1, 2, 2, 3]
