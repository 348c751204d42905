"""Fuzz target: what one input does, where inputs begin, and how one is made from another."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Change = Callable[[bytes, random.Random], bytes | None]
"""Makes an input from another by its grammar; None: it is to be changed as bytes."""

INTERESTING: Final = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"),
    *(b"\x00" * 8, b"\xff" * 8, b"\n", b"\r\n", b"0", b"-1", b"9" * 20, b'"', b"{", b"[" * 40),
)
"""Bytes at which readers stumble: bounds of integers, ends of lines, brackets."""

MAX_MESSAGE_CHARS: Final = 1000
"""Longest message of a refusal: it goes into a log."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign bytes."""

    examine: Callable[[bytes], None]
    """Reads one input by the product's own entry point. Returns where the input was read or refused
    as documented; everything else that it raises is a finding."""
    seeds: Callable[[], Sequence[bytes]]
    """Valid inputs to begin with. Made at each start, so that they follow the product."""
    change: Change = lambda data, chance: None
    words: Sequence[bytes] = ()
    """Names and values of the format, to be put into inputs."""
    max_bytes: int = 2048
    """Longest input. Longer ones take longer and reach little more."""

    def changed(self, data: bytes, chance: random.Random) -> bytes:
        """Another input, made without libFuzzer: the same for the same `chance` everywhere."""
        by_grammar = self.change(data, chance)
        if by_grammar is None:
            by_grammar = changed_bytes(data, chance, self.words)
        return by_grammar[: self.max_bytes]


def changed_bytes(data: bytes, chance: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """The input with one to four places changed."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice((1, 1, 2, 4, 8, 30)))
        match chance.randrange(6):
            case 0:
                changed[at:end] = b""
            case 1:
                changed[at:at] = changed[at:end] * chance.choice((1, 2, 20))
            case 2 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 3 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 4 if words:
                changed[at : end if chance.random() < 0.5 else at] = chance.choice(words)
            case _:
                changed[at:end] = chance.choice(INTERESTING)
    return bytes(changed)


ODD: Final[Sequence[Any]] = (
    *(None, True, False, 0, -1, 1, 2, 7, 1e308, -0.0, 0.5, 2**31, 2**63, 2**64, 10**12, 10**400),
    *("", "root", "auto", "none", "inf", "\x00", "\ud800", "<|im_end|>", "é" * 70, "x" * 600),
    *([], {}, [[]], [None], {"": None}, float("nan"), float("inf")),
)
"""Values that a field seldom has."""


class JsonGrammar:
    """Changes JSON objects: removes, renames, moves and replaces values of any depth."""

    def __init__(self, samples: Sequence[dict[str, Any]], odd: Sequence[Any] = ODD) -> None:
        """`samples`: valid objects, whose names and values are put into others."""
        self.samples: Final = samples
        self.names: Final = sorted(_names_in(samples))
        self._values: Final = [*odd, *_values_in(samples)]

    def change(self, value: Any, chance: random.Random) -> None:
        """Change an object or list, or one inside it, in place."""
        inside = value
        while chance.random() < 0.7:
            values = list(inside.values() if isinstance(inside, dict) else inside)
            deeper = [each for each in values if isinstance(each, dict | list) and each]
            if not deeper:
                break
            inside = chance.choice(deeper)
        keys = list(inside if isinstance(inside, dict) else range(len(inside)))
        if not keys:
            return
        key = chance.choice(keys)
        what = chance.random()
        if what < 0.15:
            del inside[key]
        elif what < 0.3 and isinstance(inside, dict):
            inside[chance.choice(self.names)] = inside[key]
        elif what < 0.4 and isinstance(inside, list):
            inside.insert(key, inside[key])
        else:
            inside[key] = copy.deepcopy(chance.choice(self._values))

    def change_text(self, text: bytes, chance: random.Random) -> bytes | None:
        """Change JSON of an object; None for what is none."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        self.change(value, chance)
        return json.dumps(value).encode()

    def change_lines(self, data: bytes, chance: random.Random, max_lines: int) -> bytes | None:
        """Change one line of JSON behind a first byte, or add one; most often, else None."""
        lines = data[1:].split(b"\n")
        at = chance.randrange(len(lines))
        what = chance.random()
        if what < 0.3:
            return None
        if not lines[at]:
            lines[at] = self._sample(chance)
        elif what < 0.45 and len(lines) < max_lines:
            lines.insert(at, self._sample(chance))
        else:
            changed = self.change_text(lines[at], chance)
            if changed is None:
                return None
            lines[at] = changed
        first = bytes([chance.randrange(256)]) if chance.random() < 0.1 else data[:1]
        return first + b"\n".join(lines)

    def _sample(self, chance: random.Random) -> bytes:
        return json.dumps(chance.choice(self.samples)).encode()


def _names_in(value: Any) -> set[str]:
    found: set[str] = set(value) if isinstance(value, dict) else set()
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list | tuple):
            found |= _names_in(inner)
    return found


def _values_in(value: Any) -> list[Any]:
    found: list[Any] = []
    for inner in value.values() if isinstance(value, dict) else value:
        found.append(inner)
        if isinstance(inner, dict | list | tuple):
            found += _values_in(inner)
    return found
