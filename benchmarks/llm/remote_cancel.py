"""Time from a barge-in to the end of the stream at a language model's server, over loopback.

    python -m benchmarks.llm.remote_cancel --rounds 50

The server is a process of its own that streams a word every 20 ms, as a model does, and notes when
it sees that the client has closed the connection. Both clocks are the machine's monotonic one.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from agent.config.remote_models import RemoteModel
from agent.session.ports.stage_ports import ChatMessage
from agent.stages.remote.api_server import ServerOptions
from agent.stages.remote.model_server import ModelServer
from agent.stages.remote.remote_chat import remote_chat_factory
from agent.stages.tool_call_adapter import NO_LIMITS
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from latency_budget.host import machine
from llm_engine.config import SamplingParams

CLOCK: Final = SystemClock()
TOKEN_S: Final = 0.02
MAX_TOKENS: Final = 512
WORDS_BEFORE: Final = 5
"""Words that are heard before the caller interrupts."""
PROMISED_MS: Final = 50.0

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_WORD: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "la "}}]}\n\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 1 if a stream took longer than `PROMISED_MS` to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    num_rounds = parser.parse_args(argv).rounds
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    server.start()
    try:
        times_ms, num_words = asyncio.run(_measure(ours, num_rounds))
    finally:
        server.terminate()
        server.join()
    print(
        f"{machine()}, {num_rounds} barge-ins: the server sees the end after p50 "
        f"{statistics.median(times_ms):.1f} ms, {max(times_ms):.1f} at most; "
        f"{sum(ms > PROMISED_MS for ms in times_ms)} later than the promised {PROMISED_MS:g} ms; "
        f"words sent behind it: {max(num_words)} at most"
    )
    return int(max(times_ms) > PROMISED_MS)


async def _measure(server: Connection, num_rounds: int) -> tuple[list[float], list[int]]:
    """Times in ms from each barge-in to the end that the server sees, and the words that it has
    sent meanwhile."""
    model = RemoteModel(f"http://127.0.0.1:{await asyncio.to_thread(server.recv)}/v1", "scripted")
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    times_ms, num_words = [], []
    client = ModelServer(model, ServerOptions(), CLOCK)
    make = remote_chat_factory(client, CLOCK, sampling, 4096, NO_LIMITS, "quotes", None)
    for number in range(num_rounds):
        chat = make("Be brief.", ())
        await chat.commit(ChatMessage("user", "Sing."))
        tokens = chat.generate(
            TurnId(number), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None
        )
        for _ in range(WORDS_BEFORE):
            await anext(tokens)
        cut_ns = CLOCK.now_ns()
        await tokens.aclose()
        ended_ns, sent_ns = await asyncio.to_thread(server.recv)
        times_ms.append((ended_ns - cut_ns) / 1e6)
        num_words.append(sum(at_ns > cut_ns for at_ns in sent_ns))
        await chat.close()
    await client.close()
    return times_ms, num_words


def _serve(told: Connection) -> None:
    asyncio.run(_serve_forever(told))


async def _serve_forever(told: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD)
        sent_ns = []
        with suppress(ConnectionError):
            for _ in range(MAX_TOKENS):
                writer.write(_WORD)
                sent_ns.append(CLOCK.now_ns())
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TOKEN_S):
                        while await reader.read(1 << 16):
                            pass  # the request's body
                        break
        told.send((CLOCK.now_ns(), sent_ns))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
