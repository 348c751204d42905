"""The settings about tools of the server, and what is said of those that can't be had."""

import importlib.metadata
from pathlib import Path

import pytest

from agent.__main__ import main
from agent.cli import doctor
from agent.config.layers import load_config
from agent.errors import ConfigError
from agent.server.startup_checks.tools import check_tools

TOOL = '''
from agent.tools import tool

@tool
def clock() -> str:
    """Tell the time."""
    return "12:00"
'''


def settings(*sources: str, more: str = "") -> str:
    listed = ", ".join(f"'{each}'" for each in sources)
    return f"[agents.default]\nserver_tools = [{listed}]\n{more}"


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_tools(load_config(file_text=text))
    assert caught.value.key
    assert "\n" not in caught.value.message
    return caught.value.message


def written(folder: Path, text: str, name: str = "home.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


OF_A_CLIENT = """
[[agents.sales.tools]]
type = "function"
name = "lamp"
parameters = { type = "object" }
"""


def test_tools_of_clients_have_the_form_of_the_protocol() -> None:
    """Not that of chat completions, which the model would refuse in every call."""
    check_tools(load_config(file_text=OF_A_CLIENT))
    nested = OF_A_CLIENT.replace('name = "lamp"', 'function = { name = "lamp" }')
    assert "'agents.sales.tools[0].name' is missing. Tools of agents are like" in complaint(nested)
    sections = doctor.examine(load_config(file_text=nested))
    (tools,) = (each for each in sections if each.title == "Tools")
    wrong = [each.name for each in tools.findings if each.verdict == "WRONG"]
    assert wrong == ["agents.sales.tools"]


def test_files_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written(tmp_path, TOOL)
    written(tmp_path, TOOL.replace("clock", "lamp"), "some_tools.py")
    config = load_config(
        file_text=settings("home.py", "some_tools", more="[agents.other]\n[agents.bare]\n")
        + "server_tools = []"
    )
    found = check_tools(config)
    assert {agent: [tool.name for tool in tools] for agent, tools in found.items()} == {
        "default": ["clock", "lamp"],
        "other": ["clock", "lamp"],
        "bare": [],
    }
    assert found["default"][0] is found["other"][0]


def test_a_tool_in_the_background_has_its_own_time_limit(tmp_path: Path) -> None:
    text = TOOL.replace("@tool", "@tool(background=True)")
    more = "[agent]\ntool_timeout_s = 5\nbackground_tool_timeout_s = 300"
    config = load_config(file_text=settings(written(tmp_path, text), more=more))
    (found,) = check_tools(config)["default"]
    assert (found.is_background, found.timeout_s) == (True, 300)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "has no tools: mark functions with @tool of agent.tools"),
        ("def broken(:", "can't be loaded: SyntaxError: invalid syntax"),
        (
            "import sys\nsys.exit('no\\nway')",
            "can't be loaded: SystemExit: no way (home.py, line 2",
        ),
        ("import no_such_package", "there is no module no_such_package, which"),
        (TOOL.replace('"""Tell the time."""', ""), "the tool clock of"),
        (TOOL.replace("clock()", "clock(zone)"), "does not say of what type 'zone' is"),
        (TOOL.replace("@tool", "@tool(timeout_s=60)"), "ValueError: timeout_s of a tool must be"),
    ],
)
def test_a_file_that_is_not_as_it_should_be(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in complaint(settings(written(tmp_path, text)))


def test_what_is_not_there() -> None:
    assert "there is no file /" in complaint(settings("weather.py"))
    module = complaint(settings("no_such_module.tools"))
    assert module.endswith('there is no module no_such_module; a file ends in ".py".')


def test_names_that_are_taken(tmp_path: Path) -> None:
    first, second = written(tmp_path, TOOL), written(tmp_path, TOOL, "other.py")
    assert "has a tool 'clock', as has a file before it" in complaint(settings(first, second))
    client = 'tools = [{type = "function", name = "clock"}]'
    assert "as have the agent's `tools`" in complaint(settings(first, more=client))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("", "mcp.it needs a url or a command; give one of them."),
        ('url = "http://a"\ncommand = ["b"]', "mcp.it has a url and a command"),
        ('url = "http://user:word@host/"', "mcp.it.url must be empty, or an address like"),
        ('url = "http://a"\ntimeout_s = 16', "mcp.it.timeout_s must be from 1 to 15"),
        ('url = "http://a"\nheaders = {A = 1}', "mcp.it.headers must be a table of texts"),
        ('url = "http://a"\nheader = {}', "Did you mean mcp.it.headers?"),
        (
            'url = "http://a"\ntools = ["find"]\nbackground = ["fnd"]',
            "mcp.it.background names 'fnd', which mcp.it.tools leaves out. Did you mean find?",
        ),
    ],
)
def test_settings_of_a_server(table: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file_text=f"[mcp.it]\n{table}")
    assert problem in caught.value.message


def test_servers_by_name() -> None:
    with pytest.raises(ConfigError, match=r"there is no section \[mcp.wether\]. Did you mean"):
        load_config(file_text=settings("mcp:wether", more='[mcp.weather]\nurl = "http://a"'))
    with pytest.raises(ConfigError, match="can't be a server's name"):
        load_config(file_text='[mcp."a b"]\nurl = "http://a"')
    config = load_config(
        {"mcp.weather.tools": "a, b"},
        {"HALFSEC_MCP__WEATHER__URL": "http://b/mcp"},
        settings("mcp:weather", more='[mcp.weather]\nurl = "http://a"'),
    )
    assert config.mcp["weather"].url == "http://b/mcp"
    assert config.mcp["weather"].tools == ("a", "b")
    assert "mcp.weather.url" in {each.key for each in config.effective()}


def test_what_a_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    command = settings("mcp:it", more='[mcp.it]\ncommand = ["no-such-command"]')
    assert complaint(command).startswith("mcp.it.command names 'no-such-command', which is not")
    header = settings("mcp:it", more='[mcp.it]\nurl = "http://a"\nheaders = {A = "NOT_SET"}')
    assert "needs the environment variable NOT_SET" in complaint(header)
    monkeypatch.setenv("NOT_SET", "a1b2c3")
    check_tools(load_config(file_text=header))
    assert "a1b2c3" not in repr(list(load_config(file_text=header).effective()))

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert complaint(header) == "mcp.it needs the package mcp: pip install 'halfsec[mcp]'"


def test_the_command_says_so_before_it_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "halfsec.toml"
    file.write_text(settings("weather.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "agent.server.startup_checks.preflight.check_models", lambda config, store: None
        )
        assert main(["serve", "--config", str(file)]) == 2
    assert "server_tools: there is no file" in capsys.readouterr().err


def test_doctor_shows_them(tmp_path: Path) -> None:
    def findings(text: str) -> list[tuple[str, str, str]]:
        found = doctor._tools(load_config(file_text=text))
        return [(each.name, each.value, each.verdict) for each in found]

    assert findings("")[0][1].startswith("none")
    server = '[mcp.it]\ncommand = ["no-such-command"]'
    both = findings(settings(written(tmp_path, TOOL), "mcp:it", more=server))
    assert both[0][0::2] == ("mcp.it.command", "WRONG")
    assert both[1] == ("agents.default", "clock, mcp:it", "")
    assert findings(settings("weather.py"))[0][2] == "WRONG"


@pytest.mark.parametrize(
    ("file", "name", "limit_s"),
    [("weather.py", "weather", 10), ("flights.py", "find_flights", 180)],
)
def test_the_examples_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str, limit_s: float
) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = (docs / "how-to" / "tools.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = (block for block in blocks if block.startswith(f"# {file}"))
    (table,) = (
        block.partition("```")[0]
        for block in page.split("```toml\n")[1:]
        if block.startswith(f'[agents.default]\nserver_tools = ["{file}"')
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DESK_AUTHORIZATION", "Bearer x")
    monkeypatch.setattr("shutil.which", lambda command: command)
    written(tmp_path, code, file)
    (tool,) = check_tools(load_config(file_text=table))["default"]
    assert (tool.name, tool.timeout_s, tool.is_background) == (name, limit_s, limit_s > 15)
