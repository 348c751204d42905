"""Stop strings, limits, and the ids that belong to released text."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.checkpoints.tokenizer import char_starts
from llm_engine.core.output import FinishReason, OutputText, StopMatcher

ALPHABET = "ab<"
END = 0
TOKENS = (b"", b"a", b"b", b"<", b"ab", b"<a", b"b<", b"\xc3", b"\xa9")


@st.composite
def cut_text(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.text(ALPHABET, max_size=4), max_size=12))


STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


@given(cut_text(), STOPS)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    by_piece, by_char = StopMatcher(stops), StopMatcher(stops)
    shown = ""
    for piece in pieces:
        shown += by_piece.push(piece)
        assert not any(stop in shown for stop in stops)
    slowly = "".join(map(by_char.push, whole))
    assert by_piece.hit == by_char.hit == any(stop in whole for stop in stops)
    assert shown + by_piece.flush() == slowly + by_char.flush()
    if not by_piece.hit:
        assert slowly == shown


@given(cut_text(), STOPS)
def test_nothing_of_a_stop_string_is_shown(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.push, pieces))
    whole = "".join(pieces)
    assert whole.startswith(shown)
    if matcher.hit:
        assert any(whole.startswith(shown + stop) for stop in stops)


@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=20), STOPS, st.integers(1, 20))
def test_ids_go_with_their_text(ids: list[int], stops: list[str], max_tokens: int) -> None:
    reply = OutputText(TOKENS, frozenset([END]), stops, max_tokens)
    text = ""
    given_out: list[int] = []
    accepted: list[int] = []
    for token_id in ids:
        accepted += [] if token_id == END else [token_id]
        new_text, new_ids = reply.accept(token_id)
        text += new_text
        given_out += new_ids
        assert given_out == accepted[: len(given_out)]
        starts = char_starts(accepted, TOKENS)
        begun = sum(start < len(text) for start in starts)
        assert len(given_out) >= begun
        if reply.finish_reason is not None:
            break
        assert len(given_out) == begun
        assert END not in given_out
    assert reply.num_tokens <= max_tokens


def accept_all(reply: OutputText, ids: bytes) -> list[tuple[str, tuple[int, ...]]]:
    return [reply.accept(token_id) for token_id in ids]


def test_the_end_token_ends_and_belongs_to_nothing() -> None:
    reply = OutputText(TOKENS, frozenset([END]), (), 10)
    assert accept_all(reply, bytes([1, 2, END])) == [("a", (1,)), ("b", (2,)), ("", ())]
    assert reply.finish_reason is FinishReason.STOP
    assert reply.num_tokens == 2


def test_a_stop_string_takes_its_tokens_along() -> None:
    reply = OutputText(TOKENS, frozenset([END]), ("<b",), 10)
    assert accept_all(reply, bytes([1, 3, 2])) == [("a", (1,)), ("", ()), ("", ())]
    assert reply.finish_reason is FinishReason.STOP


def test_the_beginning_of_a_stop_string_is_text_when_nothing_follows() -> None:
    for last, reason in ((END, FinishReason.STOP), (1, FinishReason.LENGTH)):
        reply = OutputText(TOKENS, frozenset([END]), ("<ab",), 2)
        assert reply.accept(3) == ("", ())
        text, ids = reply.accept(last)
        assert (text, ids) == (("<", (3,)) if last == END else ("<a", (3, 1)))
        assert reply.finish_reason is reason


def test_a_split_character_keeps_its_tokens_together() -> None:
    reply = OutputText(TOKENS, frozenset([END]), (), 10)
    assert accept_all(reply, bytes([1, 7, 8])) == [("a", (1,)), ("", ()), ("é", (7, 8))]


def test_an_unfinished_character_at_the_limit_is_not_shown() -> None:
    reply = OutputText(TOKENS, frozenset([END]), (), 2)
    assert accept_all(reply, bytes([1, 7])) == [("a", (1,)), ("", (7,))]
    assert reply.finish_reason is FinishReason.LENGTH
