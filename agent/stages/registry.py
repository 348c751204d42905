"""Registry of the service's models, loaded once and shared by all calls.

`start` loads them side by side, those on the GPU one after another, while the server already
listens; `progress` is what `/readyz` shows meanwhile. A model that can't be loaded at the start
ends the server with the reason; one that fails later is restarted by its own thread, which goes on
trying; until then new calls are refused.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import asr
import llm_engine
import tts
from agent.config.schema import Config, LlmSettings
from agent.errors import ClientError, HalfsecError
from agent.session.api.settings import TurnDetection
from agent.session.ports.stage_ports import ChatMessage, ChatPort, Tools, VoicePort
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.remote.model_server import ModelServer, server_options
from agent.stages.remote.plugin_model import PluginModel
from agent.stages.remote.remote_chat import SmallModel, remote_chat_factory
from agent.stages.remote.reply_source import ReplySource
from engine_plugins.reference import is_plugin
from latency_budget.account.clock import Clock

from .llm_chat import ChatFactory, chat_factory
from .load_progress import Conversion
from .loading import Loading
from .model_thread import ModelThread
from .speech_input import SpeechInput, endpointing_for
from .speech_output import VoiceStage, VoiceStream
from .tool_call_adapter import ToolLimits

Status = Literal["warming", "ready", "broken", "failed"]

ANSWER_TIMEOUT_S: Final = 5.0
"""Deadline of a query that costs the stage nothing."""

OPENAI_VOICES: Final = frozenset(
    "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split(" ")  # noqa: SIM905
)
"""Names that stock clients send by default; the service's own voice stands in."""

_FAULTS: Final = (HalfsecError, asr.ModelError, llm_engine.ModelError, tts.VoiceError)
"""Errors whose message is meant for the person who starts the server; others say their name."""


class Stages:
    """All stages: their threads, their state, and the ports that sessions get. Belongs to the
    server's event loop."""

    def __init__(self, config: Config, models: ModelStore, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._conversion = Conversion(config.llm_engine.model, clock)
        load = Loading(config, models, clock, self._conversion)
        self._progress: dict[str, str] = {}
        self._failures: list[str] = []
        self.detector: ModelThread[asr.VoiceDetector] = ModelThread("vad", load.detector)
        self.recognizer: ModelThread[asr.Recognizer] = ModelThread("asr", load.recognizer)
        self.turn_model: ModelThread[asr.EndOfTurnModel] = ModelThread("turn", load.turn_model)
        self.llm: ModelThread[llm_engine.Engine] = ModelThread(
            "llm", load.engine, llm_engine.Engine.close
        )
        """The engine of this process. Not started where the language model is another one."""
        self.small_llm: ModelThread[llm_engine.Engine] | None = None
        """The smaller model, where there is one."""
        if config.llm_engine.small_model:
            self.small_llm = ModelThread("small llm", load.small_engine, llm_engine.Engine.close)
        self.remote_llm = _remote_llm(config, clock)
        """The language model, where it is on another server or of a plug-in."""
        self._open_chat = self._chat_factory()
        self._voices: dict[str, VoiceStage] = {}
        kept = [*config.agent.openers, *config.tool_waits]
        for name in self._voice_names():
            self._voices[name] = VoiceStage(name, load.voice(name), kept)

    async def start(self) -> None:
        """Load and warm everything; `status` then says whether that went well."""
        starts: dict[str, Callable[[], Awaitable[None]]] = {
            "vad": self.detector.start,
            "asr": self.recognizer.start,
            "turn": self.turn_model.start,
            "llm": self.remote_llm.start if self.remote_llm else partial(self._start_llm, self.llm),
            **{f"voice {name}": voice.start for name, voice in self._voices.items()},
        }
        if self.small_llm is not None:
            starts["small llm"] = partial(self._start_llm, self.small_llm)
        self._progress = dict.fromkeys(starts, "loading")
        # While an engine captures CUDA graphs, no other stage may wait for the whole GPU.
        gpu, on_gpu = asyncio.Lock(), _on_gpu(self._config)
        async with asyncio.TaskGroup() as group:
            for name, start in starts.items():
                turn = gpu if name in on_gpu else contextlib.nullcontext()
                group.create_task(self._start(name, start, turn))

    @property
    def status(self) -> Status:
        """State of the service, the worst of its stages."""
        if self._failures or _lost(self.threads()):
            return "failed"
        if set(self._progress.values()) != {"ready"}:
            return "warming"
        needed = [each for each in self.threads().values() if each is not self.small_llm]
        return "broken" if any(stage.broken for stage in needed) else "ready"

    def progress(self) -> dict[str, str]:
        """State of each stage: "loading" (and the share), "ready", "failed", "broken: " and why."""
        return {name: self._state(name, state) for name, state in self._progress.items()}

    def failure(self) -> str:
        """Reasons why the service can't work, a line for each stage."""
        return "\n".join([*self._failures, *_lost(self.threads())])

    async def close(self) -> None:
        """End the threads, and wait for those that do not hang."""
        async with asyncio.TaskGroup() as group:
            for stage in self.threads().values():
                group.create_task(stage.close())
            if self.remote_llm is not None:
                group.create_task(self.remote_llm.close())

    async def watch(self) -> None:
        """Check what is outside of this process, until cancelled."""
        if self.remote_llm is not None:
            await self.remote_llm.watch()

    # --- what sessions use ---

    async def new_ears(self, detection: TurnDetection | None) -> SpeechInput:
        """Speech input for a new session. Raises StageError where the detector is broken."""
        pause_ms = self._config.asr.pause_ms
        listening = asr.ListenerConfig(
            endpointing=endpointing_for(detection, pause_ms), early_ms=self._config.asr.early_ms
        )
        await self.detector.call(lambda _: None, timeout_s=ANSWER_TIMEOUT_S)
        return SpeechInput(
            listening, self.detector, self.recognizer, self.turn_model, self._clock, pause_ms
        )

    def open_chat(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        """Open a conversation with the language model. Reaches the model on the first request."""
        return self._open_chat(instructions, examples)

    def open_voice(self, name: str, rate_hz: int) -> VoicePort:
        """A voice at an output rate. Raises ClientError for a voice that is not loaded."""
        return VoiceStream(self.voice_stage(name), rate_hz)

    def voice_stage(self, name: str) -> VoiceStage:
        """The stage of a voice. Raises ClientError for a voice that is not loaded."""
        if name in OPENAI_VOICES:
            name = self._config.tts.voice
        if name in self._voices:
            return self._voices[name]
        known = ", ".join(self._voices)
        raise ClientError(
            f"There is no voice {name!r} here; these are loaded: {known}.",
            code="invalid_value",
            param="session.audio.output.voice",
        )

    def _state(self, name: str, state: str) -> str:
        if name == "llm" and self.remote_llm is not None:
            problem = self.remote_llm.problem if state == "ready" else None
            return state if problem is None else f"broken: {problem}"
        why = self.threads()[name].broken
        if state == "ready" and why is not None:
            return f"broken: {_one_line(why)}"
        return str(self._conversion) if (name, state) == ("llm", "loading") else state

    def _chat_factory(self) -> ChatFactory:
        settings, clock = self._config.llm_engine, self._clock
        sampling, limits = sampling_of(settings), tool_limits_of(settings)
        if self.remote_llm is None:
            return chat_factory(
                self.llm, clock, sampling, self.small_llm, limits, settings.condense
            )
        small = None
        if (thread := self.small_llm) is not None:
            open_small = chat_factory(thread, clock, sampling, None, limits)
            small = SmallModel(open_small, lambda: thread.model is not None)
        return remote_chat_factory(
            self.remote_llm, clock, sampling, settings.context, limits, settings.condense, small
        )

    async def _start_llm(self, llm: ModelThread[llm_engine.Engine]) -> None:
        await llm.start()
        engine = await llm.call(lambda engine: engine, timeout_s=ANSWER_TIMEOUT_S)
        await engine.warm()

    async def _start(
        self,
        name: str,
        start: Callable[[], Awaitable[None]],
        turn: contextlib.AbstractAsyncContextManager[object],
    ) -> None:
        try:
            async with turn:
                await start()
        except Exception as error:
            self._failures.append(f"{name}: {_one_line(error)}")
            self._progress[name] = "failed"
        else:
            self._progress[name] = "ready"

    def _voice_names(self) -> dict[str, None]:
        """Voices to load: the default one first, then those of the agents."""
        voices = [profile.voice for profile in self._config.agents.values() if profile.voice]
        return dict.fromkeys([self._config.tts.voice, *voices])

    def threads(self) -> dict[str, ModelThread[Any]]:
        """Owner threads of all stages, by the names that `progress` uses."""
        voices = {f"voice {name}": voice.thread for name, voice in self._voices.items()}
        small = {} if self.small_llm is None else {"small llm": self.small_llm}
        return {
            "vad": self.detector,
            "asr": self.recognizer,
            "turn": self.turn_model,
            **({} if self.remote_llm is not None else {"llm": self.llm}),
            **small,
            **voices,
        }


def _remote_llm(config: Config, clock: Clock) -> ReplySource | None:
    """Raises ConfigError where a variable with a secret is not set."""
    settings = config.llm_engine
    if is_plugin(settings.model):
        options = llm_engine.ChatModelOptions(settings.threads, settings.context)
        return PluginModel(settings.model, options, settings.remote_timeout_s)
    model = settings.remote
    if model is None:
        return None
    return ModelServer(model, server_options(config, os.environ), clock)


def _on_gpu(config: Config) -> set[str]:
    """Names of the stages that load on the GPU."""
    settings = config.llm_engine
    engines = {"small llm", *(("llm",) if settings.is_own else ())} if settings.on_gpu else set()
    return engines | ({"asr"} if config.asr.device == "cuda" else set())


def _lost(threads: dict[str, ModelThread[Any]]) -> list[str]:
    """Stages on a device that this process has lost for good, a line for each."""
    models = {name: thread.model for name, thread in threads.items()}
    losses = {
        name: model.health.lost if isinstance(model, llm_engine.Engine) else threads[name].broken
        for name, model in models.items()
    }
    return [
        f"{name}: {loss}"
        for name, loss in losses.items()
        if isinstance(loss, llm_engine.DeviceLostError)
    ]


async def check_tools(stages: Stages, instructions: str, tools: Tools) -> None:
    """`ChatPort.check_tools` for conversations with these instructions."""
    chat = stages.open_chat(instructions, ())
    try:
        await chat.check_tools(tools)
    finally:
        await chat.close()


def sampling_of(settings: LlmSettings) -> llm_engine.SamplingParams:
    """Sampling parameters of replies."""
    return llm_engine.SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        repetition_penalty=settings.repetition_penalty,
        max_tokens=settings.max_tokens,
    )


def tool_limits_of(settings: LlmSettings) -> ToolLimits:
    """Limits of the calls of replies."""
    return ToolLimits(
        settings.parallel_tool_calls,
        settings.max_tool_rounds,
        settings.examples_with_tools,
        settings.reply_tool,
        settings.grounded_calls,
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, _FAULTS) else f"{type(error).__name__}: {text}"
