"""What a cache can give to a new prompt."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.sequence import CachedSequence, SequenceId, common_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=8)


@given(IDS, IDS)
def test_the_common_prefix_is_common_and_longest(first: list[int], second: list[int]) -> None:
    num = common_prefix_length(first, second)
    assert first[:num] == second[:num]
    assert num == min(len(first), len(second)) or first[num] != second[num]


@given(IDS, IDS.filter(bool), st.booleans())
def test_reuse_keeps_only_what_fits(held: list[int], prompt: list[int], is_open: bool) -> None:
    sequence = CachedSequence(SequenceId(1), 0, list(held))
    num = sequence.reuse(prompt, keep_last_open=is_open)
    assert sequence.token_ids == prompt[:num] == held[:num]
    assert num <= len(prompt) - is_open
