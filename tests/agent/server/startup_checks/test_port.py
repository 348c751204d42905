"""Why a server can't listen, by what stands in the way."""

import errno
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agent.__main__ import main
from agent.server.startup_checks.port import halfsec_runs, listening_problem


@contextmanager
def answering(body: str) -> Iterator[int]:
    """Something that answers every request so. Gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


HALFSEC = json.dumps({"data": [{"id": "default", "owned_by": "halfsec"}]})


def test_a_free_port_is_no_problem() -> None:
    assert listening_problem("127.0.0.1", 0) is None


def test_a_halfsec_that_runs_is_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(HALFSEC) as port:
        problem = listening_problem("127.0.0.1", port)
        main(["doctor", "--port", str(port)])
    assert problem is not None
    assert problem.startswith(f"halfsec already runs on 127.0.0.1:{port}. Choose another port")
    told = capsys.readouterr().out
    assert "halfsec already runs here" in told
    assert "Can't listen" not in told


@pytest.mark.parametrize("body", ["", "[]", "nonsense", '{"data": [{"owned_by": "openai"}]}'])
def test_others_are_not_taken_for_halfsec(body: str) -> None:
    with answering(body) as port:
        assert not halfsec_runs("127.0.0.1", port)
        assert "something else does" in str(listening_problem("127.0.0.1", port))


def test_an_address_of_another_machine() -> None:
    problem = str(listening_problem("192.0.2.7", 8080))
    assert "192.0.2.7 is no address of this machine" in problem
    assert "another port" not in problem


def test_a_port_that_is_not_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    problem = str(listening_problem("127.0.0.1", 80))
    assert "Permission denied" in problem
    assert "--port 81" in problem
