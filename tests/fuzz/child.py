"""The process of one target: libFuzzer by atheris, until so many inputs or seconds are over.

    python -m tests.fuzz.child NAME CORPUS FINDINGS COUNT --inputs N

`__main__.py` starts it and outlives it. Exceptions are noted and the run goes on. An input that
takes more than ten seconds, one that crashes native code, and growth of memory end the process,
with the input in FINDINGS. COUNT is a file of eight bytes, the number of inputs so far.
"""

import argparse
import importlib
import logging
import mmap
import os
import random
import resource
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import atheris

from latency_budget.account.clock import SystemClock
from tests.fuzz.findings import MEMORY_STATUS, FindingsFolder
from tests.fuzz.memory_growth import SETTLED_INPUTS, MemoryGrowth
from tests.fuzz.target import Target
from tests.fuzz.targets import PLANTED, TARGETS

MAX_ALLOCATION_BYTES: Final = 2 << 30
"""Memory that the process may ask for beyond what it has when it begins: an input of 20 kB that
needs it all makes an attack. What is refused to it raises MemoryError, or aborts native code."""

CHECK_EVERY: Final = 32
"""Inputs between two looks at the memory: slow targets have some hundred in a run."""


class _Formatted(logging.Handler):
    """Formats each record and drops it: what can't be formatted raises."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


class _Run:
    """Count, memory and findings of this process."""

    def __init__(
        self,
        target: Target,
        findings: FindingsFolder,
        count: Path,
        max_growth_mib: int,
        growth: MemoryGrowth,
    ) -> None:
        self._target = target
        self._findings = findings
        self._max_growth_mib = max_growth_mib
        self._growth = growth
        self._clock = SystemClock()
        self._began_ns = self._clock.now_ns()
        with count.open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), 8)
        self._num_inputs = 0

    def examine(self, data: bytes) -> None:
        self._num_inputs += 1
        struct.pack_into("<Q", self._count, 0, self._num_inputs)
        try:
            self._target.examine(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # panics of Rust are no Exception
            self._findings.add(data, error)
        if self._num_inputs % CHECK_EVERY == 0:
            self._check_memory(data)

    def _check_memory(self, data: bytes) -> None:
        resident = _pages(1) * resource.getpagesize()
        elapsed_s = (self._clock.now_ns() - self._began_ns) / 1e9
        grown = self._growth.grown_bytes(self._num_inputs, elapsed_s, resident) >> 20
        if grown > self._max_growth_mib:
            said = f"{grown} MiB more after {self._num_inputs} inputs"
            self._findings.add_other(data, "memory", said)
            os._exit(MEMORY_STATUS)


def _pages(column: int) -> int:
    """Memory pages of this process: 0 its addresses, 1 what is resident."""
    return int(Path("/proc/self/statm").read_text().split()[column])


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.child")
    parser.add_argument("name", choices=[*TARGETS, *PLANTED])
    parser.add_argument("corpus", type=Path, help="folder that inputs are read from and kept in")
    parser.add_argument("findings", type=Path, help="folder for inputs that break a promise")
    parser.add_argument("count", type=Path, help="file of eight bytes")
    parser.add_argument("--inputs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input-seconds", type=int, default=10, help="longest time of one input")
    parser.add_argument("--growth-mib", type=int, default=256, help="most memory gained by a run")
    parser.add_argument(
        "--settled",
        type=int,
        default=SETTLED_INPUTS,
        help="inputs before that is counted; of a short run a tenth (%(default)s)",
    )
    options = parser.parse_args(argv)
    guides = TARGETS.get(options.name, ("tests",))
    with atheris.instrument_imports(include=list(guides)):
        module = importlib.import_module(f"tests.fuzz.targets.{options.name}")
    target: Target = module.TARGET
    logging.getLogger().handlers = [_Formatted()]
    logging.raiseExceptions = True
    used = _pages(0) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_ALLOCATION_BYTES, resource.RLIM_INFINITY))
    findings = FindingsFolder(options.findings, options.name)
    growth = MemoryGrowth.of_run(options.inputs, options.seconds, options.settled)
    run = _Run(target, findings, options.count, options.growth_mib, growth)
    for number, data in enumerate(target.seeds()):
        (options.corpus / f"seed-{number}").write_bytes(data)
    words = options.findings / f"{options.name}.dict"
    words.write_text("".join(_entry(word) for word in target.words if word))

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        changed = target.change(data, random.Random(seed))
        if changed is None:
            changed = bytes(atheris.Mutate(data, max_size))
        return changed[:max_size]

    arguments = [
        sys.argv[0], f"-runs={options.inputs}", f"-max_total_time={options.seconds}",
        f"-seed={options.seed}", f"-max_len={target.max_bytes}",
        f"-timeout={options.input_seconds}", "-rss_limit_mb=0", "-len_control=0", "-reload=0",
        f"-artifact_prefix={options.findings}/{options.name}.", str(options.corpus),
    ]  # fmt: skip
    if target.words:  # an empty dictionary is an error
        arguments.insert(1, f"-dict={words}")
    atheris.Setup(arguments, run.examine, custom_mutator=change)
    atheris.Fuzz()


def _entry(word: bytes) -> str:
    """A line of libFuzzer's dictionary."""
    return '"' + "".join(f"\\x{byte:02X}" for byte in word[:60]) + '"\n'


if __name__ == "__main__":
    main()
