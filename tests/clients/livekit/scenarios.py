"""LiveKit's `openai.realtime.RealtimeModel`: a session of it, without a LiveKit server.

It checks little and depends on much: what it can't make sense of it logs and skips, an item whose
predecessor it does not know as well. So every warning and error of its log fails a scenario that
does not expect it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai import realtime

from tests.clients.scene import (
    BYTES_PER_S,
    CLOSING_OF_A_CUT,
    PATIENCE_S,
    RATE_HZ,
    READER,
    SPOKEN_TURN,
    STORY,
    WEATHER,
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


class Log(logging.Handler):
    """What its library complains of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Talk:
    """A session, what the server sent it, and what it made of that."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.raw: list[Event] = []
        self.generations: list[Any] = []
        self.transcripts: list[Any] = []
        self.errors: list[Any] = []
        self.num_reconnected = 0
        self._changed = asyncio.Event()
        session.on("openai_server_event_received", self._keep(self.raw))
        session.on("generation_created", self._keep(self.generations))
        session.on("input_audio_transcription_completed", self._keep(self.transcripts))
        session.on("error", self._keep(self.errors))
        session.on("session_reconnected", self._reconnected)

    def _keep(self, kept: list[Any]) -> Callable[[Any], None]:
        def keep(event: Any) -> None:
            kept.append(event)
            self._changed.set()

        return keep

    def _reconnected(self, _: Any) -> None:
        self.num_reconnected += 1
        self._changed.set()

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until something is found; returns it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (what := found()):
                self._changed.clear()
                await self._changed.wait()
        return what

    def sent(self, kind: str) -> list[Event]:
        return [event for event in self.raw if event["type"] == kind]

    async def until_sent(self, kind: str, count: int = 1) -> Event:
        """The `count`-th event of this type."""
        event: Event = (await self.until(lambda: self.sent(kind)[count - 1 : count]))[0]
        return event

    def say(self, pcm: bytes) -> None:
        for piece in pieces(pcm):
            self.session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))

    async def type(self, text: str) -> None:
        """Returns when the server has confirmed the item."""
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", content=text)
        await self.session.update_chat_ctx(context)

    async def ask(self, text: str) -> Any:
        """The generation that answers: its response carries the id of the request."""
        await self.type(text)
        async with asyncio.timeout(PATIENCE_S):
            return await self.session.generate_reply()

    async def prove_alive(self) -> None:
        text, _ = await read(await self.ask("Say hello."))
        assert text


async def read(generation: Any) -> tuple[str, bytes]:
    """Words and sound of a reply's first message, to their end."""
    async with asyncio.timeout(PATIENCE_S):
        message = await anext(aiter(generation.message_stream))
        assert await message.modalities == ["audio", "text"]
        text = "".join([str(delta) async for delta in message.text_stream])
        sound = b"".join([bytes(frame.data) async for frame in message.audio_stream])
    return text, sound


@asynccontextmanager
async def talk(
    scene: Scene, model: str = "gpt-realtime", *, complaints: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Talk]:
    """`complaints`: how those begin that its log may have."""
    log = Log()
    logging.getLogger("livekit").addHandler(log)
    async with aiohttp.ClientSession() as http:
        maker = realtime.RealtimeModel(
            base_url=f"{scene.http}/v1", api_key="x", model=model, http_session=http, **options
        )
        session = maker.session()
        call = Talk(session)
        await call.until_sent("session.updated")
        yield call
        await session.aclose()
        await maker.aclose()
    logging.getLogger("livekit").removeHandler(log)
    others = [text for text in log.texts if not text.startswith(complaints or "\0")]
    assert not others, others
    check_chain(call.raw)


async def spoken_turn(scene: Scene) -> None:
    said = "vm-nobodyavail"
    async with talk(scene) as call:
        call.say(scene.speech(said))
        (generation,) = await call.until(lambda: call.generations)
        text, sound = await read(generation)
        heard = await call.until(lambda: [each for each in call.transcripts if each.is_final])
        await call.until_sent("rate_limits.updated")
        begun = outline_index(call.raw, SPOKEN_TURN[0])
        assert outline(call.raw[begun:]) == list(SPOKEN_TURN)
        assert overlap(scene.transcripts[said], heard[-1].transcript) >= 0.8
        assert text.strip()
        assert loudest(sound) > 1000
        roles = [item.role for item in call.session.chat_ctx.items]
        assert roles == ["user", "assistant"]


async def barge_in(scene: Scene) -> None:
    async with talk(scene, READER) as call:
        await call.until_sent("response.output_audio.delta", 15)
        call.say(scene.speech("all-circuits-busy-now", silence_s=0))
        await call.until_sent("input_audio_buffer.speech_started")
        number = outline_index(call.raw, "input_audio_buffer.speech_started") + 1
        await call.until_sent("rate_limits.updated")
        assert outline(call.raw[number:]) == list(CLOSING_OF_A_CUT)
        cut = call.sent("response.done")[0]["response"]
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
        (item,) = cut["output"]
        call.session.truncate(
            message_id=item["id"], modalities=["audio"], audio_end_ms=10**6, audio_transcript=""
        )
        await call.until_sent("conversation.item.truncated")
        call.say(bytes(2 * BYTES_PER_S))
        _, again = await call.until(lambda: len(call.generations) > 1 and call.generations)
        text, _ = await read(again)
        assert text.strip()
        late = call.raw[outline_index(call.raw, "rate_limits.updated") :]
        assert not [event for event in late if event.get("response_id") == cut["id"]]


async def tool_call(scene: Scene) -> None:
    """Its application runs the function and puts what it gave into the history."""

    schema = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}

    @llm.function_tool(raw_schema=schema)
    async def get_weather(raw_arguments: dict[str, object]) -> str:
        return "clear"

    async with talk(scene, tool_choice="required") as call:
        await call.session.update_tools([get_weather])
        number = len(call.raw)
        generation = await call.ask("What is the weather in Paris?")
        async with asyncio.timeout(PATIENCE_S):
            asked = await anext(aiter(generation.function_stream))
        await call.until_sent("rate_limits.updated")
        begun = number + outline_index(call.raw[number:], "response.created")
        item = check_tool_call(call.raw[begun:])
        assert (asked.call_id, asked.name) == (item["call_id"], "get_weather")
        check_arguments(asked.arguments)
        context = call.session.chat_ctx.copy()
        context.items.append(
            llm.FunctionCallOutput(
                call_id=asked.call_id, name=asked.name, output=json.dumps("clear"), is_error=False
            )
        )
        await call.session.update_chat_ctx(context)
        call.session.update_options(tool_choice="none")
        async with asyncio.timeout(PATIENCE_S):
            answer = await call.session.generate_reply()
        text, _ = await read(answer)
        assert text.strip()


async def cancel(scene: Scene) -> None:
    async with talk(scene) as call:
        await call.ask(STORY)
        await call.until_sent("response.output_audio.delta", 5)
        call.session.interrupt()
        cut = (await call.until_sent("response.done"))["response"]
        assert (cut["status"], cut["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        await call.until_sent("rate_limits.updated")
        call.session.send_event({"type": "response.cancel"})  # it may come too late: no harm
        await call.until_sent("error")
        await call.prove_alive()
        assert call.errors == []


async def error(scene: Scene) -> None:
    """Its application is told, and the session goes on."""
    async with talk(scene, complaints=("OpenAI Realtime API returned an error",)) as call:
        call.session.update_options(voice="nobody")
        await call.until(lambda: call.errors)
        (problem,) = call.errors
        assert problem.recoverable
        assert problem.error.body.code == "invalid_value"
        call.session.commit_audio()  # of nothing: it keeps that to itself
        call.session.send_event({"type": "input_audio_buffer.commit"})
        await call.until_sent("error", 2)
        await call.prove_alive()
        assert len(call.errors) == 1


async def reconnect(scene: Scene) -> None:
    """Its own: the same session, with the history that it replays item by item."""
    expected = ("OpenAI Realtime API connection", "Error in _recv_task")
    async with talk(scene, complaints=expected) as call:
        await call.prove_alive()
        known = [item.id for item in call.session.chat_ctx.items]
        assert len(known) == 2
        call.raw.clear()
        await scene.cut()
        await call.until(lambda: call.num_reconnected)
        await call.until_sent("conversation.item.added", 2)
        assert [item.id for item in call.session.chat_ctx.items] == known
        await call.prove_alive()


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
