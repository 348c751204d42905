"""Memory plan of the GPU: known models, and those that do not fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.config import ModelConfig
from llm_engine.cuda.memory import (
    BFLOAT16,
    FP8,
    MATRICES,
    Int4Storage,
    MemoryBudget,
    Storage,
    plan_memory,
    rope_bytes,
    token_bytes,
    weight_bytes,
)
from llm_engine.errors import ModelError

GIB = 1 << 30
LLAMA_8B = ModelConfig(
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    context_length=131072,
    norm_eps=1e-5,
    rope_theta=500000.0,
)
LLAMA_70B = replace(
    LLAMA_8B, num_layers=80, hidden_size=8192, intermediate_size=28672, num_heads=64
)
H200 = MemoryBudget(139 * GIB, page_size=16, context_length=8192, cache_bytes=4 * GIB)


def test_an_8b_model_has_the_published_number_of_parameters() -> None:
    # 8.03e9, of which 266,240 are norms; those are float32 here.
    assert weight_bytes(LLAMA_8B, BFLOAT16) == 2 * 8_030_261_248 + 2 * 266_240
    # 70,553,706,496, of which 8192 * (2 * 80 + 1) are norms.
    assert weight_bytes(LLAMA_70B, BFLOAT16) == 2 * 70_553_706_496 + 2 * 8192 * 161


def test_8_bits_are_one_byte_and_scales() -> None:
    norms, table = 266_240, 128256 * 4096
    numbers = 8_030_261_248 - norms - table
    rows = 32 * (6144 + 4096 + 28672 + 4096) + 128256
    by_block = replace(FP8, scale_block=(128, 128))
    assert weight_bytes(LLAMA_8B, FP8) == numbers + 4 * rows + 2 * table + 4 * norms
    assert weight_bytes(LLAMA_8B, by_block) == numbers + numbers // 4096 + 2 * table + 4 * norms


def test_4_bits_are_half_a_byte_and_what_groups_share() -> None:
    norms, table = 266_240, 128256 * 4096
    numbers = 8_030_261_248 - norms - 2 * table
    layers = (frozenset(MATRICES),) * 32
    for group, group_bytes in ((128, 4), (32, 2)):
        int4 = Int4Storage(layers, group=group, group_bytes=group_bytes)
        expected = numbers // 2 + numbers // group * group_bytes + 4 * table + 4 * norms
        assert weight_bytes(LLAMA_8B, Storage(int4=int4)) == expected
        with_head = replace(int4, has_head=True)
        expected += table // 2 + table // group * group_bytes - 2 * table
        assert weight_bytes(LLAMA_8B, Storage(int4=with_head)) == expected


def test_what_is_not_in_4_bits_is_counted_as_it_is() -> None:
    some = Int4Storage((frozenset({"gate_up"}),) * 32, group=32)
    fours, eights = 32 * 28672 * 4096, weight_bytes(LLAMA_8B, FP8)
    scales = 32 * 28672 * 4
    saved = fours - fours // 2 - fours // 32 * 4 + scales
    assert weight_bytes(LLAMA_8B, replace(FP8, int4=some)) == eights - saved


def test_columns_that_fill_no_unit_are_counted_as_stored() -> None:
    # 4864 + 32 columns: of groups of 32, a unit has 64.
    assert Int4Storage((), group=32).matrix_bytes(2, 4896) == 2 * (4928 // 2 + 154 * 4)
    assert Int4Storage((), group=128).matrix_bytes(2, 100) == 2 * (64 + 4)


def test_4_bits_are_not_told_to_choose_8() -> None:
    storage = replace(BFLOAT16, int4=Int4Storage((frozenset(MATRICES),) * 80))
    with pytest.raises(ModelError) as error:
        plan_memory(LLAMA_70B, storage, replace(H200, free_bytes=30 * GIB))
    assert "(int4 weights, bfloat16 cache) does not fit" in str(error.value)
    assert "precision fp8" not in str(error.value)


def test_scales_of_ragged_blocks_are_counted() -> None:
    ragged = replace(LLAMA_8B, vocab_size=129, num_layers=0)
    blocks = replace(FP8, scale_block=(128, 128))
    assert weight_bytes(ragged, blocks) == 129 * 4096 * 3 + 2 * 32 * 4 + 4 * 4096


def test_a_token_of_8b_takes_128_kib() -> None:
    assert token_bytes(LLAMA_8B, BFLOAT16) == 128 << 10
    assert token_bytes(LLAMA_8B, replace(BFLOAT16, kv=1)) == 64 << 10


def test_biases_and_norms_of_heads_are_counted() -> None:
    plain = weight_bytes(LLAMA_8B, BFLOAT16)
    qwen2 = weight_bytes(replace(LLAMA_8B, architecture="qwen2"), BFLOAT16)
    qwen3 = weight_bytes(replace(LLAMA_8B, architecture="qwen3"), BFLOAT16)
    assert qwen2 - plain == 32 * 6144 * 4
    assert qwen3 - plain == 32 * 256 * 4


def test_what_fits_is_divided_and_within_what_is_free() -> None:
    plan = plan_memory(LLAMA_8B, FP8, H200)
    assert plan.cache == 4 * GIB == plan.num_pages * 16 * (128 << 10)
    assert plan.weights == weight_bytes(LLAMA_8B, FP8) + rope_bytes(LLAMA_8B, 8192)
    assert plan.total <= H200.free_bytes


def test_without_a_setting_the_cache_takes_the_rest() -> None:
    plan = plan_memory(LLAMA_8B, FP8, replace(H200, cache_bytes=None))
    assert 0 <= H200.free_bytes - plan.total < plan.page


def test_70b_in_bfloat16_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ModelError) as error:
        plan_memory(LLAMA_70B, BFLOAT16, replace(H200, free_bytes=130 * GIB), name="llama-70b")
    text = str(error.value)
    numbers = [float(one) for one in re.findall(r"\d+\.\d+", text)]
    weights, cache, workspace, graphs, free = numbers[:5]
    assert weights == pytest.approx(131.4, abs=0.1)
    assert (cache, free) == (4.0, 130.0)
    assert weights + cache + workspace + graphs > free
    assert text.startswith("llama-70b (bfloat16 weights, bfloat16 cache) does not fit: weights")
    assert "precision fp8 (weights 66." in text
    assert "lower kv_cache_mb" not in text, "no cache is small enough"
    assert "in FP8 or" not in text, "nor do smaller keys and values help"


def test_oversized_cache_error_names_the_maximum() -> None:
    room = replace(H200, free_bytes=24 * GIB, cache_bytes=20 * GIB)
    with pytest.raises(ModelError) as error:
        plan_memory(LLAMA_8B, FP8, room)
    found = re.search(r"lower kv_cache_mb to (\d+)", str(error.value))
    assert found is not None
    megabytes = int(found[1])
    plan_memory(LLAMA_8B, FP8, replace(room, cache_bytes=megabytes << 20))
    with pytest.raises(ModelError):
        plan_memory(LLAMA_8B, FP8, replace(room, cache_bytes=megabytes + 3 << 20))


def test_what_is_to_be_freed_is_enough() -> None:
    room = replace(H200, free_bytes=1 * GIB)
    with pytest.raises(ModelError) as error:
        plan_memory(LLAMA_8B, FP8, room)
    found = re.search(r"free (\d+\.\d+) GiB of the GPU", str(error.value))
    assert found is not None
    more = int((float(found[1]) + 0.01) * GIB)
    plan_memory(LLAMA_8B, FP8, replace(room, free_bytes=room.free_bytes + more))


def test_a_cache_without_a_single_page_is_refused() -> None:
    page_mb = 2
    with pytest.raises(ModelError, match=f"raise kv_cache_mb to {page_mb} or more"):
        plan_memory(LLAMA_8B, FP8, replace(H200, cache_bytes=(page_mb << 20) - 1))
    assert plan_memory(LLAMA_8B, FP8, replace(H200, cache_bytes=page_mb << 20)).num_pages == 1


@given(free=st.integers(1, 200 * GIB), cache=st.none() | st.integers(1, 200 * GIB))
def test_no_plan_is_larger_than_what_is_free(free: int, cache: int | None) -> None:
    room = replace(H200, free_bytes=free, cache_bytes=cache)
    try:
        plan = plan_memory(LLAMA_8B, FP8, room)
    except ModelError:
        return
    assert plan.num_pages >= 1
    assert plan.total <= free
    assert cache is None or plan.cache <= cache
