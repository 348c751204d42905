"""Roman numerals up to 39, as they stand behind names of rulers, chapters and centuries."""

import re
from typing import Final

NUMERAL: Final = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?!\w)"
"""A numeral, as a regular expression of a whole word."""

_VALUES: Final = {"I": 1, "V": 5, "X": 10}


def value_of(numeral: str) -> int:
    """`"XIV"` -> 14. For what `NUMERAL` matches."""
    values = [_VALUES[letter] for letter in numeral]
    return sum(
        -value if value < following else value
        for value, following in zip(values, [*values[1:], 0], strict=True)
    )


def is_initial(match: re.Match[str]) -> bool:
    """True where one letter, the group `r`, may be the initial of a surname: "Peter V. says"."""
    return len(match["r"]) == 1 and match.string.startswith(".", match.end("r"))
