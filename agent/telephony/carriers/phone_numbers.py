"""Telephone numbers: the shortened form that is stored and logged.

Numbers are personal data: unless the settings ask for more, only the last two digits are kept,
which distinguish two calls and identify no person.
"""

import re
from typing import Final

KEPT_DIGITS: Final = 2

_NUMBER: Final = re.compile(r"\+?[0-9](?:[ ()/.\-]{0,2}[0-9]){6,16}")
"""A telephone number in any notation."""


def shown_number(number: str, *, whole: bool) -> str:
    """A number's form for storage and logs. `whole`: unchanged."""
    if whole or not number:
        return number
    digits = [each for each in number if each.isdigit()]
    return f"...{''.join(digits[-KEPT_DIGITS:])}"


def shown_numbers(text: str, *, whole: bool) -> str:
    """A foreign text's form for logs: with each number shortened as by `shown_number`."""
    return text if whole else _NUMBER.sub(lambda found: shown_number(found[0], whole=False), text)
