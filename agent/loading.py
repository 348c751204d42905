"""How each model is built from the settings. Called on the thread that will own the model."""

from collections.abc import Callable

import asr
import llm_engine
import tts
from latency_budget.clock import Clock

from .config import Config
from .conversion import Conversion
from .models import ModelStore


class Loading:
    """Builds models; holds none. Every method raises its package's model error, or ModelError."""

    def __init__(
        self, config: Config, models: ModelStore, clock: Clock, conversion: Conversion
    ) -> None:
        """`conversion` hears of the language model's weights."""
        self._config = config
        self._models = models
        self._clock = clock
        self._conversion = conversion

    def detector(self) -> asr.SileroVad:
        return asr.SileroVad.load(self._models.locate("silero-vad"))

    def recognizer(self) -> asr.WhisperTranscriber:
        settings = self._config.asr
        recognizer = asr.WhisperTranscriber.load(
            self._models.locate(settings.model),
            threads=settings.threads,
            compute_type=settings.compute_type,
            language=settings.language,
        )
        recognizer.warm()
        return recognizer

    def turn_model(self) -> asr.TurnModel:
        model = asr.TurnModel.load(self._models.locate("smart-turn"))
        model.warm()
        return model

    def engine(self) -> llm_engine.Engine:
        self._conversion.begin()
        settings = self._config.llm_engine
        num_calls = self._config.agent.max_sessions
        draft = self._models.locate(settings.draft_model) if settings.draft_model else None
        engine_config = llm_engine.EngineConfig(
            precision=llm_engine.Precision(settings.dtype),
            num_threads=settings.threads,
            context_length=settings.context,
            kv_cache_mb=settings.cache_mb,
            max_sequences=4 * num_calls,
            max_batch=min(settings.max_batch, num_calls),
            cache_dir=self._models.home / "converted",
            draft_model=draft,
        )
        path = self._models.locate(settings.model)
        return llm_engine.Engine.load(
            path, engine_config, clock=self._clock, on_progress=self._conversion.note
        )

    def voice(self, name: str) -> Callable[[], tts.Voice]:
        def load() -> tts.Voice:
            threads = self._config.tts.threads
            voice = tts.load_voice(name, self._models.directory, threads=threads)
            voice.warm()
            return voice

        return load
