"""Type to the agent with the OpenAI SDK and print the reply while it is generated.

pip install 'openai[realtime]'
python text_client.py "What is the capital of France?"
"""

import argparse
import asyncio

from openai import AsyncOpenAI


async def ask(url: str, agent: str, question: str) -> None:
    client = AsyncOpenAI(api_key="none", websocket_base_url=url)
    async with client.realtime.connect(model=agent) as call:
        await call.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await call.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": question}],
            }
        )
        await call.response.create()
        async for event in call:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
            elif event.type == "response.done":
                print()
                return
            elif event.type == "error":
                raise SystemExit(event.error.message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--url", default="ws://localhost:8080/v1")
    parser.add_argument("--agent", default="default", help="a name of [agents.NAME]")
    options = parser.parse_args()
    asyncio.run(ask(options.url, options.agent, options.question))


if __name__ == "__main__":
    main()
