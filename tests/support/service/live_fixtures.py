"""One real service for the whole test session.

`live` gives it to a test and looks afterwards for what the test left behind: calls that go on,
sequences in the language model, errors in the log that nobody expected.
"""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.config.sources import read_config
from agent.http.auth.keys import KeyFile
from tests.support.models import model_path
from tests.support.service.live import LiveServer
from tests.support.session.unhurried import unhurried

MODELS: Final = ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad")

SETTINGS: Final = """
[agent]
port = 0
max_sessions = 4

# What is done about late answers, and who is refused for them, has tests of its own: here both
# would depend on what else this machine does.
[latency_budget]
enforce = false
admission = false

[llm_engine]
max_tokens = 96
repetition_penalty = 1.0

# An address of carriers closes a server; the tests are no strangers.
[access]
require_key = "never"

# A browser beside other tests takes a while.
[webrtc]
connect_s = 60

[telephony]
public_url = "https://voice.example.com"
numbers = { "+15550199" = "pirate" }

[agents.default]
instructions = "You are a friendly voice assistant on a phone call. Answer in one short sentence."
examples = [
    { user = "Hi, who is this?", assistant = "Hi, I'm your voice assistant." },
    { user = "What is the capital of Spain?", assistant = "It's Madrid." },
]

[agents.pirate]
instructions = "You are a pirate. Answer in one short sentence and say arr."
greeting = "Ahoy, welcome aboard."

[agents.reader]
greeting = "One morning a small brown fox left the wood, and walked along the river to the old \
stone bridge. There he met a hare, who was on her way to the market with a basket of apples."

[agents.helper]
server_tools = [
    "HERE/live_tools.py", "mcp:odd", "phone:hang_up", "phone:transfer", "phone:press_keys",
]

[agents.desk]
handoffs = ["pirate"]

[mcp.odd]
command = ["PYTHON", "HERE/mcp_odd_server.py"]
""".replace("HERE", str(Path(__file__).parent)).replace("PYTHON", sys.executable)

ENVIRONMENT: Final = {
    "HALFSEC_AGENT__PRESET": "embedded",
    "HALFSEC_TELEPHONY__TRANSFERS": '{ sales = "+493012345", workshop = "+493067890" }',
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A client of a failed service sees only that nothing comes: add the server's side to the
    report."""
    report = yield
    live = getattr(item, "funcargs", {}).get("live")
    if report.failed and report.when == "call" and isinstance(live, LiveServer):
        report.sections.append(("The service's newest call", live.story()))
    return report


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    for name in MODELS:
        model_path(name)
    directory = tmp_path_factory.mktemp("live")
    settings: Path = directory / "halfsec.toml"
    settings.write_text(SETTINGS)
    server = LiveServer(
        read_config(path=str(settings), env=ENVIRONMENT), KeyFile(directory / "keys.json")
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def live(live_server: LiveServer) -> Iterator[LiveServer]:
    live_server.problems.records.clear()
    live_server.expected = []
    with unhurried():
        yield live_server
        live_server.settle()
    expected = tuple(live_server.expected)
    left = live_server.problems.texts()
    assert [text for text in left if not expected or not text.startswith(expected)] == []
