"""Reload of a service's settings: applied to new calls, or refused whole. No model is loaded."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from agent.config.layers import load_config
from agent.config.schema import Config
from agent.config.sources import reread_config
from agent.errors import ConfigError
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.local_key import LOCAL_PREFIX
from agent.http.auth.token_format import new_token
from agent.server.app import Application, create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.tools.server_tools import ServerTools
from latency_budget.account.clock import SystemClock

PATH = "/v1/settings/reload"
TOOL = '''
from agent.tools import tool

@tool
def {name}() -> str:
    """A tool."""
    return "done"
'''


class Service:
    def __init__(self, app: Application, tools: ServerTools, file: Path, key: str) -> None:
        self.app, self.tools, self.file, self.key = app, tools, file, key
        transport = httpx.ASGITransport(app.asgi)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def reload(self, text: str) -> httpx.Response:
        self.file.write_text(text)
        return await self.http.post(PATH, headers={"Authorization": f"Bearer {self.key}"})

    async def agents(self) -> list[str]:
        listed = (await self.http.get("/v1/models")).json()["data"]
        return [each["id"] for each in listed if each["kind"] == "agent"]

    def tool_names(self, agent: str) -> list[str]:
        return [tool.name for tool in self.tools._offered(agent, (), {})]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    file, key = tmp_path / "halfsec.toml", new_token(LOCAL_PREFIX).text
    config, clock = load_config(), SystemClock()

    def read() -> Config:
        return reread_config(config, {}, str(file), {})

    stages = Stages(config, ModelStore(tmp_path, {}), clock)
    access = Authenticator(config, KeyFile(tmp_path / "keys.json"), clock, local_key=key)
    tools = ServerTools(config, clock)
    app = create_app(config, stages, clock, access=access, tools=tools, read=read)
    async with tools.running():
        made = Service(app, tools, file, key)
        async with made.http:
            yield made
    await stages.close()


async def test_new_settings_are_applied_and_what_changed_is_told(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tool = tmp_path / "shop.py"
    tool.write_text(TOOL.format(name="buy"))
    answer = await service.reload(
        f'[agent]\nport = 9\n[agents.sales]\ngreeting = "Secret."\nserver_tools = ["{tool}"]\n'
    )
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"changed": ["agents.sales"], "needs_restart": ["agent.port"]}
    assert await service.agents() == ["default", "sales"]
    assert service.tool_names("sales") == ["buy"]
    assert service.app.calls.reloads == {"applied": 1}
    texts = [
        record.getMessage() for record in caplog.records if record.name == "agent.server.reloader"
    ]
    assert texts == [
        "settings reloaded; changed: agents.sales",
        "settings that need a restart, not applied: agent.port",
    ]
    metrics = (await service.http.get("/metrics")).text
    assert "halfsec_settings_reloads_total 1.0" in metrics


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[agents.sales]\ngreting = "Hi."\n', "agents.sales.greting"),
        ("[agents.sales\n", "not valid TOML"),
        ('[agents.sales]\nserver_tools = ["gone.py"]\n', "there is no file"),
        ('[agents.sales]\ntools = [{ type = "function" }]\n', "tools[0].name' is missing"),
        ('[agents.sales]\n[telephony]\nnumbers = { "+4930" = "nobody" }\n', "no such agent"),
    ],
    ids=[
        "unknown key",
        "no TOML",
        "a tool that is not there",
        "a client's tool",
        "a number of no agent",
    ],
)
async def test_wrong_settings_are_refused_whole(
    service: Service, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    await service.reload('[agents.billing]\ngreeting = "Billing."\n')
    caplog.clear()
    answer = await service.reload(text)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
    assert await service.agents() == ["default", "billing"]
    assert service.app.calls.reloads == {"applied": 1, "refused": 1}
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage().startswith("the settings stay as they were: ")
    assert reason in record.getMessage()


async def test_tools_of_calls_in_progress_go_on(service: Service, tmp_path: Path) -> None:
    tool = tmp_path / "shop.py"
    tool.write_text(TOOL.format(name="buy"))
    await service.reload(f'[agents.default]\nserver_tools = ["{tool}"]\n')
    (before,) = service.tools._offered("default", (), {})
    await service.reload("")
    assert service.tool_names("default") == []
    assert await before.call("{}") == "done"
    await service.reload(f'[agents.default]\nserver_tools = ["{tool}"]\n')
    assert service.tools._offered("default", (), {}) == [before]


async def test_only_commands_on_this_machine_may_reload(service: Service) -> None:
    service.key = "sk-anything"  # the server is open: everything else is let in
    answer = await service.reload("[agents.sales]\n")
    assert answer.status_code == 403
    assert await service.agents() == ["default"]


async def test_a_process_that_did_not_read_its_settings_says_so(tmp_path: Path) -> None:
    config, clock = load_config(), SystemClock()
    access = Authenticator(config, KeyFile(tmp_path / "keys.json"), clock)
    stages = Stages(config, ModelStore(tmp_path, {}), clock)
    app = create_app(config, stages, clock, access=access)
    with pytest.raises(ConfigError, match="can't be reloaded"):
        await app.reloader.reload()
    await stages.close()
