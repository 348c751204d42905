"""A small Hugging Face hub: one repository, served over HTTP as the real one does."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves `files` of the repository "owner/name" from a thread of its own."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], break_after: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.break_after = break_after
        """Drop the connection after so many bytes of a file, once."""
        self.ranges: list[str | None] = []
        """The Range header of each GET for a file."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/owner/name"):
            self._listing()
        else:
            self._file(with_body=True)

    def _listing(self) -> None:
        siblings = [{"rfilename": name, "size": len(c)} for name, c in self.server.files.items()]
        if "/tree/" in self.path:
            body = json.dumps(
                [
                    {"type": "file", "path": name, "size": len(c), "oid": "b" * 40}
                    for name, c in self.server.files.items()
                ]
            )
        else:
            body = json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": siblings})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def _file(self, *, with_body: bool) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        content = self.server.files.get(name)
        if not self.path.startswith("/owner/name/resolve/") or content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range") if with_body else None
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not with_body:
            return
        self.server.ranges.append(wanted)
        end = len(content)
        if self.server.break_after is not None:
            end, self.server.break_after = self.server.break_after, None
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[start:end])
        if end < len(content):
            self.close_connection = True


@contextlib.contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
