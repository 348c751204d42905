"""Control of a server's process from the bench that started it, over a Unix socket.

The server runs as `python -m` a module of a bench, which listens here and then runs `halfsec`. The
service itself can't be controlled so: nothing in the product imports this, and the socket lies in a
folder that only the bench's user can enter.
"""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agent.server import event_loop, server

SOCKET_VARIABLE: Final = "BENCH_CONTROL_SOCKET"
"""Environment variable with the path of the socket."""
ANSWER_S: Final = 30.0
"""Timeout in s of an answer: a server that is being stopped and continued is slow."""
MAX_BYTES: Final = 1 << 20

Json = dict[str, Any]


class RecordedLoop:
    """The event loop that the server runs on, once it has made one."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> None:
        """Record the loop that `halfsec serve` makes. Before the server starts."""
        original = event_loop.loop_factory

        def factory() -> Callable[[], asyncio.AbstractEventLoop]:
            make = original() or asyncio.new_event_loop

            def made() -> asyncio.AbstractEventLoop:
                self.loop = make()
                return self.loop

            return made

        vars(server)["loop_factory"] = factory  # the name that it calls


def listen(handle: Callable[[Json], Json]) -> None:
    """Answer requests on the socket that the environment names, on a thread of its own. An
    exception of `handle` is answered as `{"error": ...}`. Raises KeyError, OSError."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[SOCKET_VARIABLE])
    listener.listen(4)

    def run() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                try:
                    answer = handle(json.loads(stream.readline(MAX_BYTES)))
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                try:
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
                except OSError:
                    continue  # the bench has hung up

    threading.Thread(target=run, name="bench-control", daemon=True).start()


def request(path: Path, **fields: Any) -> Json:
    """Send a request and return the answer. Raises OSError, ValueError where there is none, and
    RuntimeError with the server's error."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8") as stream:
            stream.write(json.dumps(fields) + "\n")
            stream.flush()
            answer: Json = json.loads(stream.readline())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer
