"""Builders of the service's models from the settings, called on the thread that owns the model.

The one module of the agent that chooses engines: each builder returns the interface that the rest
is typed against.
"""

from collections.abc import Callable
from pathlib import Path

import asr
import llm_engine
import tts
from agent.config.auto_preset import SMALLER
from agent.config.schema import Config
from agent.stages.model_store.catalogue import ModelStore
from engine_plugins.reference import is_plugin
from latency_budget.account.clock import Clock

from .fault_injection import Rehearsal, SlowBackend, SlowRecognizer, SlowVoice
from .load_progress import Conversion


class Loading:
    """Builder of the models; holds none. Methods raise their package's model error, or
    ModelStoreError."""

    def __init__(
        self, config: Config, models: ModelStore, clock: Clock, conversion: Conversion
    ) -> None:
        """`conversion` receives the progress of the language model's weights."""
        self._config = config
        self._models = models
        self._clock = clock
        self._conversion = conversion
        self._rehearsal = Rehearsal.of(config.latency_budget.rehearse)

    def detector(self) -> asr.VoiceDetector:
        return asr.load_voice_detector(self._models.locate("silero-vad"))

    def recognizer(self) -> asr.Recognizer:
        settings = self._config.asr
        name = settings.local_model
        recognizer = asr.load_recognizer(
            name if is_plugin(name) else self._models.locate(name),
            threads=settings.threads,
            compute_type=settings.compute_type,
            device=settings.device,
            language=settings.language,
        )
        recognizer.warm()
        delay_ms = self._rehearsal.asr_ms
        return SlowRecognizer(recognizer, delay_ms) if delay_ms else recognizer

    def multilingual(self) -> asr.Recognizer:
        """The recognizer of the languages that the other one does not know."""
        settings = self._config.asr
        name = settings.multilingual_model
        recognizer = asr.load_recognizer(
            name if is_plugin(name) else self._models.locate(name),
            threads=settings.threads,
            compute_type=settings.compute_type,
            device=settings.device,
            language=self._config.own_language,
        )
        recognizer.warm()
        return recognizer

    def turn_model(self) -> asr.EndOfTurnModel:
        model = asr.load_end_of_turn_model(self._models.locate("smart-turn"))
        model.warm()
        return model

    def engine(self) -> llm_engine.Engine:
        self._conversion.begin()
        settings = self._config.llm_engine
        draft = self._models.locate(settings.draft_model) if settings.draft_model else None
        heads = Path(settings.draft_heads).expanduser() if settings.draft_heads else None
        return self._engine(settings.model, self._conversion.note, draft, heads, settings.gpus)

    def small_engine(self) -> llm_engine.Engine:
        """The smaller model, for turns where the other one is too slow. On one GPU."""
        return self._engine(self._config.llm_engine.small_model, lambda share: None)

    def _engine(
        self,
        model: str,
        on_progress: Callable[[float], None],
        draft: Path | None = None,
        heads: Path | None = None,
        num_gpus: int = 1,
    ) -> llm_engine.Engine:
        settings = self._config.llm_engine
        head = settings.head_dtype
        num_calls = self._config.agent.max_sessions
        engine_config = llm_engine.EngineConfig(
            precision=llm_engine.Precision(settings.dtype),
            backend=llm_engine.BackendName.CUDA if settings.on_gpu else llm_engine.BackendName.AUTO,
            num_threads=settings.threads,
            context_length=settings.context,
            kv_cache_mb=settings.cache_mb,
            max_sequences=4 * num_calls,
            max_batch=min(settings.max_batch, num_calls),
            cache_dir=self._models.home / "converted",
            head_precision=llm_engine.Precision(head) if head else None,
            calibration=Path(settings.calibration).expanduser() if settings.calibration else None,
            kv_precision=llm_engine.Precision(settings.kv_dtype),
            megakernel=settings.megakernel,
            num_gpus=num_gpus,
            thinks=settings.thinking,
            draft_model=draft,
            draft_heads=heads,
        )
        factor = self._rehearsal.llm_factor
        try:
            return llm_engine.Engine.load(
                self._models.locate(model),
                engine_config,
                clock=self._clock,
                on_progress=on_progress,
                wrap=lambda it: it if factor == 1 else SlowBackend(it, factor, self._clock),
            )
        except llm_engine.MemoryShortageError as error:
            problem = str(error).replace("kv_cache_mb", "llm_engine.cache_mb")
            smaller = SMALLER.get(self._config.agent.preset)
            if smaller is not None:
                problem += f", such as that of: halfsec serve --preset {smaller}"
            raise llm_engine.MemoryShortageError(problem) from None

    def voice(self, name: str) -> Callable[[], tts.Voice]:
        def load() -> tts.Voice:
            threads = self._config.tts.threads
            voice = tts.load_voice(name, self._models.directory, threads=threads)
            voice.warm()
            factor = self._rehearsal.tts_factor
            return voice if factor == 1 else SlowVoice(voice, factor, self._clock)

        return load
