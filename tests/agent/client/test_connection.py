"""Frames that are sent again when the connection breaks, with sockets that break where a test
wants."""

import re
from pathlib import Path

from agent.client.connection import SENT_AGAIN

PAGE = Path(__file__).parents[3] / "web_demo" / "call" / "resend-buffer.js"


def test_the_page_and_the_python_client_send_the_same_again() -> None:
    found = re.search(r"SENT_AGAIN = new Set\(\[(.*?)\]\)", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert set(re.findall(r"'([a-z_.]+)'", found[1])) == SENT_AGAIN
