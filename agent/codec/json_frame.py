"""JSON frame codec: one text frame to one JSON object, within limits.

Everything a hostile or broken peer can do to a JSON parser is refused here, so that nothing behind
this file meets it: frames too long to be honest, of too many values, nesting, numbers that are long
or not finite, and lone surrogates, which no tokenizer or UTF-8 encoder takes.
"""

import json
import math
from typing import Any, Final, NoReturn

from agent.errors import ClientError

MAX_FRAME_BYTES: Final = 4 << 20
"""65 s of 24 kHz PCM. Lower breaks clients that append a whole recording at once; higher lets one
frame hold a call's memory."""
MAX_MARKS: Final = 1 << 17
"""Brackets and commas in a frame, those in its texts included: each may begin a value, which costs
the parser and every other call's audio half a microsecond. A frame of 4 MiB could hold 1.4 million,
more than a second. This many stand in no tool list, and the longest text has no more characters."""
MAX_DEPTH: Final = 64
"""Parameters of real tools nest about 20 deep."""
MAX_NUMBER_CHARS: Final = 40
"""Characters of a number with a fraction or an exponent. A double that is written to be read back
has 25 at most (Python, JavaScript). More than 40 digits are compared exactly, in integers of a
thousand bits: a frame of such numbers took 0.25 s, one of shorter ones takes 0.1 s (2 cores of a
server, `json.loads` of 4 MiB)."""


def read_frame(frame: str | bytes, max_marks: int = MAX_MARKS) -> dict[str, Any]:
    """The object in a frame of at most `max_marks` brackets and commas. Raises ClientError saying
    what is wrong with it."""
    if len(frame) > MAX_FRAME_BYTES:
        raise _invalid(f"A frame holds at most {MAX_FRAME_BYTES} bytes; this one has {len(frame)}.")
    try:
        text = frame.decode() if isinstance(frame, bytes) else frame
        _check_marks(text, max_marks)
        value = json.loads(text, parse_constant=_not_a_number, parse_float=_finite)
    except UnicodeDecodeError:
        raise _invalid("Frames are JSON in UTF-8; this one is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"This frame is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # an integer of thousands of digits
        raise _invalid(f"This frame has a number that can't be read: {error}") from None
    if not isinstance(value, dict):
        raise _invalid('A frame is one JSON object with a "type".')
    _check_tree(value)
    return value


def num_marks(text: str | bytes) -> int:
    """Brackets that open something, and commas: no more values than these, and one, are in it."""
    if isinstance(text, str):
        return sum(map(text.count, ",[{"))
    return sum(map(text.count, (b",", b"[", b"{")))


def _check_marks(text: str, max_marks: int) -> None:
    marks = num_marks(text)
    if marks > max_marks:
        raise _invalid(
            f"This frame has {marks} brackets and commas; at most {max_marks} are taken."
        )


def _check_tree(root: object) -> None:
    """Without recursion: the depth is what is being checked."""
    level: list[Any] = [root]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.keys())
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, str) and not _is_unicode(value):
                raise _invalid("A string in this frame has half of a surrogate pair.")
        level = below


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_float(digits: str) -> float:
    """The number that is written so, with a fraction or an exponent. Raises ValueError."""
    if len(digits) > MAX_NUMBER_CHARS:
        raise ValueError(
            f"the number {digits[:20]}... has {len(digits)} characters; "
            f"at most {MAX_NUMBER_CHARS} are taken"
        )
    return float(digits)


def _finite(digits: str) -> float:
    number = read_float(digits)
    if not math.isfinite(number):
        raise _invalid(f"The number {digits[:20]} is too large.")
    return number


def _not_a_number(name: str) -> NoReturn:
    raise _invalid(f"{name} is not JSON.")


def _too_deep() -> ClientError:
    return _invalid(f"This frame nests deeper than {MAX_DEPTH} levels.")


def _invalid(message: str) -> ClientError:
    return ClientError(message, code="invalid_event")
