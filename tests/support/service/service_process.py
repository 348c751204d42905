"""`halfsec serve` in a process, for what only a process can show: signals and exit status."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 180.0


class ServiceProcess:
    """A running service. Its output is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.port = 0
        self.lines: list[str] = []

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    async def line(self, beginning: str) -> str:
        """The next line of output that begins so."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            async for data in self._process.stdout:
                self.lines.append(data.decode().rstrip())
                if self.lines[-1].startswith(beginning):
                    return self.lines[-1]
        raise AssertionError(f"no {beginning!r} in {self.lines}; {await self._errors()}")

    async def listening(self) -> None:
        line = await self.line("halfsec listens")
        self.port = int(line.split("://")[1].split("/")[0].rpartition(":")[2])

    def stop(self) -> None:
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Wait for its end. Returns the exit status and what it wrote to stderr."""
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await self._process.communicate()
        self.lines += output.decode().splitlines()
        return self._process.returncode or 0, _without_notice(errors)

    async def _errors(self) -> str:
        assert self._process.stderr is not None
        return _without_notice(await self._process.stderr.read())

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


def _without_notice(errors: bytes) -> str:
    """Lines of stderr without what is said of this machine's processor, on some."""
    lines = errors.decode().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("This processor has "))


@asynccontextmanager
async def service(
    *arguments: str, home: Path | None = None, log_level: str = "warning"
) -> AsyncIterator[ServiceProcess]:
    """`halfsec serve` on a free port (unless the arguments name one), with the embedded preset.

    Without a `home` of its own it keeps no turns: those of tests are not for the user's file.
    """
    kept = "true" if home is not None else "false"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PORT", None)
    if home is not None:
        environment["HALFSEC_HOME"] = str(home)
    # Under `nohup` SIGHUP is ignored, and the service would inherit that.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "serve", "--port", "0"),
        *("--set", f"agent.log_level={log_level}", "--set", f"latency_budget.store={kept}"),
        *(() if home is not None else ("--set", "access.require_key=never")),
        *arguments,
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # with a terminal, SIGHUP means that it was closed
    )
    signal.signal(signal.SIGHUP, inherited)
    running = ServiceProcess(process)
    try:
        yield running
    finally:
        await running.kill()
