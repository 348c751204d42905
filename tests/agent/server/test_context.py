"""Context and cache of the language model, seen through the socket: token counts only."""

import threading
from typing import Any

import pytest

import llm_engine
from tests.support.service.live import LiveServer
from tests.support.service.live_call import PATIENCE_S, LiveCall, call_to

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

TEXT = {"output_modalities": ["text"], "max_output_tokens": 1}
LONG = "You are a careful assistant who looks after a large library. " * 12


class Warmed:
    """Tells when a conversation with certain words in it has been computed ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._known: list[str] = []
        original = llm_engine.Conversation.warm

        async def warm(conversation: llm_engine.Conversation, text: str = "") -> None:
            await original(conversation, text)
            dialogue = conversation._history  # white box: nothing else tells when it is done
            system = dialogue._system.text if dialogue._system else ""
            texts = [message.text for message in conversation.messages]
            with self._changed:
                self._known.append("\n".join([system or "", *texts]))
                self._changed.notify_all()

        monkeypatch.setattr(llm_engine.Conversation, "warm", warm)

    def wait_for(self, words: str) -> None:
        with self._changed:
            known = self._changed.wait_for(
                lambda: any(words in text for text in self._known), PATIENCE_S
            )
        assert known, words


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> Warmed:
    return Warmed(monkeypatch)


def usage_of(response: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them were there already."""
    usage = response["usage"]
    return usage["input_tokens"], usage["input_token_details"]["cached_tokens"]


async def test_instructions_of_an_update_are_computed_before_the_first_turn(
    live: LiveServer, warmed: Warmed
) -> None:
    async with call_to(live.url) as call:
        await call.update(instructions=LONG)
        warmed.wait_for(LONG.strip())
        asked, cached = usage_of(await call.ask("Hi.", **TEXT))
    assert asked > 150
    assert asked - cached < 12


async def test_items_and_edits_are_computed_before_the_turn(
    live: LiveServer, warmed: Warmed
) -> None:
    async with call_to(live.url) as call:
        first = await call.type("word " * 60)
        await call.type("other " * 60)
        warmed.wait_for("other other")
        asked, cached = usage_of(await call.answer(**TEXT))
        assert asked - cached < 12
        await call.send("conversation.item.delete", item_id=first["id"])
        await call.until("conversation.item.deleted")
        await call.type("And more.")
        warmed.wait_for("And more.")
        fewer, cached = usage_of(await call.answer(**TEXT))
        assert fewer < asked - 40
        assert fewer - cached < 12


async def test_a_message_survives_a_cancelled_response(live: LiveServer) -> None:
    async def tokens(call: LiveCall) -> int:
        return usage_of(await call.answer(**TEXT))[0]

    async with call_to(live.url) as call:
        await call.type("word " * 200)
        plain = await tokens(call)
    async with call_to(live.url) as call:
        await call.type("word " * 200)
        await call.send("response.create", response={"instructions": "word " * 300, **TEXT})
        await call.send("response.cancel")
        await call.until("response.done")
        kept = await tokens(call)
    assert plain <= kept < plain + 100


async def test_a_reply_survives_an_edit_in_the_middle_of_it(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        victim = await call.type("x")
        await call.type("Tell me a story about a dog.")
        options = {"output_modalities": ["text"], "max_output_tokens": 60}
        await call.send("response.create", response=options)
        await call.until("response.output_text.delta")
        await call.send("conversation.item.delete", item_id=victim["id"])
        told = (await call.until("response.done"))["response"]["usage"]
        asked, _ = usage_of(await call.answer(**TEXT))
    assert asked > told["total_tokens"] - 12  # without the deleted item, and nothing more


TOO_LONG = "Be kind to all. " * 750


@pytest.mark.parametrize("waits", [False, True])
async def test_too_long_instructions_are_refused_and_the_call_goes_on(
    live: LiveServer, waits: bool
) -> None:
    async with call_to(live.url) as call:
        if waits:
            await call.prove_alive()
        session = {"type": "realtime", "instructions": TOO_LONG}
        await call.send("session.update", session=session, event_id="long")
        error = (await call.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "session.instructions")
        assert error["event_id"] == "long"
        limit = int(live.config.llm_engine.context * 0.75)
        assert f"may take {limit}" in error["message"]
        assert (await call.update())["instructions"] == call.events[0]["session"]["instructions"]
        for _ in range(2):
            await call.prove_alive()


@pytest.mark.parametrize("text", [TOO_LONG, "日本" * 60_000], ids=["long", "giant"])
async def test_a_message_that_is_too_long_is_refused(live: LiveServer, text: str) -> None:
    async with call_to(live.url) as call:
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await call.send("conversation.item.create", item=item)
        error = await call.problem("invalid_value")
        assert "tokens" in error["message"]
        await call.prove_alive()
    assert live.stages.llm.restarts == 0 or not live.problems.texts()


async def test_a_thousand_messages_and_one_question(live: LiveServer) -> None:
    before = live.stages.llm.restarts
    async with call_to(live.url) as call:
        content = [{"type": "input_text", "text": "word " * 10}]
        item = {"type": "message", "role": "user", "content": content}
        for index in range(900):
            await call.send("conversation.item.create", item={**item, "id": f"mine{index}"})
        asked, _ = usage_of(await call.answer(**TEXT))
        await call.send("conversation.item.delete", item_id="mine450")
        again, _ = usage_of(await call.answer(**TEXT))
    limit = live.config.llm_engine.context
    assert limit / 2 < asked < limit
    assert limit / 2 < again < limit
    assert live.stages.llm.restarts == before
