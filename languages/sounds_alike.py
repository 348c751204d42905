"""Key of English words by which spellings of one sound are equal: "Write" and "right".

A recognizer that hears a second of sound without a sentence around it picks a likely word for it:
"Write." for "right", "Mama" for "mm-hmm", "IZ" for "I see". The key keeps the order of the
consonants, without those that the spelling has and the sound lacks, and nothing of the vowels: two
speakers differ by them more than two words do. Words without a consonant are vocalizations ("uh",
"ah", "oh"), and have the empty key.
"""

import re
from collections.abc import Sequence
from typing import Final

_SPELLINGS: Final = (
    (r"^wr", "r"), (r"^su(?=[rg])", "x"), (r"^kn", "n"), (r"^wh", "w"), (r"ph", "f"),
    (r"igh|augh|ough", "a"), (r"tch|ch|sh|sch", "x"), (r"ck|q|x$", "k"), (r"c(?=[eiy])", "s"),
    (r"c", "k"), (r"z", "s"), (r"mb$", "m"), (r"(?<=[aeiou])[wr]$", ""),
    (r"(?<=[aeiou])y|(?<=[^aeiou])y$", "i"), (r"j", "y"), (r"[^bdfgklmnprstvwxy]", ""),
)  # fmt: skip
"""In order: a pattern of the spelling, and what it sounds like. "S" is not told from "z", nor "sh"
from "ch"; an "r" or "w" at the end colours the vowel before it."""


def sound_key(words: Sequence[str]) -> str:
    """Key of words in lower case. Equal keys sound alike."""
    return re.sub(r"(.)\1+", r"\1", "".join(map(_key, words)))


def _key(word: str) -> str:
    for pattern, sound in _SPELLINGS:
        word = re.sub(pattern, sound, word)
    return word
