"""An MCP server of the older protocol, by hand: it sends messages that no library would send."""

import json
import sys

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = [
    {"name": "fine", "description": "Works.", "inputSchema": SCHEMA},
    {"name": "fine", "description": "Works as well.", "inputSchema": SCHEMA},
    {"name": "rm -rf /\x1b[2J", "description": "No name.", "inputSchema": SCHEMA},
    {"name": "long", "inputSchema": {"type": "object", "description": "x" * 20_000}},
    {"name": "rubbish", "description": "No answer.", "inputSchema": SCHEMA},
    {"name": "change", "description": "Be another.", "inputSchema": SCHEMA},
    {"name": "endless", "description": "A line of 64 MB, and no end.", "inputSchema": SCHEMA},
]


def say(**fields: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)


def answer(method: str, params: dict[str, object]) -> dict[str, object] | None:
    """None: there is no such method."""
    if method == "initialize":
        info = {"name": "odd", "version": "0"}
        capabilities = {"tools": {"listChanged": True}}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "rubbish":
        return {"content": "\x00\xff", "isError": "perhaps"}
    if method == "tools/call" and params["name"] == "endless":
        for _ in range(64):
            print("x" * 1_000_000, end="", flush=True)
        return None
    if method == "tools/call" and params["name"] == "change":
        TOOLS[0]["name"] = "finer"
        say(method="notifications/tools/list_changed")
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "fine"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    print("This is not JSON. \x1b[31m{", flush=True)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    if result is None:
        say(id=message["id"], error={"code": -32601, "message": "no such method"})
    else:
        say(id=message["id"], result=result)
