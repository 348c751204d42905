"""Streams in the shapes of other servers (`streams.json`): written by hand after what is published
of them, not recorded. That of llama.cpp's Python server is tested for real in
`test_foreign_servers.py`."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import Tools
from tests.agent.stages.remote.test_remote_chat import WEATHER, reply, talking, text_of
from tests.support.service.model_servers import stream

CALL: Final = ModelCall("weather", '{"city": "Bonn"}')
SHAPES: Final[dict[str, list[dict[str, Any]]]] = json.loads(
    Path(__file__).with_name("streams.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("server", SHAPES)
async def test_words_calls_and_usage_of(server: str) -> None:
    tools = Tools((WEATHER,))
    async with talking(stream(*map(json.dumps, SHAPES[server]))) as (chat, _, _):
        await chat.set_tools(tools.definitions)
        tokens = await reply(chat, tools)
        assert text_of(tokens) == "Let me see."
        assert [call for token in tokens for call in token.calls] == [CALL]
        assert tokens[-1].finish_reason == "tool_calls"
        assert tokens[-1].usage == Usage(30, 16, 14)
