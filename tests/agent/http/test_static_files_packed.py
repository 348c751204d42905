"""The pages' files: texts are compressed for those who take that, sounds never are."""

import httpx
import pytest

from agent.http.static_files import WEB_DEMO, Pages


@pytest.mark.parametrize(
    ("path", "is_packed"),
    [
        ("/", True),
        ("/app.js", True),
        ("/styles/page.css", True),
        ("/ui/dom.js", False),
        ("/sample-question.wav", False),
    ],
)
async def test_compressible_files_are_compressed(path: str, is_packed: bool) -> None:
    transport = httpx.ASGITransport(Pages())
    file = WEB_DEMO / (path.strip("/") or "index.html")
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        taken = await http.get(path)
        plain = await http.get(path, headers={"Accept-Encoding": "identity"})
        again = await http.get(path, headers={"If-None-Match": taken.headers["etag"]})
    assert (taken.headers.get("content-encoding") == "gzip") == is_packed
    assert "content-encoding" not in plain.headers
    assert taken.content == plain.content == file.read_bytes()
    assert again.status_code == 304
