"""Which files are served where."""

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from agent.http.auth.middleware import open_paths
from agent.http.static_files import WEB_DEMO, Pages


async def test_pages_are_served_by_their_names() -> None:
    app = Starlette(routes=[Mount("/", Pages())])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path, file in (("/", "index.html"), ("/dashboard", "dashboard.html")):
            answer = await http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/html")
            assert answer.text == (WEB_DEMO / file).read_text(encoding="utf-8")
        assert (await http.get("/dashboard/main.js")).status_code == 200
        # What the page refers to would be looked for one folder too deep.
        assert (await http.get("/dashboard/", follow_redirects=True)).status_code == 404


def test_pages_need_no_key() -> None:
    assert {"/", "/dashboard", "/dashboard/main.js", "/styles/base.css"} <= open_paths(WEB_DEMO)
