"""IVR detection by words: has a menu answered the outbound call?

Two kinds of words tell. What asks for keys, or speaks of a menu or a queue, no person says who
answers a telephone. What asks to wait, people say as well: it counts in a monologue only. Before
either, what machines for messages say: they too offer keys ("press one for more options"), and it
is the message that is wanted there.

English only; of another language nothing is found, and length alone tells. Of 64 prompts of
Asterisk's that offer keys 61 are known through mu-law and the smallest recognizer ("star" is heard
as "start", "pound" as "town"), and none of 65 others is taken for a menu.

Pure.
"""

import re
from typing import Final, Literal

Answering = Literal["menu", "mailbox"]

_KEY: Final = r"(?:\d|zero|one|two|three|four|five|six|seven|eight|nine|star|pound|hash)"

_ASKS: Final = re.compile(
    rf"\b(?:press|dial|push)(?: the)?(?: number| key| button| option)? {_KEY}\b"
    r"|\b(?:main menu|menu options|following options|following menu)\b"
    r"|\boptions (?:have|has) (?:recently )?changed\b"
    r"|\byour call is (?:very )?important\b"
    r"|\bcalls? (?:may|might|will|is|are)(?: be)?(?: being)? (?:recorded|monitored)\b"
    r"|\b(?:agents|representatives|operators|associates|lines) are (?:currently |all )?busy\b"
    r"|\bparty'?s extension\b|\bfollowed by the (?:star|pound|hash)\b"
)
_WAITS: Final = re.compile(
    r"\bplease (?:hold|wait|stay)\b|\b(?:stay|remain) on the line\b|\bnext available\b"
)
_MAILBOX: Final = re.compile(r"\b(?:after|at) the (?:tone|beep)\b|(?<!re )\brecord your message\b")
_NOBODY: Final = re.compile(
    r"\bleave (?:me |us )?(?:a|your)\b.{0,20}\bmessage\b"
    r"|\b(?:is|am|are) (?:not available|unavailable)\b"
    r"|\b(?:can't|cannot|can not) (?:come to|get to|take|answer)\b"
)


def answering(words: str, *, is_monologue: bool) -> Answering | None:
    """What an utterance shows, from its beginning up to where it is understood; None: nothing."""
    spelled = words.casefold().replace("’", "'").replace("#", " pound ").replace("*", " star ")
    plain = " ".join(re.sub(r"[^\w']+", " ", spelled).split())
    if _MAILBOX.search(plain):
        return "mailbox"
    if _NOBODY.search(plain):
        return None
    if _ASKS.search(plain) or (is_monologue and _WAITS.search(plain)):
        return "menu"
    return None
