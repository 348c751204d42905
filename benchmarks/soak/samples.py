"""Samples of a server's process: `/proc`, `/metrics`, the probe, and the sizes of its files."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from agent.errors import BenchError
from agent.http.auth.cli_credentials import entry_at
from benchmarks.callers.control_socket import request
from latency_budget.host import anonymous_mb, cpu_s, resident_mb

METRICS: Final = {
    "calls": "halfsec_calls",
    "pages": "halfsec_llm_cache_pages_used",
    "sequences": "halfsec_llm_sequences",
    "turns": "halfsec_turns_total",
    "turns_answered": "halfsec_turns_answered_total",
    "restarts": "halfsec_stage_restarts_total",
    "store_lost": "halfsec_store_turns_lost_total",
    "store_waiting": "halfsec_store_turns_waiting",
    "traces": "halfsec_traces_kept",
    "evictions": "halfsec_llm_evictions_total",
    "cache_bytes": "halfsec_llm_cache_bytes",
}
"""Names in a sample and at `/metrics`; a name with labels is added up over them."""

TIMEOUT_S: Final = 10.0

NATIVE: Final = "native"
"""Threads of libraries: of models, of codecs."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the server at one moment."""

    at_s: float
    """Time in s that the soak has run, over all of its parts."""
    part: int
    """Number of the server's process: 1, one more after each resumption."""
    values: Values = field(default_factory=dict)
    heap: dict[str, int] = field(default_factory=dict)
    """Bytes of the Python heap by subsystem, allocated since the first sample."""
    large: dict[str, int] = field(default_factory=dict)
    """Bytes by line and its callers: the largest parts of that heap."""
    threads: dict[str, int] = field(default_factory=dict)
    """Threads by name, without their numbers; `NATIVE`: those that are not Python's."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SampledServer:
    """Addresses of all that is sampled."""

    url: str
    pid: int
    socket: Path
    files: dict[str, Path]
    """Files and folders by the name of their size."""


async def take_sample(server: SampledServer, at_s: float, part: int, *, heap: bool) -> Sample:
    """Read everything once. A source that fails leaves its values out; a server that is gone raises
    BenchError. Memory is the server's: without what the probe's tracing takes."""
    values: Values = {}
    memory_mb = resident_mb(server.pid)
    if memory_mb is None:
        raise BenchError("The server's process has ended; its log says why.")
    own_mb = anonymous_mb(server.pid)
    values |= _counts(server.pid)
    spent_s = cpu_s(server.pid)
    if spent_s is not None:
        values["cpu_s"] = spent_s
    values |= await read_server(server.url)
    sizes: dict[str, int] = {}
    large: dict[str, int] = {}
    threads: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        probed = await asyncio.to_thread(request, server.socket, heap=heap)
        values["tasks"] = probed["tasks"]
        sizes, large = probed["heap"], probed["large"]
        tracing_mb = values["tracing_mb"] = probed["tracing"] / (1 << 20)
        values["rss_mb"] = memory_mb - tracing_mb
        if own_mb is not None:
            values["anonymous_mb"] = own_mb - tracing_mb
        for name in ("malloc", "free"):
            if probed[name] is not None:
                values[f"{name}_mb"] = probed[name] / (1 << 20)
        if "threads" in values:  # a pool's threads are made as they are needed, up to its bound
            threads = dict(probed["threads"])
            threads[NATIVE] = int(values["threads"]) - sum(threads.values())
            values["threads"] -= probed["pool_threads"]
        if sizes:
            values["heap_mb"] = sum(sizes.values()) / (1 << 20)
    for name, path in server.files.items():
        values[name] = sum(_sizes(path)) / (1 << 20)
    return Sample(at_s, part, values, sizes, large, threads)


def _counts(pid: int) -> Values:
    """Number of threads and of descriptors of a process, as far as the platform reports them."""
    found: Values = {}
    for name, folder in (("threads", "task"), ("descriptors", "fd")):
        with contextlib.suppress(OSError):
            found[name] = len(list(Path(f"/proc/{pid}/{folder}").iterdir()))
    return found


async def read_server(url: str) -> Values:
    """The values of `METRICS` at a server's `/metrics`; none where it does not answer."""
    address = url.replace("ws", "http", 1).partition("/v1/")[0] + "/metrics"
    try:
        async with httpx.AsyncClient(
            trust_env=False, headers=entry_at(url).headers(), timeout=TIMEOUT_S
        ) as http:
            return read_metrics((await http.get(address)).raise_for_status().text)
    except httpx.HTTPError:
        return {}


def read_metrics(text: str) -> Values:
    """The values of `METRICS` in Prometheus' text format."""
    found: Values = {}
    names = {metric: name for name, metric in METRICS.items()}
    for line in text.splitlines():
        metric, _, value = line.rpartition(" ")
        name = names.get(metric.partition("{")[0])
        if name is not None:
            found[name] = found.get(name, 0.0) + float(value)
    return found


def _sizes(path: Path) -> Iterator[int]:
    """Sizes of a file with those that SQLite keeps beside it, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*")
    for each in files:
        with contextlib.suppress(OSError):
            if each.is_file():
                yield each.stat().st_size
