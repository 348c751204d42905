"""Reference operations against the formulas, element by element in float64."""

import math

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.ops.interface import Heads, Norm
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from tests.support.llm.cuda_ops_cases import (
    BLOCK_SCALES,
    FLOAT32,
    FP8,
    ROW_SCALES,
    Kind,
    Maker,
    poisoned,
)
from tests.support.llm.int4_cases import not_int4

CPU = torch.device("cpu")
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=8)
ops = ReferenceOps()


def normalized(x: Tensor, norm: Norm) -> Tensor:
    root = math.sqrt(sum(float(v) ** 2 for v in x) / len(x) + norm.eps)
    return x.double() / root * norm.weight.double()


def turned(x: Tensor, position: int) -> Tensor:
    half = len(x) // 2
    angle = [position * 100 ** -(i / (half - 1)) for i in range(half)]
    pairs = [complex(float(x[i]), float(x[half + i])) for i in range(half)]
    result = [
        pair * complex(math.cos(a), math.sin(a)) for pair, a in zip(pairs, angle, strict=True)
    ]
    return torch.tensor([z.real for z in result] + [z.imag for z in result], dtype=torch.float64)


@pytest.mark.parametrize("kind", [ROW_SCALES, BLOCK_SCALES], ids=lambda kind: kind.name)
def test_a_weight_is_its_value_times_its_blocks_scale(kind: Kind) -> None:
    weight = Maker(1, CPU).matrix(130, 140, kind)
    assert weight.scales is not None
    x = torch.zeros(1, 140)
    for row, column in ((0, 0), (127, 127), (128, 127), (127, 128), (129, 139)):
        x.zero_()[0, column] = 1
        out = torch.zeros(1, 130)
        ops.add_product(x, weight, out)
        rows, columns = kind.block or (0, 0)
        scale = weight.scales[row // rows, column // (columns or 140)]
        assert out[0, row] == weight.values[row, column].float() * scale


def test_products() -> None:
    maker = Maker(2, CPU)
    norm, weight = maker.norm(24), maker.matrix(20, 24, FLOAT32, bias=True)
    assert weight.bias is not None
    x = maker.normal(2, 24)
    normed = torch.stack([normalized(row, norm) for row in x])
    expected = normed @ weight.values.T.double() + weight.bias.double()
    scores, gated = torch.empty(2, 20), torch.empty(2, 10)
    ops.logits(x, norm, weight, scores)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
    ops.gate_up(x, norm, weight, gated)
    gate, up = expected[:, :10], expected[:, 10:]
    should_be = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(gated.double(), should_be, rtol=1e-5, atol=1e-5)
    residual = maker.normal(2, 20)
    summed = residual.double() + x.double() @ weight.values.T.double() + weight.bias.double()
    ops.add_product(x, weight, residual)
    torch.testing.assert_close(residual.double(), summed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_copies", [1, 5], ids=["a few rows", "a prompt"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_queries_and_attention(qk_norm: bool, window: int | None, num_copies: int) -> None:
    maker = Maker(3, CPU)
    layer = maker.attention(12, HEADS, FLOAT32, window=window, qk_norm=qk_norm, bias=True)
    assert layer.qkv.bias is not None
    pages = maker.pages(HEADS, 12, 4, torch.float32)
    x = maker.normal(2, 12)
    rows = maker.rows([[9, 10]] * num_copies, 4, 50)
    rows.tables[:] = torch.tensor([7, 2, 11] + [12] * (rows.tables.shape[1] - 3))
    maker.fill(pages, rows)
    out = poisoned(2 * num_copies, 4, 8, dtype=torch.float32, device=CPU)
    queries = torch.empty_like(out)
    ops.queries(x.repeat(num_copies, 1), layer, maker.rope(8), rows, pages, queries)
    ops.attend(queries, layer, rows, pages, out)

    keys, values = pages.keys.double(), pages.values.double()
    for row, position in enumerate((9, 10)):
        product = not_int4(layer.qkv).values.double() @ normalized(x[row], layer.norm)
        parts = (product + layer.qkv.bias).view(8, 8)
        for head in range(4):
            query = parts[head] if layer.q_norm is None else normalized(parts[head], layer.q_norm)
            query = turned(query, position)
            torch.testing.assert_close(queries[row, head].double(), query, rtol=1e-5, atol=1e-5)
            page, slot = divmod(position, 4)
            kv_head = head // 2
            key = parts[4 + kv_head]
            key = turned(key if layer.k_norm is None else normalized(key, layer.k_norm), position)
            stored = keys[[7, 2, 11][page], kv_head, slot]
            torch.testing.assert_close(stored, key, rtol=1e-5, atol=1e-5)
            stored = values[[7, 2, 11][page], kv_head, slot]
            torch.testing.assert_close(stored, parts[6 + kv_head], rtol=1e-5, atol=1e-5)

            seen = [p for p in range(position + 1) if window is None or p > position - window]
            spots = [([7, 2, 11][p // 4], kv_head, p % 4) for p in seen]
            scores = [float(query @ keys[spot]) / math.sqrt(8) for spot in spots]
            weights = [math.exp(score) for score in scores]
            mixed = sum(w * values[s] for w, s in zip(weights, spots, strict=True)) / sum(weights)
            for copy in range(num_copies):
                result = out[2 * copy + row, head].double()
                torch.testing.assert_close(result, mixed, rtol=1e-5, atol=1e-5)


def test_rows_that_only_fill_up_store_nothing_and_are_finite() -> None:
    maker = Maker(4, CPU)
    layer = maker.attention(12, HEADS, FLOAT32)
    rows = maker.rows([[2, -1], [-1, -1]], 4, 12)
    pages = maker.pages(HEADS, 12, 4, FP8)
    maker.fill(pages, rows)
    x, out = maker.normal(4, 12), poisoned(4, 4, 8, dtype=torch.float32, device=CPU)
    queries = out.clone()
    ops.queries(x, layer, maker.rope(8), rows, pages, queries)
    ops.attend(queries, layer, rows, pages, out)
    assert queries.isfinite().all()
    assert out.isfinite().all()
    written = (~pages.keys.float().isnan()).any(dim=3).any(dim=1)
    assert written.sum() == 3  # the positions up to the one row's
