"""Settings of handoffs: to whom, and by which tool."""

import pytest

from agent.config.layers import load_config
from agent.config.tools import handoff_tool
from agent.errors import ConfigError

TWO = '[agents.default]\nhandoffs = ["billing"]\n[agents.billing]\nvoice = "hibari"\n'


def test_an_agent_hands_off_to_those_that_it_names_itself() -> None:
    config = load_config(file_text=TWO)
    assert config.agents["default"].handoffs == ("billing",)
    assert config.agents["billing"].handoffs == (), "not the default agent's: it would be to itself"


def test_a_description_is_not_inherited() -> None:
    text = TWO.replace("handoffs", 'handoff_description = "Anything."\nhandoffs')
    assert load_config(file_text=text).agents["billing"].handoff_description == ""


@pytest.mark.parametrize(
    ("agent", "name"),
    [("billing", "transfer_to_billing"), ("Front-Desk.2", "transfer_to_front_desk_2")],
)
def test_tools_have_the_names_of_the_agents_sdk(agent: str, name: str) -> None:
    assert handoff_tool(agent) == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            TWO.replace('["billing"]', '["biling"]'),
            r"'biling', and there is no such agent.*billing",
        ),
        (TWO.replace('["billing"]', '["default"]'), "to itself"),
        (TWO.replace('["billing"]', '["billing", "billing"]'), "another tool transfer_to_billing"),
        (
            TWO + '[agents."a-b"]\n[agents.a_b]\n[agents.c]\nhandoffs = ["a-b", "a_b"]\n',
            "another tool transfer_to_a_b",
        ),
        (
            TWO.replace(
                "handoffs",
                'tools = [{ type = "function", name = "transfer_to_billing" }]\nhandoffs',
            ),
            "another tool transfer_to_billing",
        ),
        (TWO + f'[agents.{"x" * 60}]\n[agents.c]\nhandoffs = ["{"x" * 60}"]\n', "too long"),
    ],
    ids=["unknown", "itself", "twice", "same tool", "tool of the client", "long"],
)
def test_wrong_handoffs_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(file_text=text)
    assert caught.value.key is not None
    assert caught.value.key.endswith(".handoffs")
