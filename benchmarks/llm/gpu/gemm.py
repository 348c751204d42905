"""Bandwidth of each operation: bytes that it must read, divided by its time.

Operands rotate: the timed calls together use several times the L2 cache, as a step does, which
reads a layer again only after all the others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from llm_engine.cuda.backend import PAGE_SIZE
from llm_engine.cuda.memory import shapes
from llm_engine.cuda.model import DeviceLayer
from llm_engine.cuda.ops.interface import Int4Weight, LayerPages, Matrix, Ops, Rows

from .device_limits import read_bandwidth
from .figures import Figure
from .models import DeviceUnderTest, LoadedModel, Subject
from .timing import Call, call_us

NUM_ROWS: Final = (1, 4, 8)
CONTEXT: Final = 1024
"""Number of keys that attention reads."""
_CACHES: Final = 4
_Part = TypeVar("_Part")
_MATRICES: Final = ("qkv", "o", "gate_up", "down")
_FP8_ROWS: Final = 16
"""Least number of rows of cuBLAS's products of 8-bit floats."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Activations of rows, and their places in the cache."""

    hidden: Tensor
    heads: Tensor
    attended: Tensor
    inner: Tensor
    logits: Tensor
    rows: Rows
    pages: LayerPages


def operations(loaded: LoadedModel) -> Iterator[Figure]:
    """Bandwidth of our operations for M = 1, 4, 8 rows of one sequence. Attention is measured
    twice: as in the service, by FlashInfer where it is installed and fits, and by our own
    kernel."""
    limit = read_bandwidth(loaded.target) / 1e9
    ours = loaded.target.ops(flashinfer=False)
    for num_rows in NUM_ROWS:
        buffers = _buffers(loaded, num_rows)
        own = _attention(ours, loaded, buffers)
        own_name = f"attention over {CONTEXT} keys by our own kernel"
        for name, num_bytes, calls in (*_calls(loaded, buffers), (own_name, *own)):
            us = call_us(calls, loaded.target.device, repeats=loaded.target.repeats)
            yield _figure(f"{name}, M={num_rows}", num_bytes, us, limit)


def libraries(subject: Subject, target: DeviceUnderTest) -> Iterator[Figure]:
    """Bandwidth of the plain products of the same shapes, by cuBLAS in bfloat16 and in 8-bit
    floats."""
    limit = read_bandwidth(target) / 1e9
    config = subject.config
    sizes = [*zip(_MATRICES, shapes(config), strict=True)]
    sizes.append(("head", (config.vocab_size, config.hidden_size)))
    for name, (num_outputs, num_inputs) in sizes:
        for num_rows in NUM_ROWS:
            calls = _bfloat16_calls(target, num_rows, num_outputs, num_inputs)
            us = call_us(calls, target.device, repeats=target.repeats)
            label = f"cuBLAS bf16 {name}, M={num_rows}"
            yield _figure(label, 2 * num_outputs * num_inputs, us, limit)
        calls = _float8_calls(target, num_outputs, num_inputs)
        us = call_us(calls, target.device, repeats=target.repeats)
        label = f"_scaled_mm fp8 {name}, M=8 padded to {_FP8_ROWS}"
        yield _figure(label, num_outputs * num_inputs, us, limit)


def _figure(name: str, num_bytes: int, us: float, limit: float) -> Figure:
    note = f"{us:.2f} us for {num_bytes / 1e6:.2f} MB"
    return Figure(name, num_bytes / us / 1e3, "GB/s", limit=limit, is_rate=True, note=note)


def _calls(loaded: LoadedModel, own: _Buffers) -> Iterator[tuple[str, int, list[Call]]]:
    """Name, bytes, and calls of each operation; the calls differ in their operands."""
    ops, model = loaded.ops, loaded.model
    layers = _rotated(model.layers, _layer_bytes, loaded.target)
    first = layers[0]
    yield (
        "norm, QKV, rope, append",
        first.attention.qkv.num_bytes,
        [
            partial(
                ops.queries, own.hidden, each.attention, model.rope, own.rows, own.pages, own.heads
            )
            for each in layers
        ],
    )
    yield (f"attention over {CONTEXT} keys", *_attention(ops, loaded, own))
    yield (
        "O and residual",
        first.out.num_bytes,
        [partial(ops.add_product, own.attended.flatten(1), e.out, own.hidden) for e in layers],
    )
    yield (
        "norm, gate and up, SiLU",
        first.gate_up.num_bytes,
        [partial(ops.gate_up, own.hidden, e.mlp_norm, e.gate_up, own.inner) for e in layers],
    )
    yield (
        "down and residual",
        first.down.num_bytes,
        [partial(ops.add_product, own.inner, e.down, own.hidden) for e in layers],
    )
    heads = _rotated((model.head,), lambda head: head.num_bytes, loaded.target)
    yield (
        "norm and head",
        model.head.num_bytes,
        [partial(ops.logits, own.hidden, model.norm, each, own.logits) for each in heads],
    )


def _attention(ops: Ops, loaded: LoadedModel, own: _Buffers) -> tuple[int, list[Call]]:
    """Bytes and calls, each over other keys. The same rows in many layers, as in a step: work that
    a step does once for all layers is not repeated in every call."""
    attention = loaded.model.layers[0].attention
    num_bytes = CONTEXT * loaded.kv_bytes(1) // loaded.subject.config.num_layers
    return num_bytes, [
        partial(ops.attend, own.heads, replace(attention), own.rows, pages, own.attended)
        for pages in _elsewhere(own)
    ]


def _buffers(loaded: LoadedModel, num_rows: int) -> _Buffers:
    model, config = loaded.model, loaded.subject.config
    like, device = model.embedding.dtype, loaded.target.device

    def random(*shape: int) -> Tensor:
        return torch.randn(num_rows, *shape, device=device).to(like)

    num_pages = _num_page_sets(loaded) * (CONTEXT // PAGE_SIZE)
    shape = num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim
    keys, values = (torch.randn(shape, device=device).to(like) for _ in range(2))
    table = torch.arange(CONTEXT // PAGE_SIZE, dtype=torch.int32, device=device)
    end = torch.arange(CONTEXT - num_rows, CONTEXT, dtype=torch.int32, device=device)
    return _Buffers(
        hidden=random(config.hidden_size),
        heads=random(config.num_heads, config.head_dim),
        attended=random(config.num_heads, config.head_dim),
        inner=random(config.intermediate_size),
        logits=torch.empty(num_rows, config.vocab_size, device=device),
        rows=Rows(end, table[None]),
        pages=LayerPages(keys, values),
    )


def _num_page_sets(loaded: LoadedModel) -> int:
    """Number of contexts whose keys and values together are several times the L2 cache."""
    config = loaded.subject.config
    one = CONTEXT * loaded.kv_bytes(1) // config.num_layers
    return max(2, -(-_CACHES * loaded.target.l2_bytes // one))


def _elsewhere(own: _Buffers) -> list[LayerPages]:
    """Pages of each context in the cache."""
    size = CONTEXT // PAGE_SIZE
    keys, values = (torch.split(each, size) for each in (own.pages.keys, own.pages.values))
    return [LayerPages(*each) for each in zip(keys, values, strict=True)]


def _layer_bytes(layer: DeviceLayer) -> int:
    """Bytes of a layer's smallest matrix, which over all layers must exceed the L2 cache, too."""
    parts = (layer.attention.qkv, layer.out, layer.gate_up, layer.down)
    return min(part.num_bytes for part in parts)


def _rotated(
    parts: tuple[_Part, ...], num_bytes: Callable[[_Part], int], target: DeviceUnderTest
) -> list[_Part]:
    """These and as many copies of them as make up several times the L2."""
    wanted = -(-_CACHES * target.l2_bytes // num_bytes(parts[0]))
    found = list(parts[:wanted])
    while len(found) < wanted:
        found.append(_copied(parts[len(found) % len(parts)]))
    return found


def _copied(part: Any) -> Any:
    """Copy a matrix, or a layer, to other memory."""
    if isinstance(part, Matrix):
        return replace(part, values=part.values.clone())
    if isinstance(part, Int4Weight):
        return replace(part, codes=part.codes.clone())
    attention = replace(part.attention, qkv=_copied(part.attention.qkv))
    return replace(
        part,
        attention=attention,
        out=_copied(part.out),
        gate_up=_copied(part.gate_up),
        down=_copied(part.down),
    )


def _bfloat16_calls(
    target: DeviceUnderTest, num_rows: int, num_outputs: int, num_inputs: int
) -> list[Call]:
    number = _num_copies(target, 2 * num_outputs * num_inputs)
    rows = torch.randn(num_rows, num_inputs, device=target.device).to(torch.bfloat16)
    shape = number, num_outputs, num_inputs
    weights = torch.randn(shape, device=target.device, dtype=torch.bfloat16)
    out = torch.empty(num_rows, num_outputs, device=target.device, dtype=torch.bfloat16)
    return [partial(torch.mm, rows, weight.t(), out=out) for weight in weights]


def _float8_calls(target: DeviceUnderTest, num_outputs: int, num_inputs: int) -> list[Call]:
    number = _num_copies(target, num_outputs * num_inputs)
    kind = torch.float8_e4m3fn
    rows = torch.randn(_FP8_ROWS, num_inputs, device=target.device).to(kind)
    weights = [
        torch.randn(num_outputs, num_inputs, device=target.device, dtype=torch.bfloat16).to(kind)
        for _ in range(number)
    ]
    one = torch.ones((), device=target.device)
    return [
        partial(
            torch._scaled_mm, rows, each.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
        for each in weights
    ]


def _num_copies(target: DeviceUnderTest, num_bytes: int) -> int:
    return max(2, -(-_CACHES * target.l2_bytes // num_bytes))
