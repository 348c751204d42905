"""The models of the service, loaded once and shared by all calls.

`start` loads them side by side while the server already listens; `progress` is what `/readyz` shows
meanwhile. A model that can't be loaded at the start ends the server with the reason; one that fails
later is restarted by its own thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import asr
import tts
from latency_budget.clock import Clock

from .config import Config
from .errors import ClientError, HalfsecError, StageError
from .hearing import endpointing_for
from .ports import ChatPort, VoicePort
from .settings import TurnDetection
from .speaking import Speaking, VoiceStage
from .stage_thread import StageThread
from .thinking import Thinker

StageStatus = Literal["waiting", "loading", "ready", "failed"]

_log = logging.getLogger(__name__)


class Stages:
    """Belongs to the server's event loop."""

    def __init__(self, config: Config, models: "ModelPaths", clock: Clock) -> None:
        self._config = config
        self._models = models
        self._clock = clock
        self.detector: StageThread[asr.SileroVad] = StageThread("vad", self._load_detector)
        self.recognizer: StageThread[asr.WhisperTranscriber] = StageThread(
            "asr", self._load_recognizer
        )
