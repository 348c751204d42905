"""Streams in the shapes of other servers (`streams.json`): written by hand after what is published
of them, which each names as its source; not recorded. Those of llama.cpp's Python server and of
`transformers serve` are tested for real in `test_foreign_servers.py`."""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest

from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import Tools
from agent.stages.remote.event_stream import SseReader
from latency_budget.account.turn import TurnId
from tests.agent.stages.remote.test_remote_chat import WEATHER, reply, talking, text_of
from tests.support.service.model_servers import Answer, stream

Shape = dict[str, Any]

CALL: Final = ModelCall("weather", '{"city": "Bonn"}')
SHAPES: Final[dict[str, dict[str, Shape]]] = json.loads(
    Path(__file__).with_name("streams.json").read_text(encoding="utf-8")
)
REPLIES: Final = SHAPES["replies"]
FAILURES: Final = SHAPES["failures"]


def sent(shape: Shape) -> Answer:
    events = [json.dumps(chunk) + shape.get("behind", "") for chunk in shape["chunks"]]
    return stream(*events, end=shape.get("end", "data: [DONE]\n\n"))


@pytest.mark.parametrize("server", REPLIES)
async def test_words_calls_and_usage_of(server: str) -> None:
    shape = REPLIES[server]
    tools = Tools((WEATHER,))
    async with talking(sent(shape)) as (chat, scripted, _):
        await chat.set_tools(tools.definitions)
        tokens = await reply(chat, tools)
        assert text_of(tokens) == shape.get("words", "Let me see.")
        assert [call for token in tokens for call in token.calls] == [CALL]
        assert tokens[-1].finish_reason == shape.get("finish_reason", "tool_calls")
        assert tokens[-1].usage == Usage(*shape.get("usage", (30, 16, 14)))
        assert len(scripted.bodies) == 1


@pytest.mark.parametrize("server", FAILURES)
async def test_a_failure_in_the_middle_of(server: str) -> None:
    shape = FAILURES[server]
    async with talking(sent(shape)) as (chat, scripted, model_server):
        heard = ""

        async def hear() -> None:
            nonlocal heard
            tokens = chat.generate(
                TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None
            )
            async with aclosing(tokens):
                async for token in tokens:
                    heard += token.text

        with pytest.raises(StageError) as caught:
            await hear()
        assert heard == "Let me"
        assert caught.value.message == f"The model server {shape['reason']}."
        assert len(scripted.bodies) == 1, "what was said is not said again"
        assert model_server.problem == f"the model server {shape['reason']}"


@pytest.mark.parametrize("server", REPLIES)
def test_however_the_bytes_are_cut(server: str) -> None:
    stream_bytes = b"".join(sent(REPLIES[server]).pieces).partition(b"\r\n\r\n")[2]
    whole = SseReader().push(stream_bytes)
    reader = SseReader()
    assert [data for byte in stream_bytes for data in reader.push(bytes((byte,)))] == whole
    assert len(whole) >= len(REPLIES[server]["chunks"])
