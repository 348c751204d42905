"""OpenAI's Python SDK, asynchronous: what an application does with its connection."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.clients.scene import (
    BYTES_PER_S,
    CLOSING_OF_A_CUT,
    PATIENCE_S,
    READER,
    SPOKEN_TURN,
    STORY,
    WEATHER,
    Event,
    Scenario,
    Scene,
    check_chain,
    check_tool_call,
    loudest,
    main,
    outline,
    overlap,
    pieces,
)

ENDED = "rate_limits.updated"
"""The last event of a response."""


class Talk:
    """A connection, and all that came over it."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self._coming = aiter(connection)

    async def until(self, kind: str, where: Callable[[Event], bool] | None = None) -> Event:
        """The next event of this type (that `where` takes)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event: Event = (await anext(self._coming)).to_dict(mode="json")
                self.events.append(event)
                if event["type"] == kind and (where is None or where(event)):
                    return event

    async def say(self, pcm: bytes) -> None:
        for piece in pieces(pcm):
            await self.connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())

    async def type(self, text: str) -> None:
        await self.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            }
        )

    async def response(self) -> Event:
        """The end of the response that runs."""
        response: Event = (await self.until("response.done"))["response"]
        await self.until(ENDED)
        return response

    async def hear_some(self, num_deltas: int) -> Event:
        for _ in range(num_deltas):
            delta = await self.until("response.output_audio.delta")
        return delta

    async def prove_alive(self) -> None:
        """The session still answers."""
        await self.type("Say hello.")
        await self.connection.response.create(
            response={"output_modalities": ["text"], "max_output_tokens": 4}
        )
        response = await self.response()
        assert response["status"] in ("completed", "incomplete"), response

    def spoken(self, response_id: str) -> bytes:
        return b"".join(
            base64.b64decode(event["delta"], validate=True)
            for event in self.events
            if event["type"] == "response.output_audio.delta"
            and event["response_id"] == response_id
        )


@asynccontextmanager
async def talk(
    scene: Scene, model: str = "gpt-realtime-2.1", **options: Any
) -> AsyncIterator[Talk]:
    async with (
        AsyncOpenAI(base_url=f"{scene.http}/v1", api_key="x") as client,
        client.realtime.connect(model=model, **options) as connection,
    ):
        call = Talk(connection)
        created = await call.until("session.created")
        assert created["session"]["model"] == model
        yield call
        check_chain(call.events)


async def spoken_turn(scene: Scene) -> None:
    said = "vm-nobodyavail"
    async with talk(scene) as call:
        await call.say(scene.speech(said))
        response = await call.response()
        if not any(each["type"].endswith("transcription.completed") for each in call.events):
            await call.until("conversation.item.input_audio_transcription.completed")
    assert outline(call.events[1:]) == list(SPOKEN_TURN)
    heard = next(e for e in call.events if e["type"].endswith("transcription.completed"))
    assert overlap(scene.transcripts[said], heard["transcript"]) >= 0.8
    assert heard["usage"]["type"] == "duration"
    assert 1.0 < heard["usage"]["seconds"] < 4.0
    user = next(e for e in call.events if e["type"] == "conversation.item.added")["item"]
    started = next(e for e in call.events if e["type"].endswith("speech_started"))
    stopped = next(e for e in call.events if e["type"].endswith("speech_stopped"))
    assert user["id"] == heard["item_id"] == started["item_id"] == stopped["item_id"]
    assert 0 <= started["audio_start_ms"] < stopped["audio_end_ms"] <= 5000
    check_reply(call, response)


def check_reply(call: Talk, response: Event) -> None:
    """One spoken reply: sound that can be heard, and the same words everywhere."""
    assert response["status"] == "completed"
    spoken = call.spoken(response["id"])
    assert len(spoken) > BYTES_PER_S // 2
    assert loudest(spoken) > 1000
    kinds = {event["type"]: event for event in call.events}
    words = response["output"][0]["content"][0]["transcript"]
    assert words == kinds["response.output_audio_transcript.done"]["transcript"]
    prefix = "response.output_audio_transcript.delta"
    assert "".join(e["delta"] for e in call.events if e["type"] == prefix) == words
    ids = {e.get("response_id") for e in call.events if e["type"].startswith("response.output")}
    assert ids == {response["id"]}


async def typed_turns(scene: Scene) -> None:
    """Two questions in writing, of which the second one rests on the first."""
    async with talk(scene) as call:
        session: Any = {"type": "realtime", "output_modalities": ["text"]}
        await call.connection.session.update(session=session)
        await call.until("session.updated")
        texts = []
        usages = []
        for question in ("What is the capital of France?", "And what do people eat there?"):
            await call.type(question)
            await call.connection.response.create()
            response = await call.response()
            assert response["status"] == "completed"
            (item,) = response["output"]
            assert item["role"] == "assistant"
            texts.append(item["content"][0]["text"])
            usages.append(response["usage"]["input_tokens"])
    assert "Paris" in texts[0]
    assert texts[1].strip()
    assert usages[1] > usages[0]
    deltas = [e["delta"] for e in call.events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "".join(texts)


async def barge_in(scene: Scene) -> None:
    said = "all-circuits-busy-now"
    async with talk(scene, READER) as call:
        heard = await call.hear_some(15)
        await call.say(scene.speech(said, silence_s=0))
        await call.until("input_audio_buffer.speech_started")
        number = len(call.events)
        cut = await call.response()
        assert outline(call.events[number:]) == list(CLOSING_OF_A_CUT)
        assert cut["id"] == heard["response_id"]
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
        place: Any = {"item_id": heard["item_id"], "content_index": 0, "audio_end_ms": 500}
        await call.connection.conversation.item.truncate(**place)
        await call.until("conversation.item.truncated")
        await call.say(bytes(2 * BYTES_PER_S))
        words = await call.until("conversation.item.input_audio_transcription.completed")
        assert overlap(scene.transcripts[said], words["transcript"]) >= 0.6
        again = await call.hear_some(1)
        assert again["response_id"] != heard["response_id"]
        later = call.events[number:]
    assert not any(
        event["type"].endswith(".delta") and event.get("response_id") == cut["id"]
        for event in later
    )


async def tool_call(scene: Scene) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER}
    async with talk(scene) as call:
        session: Any = {"type": "realtime", "tools": [tool], "tool_choice": "required"}
        await call.connection.session.update(session=session)
        await call.until("session.updated")
        await call.type("What is the weather in Paris?")
        await call.until("conversation.item.done")
        number = len(call.events)
        await call.connection.response.create()
        await call.response()
        item = check_tool_call(call.events[number:])
        session = {"type": "realtime", "tool_choice": "none"}
        await call.connection.session.update(session=session)
        await call.until("session.updated")
        answer: Any = {
            "type": "function_call_output",
            "call_id": item["call_id"],
            "output": json.dumps({"sky": "clear"}),
        }
        await call.connection.conversation.item.create(item=answer)
        done = await call.until("conversation.item.done")
        assert done["item"]["call_id"] == item["call_id"]
        await call.connection.response.create()
        response = await call.response()
        assert response["status"] == "completed"
        assert [each["type"] for each in response["output"]] == ["message"]


async def cancel(scene: Scene) -> None:
    async with talk(scene) as call:
        await call.type(STORY)
        await call.connection.response.create()
        heard = await call.hear_some(5)
        await call.connection.response.cancel()
        cut = await call.response()
        assert cut["id"] == heard["response_id"]
        assert (cut["status"], cut["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        await call.connection.response.cancel(event_id="again")
        refused = (await call.until("error"))["error"]
        assert (refused["code"], refused["event_id"]) == ("response_cancel_not_active", "again")
        await call.prove_alive()


async def error(scene: Scene) -> None:
    async with talk(scene) as call:
        await call.connection.conversation.item.retrieve(item_id="nowhere", event_id="mine")
        refused = (await call.until("error"))["error"]
        assert refused["code"] == "item_retrieve_invalid_item_id"
        assert refused["event_id"] == "mine"
        await call.connection.input_audio_buffer.commit()
        refused = (await call.until("error"))["error"]
        assert refused["code"] == "input_audio_buffer_commit_empty"
        await call.prove_alive()


async def reconnect(scene: Scene) -> None:
    """The SDK's own: the network breaks, and it comes back with the same request."""
    codes: list[int] = []

    def reconnecting(event: Any) -> None:
        codes.append(event.close_code)

    async with talk(scene, on_reconnecting=reconnecting, initial_delay=0.05) as call:
        await call.prove_alive()
        first = call.events[0]["session"]["id"]
        await scene.cut()
        again = await call.until("session.created")
        assert again["session"]["id"] != first
        assert codes == [1006]
        call.events = [again]
        await call.prove_alive()


async def beta(scene: Scene) -> None:
    """The SDK still has a client of the beta dialect: its user is told what is wrong."""
    address = f"{scene.ws}/v1"  # it makes wss of an http address
    async with (
        AsyncOpenAI(websocket_base_url=address, api_key="x") as client,
        client.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection,
    ):
        async with asyncio.timeout(PATIENCE_S):
            event = (await connection.recv()).to_dict(mode="json")
    assert event["type"] == "error"
    told: Any = event["error"]
    assert told["code"] == "beta_api_shape_disabled"


SCENARIOS: dict[str, Scenario] = {
    "spoken_turn": spoken_turn,
    "typed_turns": typed_turns,
    "barge_in": barge_in,
    "tool_call": tool_call,
    "cancel": cancel,
    "error": error,
    "reconnect": reconnect,
    "beta": beta,
}

if __name__ == "__main__":
    main(SCENARIOS)
