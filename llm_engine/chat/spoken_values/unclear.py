"""Words that name values in a way that is not understood. Each makes a kind of values unclear.

A word too many costs an argument its narrowing, and a word too few forces a wrong value. What is
not understood of a single value ("not on Monday", "two more") is marked where that value is read.
"""

import re
from typing import Final

from .message import MessageWords
from .numbers import COUPLE

_VAGUE_DATES: Final = re.compile(
    r"\b(?:(?:next|last|this|past|previous|following|coming|current|every|each|same|other)"
    r" (?:\w+ )?(?:weeks?|months?|years?|days?|nights?|quarter)\b"
    r"|(?:end|middle|beginning|start|rest) of (?:\w+ ){0,2}(?:week|month|year|day)\b"
    r"|(?:in|within) (?:\w+ ){1,3}(?:months?|years?)\b|within (?:\w+ ){1,3}(?:days?|weeks?)\b"
    r"|in (?:\w+ ){2,4}(?:days?|weeks?)\b|(?:back|forward|up) (?:\w+ ){1,3}(?:days?|weeks?)\b"
    r"|weekends?\b|weekdays?\b|daily\b|new year|boxing day"
    r"|christmas|xmas|easter\b|thanksgiving|halloween|valentine|ramadan"
    r"|(?:on|by|until|before|after) (?:\w+ ){1,2}(?:birthday|holidays?|anniversary|wedding)\b"
    r"|\d{1,2}/\d{1,2}(?!\d)|\d{1,2}\.\d{1,2}\.(?=\s*(?:\d|at\b)))"
)
_VAGUE_TIMES: Final = re.compile(
    r"\b(?:hours?|minutes?|mins?|while|bit|little|shortly|soon|right|just|much)"
    r" (?:before|after|from|later|earlier|sooner|ago)\b"
    r"|\b(?:back|forward|up) (?:by )?(?:\w+ ){1,3}(?:hours?|minutes?|mins?)\b"
    r"|\bin (?:\w+ ){1,4}(?:hours?|minutes?|mins?)\b"
    r"|\b(?:first thing|lunch ?time|dinner ?time|sunrise|sunset|dawn|dusk|as soon as|asap"
    r"|end of the day|closing time|opening time)\b"
)
_VAGUE_NUMBERS: Final = re.compile(
    r"\b(?:few|several|some|many) (?:hundred|thousand|million|dozen)\b"
    r"|\b(?:dozens|hundreds|thousands|millions)\b"
    r"|\b(?:twice|double|triple) (?:it|that|this|the|as|my)\b"
    r"|\d/\d|\d,\d\d?(?!\d)|[¼½¾]"
    r"|\b(?:a|one|two|three) (?:thirds?|fourths?|fifths?|tenths?)\b"
)
_COMPANIONS: Final = re.compile(
    r"\b(?:wife|husband|partner|girlfriend|boyfriend|baby|toddler|infant|mother|mum|mom|father|dad|son"
    r"|daughter|child|kid)\b,? (?:and|plus|with|me|myself|i)\b"
    r"|\b(?:and|plus|with) (?:a|my|our|her|his|the) (?:small |little )?(?:wife|husband|partner"
    r"|girlfriend|boyfriend|baby|toddler|infant|mother|mum|mom|father|dad|son|daughter|child|kid)\b"
)
"""People beside a number: whether it counts them is not said."""
_SPELLED: Final = re.compile(
    r"(?<![\w'’])(?!(?:A|I|O|AM|PM|US|UK|EU|OK|ID|TV|PIN|NO|MR|DR|ST)\b)[A-Z]{1,3}[ -]\d"
    r"|\d[ -](?!(?:A|I|O|AM|PM|US|EUR|USD|GBP)\b)[A-Z]{1,3}(?![\w'’])"
    r"|(?<![\w'’])[b-hj-np-zB-HJ-NP-Z] (?:[A-Za-z] )?"
    r"(?:\d|(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)\b)"
    r"|\b(?!\d+(?:st|nd|rd|th|am|pm)\b)(?:\d+[A-Za-z]|[A-Za-z]+\d)\w* \w?\w?\d"
)
"""Letters beside digits: one code of several words."""


def mark_unclear(message: MessageWords) -> None:
    """Add the kinds of values that a message names in words that are not understood; the readings
    of its values come first."""
    text, unclear = message.text, message.unclear
    if _VAGUE_DATES.search(text):
        unclear |= {"dates", "weekdays"}
    if _VAGUE_TIMES.search(text):
        unclear.add("times")
    others, num_couples = COUPLE.subn(" ", text)
    if (message.groups or num_couples) and _COMPANIONS.search(others):
        unclear.add("numbers")
    if _VAGUE_NUMBERS.search(text):
        unclear.add("numbers")
    if message.groups and message.raw != message.raw.upper() and _SPELLED.search(message.raw):
        unclear.add("digits")
    for group in message.groups:
        message.understood.update(range(group.first, group.end))
    for index, word in enumerate(message.words):
        if word in ("half", "quarter", "quarters") and index not in message.understood:
            unclear.add("numbers")
    for first, last in message.corrected.items():
        if first not in message.used and last.first in message.in_times:
            unclear.add("times")
        elif first not in message.used and last.first in message.used:
            unclear |= {"dates", "weekdays"}
