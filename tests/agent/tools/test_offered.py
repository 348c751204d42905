"""Tools of a client, as a model gets them."""

import json

from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.stage_ports import Tools
from agent.tools.offered import tools_of


def test_what_a_model_gets_of_a_clients_tool() -> None:
    described = {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    tool = {"type": "function", **described}
    tools = tools_of(SessionSettings(tools=(tool,)), ResponseOptions())
    assert isinstance(tools, Tools)
    assert [json.loads(each) for each in tools.definitions] == [described]
    plain = tools_of(
        SessionSettings(tools=({"type": "function", "name": "f", "strict": None},)),
        ResponseOptions(),
    )
    assert isinstance(plain, Tools)
    assert [json.loads(each) for each in plain.definitions] == [{"name": "f"}]
