"""Chat model by llama.cpp: any GGUF file, as `llm_engine.model = "llama:PATH"`.

Needs `pip install llama-cpp-python`.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp

import llm_engine


class LlamaChat:
    """An `llm_engine.ChatModel`. llama.cpp computes one reply at a time; others wait."""

    def __init__(self, argument: str, options: llm_engine.ChatModelOptions) -> None:
        """The factory: `argument` is what stands behind "llama:"."""
        self._llama = llama_cpp.Llama(
            str(Path(argument).expanduser()),
            n_ctx=options.context,
            n_threads=options.threads,
            verbose=False,
        )
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "llama")

    async def reply(self, request: llm_engine.ReplyRequest) -> AsyncIterator[str]:
        """Stream a reply. A caller who interrupts closes this generator at its `yield`."""
        async with self._turn:
            chunks = await self._call(
                self._llama.create_chat_completion,
                [dict(message) for message in request.messages],
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                stop=list(request.stop),
                stream=True,
            )
            while (chunk := await self._call(next, chunks, None)) is not None:
                yield chunk["choices"][0]["delta"].get("content") or ""

    async def close(self) -> None:
        await self._call(self._llama.close)
        self._thread.shutdown()

    async def _call(self, function: Any, *args: Any, **named: Any) -> Any:
        """Run what blocks on the one thread of llama.cpp, never on the event loop."""
        work = lambda: function(*args, **named)  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
