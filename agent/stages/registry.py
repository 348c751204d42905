"""Registry of the service's models, loaded once and shared by all calls.

`start` loads them side by side, those on the GPU one after another, while the server already
listens; `progress` is what `/readyz` shows meanwhile. A model that can't be loaded at the start
ends the server with the reason; one that fails later is restarted by its own thread, which goes on
trying; until then new calls are refused. One that can't be restarted in this process ends the
server as well.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import asr
import languages
import llm_engine
import tts
from agent.config.presets import DEFAULT_PRESET, PRESETS
from agent.config.remote_models import is_remote, parse_remote, shown_model
from agent.config.schema import Config, LlmSettings, voice_language
from agent.errors import ClientError, HalfsecError
from agent.session.api.settings import TurnDetection
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    Tools,
    VoicePort,
    apology_in,
)
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.remote.api_server import server_options
from agent.stages.remote.model_server import ModelServer
from agent.stages.remote.plugin_model import PluginModel
from agent.stages.remote.remote_chat import SmallModel, remote_chat_factory
from agent.stages.remote.remote_recognizer import (
    PARTIAL_INTERVAL_MS,
    LocalRecognizer,
    RemoteRecognizer,
)
from agent.stages.remote.remote_voice import LocalVoice, RemoteVoice
from agent.stages.remote.reply_source import ReplySource
from agent.stages.remote.speech_server import SpeechServer
from agent.stages.remote.transcription_server import TranscriptionServer
from engine_plugins.reference import is_plugin
from latency_budget.account.clock import Clock

from .audio_pace import AudioPace
from .fault_injection import Rehearsal
from .llm_chat import ChatFactory, EngineChat, chat_factory
from .load_progress import Conversion
from .loading import Loading
from .model_thread import ModelThread, StageLostError
from .speech_input import SpeechInput, check_language, endpointing_for
from .speech_output import VoiceStage, VoiceStream
from .tool_call_adapter import ToolLimits
from .transcription_jobs import JobDecoder, LanguageFinding, LocalDecoder

Status = Literal["warming", "ready", "broken", "failed"]

ANSWER_TIMEOUT_S: Final = 5.0
"""Deadline of a query that costs the stage nothing."""

OPENAI_VOICES: Final = frozenset(
    "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split(" ")  # noqa: SIM905
)
"""Names that stock clients send by default; the service's own voice stands in."""

_LANGUAGES: Final = "languages"
"""Name, in `progress`, of the models of languages other than the recognizer's."""

STAND_INS: Final = frozenset(("small llm", "fallback asr", "fallback voice"))
"""Stages that answer where another one can't; calls are taken without them."""

_FAULTS: Final = (HalfsecError, asr.ModelError, llm_engine.ModelError, tts.VoiceError)
"""Errors whose message is meant for the person who starts the server; others say their name."""

_log = logging.getLogger(__name__)


class Stages:
    """All stages: their threads, their state, and the ports that sessions get. Belongs to the
    server's event loop."""

    def __init__(self, config: Config, models: ModelStore, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._pace = AudioPace(clock)
        self._conversion = Conversion(config.llm_engine.model, clock)
        load = Loading(config, models, clock, self._conversion)
        self._progress: dict[str, str] = {}
        self._failures: list[str] = []
        self.detector: ModelThread[asr.VoiceDetector] = ModelThread(
            "vad", load.detector, only_computes=True
        )
        computing = _only_compute(config)
        self.recognizer: ModelThread[asr.Recognizer] = ModelThread(
            "asr", load.recognizer, only_computes="asr" in computing
        )
        """The recognizer of this process. Where it is on another server, the one that answers in
        its place; not started where there is none."""
        self.turn_model: ModelThread[asr.EndOfTurnModel] = ModelThread(
            "turn", load.turn_model, only_computes=True
        )
        self.llm: ModelThread[llm_engine.Engine] = ModelThread(
            "llm",
            load.engine,
            llm_engine.Engine.close,
            only_computes="llm" in computing,
            worker=_engine_thread,
        )
        """The engine of this process. Not started where the language model is another one."""
        self.small_llm: ModelThread[llm_engine.Engine] | None = None
        """The smaller model, where there is one."""
        if config.llm_engine.small_model:
            self.small_llm = ModelThread(
                "small llm",
                load.small_engine,
                llm_engine.Engine.close,
                only_computes="llm" in computing,
                worker=_engine_thread,
            )
        self.remote_llm = _remote_llm(config, clock)
        """The language model, where it is on another server or of a plug-in."""
        self.remote_asr = _remote_asr(config)
        """The server of the recognizer, where it is not in this process."""
        self._open_chat = self._chat_factory()
        self._has_started = asyncio.Event()
        self._load = load
        self._computing = computing
        self.multilingual: ModelThread[asr.Recognizer] = ModelThread(
            "asr languages", load.multilingual, only_computes="asr languages" in computing
        )
        """The recognizer of languages that the other one does not know. Started with the first call
        that needs it."""
        self.language_finding: Final = LanguageFinding()
        self._has_multilingual = False
        self._own_languages: tuple[str, ...] = ()
        """Those of the recognizer, also while it is built anew."""
        self._preparing = asyncio.Lock()
        """Held while a model of a language is loaded."""
        self._loads: dict[str, asyncio.Task[None]] = {}
        """Loads of models of languages that run or wait, by the names that `threads` uses. Ended by
        `close`."""
        local = {name: self._new_voice(name) for name in config.local_voices}
        self.fallback_voice: VoiceStage | None = None
        """The voice of this process that speaks where another server's does not, and nowhere
        else."""
        self._voices: dict[str, VoiceStage | RemoteVoice] = {}
        """By the names that clients use, the default voice first."""
        for voice in config.voices:
            if is_remote(voice):
                stand_in = local.get(config.tts.fallback_voice)
                kept, apologies = _kept(config, None)
                self._voices[shown_model(voice)] = _remote_voice(
                    config, voice, (kept, apologies), stand_in
                )
            else:
                self._voices[voice] = local[voice]
        if len(config.local_voices) > len(self._local_voices()):
            self.fallback_voice = local[config.tts.fallback_voice]

    async def start(self) -> None:
        """Load and warm everything; `status` then says whether that went well."""
        starts: dict[str, Callable[[], Awaitable[None]]] = {
            "vad": self.detector.start,
            "asr": self.remote_asr.start if self.remote_asr else self.recognizer.start,
            "turn": self.turn_model.start,
            "llm": self.remote_llm.start if self.remote_llm else partial(self._start_llm, self.llm),
            **{f"voice {name}": voice.start for name, voice in self._voices.items()},
        }
        if self.small_llm is not None:
            starts["small llm"] = partial(self._start_llm, self.small_llm)
        if self.remote_asr and self._config.asr.local_model:
            starts["fallback asr"] = self.recognizer.start
        if self.fallback_voice is not None:
            starts["fallback voice"] = self.fallback_voice.start
        english = languages.ENGLISH.code
        others = [each for each in self._config.call_languages if each != english]
        self._progress = dict.fromkeys([*starts, *([_LANGUAGES] if others else [])], "loading")
        # While an engine captures CUDA graphs, no other stage may wait for the whole GPU.
        gpu, on_gpu = asyncio.Lock(), _on_gpu(self._config)
        async with asyncio.TaskGroup() as group:
            for name, start in starts.items():
                turn = gpu if name in on_gpu else contextlib.nullcontext()
                group.create_task(self._start(name, start, turn))
        if others:  # what the recognizer knows is known once it is loaded
            await self._start(
                _LANGUAGES, partial(self._prepare_all, others), contextlib.nullcontext()
            )
        self._has_started.set()

    async def wait_started(self) -> None:
        """Wait until `start` has done what it could; `status` says how it went."""
        await self._has_started.wait()

    @property
    def status(self) -> Status:
        """State of the service, the worst of its stages."""
        if self._failures or _lost(self.threads()):
            return "failed"
        if set(self._progress.values()) != {"ready"}:
            return "warming"
        # Without what was loaded later, for calls of another language, the others are possible.
        needed = self._progress.keys() - STAND_INS
        broken = (name for name, stage in self.threads().items() if stage.broken)
        return "broken" if any(name in needed for name in broken) else "ready"

    @property
    def is_troubled(self) -> bool:
        """True while a model that calls need is being rebuilt, or seems to hang in a job."""
        threads = self.threads().items()
        return any(it.is_troubled for name, it in threads if name not in STAND_INS)

    def progress(self) -> dict[str, str]:
        """State of each stage: "loading" (and the share), "ready", "failed", "broken: " and why."""
        return {name: self._state(name, state) for name, state in self._progress.items()}

    def failure(self) -> str:
        """Reasons why the service can't work, a line for each stage."""
        return "\n".join([*self._failures, *_lost(self.threads())])

    async def close(self) -> None:
        """End the threads, and wait for those that do not hang."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        async with asyncio.TaskGroup() as group:
            for stage in {**self.threads(), "asr languages": self.multilingual}.values():
                group.create_task(stage.close())
            for server in self._servers().values():
                group.create_task(server.close())

    async def watch(self) -> None:
        """Check what is outside of this process, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for server in self._servers().values():
                group.create_task(server.watch())

    def remote_problems(self) -> dict[str, str]:
        """Why servers of models can't be used at present, by the names that `progress` uses."""
        return {name: it.problem for name, it in self._servers().items() if it.problem}

    # --- what sessions use ---

    async def new_ears(self, detection: TurnDetection | None) -> SpeechInput:
        """Speech input for a new session. Raises StageError where the detector is broken."""
        pause_ms = self._config.asr.pause_ms
        listening = asr.ListenerConfig(
            endpointing=endpointing_for(detection, pause_ms), early_ms=self._config.asr.early_ms
        )
        if self.remote_asr is not None and self.remote_asr.has_sessions:
            listening = replace(listening, partial_interval_ms=PARTIAL_INTERVAL_MS)
        await self.detector.call(lambda _: None, timeout_s=ANSWER_TIMEOUT_S)
        return SpeechInput(
            listening,
            self.detector,
            self._decoder(),
            self.turn_model,
            self._clock,
            pause_ms,
            self._pace,
        )

    async def prepare_language(self, language: str, voice: str) -> str:
        """Load what calls in a language need: a recognizer that knows it, and the language's voice
        where `voice` (empty: nothing speaks) is known to speak another one. Of `languages.AUTO` a
        recognizer of several languages alone. Returns the voice of the call. Raises ClientError for
        a language that calls can't have here, with what to do."""
        if language == languages.AUTO:
            if self.remote_asr is None:  # else it is refused where the recognizer is asked
                await self._prepare_recognizer(language)
            return voice
        spoken = self.speaking_voice(voice)
        knows = self._has_multilingual or not self._is_foreign(language)
        if knows and voice_language(spoken) in (None, language):
            return voice
        check_language(language, self.known_languages())
        await self._prepare_recognizer(language)
        other = await self._prepare_voice(language, spoken)
        return voice if other == spoken else other

    def is_prepared(self, language: str, voice: str) -> bool:
        """True if `prepare_language` waits for nothing: all is loaded, or it refuses at once."""
        if language == languages.AUTO:
            needs = self.remote_asr is None and bool(self._config.asr.multilingual_model)
            return not needs or self._has_multilingual or not self._is_foreign(language)
        if self._is_foreign(language) and not self._has_multilingual:
            return language not in self.known_languages()
        spoken = self.speaking_voice(voice)
        name = _voice_in(language, spoken)
        return name == spoken or name in self._voices

    async def _prepare_all(self, needed: Sequence[str]) -> None:
        for language in needed:
            await self._prepare_recognizer(language)

    async def _prepare_recognizer(self, language: str) -> None:
        if self._has_multilingual or not self._is_foreign(language):
            return
        if not self._config.asr.multilingual_model:
            raise _no_language(language, "asr.multilingual_model is empty")
        try:
            await self._load_once("asr languages", self._load_multilingual)
        except Exception as error:
            refusal = _not_loaded(language, error)
            if self.remote_asr is not None:  # it recognizes; the one of this process stands in
                return
            raise refusal from error
        if language != languages.AUTO:
            check_language(language, self.known_languages())

    async def _load_multilingual(self) -> None:
        await self.multilingual.start()
        self._has_multilingual = True

    async def _load_once(self, name: str, load: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Load a model of a language, one at a time. All who need it wait for the same load. It
        goes on where they leave: a thread that loads can't be stopped, and a client that asks and
        leaves again and again must not start another one each time."""

        async def in_turn() -> None:
            async with self._preparing:
                await load()

        def over(task: asyncio.Task[None]) -> None:
            del self._loads[name]
            if not task.cancelled():
                task.exception()  # retrieved: all who waited may have left

        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.get_running_loop().create_task(in_turn())
            task.add_done_callback(over)
        await asyncio.shield(task)

    async def _prepare_voice(self, language: str, voice: str) -> str:
        name = _voice_in(language, voice)
        if name != voice and name not in self._voices:
            try:
                await self._load_once(f"voice {name}", partial(self._load_voice, name))
            except Exception as error:
                raise _not_loaded(language, error) from error
        return name

    async def _load_voice(self, name: str) -> None:
        stage = self._new_voice(name)
        try:
            await stage.start()
        except BaseException:
            await stage.thread.close()
            raise
        self._voices[name] = stage

    def _is_foreign(self, language: str) -> bool:
        """True where a recognizer of this process does not know the language."""
        known = self._languages_of_recognizer()
        needed = languages.FOREIGN if language == languages.AUTO else language
        return bool(known) and needed not in known

    def _recognizer_of(self, language: str | None) -> ModelThread[asr.Recognizer]:
        """The recognizer for a language of calls; None: that of loading."""
        foreign = self._has_multilingual and language is not None and self._is_foreign(language)
        return self.multilingual if foreign else self.recognizer

    def _new_voice(self, name: str) -> VoiceStage:
        kept, apologies = _kept(self._config, voice_language(name))
        only_computes = "tts" in self._computing and not is_plugin(name)
        return VoiceStage(
            name, self._load.voice(name), kept, apologies, only_computes=only_computes
        )

    def open_chat(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        """Open a conversation with the language model. Reaches the model on the first request."""
        return self._open_chat(instructions, examples)

    def open_voice(self, name: str, rate_hz: int, speed: float = 1.0) -> VoicePort:
        """A voice at an output rate and speed. Raises ClientError for one that is not loaded."""
        return VoiceStream(self.voice_stage(name), rate_hz, speed)

    def speaking_voice(self, name: str) -> str:
        """Name of the loaded voice that speaks where a client names this one."""
        if name not in self._voices and name in OPENAI_VOICES:
            return shown_model(self._config.tts.voice)
        return name

    def voice_stage(self, name: str) -> VoiceStage | RemoteVoice:
        """The stage of a voice. Raises ClientError for a voice that is not loaded."""
        found = self._voices.get(self.speaking_voice(name))
        if found is not None:
            return found
        known = ", ".join(self._voices)
        raise ClientError(
            f"There is no voice {name!r} here; these are loaded: {known}.",
            code="invalid_value",
            param="session.audio.output.voice",
        )

    def check_language(self, options: asr.TranscriptionOptions) -> None:
        """Raise ClientError for a language that calls can't be recognized in."""
        check_language(options.language, self.known_languages())

    def known_languages(self) -> tuple[str, ...]:
        """Codes of the languages that calls can be recognized in; empty while they are not known.
        On another server those of the settings: what else it knows, only a failed request would
        say. A multilingual recognizer that is not loaded yet counts as one of Whisper's."""
        if self.remote_asr is not None:
            return tuple(dict.fromkeys((self.remote_asr.language, *self._config.call_languages)))
        own = self._languages_of_recognizer()
        if not own or not self._config.asr.multilingual_model:
            return own
        model = self.multilingual.model
        more = sorted(languages.RECOGNIZED) if model is None else model.languages
        return tuple(dict.fromkeys((*own, *more)))

    def _languages_of_recognizer(self) -> tuple[str, ...]:
        if (model := self.recognizer.model) is not None:
            self._own_languages = model.languages
        return self._own_languages

    def _decoder(self) -> JobDecoder:
        """The recognizer for one call."""
        decoder = LocalDecoder(
            self.recognizer, self._recognizer_of, self.known_languages, self.language_finding
        )
        if self.remote_asr is None:
            return decoder
        local = None
        if self._config.asr.local_model:
            local = LocalRecognizer(
                decoder.decode, lambda: decoder.can_stand_in, decoder.set_options
            )
        return RemoteRecognizer(self.remote_asr, local, self.known_languages())

    def _servers(self) -> dict[str, ReplySource | TranscriptionServer | RemoteVoice]:
        """Models elsewhere, by the names that `progress` uses."""
        servers = {"llm": self.remote_llm, "asr": self.remote_asr}
        voices = {
            f"voice {name}": voice
            for name, voice in self._voices.items()
            if isinstance(voice, RemoteVoice)
        }
        return {name: server for name, server in servers.items() if server is not None} | voices

    def _local_voices(self) -> dict[str, VoiceStage]:
        return {name: it for name, it in self._voices.items() if isinstance(it, VoiceStage)}

    def _state(self, name: str, state: str) -> str:
        if (server := self._servers().get(name)) is not None:
            problem = server.problem if state == "ready" else None
            return state if problem is None else f"broken: {problem}"
        thread = self.threads().get(name)
        why = None if thread is None else thread.broken
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
            small = SmallModel(
                open_small, lambda: thread.model is not None, self._open_scoring_chat
            )
        return remote_chat_factory(
            self.remote_llm, clock, sampling, settings.context, limits, settings.condense, small
        )

    def _open_scoring_chat(self) -> EngineChat:
        """A conversation of the smaller model that scores the words of calls whose replies come
        from another server."""
        assert self.small_llm is not None
        prompt = _scoring_prompt(self._config.llm_engine.small_model)
        return EngineChat(self.small_llm, self._clock, llm_engine.SamplingParams(), *prompt)

    async def prefill_scoring_prompt(self) -> None:
        """Have the smaller model read what it scores the caller's words behind, if it does."""
        if self.remote_llm is None or self.small_llm is None:
            return
        chat = self._open_scoring_chat()
        try:
            await chat.preview("")
        finally:
            await chat.close()

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

    def threads(self) -> dict[str, ModelThread[Any]]:
        """Owner threads of all stages, by the names that `progress` uses."""
        voices = {f"voice {name}": it.thread for name, it in self._local_voices().items()}
        threads: dict[str, ModelThread[Any]] = {"vad": self.detector}
        if self._config.asr.local_model:
            threads["fallback asr" if self.remote_asr else "asr"] = self.recognizer
        if self._has_multilingual:
            threads["asr languages"] = self.multilingual
        threads["turn"] = self.turn_model
        if self.remote_llm is None:
            threads["llm"] = self.llm
        if self.small_llm is not None:
            threads["small llm"] = self.small_llm
        if self.fallback_voice is not None:
            threads["fallback voice"] = self.fallback_voice.thread
        return threads | voices


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


def _remote_asr(config: Config) -> TranscriptionServer | None:
    """Raises ConfigError where a variable with a secret is not set."""
    settings = config.asr
    if settings.remote is None:
        return None
    options = server_options(config, os.environ, "asr")
    return TranscriptionServer(
        settings.remote, options, settings.language, settings.remote_transport
    )


def _scoring_prompt(model: str) -> tuple[str, tuple[ChatMessage, ...]]:
    """Instructions and examples of the preset with this language model, or else of the default one:
    the end-of-turn decision was fitted on what its models say behind them."""
    named = (each for each in PRESETS.values() if each["llm_engine"]["model"] == model)
    agent = next(named, PRESETS[DEFAULT_PRESET])["agents"]["default"]
    examples: list[ChatMessage] = []
    for each in agent.get("examples", ()):
        examples += [ChatMessage("user", each["user"])]
        examples += [ChatMessage("assistant", each["assistant"])]
    return agent["instructions"], tuple(examples)


def _kept(config: Config, language: str | None) -> tuple[list[str], list[str]]:
    """Texts and apologies that a voice synthesizes ahead: those of its language; None: of all
    languages of the settings."""
    spoken = config.call_languages if language is None else (language,)
    sentences = [config.sentences(each) for each in spoken]
    texts = [text for each in sentences for text in each.openers]
    texts += [each.tool_wait for each in sentences if each.tool_wait.strip()]
    return texts, [apology_in(each) for each in spoken]


def _voice_in(language: str, voice: str) -> str:
    """Voice that speaks a language where this one is asked for: the language's own, if this one is
    known to speak another."""
    profile = languages.profile_of(language)
    if profile is None or voice_language(voice) in (None, language):
        return voice
    return profile.voice


def _not_loaded(language: str, error: Exception) -> ClientError:
    if not isinstance(error, _FAULTS):
        _log.error("what calls in %r need can't be loaded", language, exc_info=error)
    return _no_language(language, _one_line(error))


def _no_language(language: str, why: str) -> ClientError:
    what = f"Calls in the language {language!r} are not possible here"
    if language == languages.AUTO:
        what = 'The language of a call can\'t be found here ("auto")'
    return ClientError(
        f"{what}: {why}",
        code="invalid_value",
        param="session.audio.input.transcription.language",
    )


def _remote_voice(
    config: Config,
    reference: str,
    kept: tuple[Sequence[str], Sequence[str]],
    stand_in: VoiceStage | None,
) -> RemoteVoice:
    """Raises ConfigError where a variable with a secret is not set."""
    settings = config.tts
    options = server_options(config, os.environ, "tts")
    voice = parse_remote(reference, "tts")
    server = SpeechServer(voice, options, settings.remote_model, settings.remote_rate_hz)
    local = None
    if stand_in is not None:
        thread = stand_in.thread
        local = LocalVoice(stand_in.speak, lambda: thread.model is not None, stand_in.kept_speech)
    return RemoteVoice(server, kept[0], local, kept[1])


def _on_gpu(config: Config) -> set[str]:
    """Names of the stages that load on the GPU."""
    settings = config.llm_engine
    engines = {"small llm", *(("llm",) if settings.is_own else ())} if settings.on_gpu else set()
    recognizer = "fallback asr" if config.asr.remote else "asr"
    return engines | ({recognizer} if config.asr.device == "cuda" else set())


def _only_compute(config: Config) -> set[str]:
    """Models whose threads never sleep in a job: those on the processor, and none that is slowed on
    purpose. Of voices and recognizers that plug-ins bring, that is not known."""
    if Rehearsal.of(config.latency_budget.rehearse) != Rehearsal():
        return set()
    is_known = {
        "asr": config.asr.device == "cpu" and not is_plugin(config.asr.local_model),
        "asr languages": config.asr.device == "cpu"
        and not is_plugin(config.asr.multilingual_model),
        "llm": not config.llm_engine.on_gpu,
        "tts": True,
    }
    return {name for name, known in is_known.items() if known}


def _engine_thread(engine: llm_engine.Engine) -> threading.Thread:
    return engine.thread


def _lost(threads: dict[str, ModelThread[Any]]) -> list[str]:
    """Stages that only a new process can load, because their device is lost or their threads hang,
    a line for each."""
    models = {name: thread.model for name, thread in threads.items()}
    losses = {
        name: model.health.lost if isinstance(model, llm_engine.Engine) else threads[name].broken
        for name, model in models.items()
    }
    return [
        f"{name}: {loss}"
        for name, loss in losses.items()
        if isinstance(loss, (llm_engine.DeviceLostError, StageLostError))
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
