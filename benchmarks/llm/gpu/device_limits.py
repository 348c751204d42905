"""Limits of the card: memory bandwidth, launch cost, throughput of its matrix units."""

from collections.abc import Iterator
from functools import partial

import torch

from .figures import Figure
from .models import DeviceUnderTest
from .timing import call_us, captured, mean_ms, replay_ms

_BUFFERS = 4
"""Number of buffers, read or written in turn."""
_CACHES = 4
"""Least size of all buffers together, in sizes of the L2 cache."""
_MIN_BUFFER = 2 << 30
_LAUNCHES = 1000
_MATRIX = 8192


def bandwidth(target: DeviceUnderTest) -> Iterator[Figure]:
    """Bandwidth of reading, as of weights, and of copying, by which cards are compared."""
    size = _buffer_bytes(target)
    buffers = [
        torch.randint(0, 1 << 30, (size // 4,), dtype=torch.int32, device=target.device)
        for _ in range(_BUFFERS)
    ]
    read_s = _read_s(target, buffers)
    target.bytes_a_s = size / read_s
    note = f"{_BUFFERS} buffers of {size >> 20} MiB in turn"
    yield Figure("read only", size / read_s / 1e12, "TB/s", is_rate=True, note=note)
    pairs = zip(buffers, buffers[1:] + buffers[:1], strict=True)
    copies = [partial(left.copy_, right) for left, right in pairs]
    copy_s = call_us(copies, target.device, repeats=target.repeats) / 1e6
    yield Figure("copy, read and written", 2 * size / copy_s / 1e12, "TB/s", is_rate=True)


def launches(target: DeviceUnderTest) -> Iterator[Figure]:
    """Launch cost of an empty kernel, in a graph of a thousand."""
    touched = torch.zeros(1, dtype=torch.int32, device=target.device)
    if not target.is_gpu:
        us = call_us([partial(touched.fill_, 1)], target.device, repeats=target.repeats)
        yield Figure("an operation that does nothing", us, "us")
        return
    from . import triton_probes

    for name, pdl in (("plain", False), ("with PDL", True)):
        graph = captured([partial(triton_probes.nothing, touched, pdl=pdl)] * _LAUNCHES)
        us = min(replay_ms(graph, 20)) * 1e3 / _LAUNCHES
        yield Figure(f"empty kernel in a graph, {name}", us, "us")
    graph = captured([partial(triton_probes.nothing, touched, pdl=False)])
    us = min(replay_ms(graph, 50)) * 1e3
    yield Figure("graph of one empty kernel", us, "us", note="between two events")


def arithmetic(target: DeviceUnderTest) -> Iterator[Figure]:
    """Rate of a large matrix product of random numbers, the limit of prefill: in bfloat16 and,
    where the card supports it, in 8 bits on both sides."""
    for kind, name in ((torch.bfloat16, "bfloat16"), (torch.float8_e4m3fn, "FP8")):
        if kind.itemsize > 1 or target.has_fp8:
            rate = matrix_rate(target, kind)
            note = "{0} x {0} x {0}".format(_side(target))
            yield Figure(f"{name} product", rate / 1e12, "TFLOP/s", is_rate=True, note=note)


def read_bandwidth(target: DeviceUnderTest) -> float:
    """Read bandwidth in bytes a second, measured once."""
    if target.bytes_a_s is None:
        for _ in bandwidth(target):
            break
    assert target.bytes_a_s is not None
    return target.bytes_a_s


def matrix_rate(target: DeviceUnderTest, kind: torch.dtype) -> float:
    """Operations a second of a library's product of this type, measured once."""
    if kind not in target.flops:
        side = _side(target)
        left, right = (torch.randn(side, side, device=target.device).to(kind) for _ in range(2))
        ms = mean_ms(partial(_multiply, left, right), target.device, repeats=target.repeats)
        target.flops[kind] = 2 * side**3 / (ms / 1e3)
    return target.flops[kind]


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Compute `left @ right.T`."""
    if left.itemsize > 1:
        return left @ right.T
    one = torch.ones((), device=left.device)
    return torch._scaled_mm(
        left, right.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _side(target: DeviceUnderTest) -> int:
    return _MATRIX if target.is_gpu else 256


def _buffer_bytes(target: DeviceUnderTest) -> int:
    if not target.is_gpu:
        return 1 << 20
    return max(_MIN_BUFFER, -(-_CACHES * target.l2_bytes // _BUFFERS >> 20) << 20)


def _read_s(target: DeviceUnderTest, buffers: list[torch.Tensor]) -> float:
    """Time in s to read one buffer, by the fastest of the kernels."""
    if target.found is None:
        calls = [partial(torch.sum, each) for each in buffers]
        return call_us(calls, target.device, repeats=target.repeats) / 1e6
    from . import triton_probes

    num_sms = target.found.num_sms
    sums = triton_probes.read_sums(num_sms, target.device)

    def seconds(reading: triton_probes.Reading) -> float:
        reads = [partial(triton_probes.read, each, sums, num_sms, reading) for each in buffers]
        return call_us(reads, target.device, repeats=target.repeats) / 1e6

    return min(map(seconds, triton_probes.READINGS))
