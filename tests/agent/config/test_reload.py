"""Reload of the settings: what is applied to new calls, and what needs a restart."""

from pathlib import Path

import pytest

from agent.config.layers import load_config
from agent.config.reload import Reload, reload_config
from agent.config.schema import Config
from agent.config.sources import reread_config
from agent.errors import ConfigError

AGENTS = """
[agents.default]
instructions = "Be kind."
server_tools = ["mcp:clock"]
[agents.sales]
greeting = "Sales."
[mcp.clock]
url = "http://127.0.0.1:9/mcp"
"""


def reloaded(new: str, old: str = AGENTS, start: str | None = None) -> Reload:
    started, current = load_config(file_text=start or old), load_config(file_text=old)
    return reload_config(started, current, load_config(file_text=new))


def test_the_same_settings_change_nothing() -> None:
    done = reloaded(AGENTS)
    assert (done.changed, done.needs_restart) == ((), ())
    assert done.config == load_config(file_text=AGENTS)


def test_agents_come_change_and_go() -> None:
    new = AGENTS.replace("[agents.sales]", "[agents.billing]").replace("Be kind.", "Be brief.")
    done = reloaded(new)
    assert done.needs_restart == ()
    assert done.changed == (
        "agents.default.instructions",
        "agents.sales",
        "agents.billing",
    )
    assert done.config == load_config(file_text=new)
    assert done.config.origins == load_config(file_text=new).origins


def test_what_was_made_at_the_start_stays_and_is_named() -> None:
    new = AGENTS + (
        "[agent]\nport = 9\nmax_sessions = 9\npace_ms = 300\n"
        '[llm_engine]\ntemperature = 0.5\n[telephony]\nlimit_s = 60\non_menu = "talk"\n'
    )
    done = reloaded(new)
    assert done.changed == ("agent.pace_ms", "telephony.limit_s")
    assert done.needs_restart == (
        "agent.port",
        "agent.max_sessions",
        "llm_engine.temperature",
        "telephony.on_menu",
    )
    assert (done.config.agent.port, done.config.agent.pace_ms) == (8080, 300)
    assert (done.config.llm_engine.temperature, done.config.telephony.limit_s) == (0.0, 60)
    assert "agent.port" not in done.config.origins


def test_fewer_calls_at_once_are_applied_and_as_many_as_before_again() -> None:
    few = AGENTS + "[agent]\nmax_sessions = 1\n"
    done = reloaded(few)
    assert (done.changed, done.needs_restart) == (("agent.max_sessions",), ())
    back = reloaded(AGENTS, few, start=AGENTS)
    assert (back.changed, back.config.agent.max_sessions) == (("agent.max_sessions",), 4)


def test_an_agent_has_what_the_start_can_do_for_it() -> None:
    new = (
        AGENTS.replace(
            "[agents.sales]\n",
            '[agents.sales]\nvoice = "joe"\nlanguage = "de"\n'
            'server_tools = ["mcp:clock", "mcp:map"]\n',
        )
        + '[mcp.map]\nurl = "http://127.0.0.1:8/mcp"\n'
    )
    done = reloaded(new)
    assert done.changed == ()
    assert done.needs_restart == (
        "mcp.map",
        "agents.sales.voice",
        "agents.sales.language",
        "agents.sales.server_tools",
    )
    sales = done.config.agents["sales"]
    assert (sales.voice, sales.language, sales.server_tools) == (None, None, ("mcp:clock",))
    assert set(done.config.mcp) == {"clock"}


def test_a_voice_and_an_mcp_server_of_the_start_can_be_taken_up_again() -> None:
    without = AGENTS.replace('server_tools = ["mcp:clock"]\n', "")
    done = reloaded(AGENTS, without, start=AGENTS)
    assert "agents.default.server_tools" in done.changed
    assert done.needs_restart == ()


def read_with(tmp_path: Path, running: Config, text: str) -> Config:
    file = tmp_path / "halfsec.toml"
    file.write_text(text)
    return reread_config(running, {}, str(file), {})


def test_auto_stands_for_the_preset_that_runs(tmp_path: Path) -> None:
    running = load_config({"agent.preset": "cpu"})
    assert read_with(tmp_path, running, "").agent.preset == "cpu"


def test_another_preset_needs_a_restart_with_its_prompts(tmp_path: Path) -> None:
    running = load_config({"agent.preset": "embedded"})
    new = read_with(tmp_path, running, '[agent]\npreset = "cpu"\n[agents.a]\ngreeting = "Hi."\n')
    done = reload_config(running, running, new)
    assert (done.changed, done.needs_restart) == (("agents.a",), ("agent.preset",))
    default = done.config.agents["default"]
    assert default == running.agents["default"]


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    running = load_config({})
    with pytest.raises(ConfigError, match=r"agents\.default\.greting"):
        read_with(tmp_path, running, '[agents.default]\ngreting = "Hi."\n')
