"""What somebody may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """ " Did you mean X?", to put behind a message; empty where nothing is close."""
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""
