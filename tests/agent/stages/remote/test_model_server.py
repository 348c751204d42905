"""A model server's start and recovery."""

from agent.config.remote_model import RemoteAddress
from agent.stages.remote.model_server import REFRESH_S, ModelServer
from agent.stages.remote_chat import RemoteSampling, remote_chat_factory
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remote_models import MODEL, Answer, Asked, ModelPort, echo


async def test_a_server_that_is_down_is_asked_again_until_it_answers() -> None:
    port, clock = ModelPort(), ManualClock()
    async with port.serving():
        pass  # its number is known from now on, and nothing listens there
    server = ModelServer(RemoteAddress(port.base_url, MODEL), clock)
    await server.start()
    assert server.problem == "can't be reached"
    async with port.serving():
        await server.refresh()
        assert server.problem == "can't be reached", "it was asked just now"
        clock.advance_ms(REFRESH_S * 1e3)
        await server.refresh()
        assert server.problem is None
        assert [asked.body["max_tokens"] for asked in port.replies] == [1]
        clock.advance_ms(REFRESH_S * 1e3)
        await server.refresh()
        assert len(port.replies) == 1, "a server that works is left alone"
        await server.close()


async def test_the_cache_is_measured_by_prompts_that_are_sent_twice() -> None:
    clock = ManualClock()
    is_cached = False
    seen: set[str] = set()

    async def script(asked: Asked, answer: Answer) -> None:
        text = asked.body["messages"][0]["content"]
        clock.advance_ms(100 if is_cached and text in seen else 400)
        seen.add(text)
        await echo(asked, answer)

    port = ModelPort(script)
    async with port.serving():
        for is_cached in (False, True):
            port.asked.clear()
            server = ModelServer(RemoteAddress(port.base_url, MODEL), clock)
            await server.start()
            assert server.has_prefix_cache == is_cached
            _, *sent = (asked.body["messages"][0]["content"] for asked in port.replies)
            assert (len(sent), len(set(sent))) == (4, 2)
            chat = remote_chat_factory(server, clock, RemoteSampling())("Be brief.", ())
            await chat.preview("I would like")
            is_sent_ahead = port.replies[-1].body["messages"][-1]["content"] == "I would like"
            assert is_sent_ahead == is_cached
            await server.close()
