"""The interpreter's table of interned strings, told apart from what a subsystem keeps. Pure.

CPython keeps the strings that it interns (names, keys of JSON objects, parts of paths) in one dict.
An entry of a string that is gone is not used again, so that the dict is made anew whenever its
entries are used up: after an hour of calls, once, as one block. The heap has that block in the
subsystem whose line happens to intern a string then; in three soaks of two hours it was numpy, the
recognizer and pathlib, each time with the 3,844,800 bytes that a dict of strings with 2^18 places
has. The strings themselves stay in the subsystems that made them: what leaks them is found there.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from .samples import Sample


def table_bytes(log2_places: int) -> int:
    """Bytes of a dict whose keys are all strings (Objects/dictobject.c, CPython 3.11 to 3.14): its
    head, an index of 32 bits for each place, and an entry of two pointers for two of three."""
    places = 1 << log2_places
    return 32 + 4 * places + 16 * (2 * places // 3)


TABLES: Final = frozenset(table_bytes(log2_places) for log2_places in range(16, 25))
"""Sizes that the table can have in a server: 65 thousand to 17 million places."""


def set_apart(samples: Iterable[Sample]) -> list[Sample]:
    """The samples without the table: a block of exactly its size leaves the subsystem that grew
    most when it was first seen."""
    found: list[Sample] = []
    owners: dict[str, str] = {}
    before: dict[str, int] = {}
    for sample in samples:
        heap = dict(sample.heap)
        for line, size in sample.large.items():
            if heap and size in TABLES:
                owner = owners.setdefault(line, _that_grew_most(heap, before))
                heap[owner] = heap.get(owner, 0) - size
        before = heap or before
        values = dict(sample.values)
        if heap:
            values["heap_mb"] = sum(heap.values()) / (1 << 20)
        found.append(replace(sample, values=values, heap=heap))
    return found


def _that_grew_most(heap: dict[str, int], before: dict[str, int]) -> str:
    return max(heap, key=lambda name: heap[name] - before.get(name, 0))
