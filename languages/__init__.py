"""Spoken languages: one module each, and the table of all.

profile = languages.profile_of("de")     # None for a language without one
languages.is_known("pt")                 # a multilingual Whisper recognizes it
"""

from typing import Final

from . import english, french, german, spanish
from .profile import LanguageProfile, Sentences, TurnWords, Writing, word_set

PROFILES: Final = {
    module.PROFILE.code: module.PROFILE for module in (english, german, spanish, french)
}
"""The complete languages by code. A new one: a module, and its name here."""

ENGLISH: Final = english.PROFILE

AUTO: Final = "auto"
"""In place of a code: the language is found by what the caller says, one of the complete ones."""

FOREIGN: Final = next(code for code in PROFILES if code != ENGLISH.code)
"""A language for which a recognizer has to know more than English."""

RECOGNIZED: Final = word_set(
    """
    af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he
    hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl
    nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz
    vi yi yo yue zh
    """
)
"""Codes of the languages that a multilingual Whisper recognizes."""

NO_WORDS: Final = TurnWords()
"""Of a language without a profile: every word takes the turn."""


def profile_of(code: str) -> LanguageProfile | None:
    """Profile of a complete language; None for another one."""
    return PROFILES.get(code)


def is_complete(code: str) -> bool:
    """True for a language in which all parts of a call work."""
    return code in PROFILES


def is_known(code: str) -> bool:
    """True for a language that can at least be recognized."""
    return code in RECOGNIZED


def code_of(tag: str) -> str:
    """Code of a language tag: "de-AT" and "DE" are "de"."""
    return tag.strip().lower().replace("_", "-").partition("-")[0]


def until_found(code: str) -> str:
    """Language of a call before anything was said: English, where it is still to be found."""
    return ENGLISH.code if code == AUTO else code


def turn_words(code: str) -> TurnWords:
    """Words of turn-taking; none for a language without a profile."""
    profile = PROFILES.get(code)
    return profile.turn_words if profile is not None else NO_WORDS


def complete_names() -> str:
    """The complete languages as people read them: "de (German), en (English)"."""
    return ", ".join(f"{code} ({PROFILES[code].name})" for code in sorted(PROFILES))


__all__ = [
    "AUTO",
    "ENGLISH",
    "FOREIGN",
    "NO_WORDS",
    "PROFILES",
    "RECOGNIZED",
    "LanguageProfile",
    "Sentences",
    "TurnWords",
    "Writing",
    "code_of",
    "complete_names",
    "is_complete",
    "is_known",
    "profile_of",
    "turn_words",
    "until_found",
]
