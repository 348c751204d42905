"""Pipecat's `OpenAIRealtimeLLMService` in a pipeline, with its own aggregators around it.

Its receive loop ends on any error that it does not know, and on any event that its models refuse;
then nothing more comes, and a scenario that waits for something fails. What it read is kept.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    FunctionCallResultFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    UserStartedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import NOT_GIVEN, LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

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

NOT_READ = {"input_audio_buffer.timeout_triggered"}
"""It has no model for these, and passes over them."""

MANUAL = events.AudioConfiguration(input=events.AudioInput(turn_detection=False))


class Watch(FrameProcessor):
    """Keeps what passes in either direction."""

    def __init__(self, kept: list[Frame], changed: asyncio.Event) -> None:
        super().__init__()
        self._kept = kept
        self._changed = changed

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self._kept.append(frame)
        self._changed.set()
        await self.push_frame(frame, direction)


class Talk:
    """A pipeline that runs."""

    def __init__(self, scene: Scene, model: str, properties: dict[str, Any], text: str) -> None:
        self.frames: list[Frame] = []
        self.raw: list[Event] = []
        self._changed = asyncio.Event()
        tools = properties.pop("tools", NOT_GIVEN)
        self.context = LLMContext([{"role": "user", "content": text}] if text else [], tools=tools)
        self.llm = OpenAIRealtimeLLMService(
            api_key="x",
            base_url=f"{scene.ws}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(
                model=model, session_properties=events.SessionProperties(**properties)
            ),
        )
        around = LLMContextAggregatorPair(self.context)
        before, behind = (Watch(self.frames, self._changed) for _ in range(2))
        self.worker = PipelineWorker(
            Pipeline([around.user(), before, self.llm, behind, around.assistant()]),
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        )

    def read(self, frame: str) -> Any:
        """In place of its parser: the same, and kept."""
        parsed = parse(frame)
        event = json.loads(frame)
        assert parsed is not None or event["type"] in NOT_READ, event
        self.raw.append(event)
        self._changed.set()
        return parsed

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until something is found; returns it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (what := found()):
                self._changed.clear()
                await self._changed.wait()
        return what

    def of(self, kind: type) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def sent(self, kind: str) -> list[Event]:
        return [event for event in self.raw if event["type"] == kind]

    async def until_sent(self, kind: str, count: int = 1) -> Event:
        """The `count`-th event of this type since it was connected."""
        event: Event = (await self.until(lambda: self.sent(kind)[count - 1 : count]))[0]
        return event

    async def say(self, pcm: bytes) -> None:
        frames = [InputAudioRawFrame(piece, RATE_HZ, 1) for piece in pieces(pcm)]
        await self.worker.queue_frames(frames)

    async def run_model(self) -> None:
        await self.worker.queue_frames([LLMRunFrame()])

    async def prove_alive(self) -> None:
        count = len(self.sent("response.done")) + 1
        said: Any = {"role": "user", "content": "Say hello."}
        self.context.add_message(said)
        response = events.ResponseProperties(output_modalities=["text"], max_output_tokens=4)
        await self.llm.send_client_event(events.ResponseCreateEvent(response=response))
        await self.until_sent("response.done", count)


parse = events.parse_server_event


@asynccontextmanager
async def talk(
    scene: Scene, model: str = "gpt-realtime", *, text: str = "", **properties: Any
) -> AsyncIterator[Talk]:
    call = Talk(scene, model, properties, text)
    events.parse_server_event = call.read
    runner = WorkerRunner()
    await runner.add_workers(call.worker)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        await call.until_sent("session.updated")
        yield call
        await call.worker.queue_frames([EndFrame()])
    check_chain(call.raw)


async def spoken_turn(scene: Scene) -> None:
    said = "vm-nobodyavail"
    async with talk(scene) as call:
        await call.say(scene.speech(said))
        await call.until_sent("rate_limits.updated")
        (heard,) = await call.until(lambda: call.of(TranscriptionFrame))
        assert overlap(scene.transcripts[said], heard.text) >= 0.8
        assert call.of(UserStartedSpeakingFrame)
        begun = outline_index(call.raw, SPOKEN_TURN[0])
        assert outline(call.raw[begun:]) == list(SPOKEN_TURN)
        done = call.sent("conversation.item.input_audio_transcription.completed")[0]
        audio = await call.until(lambda: call.of(TTSAudioRawFrame))
        item = await call.llm.retrieve_conversation_item(done["item_id"])
        assert item.content[0].transcript == done["transcript"]
        assert loudest(b"".join(frame.audio for frame in audio)) > 1000
        assert not call.of(ErrorFrame)


async def barge_in(scene: Scene) -> None:
    """It tells by itself what was heard: as much as has come, or as long as it has been."""
    async with talk(scene, READER) as call:
        await call.until_sent("response.output_audio.delta", 15)
        await call.say(scene.speech("all-circuits-busy-now", silence_s=0))
        await call.until_sent("input_audio_buffer.speech_started")
        number = outline_index(call.raw, "input_audio_buffer.speech_started") + 1
        await call.until_sent("rate_limits.updated")
        cut = call.sent("response.done")[0]["response"]
        closing = [kind for kind in outline(call.raw[number:]) if kind in CLOSING_OF_A_CUT]
        assert closing == list(CLOSING_OF_A_CUT)
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
        truncated = await call.until_sent("conversation.item.truncated")
        assert truncated["item_id"] == cut["output"][0]["id"]
        await call.until(lambda: call.of(InterruptionFrame))
        await call.say(bytes(2 * BYTES_PER_S))
        again = await call.until(
            lambda: [
                event
                for event in call.raw[number:]
                if event["type"] == "response.output_audio.delta"
                and event["response_id"] != cut["id"]
            ]
        )
        assert again
        late = call.raw[outline_index(call.raw, "rate_limits.updated") :]
        assert not [event for event in late if event.get("response_id") == cut["id"]]
        assert not call.of(ErrorFrame)


async def tool_call(scene: Scene) -> None:
    """It runs the function, sends what it gave, and asks for the next response by itself."""
    asked: list[dict[str, Any]] = []

    async def get_weather(params: Any) -> None:
        asked.append(dict(params.arguments))
        await params.result_callback({"sky": "clear"})

    schema = FunctionSchema(
        "get_weather", "The weather of a city.", WEATHER["properties"], WEATHER["required"]
    )
    question = "What is the weather in Paris?"
    tools = ToolsSchema(standard_tools=[schema])
    async with talk(scene, text=question, tools=tools, tool_choice="required") as call:
        call.llm.register_function("get_weather", get_weather)
        await call.run_model()
        await call.until_sent("rate_limits.updated")
        number = outline_index(call.raw, "response.created")
        end = outline_index(call.raw, "rate_limits.updated") + 1
        item = check_tool_call(call.raw[number:end])
        (result,) = await call.until(lambda: call.of(FunctionCallResultFrame)[:1])
        assert result.tool_call_id == item["call_id"]
        check_arguments(json.dumps(asked[0]))
        await call.until_sent("response.created", 2)
        outputs = [e["item"] for e in call.sent("conversation.item.done")]
        assert [o["call_id"] for o in outputs if o["type"] == "function_call_output"]
        assert not call.of(ErrorFrame)


async def cancel(scene: Scene) -> None:
    """Its way with turns of its own: clear the audio, cancel, say what was heard."""
    async with talk(scene, text=STORY, audio=MANUAL) as call:
        await call.run_model()
        await call.until_sent("response.output_audio.delta", 5)
        await call.worker.queue_frames([InterruptionFrame()])
        cut = (await call.until_sent("response.done"))["response"]
        assert (cut["status"], cut["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        await call.until_sent("input_audio_buffer.cleared")
        await call.until_sent("conversation.item.truncated")
        await call.worker.queue_frames([InterruptionFrame()])  # nothing is left to cancel
        refused = await call.until_sent("error")
        assert refused["error"]["code"] == "response_cancel_not_active"
        await call.prove_alive()
        assert not call.of(ErrorFrame)


async def error(scene: Scene) -> None:
    """An item that is not there is no end; what is really wrong is told to the pipeline."""
    async with talk(scene) as call:
        refused = ""
        try:
            await call.llm.retrieve_conversation_item("nowhere")
        except Exception as problem:  # it raises no narrower one
            refused = str(problem)
        assert "nowhere" in refused
        await call.prove_alive()
        audio = events.AudioConfiguration(output=events.AudioOutput(voice="nobody"))
        session = events.SessionProperties(audio=audio)
        await call.llm.send_client_event(events.SessionUpdateEvent(session=session))
        (told,) = await call.until(lambda: call.of(ErrorFrame)[:1])
        assert "nobody" in told.error


async def reconnect(scene: Scene) -> None:
    """The application starts the conversation anew on the same service."""
    async with talk(scene, text="Say hello.") as call:
        await call.run_model()
        await call.until_sent("response.done")
        (first,) = call.sent("session.created")
        await call.worker.queue_frames([BotStoppedSpeakingFrame()])  # as a loudspeaker would say
        await scene.cut()
        call.raw.clear()
        await call.llm.reset_conversation()
        again = await call.until_sent("session.created")
        assert again["session"]["id"] != first["session"]["id"]
        await call.until_sent("session.updated")
        await call.say(scene.speech("conf-locked"))
        done = await call.until_sent("response.done")
        assert done["response"]["status"] == "completed"


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
