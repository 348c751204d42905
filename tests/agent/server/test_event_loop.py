"""The event loop of the service."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from agent.server.event_loop import loop_factory


def test_lookups_of_names_take_none_of_the_default_threads() -> None:
    """A resolver that does not answer would hold them all, and what else runs on them."""

    async def look_up() -> list[object]:
        no_threads = ThreadPoolExecutor()
        no_threads.shutdown()
        asyncio.get_running_loop().set_default_executor(no_threads)
        return list(await asyncio.get_running_loop().getaddrinfo("localhost", 80))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(look_up())
