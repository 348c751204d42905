from hypothesis import given
from hypothesis import strategies as st

from asr.recognition.stabilizer import Stabilizer

WORDS = st.lists(st.sampled_from(["a", "b", "c", "C", "b.", "d,"]), max_size=12).map(" ".join)


def pushed(*hypotheses: str) -> list[tuple[str, str]]:
    stabilizer = Stabilizer()
    results = map(stabilizer.push, hypotheses)
    return [(result.stable, result.tail) for result in results]


def test_what_two_hypotheses_agree_on_is_stable() -> None:
    assert pushed("which", "which fold", "which folder should") == [
        ("", "which"),
        ("which", " fold"),
        ("which", " folder should"),
    ]


def test_the_last_word_is_never_stable() -> None:
    assert pushed("press one", "press one", "press one") == [
        ("", "press one"),
        ("press", " one"),
        ("press", " one"),
    ]


def test_case_and_punctuation_do_not_matter() -> None:
    assert pushed("All circuits are busy.", "all circuits are busy now.")[-1] == (
        "all circuits are busy",
        " now.",
    )


def test_stable_words_stay_whatever_comes() -> None:
    results = pushed("one two three", "one two three four", "one too three four five")
    assert results[1:] == [("one two three", " four"), ("one two three", " four five")]


def test_a_rewritten_beginning_neither_loses_nor_repeats_words() -> None:
    first = "and show the period was so"
    later = "In short, the period was so far like the present"
    assert pushed(first, first, later)[-1] == (
        "and show the period was",
        " so far like the present",
    )
    assert pushed("one two three", "one two three four", "one and two three four five")[-1] == (
        "one two three",
        " four five",
    )


def test_a_rewrite_far_behind_the_beginning_is_found_too() -> None:
    said = [f"word{index}" for index in range(80)]
    base = " ".join(said)
    rewritten = " ".join([*said[:40], "um", *said[41:70], "well", *said[70:], "and", "on"])
    assert pushed(base, base, rewritten)[-1] == (" ".join(said[:79]), " word79 and on")


def test_words_after_a_rewritten_beginning_become_stable_too() -> None:
    assert pushed("a b c", "a b c d", "a x b c d e", "a x b c d e f")[-1] == ("a b c d e", " f")


def test_nothing_said() -> None:
    assert pushed("", "  ", "yes") == [("", ""), ("", ""), ("", "yes")]


def test_a_shorter_hypothesis_keeps_the_stable_words() -> None:
    assert pushed("a b c d", "a b c d", "a")[-1] == ("a b c", "")


@given(st.lists(WORDS, max_size=8))
def test_the_stable_part_only_grows(hypotheses: list[str]) -> None:
    stabilizer = Stabilizer()
    stable = ""
    for hypothesis in hypotheses:
        result = stabilizer.push(hypothesis)
        assert result.text == result.stable + result.tail
        assert result.stable.startswith(stable)
        assert result.stable_chars in (0, len(result.text)) or result.tail.startswith(" ")
        stable = result.stable


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=30))
def test_a_transcript_that_only_grows_is_followed_exactly(words: list[str]) -> None:
    stabilizer = Stabilizer()
    for count in range(1, len(words) + 1):
        result = stabilizer.push(" ".join(words[:count]))
        assert result.text == " ".join(words[:count])
        assert result.stable == " ".join(words[: max(0, count - 1)] if count > 1 else [])
