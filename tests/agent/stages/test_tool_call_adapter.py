"""Words and calls of a reply, as its text comes."""

import threading

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import Tools
from agent.stages import openai_tools, tool_call_adapter
from agent.stages.tool_call_adapter import CallCollector, tool_use
from llm_engine.chat.tool_calls import HERMES, ToolUse

CLOCK = '{"name": "clock", "parameters": {"type": "object", "properties": {}}}'
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
SECOND = "\n<tool_call>\n{"


@pytest.mark.parametrize("pieces", [[CALL + SECOND], [CALL, SECOND], [*CALL, *SECOND]])
def test_a_call_before_one_that_is_cut_off_is_made_once(pieces: list[str]) -> None:
    collector = CallCollector(HERMES, tool_use(Tools((CLOCK,))))
    found = [collector.push(piece, is_last=False) for piece in pieces]
    found.append(collector.push("", is_last=True))
    assert "".join(words for words, _ in found) == ""
    assert [call for _, calls in found for call in calls] == [ModelCall("clock", "{}")]


@pytest.mark.parametrize("num_tools", [1, 120])
async def test_large_schemas_are_read_on_a_thread(
    num_tools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = tuple(CLOCK.replace("clock", f"clock_{number}") for number in range(num_tools))
    on_main: list[bool] = []
    parse = openai_tools.parse_tools

    def noted(body: dict[str, object]) -> ToolUse | None:
        on_main.append(threading.current_thread() is threading.main_thread())
        return parse(body)

    monkeypatch.setattr(tool_call_adapter, "parse_tools", noted)
    tool_use.cache_clear()
    use = await tool_call_adapter.tool_use_off_loop(Tools(definitions))
    assert len(use.shown) == num_tools
    assert on_main == [num_tools == 1]
