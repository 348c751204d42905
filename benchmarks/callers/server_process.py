"""Server process started for one bench, and the figures it reports about itself."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from agent.errors import BenchError
from latency_budget.account.clock import SystemClock
from latency_budget.host import cpu_s, resident_mb

STOP_S: Final = 10.0
"""Timeout in s of a stop; a server that has not ended by then is killed."""

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class ServerFigures:
    """Figures of a server that the bench started."""

    listening_s: float | None = None
    ready_s: float | None = None
    rest_mb: float | None = None
    call_mb: float | None = None
    """Highest memory in MB seen at the end of a call."""
    calls_cpu_s: float | None = None
    """Processor time in s of all its calls: listening, speaking, guesses and warm-ups. They
    can't be separated within one process."""


@dataclass(slots=True)
class OwnServer:
    """A server started for the measurement."""

    url: str
    pid: int
    figures: ServerFigures

    def note_memory(self) -> None:
        """Record the server's memory during a call."""
        now_mb = resident_mb(self.pid)
        if now_mb is not None:
            self.figures.call_mb = max(now_mb, self.figures.call_mb or 0.0)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Add the processor time of the calls held in this block."""
        before_s = cpu_s(self.pid)
        yield
        self.note_memory()
        after_s = cpu_s(self.pid)
        if before_s is not None and after_s is not None:
            self.figures.calls_cpu_s = (self.figures.calls_cpu_s or 0.0) + after_s - before_s


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How the server's process is started, where a bench needs more than `halfsec serve`."""

    module: str = "agent"
    """Module that is run with the arguments of `halfsec`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to those of this process."""
    log: Path | None = None
    """File that stderr is appended to; None: that of this process."""
    port: int = 0
    """Port to listen on; 0: a free one."""


@contextlib.contextmanager
def own_server(arguments: Sequence[str], launch: ServerLaunch | None = None) -> Iterator[OwnServer]:
    """Run `halfsec serve` for the length of the block, by default on a free port. Raises
    BenchError, and SystemExit if this process receives SIGTERM or SIGHUP: the server ends with
    it."""
    with ending_in_order():
        yield from _served(arguments, launch or ServerLaunch())


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _served(arguments: Sequence[str], launch: ServerLaunch) -> Iterator[OwnServer]:
    port = launch.port or free_port()
    clock = SystemClock()
    started_ns = clock.now_ns()
    apart = ["--set", "agent.log_level=warning", "--set", "latency_budget.store=false"]
    apart += ["--set", "latency_budget.admission=false"]  # a bench holds all its calls
    # Listens on this machine only, whatever the settings are.
    apart += ["--host", "127.0.0.1", "--set", "access.tls_self_signed=false"]
    apart += ["--set", "access.tls_cert=", "--set", "access.tls_key="]
    # Another server may have the port; and on a public address calls need keys.
    apart += ["--set", "telephony.audiosocket_port=0", "--set", "telephony.public_url="]
    served = ["serve", "--port", str(port), *apart, *arguments]
    command = [sys.executable, "-m", launch.module, *served]
    with contextlib.ExitStack() as stack:
        log = None if launch.log is None else stack.enter_context(launch.log.open("ab"))
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **launch.environment},
        )
    figures = ServerFigures()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            since_s = (clock.now_ns() - started_ns) / 1e9
            if figures.listening_s is None and "listens" in line:
                figures.listening_s = since_s
            if line.startswith("Ready"):
                figures.ready_s = since_s
                break
        else:
            raise BenchError("The server did not start; run `halfsec serve` to see why.")
        figures.rest_mb = resident_mb(process.pid)
        yield OwnServer(f"ws://127.0.0.1:{port}/v1/realtime", process.pid, figures)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """End the block with SystemExit at SIGTERM or SIGHUP, once, instead of ending the process.
    Without effect outside of the main thread, the only one that can set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)  # the server is being stopped already
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
