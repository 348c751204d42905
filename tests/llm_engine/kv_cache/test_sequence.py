"""Common prefix of two token lists."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.kv_cache.kv_cache import common_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=8)


@given(st.sampled_from([0, 250, 256, 600]), IDS, IDS)
def test_the_common_prefix_is_common_and_longest(
    num_alike: int, first: list[int], second: list[int]
) -> None:
    first, second = [3] * num_alike + first, [3] * num_alike + second
    num = common_prefix_length(first, tuple(second))
    assert num >= num_alike
    assert first[:num] == second[:num]
    assert num == min(len(first), len(second)) or first[num] != second[num]
