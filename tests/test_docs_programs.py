"""Programs of the documentation run against a real service as they stand there."""

import asyncio
import re

import pytest

from tests.support.service.live import LiveServer
from tests.test_docs import blocks

pytest_plugins = ["tests.support.service.live_fixtures"]


@pytest.mark.models
@pytest.mark.parametrize("page", ["docs/start/sdk.md", "docs/how-to/clients.md"])
async def test_the_programs_run(
    live: LiveServer, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = (each for each in blocks("python") if each.page == page)
    code = block.text.replace("ws://localhost:8080", live.http.replace("http", "ws", 1))
    code = code.replace("5 * rate_hz", "2 * rate_hz")  # silence behind a question
    await asyncio.to_thread(exec, compile(code, page, "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    assert re.search(r"\w", out)
    assert page == "docs/start/sdk.md" or re.search(r"you: +\w.*\nagent: \w", out)
