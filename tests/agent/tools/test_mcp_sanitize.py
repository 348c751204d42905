"""Sanitizing of what MCP servers declare and return."""

import json
from typing import Any

import pytest
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from agent.tools.mcp_sanitize import MAX_TOOLS, listing_of, result_text
from agent.tools.server_tool import one_line

PLAIN = {"type": "object"}


def listed(*names: str) -> list[Tool]:
    return [Tool(name=name, input_schema=PLAIN) for name in names]


def test_a_listing() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    found = listing_of([Tool(name="a", description=" Tell. ", input_schema=schema), *listed("b")])
    assert found.problems == ()
    assert json.loads(found.definitions["a"]) == {
        "name": "a",
        "description": "Tell.",
        "parameters": schema,
    }
    only = listing_of(listed("a", "b"), ("b", "c"))
    assert list(only.definitions) == ["b"]
    assert only.problems == ("it has no tool 'c'",)
    slow = listing_of(listed("search"), background=("serch",))
    assert slow.problems == ("it has no tool 'serch'",)


def test_few_problems_are_told() -> None:
    found = listing_of(listed("b", *(f"no name {number}" for number in range(100))), ("b", "c"))
    assert len(listing_of(listed(*(f"no name {number}" for number in range(100)))).problems) == 9
    assert found.problems == ("it has no tool 'c'",)
    assert listing_of(listed(*(f"x {n}" for n in range(12)))).problems[-1] == (
        "it has 4 problems more"
    )


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "a\n", "ä", "<|im_end|>"])
def test_names_that_are_none(name: str) -> None:
    found = listing_of(listed(name, "b"))
    assert list(found.definitions) == ["b"]
    assert len(found.problems) == 1
    assert "\n" not in found.problems[0]


def test_what_is_too_much() -> None:
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"items": deep}
    tools = [
        Tool(name="deep", input_schema={**PLAIN, "x": deep}),
        Tool(name="long", input_schema={**PLAIN, "x": "y" * 16_000}),
        Tool(name="wordy", description="z" * 5000, input_schema=PLAIN),
    ]
    found = listing_of(tools)
    assert list(found.definitions) == ["wordy"]
    assert len(json.loads(found.definitions["wordy"])["description"]) == 1024
    assert [problem.split(": ")[1].split(" more")[0] for problem in found.problems] == [
        "what it takes nests",
        "what it takes has",
    ]
    many = listing_of(listed(*(f"t{number}" for number in range(MAX_TOOLS + 2))))
    assert len(many.definitions) == MAX_TOOLS
    assert len(many.problems) == 1


def test_results() -> None:
    link = ResourceLink(type="resource_link", name="x", uri="file:///x")
    text = TextResourceContents(uri="file:///y", text="inside")
    blob = BlobResourceContents(uri="file:///z", blob="AAAA")
    blocks: list[Any] = [
        TextContent(type="text", text="One."),
        AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
        link,
        EmbeddedResource(type="resource", resource=text),
        EmbeddedResource(type="resource", resource=blob),
    ]
    assert result_text(CallToolResult(content=blocks, structured_content={"a": 1})) == (
        "One.\n[audio, not shown: audio/wav]\n[a resource, not shown: file:///x]\ninside\n"
        "[a resource, not shown: file:///z]"
    )
    assert result_text(CallToolResult(content=[], structured_content={"a": "ü"})) == '{"a": "ü"}'
    assert result_text(CallToolResult(content=[])) == "(nothing)"


def test_a_line_that_moves_no_terminal() -> None:
    assert one_line("a\x1b[2J\n b\u202e\x07") == "a?[2J b??"
    assert one_line("x" * 10**6, 10) == "xxxxxxx..."
