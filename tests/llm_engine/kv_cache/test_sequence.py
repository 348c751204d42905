"""Common prefix of two token lists."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.kv_cache.kv_cache import common_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=8)


@given(IDS, IDS)
def test_the_common_prefix_is_common_and_longest(first: list[int], second: list[int]) -> None:
    num = common_prefix_length(first, second)
    assert first[:num] == second[:num]
    assert num == min(len(first), len(second)) or first[num] != second[num]
