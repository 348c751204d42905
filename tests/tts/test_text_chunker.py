"""Cutting a reply into pieces: where, and that nothing depends on how the text arrived."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts.text.markup import silent_code
from tts.text.normalize import join_words, normalize, spoken_words
from tts.text_chunker import CutterConfig, SpeakablePiece, TextChunker


def cut(
    text: str, deltas: list[str] | None = None, config: CutterConfig | None = None
) -> list[SpeakablePiece]:
    cutter = TextChunker(config)
    pieces = [piece for delta in deltas or [text] for piece in cutter.push(delta)]
    return [*pieces, *cutter.flush()]


def texts(text: str) -> list[str]:
    return [piece.text for piece in cut(text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Sure, I can help. What time?", ["Sure,", " I can help. ", "What time?"]),
        ("Yes. Of course!", ["Yes. ", "Of course!"]),
        ("Of course, I'd love to.", ["Of course,", " I'd love to."]),
        ("At nine, we open the doors.", ["At nine, we open the doors."]),
        (
            "We open at nine tomorrow, and close at five.",
            ["We open at nine tomorrow,", " and close at five."],
        ),
        ("Well—I think so.", ["Well—", "I think so."]),
        ("Okay - let me look.", ["Okay - ", "let me look."]),
        ("Great! 😀 Let's go.", ["Great! ", "😀 Let's go."]),
        ("**Sure!** That works.", ["**Sure!** ", "That works."]),
        ("Really?! Yes... No", ["Really?! ", "Yes... ", "No"]),
        (
            "yes. i can do that for you. tell me when.",
            ["yes. ", "i can do that for you. ", "tell me when."],
        ),
    ],
)
def test_the_first_piece_is_short(text: str, pieces: list[str]) -> None:
    assert texts(text) == pieces


@pytest.mark.parametrize(
    "whole",
    [
        "It costs $29.99 in all.",
        "Pi is 3.14 or so.",
        "There were 1,000 of them there.",
        "The train leaves at 10:30 sharp.",
        "That was Dr. Smith.",
        "Fruit, e.g. apples.",
        "In the U.S. Army.",
        "He is J. K. Rowling's friend.",
        "See No. 5 there.",
        "On March 5, 2024 it began.",
        "Look at https://a.b/c.d?e=f,g now.",
        "Mail a.b@c.org now.",
        "It was v2.0.1 then.",
        'She said "Wait. Stop, please. Now." to me.',
        "I saw (really. I did) a fox.",
        "Call at 5 p.m. on Monday.",
        "Come at 9 a.m. Monday.",
    ],
)
def test_never_within(whole: str) -> None:
    assert texts("Right after that. " * 2 + whole)[2:] == [whole]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("At 5 p.m. We left.", ["At 5 p.m. ", "We left."]),
        ("12 Main St. Turn left.", ["12 Main St. ", "Turn left."]),
        ("Acme Inc. Nobody knows.", ["Acme Inc. ", "Nobody knows."]),
        ("It costs $29. 99 of them.", ["It costs $29. ", "99 of them."]),
        (
            "Here:\n- one\n- two\n1. Wash\n2. Dry",
            ["Here:\n", "- one\n", "- two\n", "1. Wash\n", "2. Dry"],
        ),
        ("A wrapped\nline goes on.", ["A wrapped\nline goes on."]),
        (
            "Here is the code: ```py\nx = 1. y\n``` Done. Bye.",
            ["Here is the code: ", "```py\nx = 1. y\n``` Done. ", "Bye."],
        ),
    ],
)
def test_sentence_ends(text: str, pieces: list[str]) -> None:
    assert texts(text) == pieces


def test_no_cut_before_the_next_character_is_known() -> None:
    cutter = TextChunker()
    assert cutter.push("It costs $29.") == ()
    assert cutter.push("99 in all. ") == ()
    assert [piece.text for piece in cutter.push("O")] == ["It costs $29.99 in all. "]


@pytest.mark.parametrize("opening", ["Sure,", "Of course,", "No problem,", "That is a good idea;"])
def test_a_first_clause_ends_with_its_comma(opening: str) -> None:
    cutter = TextChunker()
    assert cutter.push(opening[:-1]) == ()
    assert [piece.text for piece in cutter.push(opening[-1])] == [opening]
    (rest,) = [*cutter.push(" and then some."), *cutter.flush()]
    assert (rest.text, rest.index, rest.is_last) == (" and then some.", 1, True)


@pytest.mark.parametrize(
    "text",
    [
        "It costs $1,000,",
        "Look at https://a.b/c,d,",
        "Ask for model F,5 or a@b.c,",
        '"Sure thing, I said,',
        "(well,",
        "*Sure,",
        "‘Of course,",
        "In the U.S.,",
        "At nine,",
    ],
)
def test_no_other_comma_is_trusted_before_the_next_word(text: str) -> None:
    assert TextChunker().push(text) == ()


def test_the_comma_of_a_later_clause_is_no_cut() -> None:
    text = "Right after that we can go home. If you like, of course, we walk."
    assert texts(text)[1:] == ["If you like, of course, we walk."]


def test_without_marks_a_phrase_is_cut() -> None:
    text = "I am going to tell you a very long story about the time that we met"
    first, *_ = texts(text)
    assert first == "I am going to tell you a very long story "


def test_later_sentences_stay_whole_unless_very_long() -> None:
    middle = "this is a sentence of ordinary length, with a comma, and it is kept in one piece. "
    assert (
        texts("Sure. " + "Now, that is said and done. " + middle.capitalize())[2]
        == middle.capitalize()
    )
    long = ", ".join(["and then we walked for another hour"] * 12) + "."
    pieces = texts("Sure. This one gets us past the opening. " + long)[2:]
    assert len(pieces) > 1
    assert all(piece.endswith(", ") and len(piece) <= 200 for piece in pieces[:-1])


@pytest.mark.parametrize("text", ["", " ", "\n\n", "**", "😀😀", "...", "--- ***"])
def test_nothing_to_say_is_still_accounted_for(text: str) -> None:
    pieces = cut(text)
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) == (1 if text else 0)


def test_text_without_gaps_is_bounded() -> None:
    config = CutterConfig()
    for text in ("a" * 5000, '"' + "word " * 1000, "(" * 5000 + "a", "```" + "x" * 9000):
        longest = max(len(piece.text) for piece in cut(text))
        assert longest <= max(2 * config.max_chars, config.max_fenced_chars, 5001)
    assert max(len(piece) for piece in texts("word " * 1000)) <= config.max_chars + 5


@pytest.mark.parametrize(
    "text",
    [
        "Your confirmation code is: 482913. Have a nice day.",
        "All right, the last four digits of the card: 4242, and that is all of it.",
    ],
)
def test_a_number_is_read_by_what_stands_before_its_piece(text: str) -> None:
    for pieces in (cut(text), cut(text, list(text))):
        assert len(pieces) > 1
        words = [spoken_words(each.text, before=each.before) for each in pieces]
        assert " ".join(map(join_words, words)) == normalize(text)
        for piece, spoken in zip(pieces, words, strict=True):
            assert all(0 <= each.start < each.end <= len(piece.text) for each in spoken)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("I think that the shop is open on Mon. - Fri. all day.", "en"),
        ("Ich glaube dass das Geschäft hier auf hat Mo. - Fr. bis zehn.", "de"),
        ("Ich glaube dass das Geschäft hier auf hat Mo. bis Fr. bis zehn.", "de"),
        ("Geöffnet ist das Geschäft am Di., Do. und am Freitag.", "de"),
        ("Das geht vom 3.-5. Mai oder vom 3. Mai - 5. Juni so.", "de"),
        ("Creo que la tienda de aquí abre de lun. a vie. todo el día.", "es"),
    ],
)
def test_ranges_of_days_stay_in_one_piece(text: str, language: str) -> None:
    pieces = cut(text, list(text), CutterConfig(language=language))
    spoken = [spoken_words(each.text, language, before=each.before) for each in pieces]
    assert " ".join(map(join_words, spoken)) == normalize(text, language)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "Here is the code: ```\nls -l\n``` Done. Bye.",
            ["Here is the code: ", "```\nls -l\n``` Done. ", "Bye."],
        ),
        ("Go.\n~~~py\nx = 1. y\n~~~\nSo. Bye.", ["Go.\n", "~~~py\nx = 1. y\n~~~\nSo. ", "Bye."]),
        ("Go on. Run ```ls. A``` now. Bye.", ["Go on. ", "Run ```ls. A``` now. ", "Bye."]),
        ("Hello~~~ dear. How. Bye.", ["Hello~~~ dear. ", "How. ", "Bye."]),
    ],
)
def test_code_is_kept_whole(text: str, pieces: list[str]) -> None:
    assert texts(text) == pieces


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
@pytest.mark.parametrize("num_lines", [10, 60, 285, 286, 287, 288, 600, 1200])
def test_of_a_long_code_block_only_the_explanation_is_spoken(fence: str, num_lines: int) -> None:
    code = f"{fence}py\n" + "x = `1` + 1\n  \n" * num_lines + f"{fence}\n"
    text = "Here it is.\n" + code + "That adds two numbers. Anything else?"
    for pieces in (cut(text), cut(text, list(text))):
        spoken = [
            join_words(spoken_words(each.text, fence=each.fence, before=each.before))
            for each in pieces
        ]
        assert " ".join(filter(None, spoken)) == (
            "Here it is. That adds two numbers. Anything else?"
        )
        assert "".join(piece.text for piece in pieces) == text
        assert max(len(piece.text) for piece in pieces) <= CutterConfig().max_fenced_chars + 3
        assert all(each.text == text[slice(*each.span)] for each in pieces)


def _silent(text: str, at: int, fence: str) -> set[int]:
    stretches = silent_code(text, fence)
    return {at + number for start, end in stretches for number in range(start, end)}


_CODE = st.lists(
    st.sampled_from(
        [
            *("```", "`", "````", "~~~", "\n~~~", "~~~\n", "\n", "~", "py", " ", ". ", "x = 1. "),
            *("We say. ", "We know ", "```py\n", "\n```\n", "\n~~~py\n", "\n~~~\n"),
        ]
    ),
    max_size=40,
).map("".join)


@given(_CODE)
@settings(max_examples=400)
def test_pieces_and_the_whole_reply_have_the_same_code(text: str) -> None:
    silent: set[int] = set()
    for piece in cut(text):
        silent |= _silent(piece.text, piece.span[0], piece.fence)
    assert silent == _silent(text, 0, "")


@pytest.mark.parametrize(
    "whole",
    [
        "We are open from 8:00 - 18:00 every day.",
        "It takes a good 5 days - 10 days to arrive.",
        "It will cost you $5 – $10 in all.",
    ],
)
def test_the_dash_of_a_range_is_no_gap(whole: str) -> None:
    assert texts(whole) == [whole]


def test_one_cutter_serves_one_reply() -> None:
    cutter = TextChunker()
    cutter.push("Hi.")
    assert len(cutter.flush()) == 1
    assert cutter.flush() == ()
    with pytest.raises(ValueError, match="new TextChunker"):
        cutter.push("more")


_FRAGMENTS = st.sampled_from(
    [
        *(
            "Sure, ",
            "Yes. ",
            "I think ",
            "so ",
            "that ",
            "and ",
            "we can help you with it",
            ". ",
            "! ",
        ),
        *(
            "? ",
            ", ",
            "; ",
            "— ",
            " - ",
            "$29.",
            "99 ",
            "3.14 ",
            "1,000 ",
            "10:30 ",
            "Dr. ",
            "e.g. ",
        ),
        *(
            "U.S. ",
            "p.m. ",
            "St. ",
            "We ",
            "Monday ",
            '"',
            "(",
            ") ",
            "“",
            "” ",
            "\n",
            "\n- ",
            "1. ",
        ),
        *(
            "**",
            "`",
            "```",
            "😀 ",
            "https://a.b/c, ",
            "x@y.com ",
            "...",
            "…",
            "。",
            "我",
            "\ud800",
            "’s ",
        ),
    ]
)
_REPLIES = st.one_of(st.lists(_FRAGMENTS, max_size=60).map("".join), st.text(max_size=200))


def hurried(text: str, at: Sequence[int]) -> list[SpeakablePiece]:
    """Character by character, hurried after these."""
    chunker = TextChunker()
    pieces: list[SpeakablePiece] = []
    for number, character in enumerate(text):
        pieces += chunker.push(character)
        if number in at:
            pieces += chunker.hurry()
    return pieces + list(chunker.flush())


@pytest.mark.parametrize(
    ("text", "at", "pieces"),
    [
        (
            "You can make a simple soup with vegetables and chicken.",
            34,
            ["You can make a simple soup ", "with vegetables and chicken."],
        ),
        (
            "You can make a simple soup.",
            7,
            ["You can make a simple ", "soup."],
        ),
        (
            "The bill comes to 40 dollars and 50 cents today.",
            12,
            ["The bill comes to 40 dollars ", "and 50 cents today."],
        ),
        (
            "We have several rooms left. It should be rather nice tomorrow in Paris.",
            55,
            ["We have several rooms left. ", "It should be rather nice ", "tomorrow in Paris."],
        ),
        ("It is the one thing.", 19, ["It is the one thing."]),
        (
            "To go back you can press # today or tomorrow.",
            24,
            ["To go back you can press # today ", "or tomorrow."],
        ),
        ("What is left is 10 kg - 3 kg = 7 kg.", 17, ["What is left is 10 kg - 3 kg = 7 kg."]),
        (
            "Yes. We have several rooms left for you tonight.",
            30,
            ["Yes. ", "We have several rooms ", "left for you tonight."],
        ),
    ],
)
def test_a_hurried_piece_ends_at_the_next_gap(text: str, at: int, pieces: list[str]) -> None:
    assert [piece.text for piece in hurried(text, [at])] == pieces


def test_hurry_is_for_the_piece_under_way() -> None:
    text = "We have several rooms left for you tonight, and they are all on the upper floors."
    rest = ["left for you tonight,", " and they are all on the upper floors."]
    assert [piece.text for piece in hurried(text, [10])] == ["We have several rooms ", *rest]
    assert hurried(text, []) == cut(text)


def test_no_hurry_after_the_end() -> None:
    chunker = TextChunker()
    chunker.flush()
    with pytest.raises(ValueError, match="flushed"):
        chunker.hurry()


@given(_REPLIES, st.lists(st.integers(min_value=0, max_value=400), max_size=30))
@settings(max_examples=400)
def test_hurried_pieces_cover_the_reply_once_too(text: str, at: list[int]) -> None:
    pieces = hurried(text, at)
    assert "".join(piece.text for piece in pieces) == text
    ends = [0, *(piece.span[1] for piece in pieces)]
    assert [piece.span for piece in pieces] == list(pairwise(ends))
    for piece in pieces[:-1]:
        assert any(character.isalnum() or character in "$£€¥₹₩" for character in piece.text)


@given(_REPLIES, st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=30))
@settings(max_examples=400)
def test_any_split_gives_the_same_pieces(text: str, sizes: list[int]) -> None:
    deltas: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(deltas) % len(sizes)] or (1 if not any(sizes) else 0)
        deltas.append(text[at : at + size])
        at += size
    assert cut(text, deltas or [""]) == cut(text) == cut(text, list(text) or [""])


@given(_REPLIES)
@settings(max_examples=400)
def test_spans_cover_the_reply_once(text: str) -> None:
    pieces = cut(text)
    at = 0
    for number, piece in enumerate(pieces):
        assert piece.index == number
        assert piece.span == (at, at + len(piece.text))
        assert piece.text == text[slice(*piece.span)]
        at = piece.span[1]
    assert at == len(text)
    if pieces and not pieces[-1].is_last:
        assert text.endswith((",", ";"))
        return
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True] * bool(
        pieces
    )


@given(_REPLIES)
def test_every_piece_has_something_to_say(text: str) -> None:
    pieces = cut(text)
    if len(pieces) > 1 and pieces[-2].text.endswith((",", ";")):
        pieces.pop()  # behind the comma of a first clause the reply may have ended
    if len(pieces) > 1:
        for piece in pieces:
            assert any(character.isalnum() or character in "$£€¥₹₩" for character in piece.text)


@pytest.mark.parametrize(("speed", "share"), [(0.25, 0.25), (1.0, 1.0), (1.5, 1.0)])
def test_pieces_of_slow_speech_are_shorter(speed: float, share: float) -> None:
    text = "and then we walked on and " * 60
    chunker = TextChunker(CutterConfig().at_speed(speed))
    pieces = [*chunker.push(text), *chunker.flush()]
    assert "".join(piece.text for piece in pieces).split() == text.split()
    longest = max(len(piece.text) for piece in pieces)
    assert 160 * share < longest <= 320 * share + 1
