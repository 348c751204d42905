"""A real `redis-server` on a free port, which tests stop, start again, and suspend.

Skipped where it is not installed, unless REQUIRE_REDIS is set: apt-get install redis-server.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

REDIS: Final = shutil.which("redis-server")
PATIENCE_S: Final = 60.0
"""Only a hang takes so long."""


class RedisServer:
    """A Redis without persistence: one that was stopped has forgotten everything."""

    def __init__(self, binary: str, *options: str) -> None:
        self._binary = binary
        self._options = options
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, prefix: str = "test:") -> str:
        """Value of `agent.state_store`."""
        return f"redis://127.0.0.1:{self.port}/0?prefix={prefix}"

    def start(self) -> None:
        """Start, or start again, and wait until it listens."""
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--daemonize", "no", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            cwd="/",
        )
        deadline_s = time.monotonic() + PATIENCE_S  # noqa: TID251
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, "redis-server ended"
                assert time.monotonic() < deadline_s, "redis-server does not listen"  # noqa: TID251
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def suspend(self) -> None:
        """Let it answer nothing, and forget nothing, until `proceed`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """Send one command. Returns the answer's first bytes."""
        text = f"*{len(words)}\r\n" + "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as link:
            link.sendall(text.encode())
            return link.recv(1 << 16)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A Redis that runs, with these options of its command line."""
    if REDIS is None:
        assert "REQUIRE_REDIS" not in os.environ, "apt-get install redis-server"
        pytest.skip("there is no Redis here: apt-get install redis-server")
    server = RedisServer(REDIS, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
