"""The interpreter's table of interned strings in the heap of a soak."""

import sys

import pytest

from benchmarks.soak.interned_strings import set_apart, table_bytes
from benchmarks.soak.samples import Sample

MIB = 1 << 20
TABLE = table_bytes(18)


@pytest.mark.parametrize("log2_places", [16, 17, 18])
def test_the_size_is_that_of_a_dict_of_strings(log2_places: int) -> None:
    table: dict[str, None] = {}
    num_entries = 2 * (1 << log2_places) // 3
    for number in range(num_entries):
        table[str(number)] = None
    while sys.getsizeof(table) - sys.getsizeof({}) != table_bytes(log2_places):
        assert len(table) < 2 * num_entries, "no size of the dict was that one"
        table[f"more {len(table)}"] = None


def test_the_table_leaves_the_subsystem_whose_line_made_it() -> None:
    heaps = [
        {"python": 7 * MIB, "tts": 5 * MIB},
        {},
        {"python": 7 * MIB + TABLE, "tts": 6 * MIB},
        {"python": 8 * MIB + TABLE, "tts": 9 * MIB},
    ]
    larges = [{}, {}, {"pathlib.py:71": TABLE, "voice.py:3": MIB}, {"pathlib.py:71": TABLE}]
    samples = [
        Sample(60.0 * number, 1, {"rss_mb": 900.0}, heap, large)
        for number, (heap, large) in enumerate(zip(heaps, larges, strict=True))
    ]
    found = set_apart(samples)
    python = [sample.heap.get("python") for sample in found]
    assert python == [7 * MIB, None, 7 * MIB, 8 * MIB]
    assert [sample.values.get("heap_mb") for sample in found] == [12.0, None, 13.0, 17.0]
    assert all(sample.values["rss_mb"] == 900.0 for sample in found)


def test_a_block_of_another_size_stays() -> None:
    heap, large = {"numpy": 4 * MIB}, {"log_mel.py:34": TABLE + 16}
    assert set_apart([Sample(0.0, 1, {}, heap, large)])[0].heap == heap
