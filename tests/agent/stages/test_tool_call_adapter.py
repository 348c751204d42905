"""Words and calls of a reply, as its text comes."""

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import Tools
from agent.stages.tool_call_adapter import CallCollector, tool_use
from llm_engine.chat.tool_calls import HERMES

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
