"""The agents SDK for Python: `RealtimeRunner` and its session, which validates every event.

What it finds wrong in an event, or in what it is asked to do, is an "error" or an "exception":
either ends a scenario that does not wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.realtime.model_inputs import RealtimeModelSendRawMessage

from tests.clients.scene import (
    CLOSING_OF_A_CUT,
    PATIENCE_S,
    READER,
    SPOKEN_TURN,
    STORY,
    Event,
    Scenario,
    Scene,
    check_arguments,
    check_chain,
    check_tool_call,
    loudest,
    main,
    outline,
    outline_index,
    overlap,
    pieces,
)


class Talk:
    """A session, what its application is told, and the server's own events behind that."""

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.raw: list[Event] = []
        self.errors: list[Any] = []
        self.spoken = bytearray()
        self._coming = aiter(session)

    async def next(self) -> Any:
        event = await anext(self._coming)
        if event.type == "error":
            self.errors.append(event.error)
        elif event.type == "audio":
            self.spoken += event.audio.data
        elif event.type == "raw_model_event":
            if event.data.type == "raw_server_event":
                self.raw.append(event.data.data)
            elif event.data.type == "exception":
                self.errors.append(event.data.exception)
        return event

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """The next event of the SDK that `wanted` takes."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(event := await self.next()):
                assert not self.errors, self.errors
        return event

    async def until_told_of_errors(self) -> list[Any]:
        async with asyncio.timeout(PATIENCE_S):
            while not self.errors:
                try:
                    await self.next()
                except Exception as problem:  # it tells of some by raising them
                    self.errors.append(problem)
        return self.errors

    async def until_raw(self, kind: str, where: Callable[[Event], bool] = bool) -> Event:
        """The next event of the server of this type (that `where` takes)."""
        await self.until(
            lambda event: (
                event.type == "raw_model_event"
                and event.data.type == "raw_server_event"
                and event.data.data["type"] == kind
                and where(event.data.data)
            )
        )
        return self.raw[-1]

    async def hear_some(self, num_deltas: int) -> Event:
        for _ in range(num_deltas):
            delta = await self.until_raw("response.output_audio.delta")
        return delta

    async def say(self, pcm: bytes) -> None:
        for piece in pieces(pcm):
            await self.session.send_audio(piece)

    async def prove_alive(self) -> None:
        await self.session.send_message("Say hello.")
        await self.until_raw("response.done", lambda e: e["response"]["status"] == "completed")


@asynccontextmanager
async def talk(
    scene: Scene, model: str = "gpt-realtime", tools: Any = (), **settings: Any
) -> AsyncIterator[Talk]:
    agent = RealtimeAgent(name="assistant", instructions="Answer in few words.", tools=list(tools))
    runner = RealtimeRunner(agent)
    config: Any = {
        "url": f"{scene.ws}/v1/realtime?model={model}",
        "api_key": "x",
        "initial_model_settings": settings,
    }
    session = await runner.run(model_config=config)
    async with session:
        call = Talk(session)
        yield call
        check_chain(call.raw)


async def spoken_turn(scene: Scene) -> None:
    said = "conf-locked"
    async with talk(scene) as call:
        await call.say(scene.speech(said))
        heard: Any = None
        while heard is None or "rate_limits.updated" not in {each["type"] for each in call.raw}:
            event = await call.until(lambda event: True)
            data = getattr(event, "data", None)
            if getattr(data, "type", None) == "input_audio_transcription_completed":
                heard = data
    assert overlap(scene.transcripts[said], heard.transcript) >= 0.7
    begun = outline_index(call.raw, SPOKEN_TURN[0])
    turn = [kind for kind in outline(call.raw[begun:]) if kind in SPOKEN_TURN]
    assert turn == list(SPOKEN_TURN), turn
    assert loudest(bytes(call.spoken)) > 1000


async def barge_in(scene: Scene) -> None:
    """The SDK stops playing, says by itself what was heard, and asks for the item as it is then."""
    async with talk(scene, READER) as call:
        heard = await call.hear_some(15)
        await call.say(scene.speech("all-circuits-busy-now", silence_s=0))
        await call.until(lambda event: event.type == "audio_interrupted")
        number = outline_index(call.raw, "input_audio_buffer.speech_started") + 1
        cut = (await call.until_raw("response.done"))["response"]
        await call.until_raw("rate_limits.updated")
        closing = [kind for kind in outline(call.raw[number:]) if kind in CLOSING_OF_A_CUT]
        assert closing == list(CLOSING_OF_A_CUT)
        assert (cut["id"], cut["status"]) == (heard["response_id"], "cancelled")
        assert cut["status_details"]["reason"] == "turn_detected"
        if not any(each["type"] == "conversation.item.truncated" for each in call.raw):
            await call.until_raw("conversation.item.truncated")
        retrieved = await call.until_raw("conversation.item.retrieved")
        assert retrieved["item"]["id"] == heard["item_id"]
        assert retrieved["item"]["status"] == "incomplete"
        await call.say(bytes(2 * 48_000))
        again = await call.hear_some(1)
        assert again["response_id"] != heard["response_id"]
    late = [e for e in call.raw[number:] if e["type"].endswith("delta")]
    assert not [e for e in late if e.get("response_id") == cut["id"]]


async def tool_call(scene: Scene) -> None:
    """The SDK calls the function, sends what it gave, and asks for the next response by itself."""
    asked: list[str] = []

    @function_tool
    async def get_weather(city: str) -> str:
        asked.append(city)
        return "clear"

    get_weather.params_json_schema["properties"]["city"]["enum"] = ["Paris", "Rome", "Oslo"]
    async with talk(scene, tools=[get_weather], tool_choice="required") as call:
        await call.session.send_message("What is the weather in Paris?")
        await call.until_raw("response.created")
        number = len(call.raw) - 1
        ended = await call.until(lambda event: event.type == "tool_end")
        assert ended.output == "clear"
        check_arguments(ended.arguments)
        assert asked
        await call.until_raw(
            "conversation.item.done", lambda e: e["item"]["type"] == "function_call_output"
        )
        await call.until_raw("response.created")
        check_tool_call(call.raw[number:])


async def cancel(scene: Scene) -> None:
    """`interrupt`, as a button would: the SDK cancels, and says what was heard."""
    async with talk(
        scene, turn_detection={"type": "server_vad", "interrupt_response": False}
    ) as call:
        await call.session.send_message(STORY)
        heard = await call.hear_some(5)
        await call.session.interrupt()
        cut = (await call.until_raw("response.done"))["response"]
        assert cut["id"] == heard["response_id"]
        assert (cut["status"], cut["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        await call.prove_alive()


async def error(scene: Scene) -> None:
    """The application is told, and may go on."""
    async with talk(scene) as call:
        wrong: Any = {
            "type": "conversation.item.retrieve",
            "other_data": {"item_id": "nowhere", "event_id": "mine"},
        }
        await call.session.model.send_event(RealtimeModelSendRawMessage(message=wrong))
        (problem,) = await call.until_told_of_errors()
        assert problem.code == "item_retrieve_invalid_item_id", problem
        assert problem.event_id == "mine"
        call.errors.clear()
        await call.prove_alive()


async def reconnect(scene: Scene) -> None:
    """The SDK tells of the broken connection and ends; a new session of the application's works."""
    session_ids = []
    async with talk(scene) as call:
        await call.prove_alive()
        session_ids.append(call.raw[0]["session"]["id"])
        await scene.cut()
        (broken,) = await call.until_told_of_errors()
        assert type(broken).__name__ == "ConnectionClosedError", broken
    async with talk(scene) as call:
        await call.prove_alive()
        session_ids.append(call.raw[0]["session"]["id"])
    assert len(set(session_ids)) == 2


SCENARIOS: dict[str, Scenario] = {
    "spoken_turn": spoken_turn,
    "barge_in": barge_in,
    "tool_call": tool_call,
    "cancel": cancel,
    "error": error,
    "reconnect": reconnect,
}

if __name__ == "__main__":
    main(SCENARIOS)
