"""Ask the agent `shop` and show which tools the server runs for the answer.

    python ask.py "Where is my order 1001?"

The subprotocol `halfsec.v1` adds `halfsec.tool` events to OpenAI's protocol; without it the tools
run as well, and are not reported.
"""

import argparse
import asyncio
import json
from typing import Any

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol


async def ask(url: str, question: str, tool_choice: str) -> None:
    protocols = [Subprotocol("halfsec.v1"), Subprotocol("realtime")]
    async with connect(f"{url}/realtime?model=shop", subprotocols=protocols) as socket:

        async def send(event: dict[str, Any]) -> None:
            await socket.send(json.dumps(event))

        content = [{"type": "input_text", "text": question}]
        item = {"type": "message", "role": "user", "content": content}
        await send({"type": "conversation.item.create", "item": item})
        options = {"output_modalities": ["text"], "tool_choice": tool_choice}
        await send({"type": "response.create", "response": options})
        async for frame in socket:
            event = json.loads(frame)
            match event["type"]:
                case "halfsec.tool":
                    print(f"[tool {event['name']}: {event['state']}]")
                case "response.output_text.done":
                    print(event["text"])
                case "response.done":
                    return
                case "error":
                    raise SystemExit(event["error"]["message"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--url", default="ws://localhost:8080/v1")
    parser.add_argument(
        "--tool-choice",
        default="auto",
        choices=("auto", "none", "required"),
        help="`required` makes models call a tool that are too small to decide it well",
    )
    options = parser.parse_args()
    asyncio.run(ask(options.url, options.question, options.tool_choice))


if __name__ == "__main__":
    main()
