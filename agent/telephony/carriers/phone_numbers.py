"""Telephone numbers: the shortened form that is stored and logged.

They are personal data: where the settings do not ask for them, only the last two digits are kept,
which tell two calls apart and nobody from anybody else.
"""

import re
from typing import Final

KEPT_DIGITS: Final = 2

_NUMBER: Final = re.compile(r"\+?[0-9](?:[ ()/.\-]{0,2}[0-9]){6,16}")
"""A telephone number, however it is written."""


def shown_number(number: str, *, whole: bool) -> str:
    """As it may be kept and logged. `whole`: as it is."""
    if whole or not number:
        return number
    digits = [each for each in number if each.isdigit()]
    return f"...{''.join(digits[-KEPT_DIGITS:])}"


def shown_numbers(text: str, *, whole: bool) -> str:
    """A text that somebody else wrote, as it may be logged: numbers in it as `shown_number` has
    them."""
    return text if whole else _NUMBER.sub(lambda found: shown_number(found[0], whole=False), text)
