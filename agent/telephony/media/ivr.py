"""IVR detection by words: has a menu answered the outbound call?

Two kinds of phrases indicate a menu. Phrases that ask for keys, or mention a menu or a queue, are
not said by a person who answers a telephone. Phrases that ask to wait are said by people too: they
count in a monologue only. Phrases of voicemail are looked for first: it offers keys too ("press one
for more options"), but takes a message.

English only; in other languages only the length of the utterance counts. Of 64 prompts of Asterisk
that offer keys 61 are recognized through mu-law and the smallest recognizer ("star" is recognized
as "start", "pound" as "town"), and none of 65 other prompts is taken for a menu.

Pure.
"""

import re
from typing import Final, Literal

Answering = Literal["menu", "mailbox"]

_KEY: Final = r"(?:\d|zero|one|two|three|four|five|six|seven|eight|nine|star|pound|hash)"

_MENU: Final = re.compile(
    rf"\b(?:press|dial|push)(?: the)?(?: number| key| button| option)? {_KEY}\b"
    r"|\b(?:main menu|menu options|following options|following menu)\b"
    r"|\boptions (?:have|has) (?:recently )?changed\b"
    r"|\byour call is (?:very )?important\b"
    r"|\bcalls? (?:may|might|will|is|are)(?: be)?(?: being)? (?:recorded|monitored)\b"
    r"|\b(?:agents|representatives|operators|associates|lines) are (?:currently |all )?busy\b"
    r"|\bparty'?s extension\b|\bfollowed by the (?:star|pound|hash)\b"
)
_HOLD: Final = re.compile(
    r"\bplease (?:hold|wait|stay)\b|\b(?:stay|remain) on the line\b|\bnext available\b"
)
_MAILBOX: Final = re.compile(r"\b(?:after|at) the (?:tone|beep)\b|(?<!re )\brecord your message\b")
_UNAVAILABLE: Final = re.compile(
    r"\bleave (?:me |us )?(?:a|your)\b.{0,20}\bmessage\b"
    r"|\b(?:is|am|are) (?:not available|unavailable)\b"
    r"|\b(?:can't|cannot|can not) (?:come to|get to|take|answer)\b"
)


def answering(words: str, *, is_monologue: bool) -> Answering | None:
    """Kind of machine that an utterance's transcript so far shows; None: none."""
    spelled = words.casefold().replace("’", "'").replace("#", " pound ").replace("*", " star ")
    plain = " ".join(re.sub(r"[^\w']+", " ", spelled).split())
    if _MAILBOX.search(plain):
        return "mailbox"
    if _UNAVAILABLE.search(plain):
        return None
    if _MENU.search(plain) or (is_monologue and _HOLD.search(plain)):
        return "menu"
    return None
