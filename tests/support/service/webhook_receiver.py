"""An HTTP server that takes webhooks, and answers as a test says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from standardwebhooks import Webhook

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATIENCE_S: Final = 120.0

Answer = Callable[["WebhookReceiver", BaseHTTPRequestHandler], None]


def answers(status: int, **headers: str) -> Answer:
    """An answer with this status and no body."""

    def answer(receiver: "WebhookReceiver", request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("content-length", "0")
        request.end_headers()

    return answer


class WebhookReceiver:
    """Requests received, and the answers to the next ones; the last answer is repeated."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers: list[Answer] = [answers(204)]
        self.paths: list[str] = []
        self.ids: list[str] = []
        self.events: list[dict[str, Any]] = []
        """Bodies, whose signatures were verified."""
        self.closing = threading.Event()
        self._news = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        event = Webhook(SECRET).verify(body, dict(request.headers))
        with self._news:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.paths.append(request.path)
            self.ids.append(request.headers["webhook-id"])
            self.events.append(event)
            self._news.notify_all()
        answer(self, request)

    def wait(self, num_events: int) -> list[dict[str, Any]]:
        """The events received, at least so many. Blocks."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) >= num_events, PATIENCE_S)
            return list(self.events)


@contextmanager
def receiving() -> Iterator[WebhookReceiver]:
    """A receiver on a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = WebhookReceiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="webhook-receiver")
    thread.start()
    try:
        yield receiver
    finally:
        receiver.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
