"""Forms: in which charsets their texts are read, and what becomes of those that are cut short."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.http.multipart import read_form
from agent.http.responses import guarded

KIND = "multipart/form-data; boundary=B"


async def posted(kind: str, value: bytes) -> httpx.Response:
    """What comes back for a form with one field: its value."""

    async def answer(request: Request) -> Response:
        async with read_form(request) as form:
            return JSONResponse(form["prompt"])

    async def endpoint(request: Request) -> Response:
        return await guarded(answer(request))

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    part = (
        b'--B\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n' + value + b"\r\n--B--\r\n"
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as http:
        return await http.post("/", content=part, headers={"content-type": kind})


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("", "Grüße".encode()),
        ("; charset=UTF-8", "Grüße".encode()),
        ('; charset="utf8"', "Grüße".encode()),
        ("; charset=iso-8859-1", "Grüße".encode("latin-1")),
        ("", "Grüße".encode("latin-1")),  # what is no UTF-8 is taken for this
    ],
)
async def test_text_fields_are_decoded(parameter: str, value: bytes) -> None:
    answer = await posted(KIND + parameter, value)
    assert (answer.status_code, answer.json()) == (200, "Grüße")


@pytest.mark.parametrize(
    ("charset", "value"),
    [
        ("punycode", b"a-b"),
        ("unicode_escape", b"\\ud800"),
        ("raw_unicode_escape", b"\\ud800"),
        ("utf-7", b"+2AA-"),
        ("utf-16", b"\0a"),
        ("idna", b"\xff" * 300),
        ("undefined", b"x"),
        ("rot13", b"x"),
        ("../../x", b"x"),
        ("x" * 1000, b"x"),
        ("", b"x"),
    ],
)
async def test_unsupported_charset_is_named(charset: str, value: bytes) -> None:
    answer = await posted(f'{KIND}; charset="{charset}"', value)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, len(message) < 250) == (415, True)
    assert repr(charset[:40]) in message
    assert "send it as UTF-8" in message


FILE = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"RIFF" * 50
)


@pytest.mark.parametrize("body", [FILE, FILE + b"\r\n--B\r\n", b"--B\r\n", b"--B", b""], ids=len)
async def test_a_form_that_ends_before_its_last_boundary_is_refused(body: bytes) -> None:
    """Found by fuzzing: the file of the part that it ends in stayed open, the rest was taken."""

    async def answer(request: Request) -> Response:
        async with read_form(request) as form:
            return JSONResponse(len(form))

    async def endpoint(request: Request) -> Response:
        return await guarded(answer(request))

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        refused = await http.post("/", content=body, headers={"content-type": KIND})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body")
        assert "ends before its last boundary" in refused.json()["error"]["message"]
        whole = await http.post("/", content=FILE + b"\r\n--B--", headers={"content-type": KIND})
        assert (whole.status_code, whole.json()) == (200, 1)
