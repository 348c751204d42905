"""Preflight: finds missing or unusable files before the server listens.

A model whose files are complete but which can't be loaded is reported by its stage at warm-up.
"""

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from agent.config.remote_models import REMOTE_SECTIONS
from agent.config.schema import Config, remote_models
from agent.config.suggestions import nearest
from agent.config.webhooks import secret_of
from agent.errors import ConfigError
from agent.stages.model_store.catalogue import (
    HubReference,
    ModelStore,
    ModelStoreError,
    needed_models,
    needed_voices,
)
from engine_plugins.discovery import Plugin, PluginError, PluginKind, find_plugin
from engine_plugins.reference import is_plugin, parse_plugin
from latency_budget.storage.postgres_url import INSTALL_POSTGRES, PostgresUrl
from llm_engine.errors import ModelError as EngineModelError
from llm_engine.torch_extra import require_torch

OTEL_PACKAGES: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
"""Packages of the extra `otel`."""

INSTALL_OTEL: Final = "pip install 'halfsec[otel]'"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A model that is missing, damaged or unknown."""

    name: str
    problem: str
    """A sentence; empty for a model that was never fetched."""
    can_be_fetched: bool
    """True if `halfsec models fetch NAME` can download it."""


def shortfalls(config: Config, store: ModelStore) -> Iterator[Shortfall]:
    """Models that are missing, damaged or unknown, in the order of a turn; then plug-ins that are
    not installed. Loads nothing."""
    voices = needed_voices(config)
    for reference in needed_models(config):
        short = _voice if reference in voices else _model
        if (found := short(reference, store)) is not None:
            yield found
    for name, plugin in plugins(config):
        if isinstance(plugin, PluginError):
            yield Shortfall(name, f"{plugin}.", False)


def plugins(config: Config) -> Iterator[tuple[str, Plugin | PluginError]]:
    """Plug-ins that the settings name, each with what the name means or why it means nothing.
    Imports none."""
    voices = [config.tts.voice, *(each.voice for each in config.agents.values() if each.voice)]
    named = [
        (PluginKind.RECOGNIZER, config.asr.model),
        (PluginKind.CHAT, config.llm_engine.model),
        *((PluginKind.VOICE, voice) for voice in dict.fromkeys(voices)),
    ]
    for kind, name in named:
        if (reference := parse_plugin(name)) is not None:
            try:
                yield name, find_plugin(kind, reference)
            except PluginError as error:
                yield name, error


def check_models(config: Config, store: ModelStore) -> None:
    """Check the model files. Raises ModelStoreError with all problems and the command that
    downloads the models that can be fetched."""
    found = list(shortfalls(config, store))
    missing = [each.name for each in found if not each.problem]
    sentences = [f"Not on this machine: {', '.join(missing)}."] if missing else []
    sentences += [each.problem for each in found if each.problem]
    fetch = fetch_command(found)
    if fetch:
        sentences.append(f"To download what is needed: {fetch}")
    if sentences:
        raise ModelStoreError(" ".join(sentences))


def check_exports(config: Config) -> None:
    """Check the packages for trace export. Raises ConfigError where export is configured and a
    package is missing."""
    if config.latency_budget.otlp_endpoint and (missing := missing_exports()):
        raise ConfigError(
            f"latency_budget.otlp_endpoint needs {' and '.join(missing)}: {INSTALL_OTEL}",
            key="latency_budget.otlp_endpoint",
        )


def check_store(config: Config) -> None:
    """Check the driver of PostgreSQL. Raises ConfigError where the store needs it and it is
    missing; contacts nothing: a database may come later."""
    if isinstance(config.latency_budget.store, PostgresUrl) and not find_spec("psycopg"):
        raise ConfigError(
            f"latency_budget.store needs psycopg: {INSTALL_POSTGRES}", key="latency_budget.store"
        )


def check_webhooks(config: Config) -> None:
    """Check the secrets of the endpoints. Raises ConfigError."""
    for name, endpoint in config.webhooks.items():
        try:
            secret_of(endpoint.secret_env, os.environ)
        except ValueError as error:
            key = f"webhooks.{name}.secret_env"
            raise ConfigError(f"{key} {error}.", key=key) from None


def check_torch(config: Config) -> None:
    """Check for torch. Raises ConfigError where the settings need it and it is not installed."""
    if (found := torch_problem(config)) is not None:
        key, problem = found
        raise ConfigError(problem, key=key)


def torch_problem(config: Config) -> tuple[str, str] | None:
    """Key of the setting that needs torch, and a sentence with the extra to install; None without a
    problem. Imports nothing of it."""
    settings = config.llm_engine
    for key, needs, extra in (
        ("device" if settings.device == "cuda" else "dtype", settings.on_gpu, "cuda"),
        ("dtype", settings.dtype == "float32", "torch"),
        ("calibration", settings.dtype == "int4" and bool(settings.calibration), "torch"),
        ("draft_heads", bool(settings.draft_heads), "torch"),
    ):
        if needs:
            value = getattr(settings, key)
            try:
                require_torch(f"llm_engine.{key} = {value!r}", extra=extra)
            except EngineModelError as error:
                return f"llm_engine.{key}", str(error)
    return None


def check_remote(config: Config) -> None:
    """Check the variables with the secrets of models on other servers. Raises ConfigError;
    contacts nothing: a server may come later."""
    sections = [each for each in REMOTE_SECTIONS if remote_models(config, each)]
    if sections:
        from agent.stages.remote.api_server import server_options

        for section in sections:
            server_options(config, os.environ, section)


def check_gpu(config: Config) -> None:
    """Check the GPU. Raises ConfigError where the settings need one and none is suitable."""
    if (found := gpu_problem(config)) is not None:
        key, problem = found
        raise ConfigError(f"{key}: {problem}", key=key)


def gpu_problem(config: Config) -> tuple[str, str] | None:
    """Key of the setting that needs a GPU, and why none is available; None without a problem.

    Initializes CUDA only where a setting needs it; imports nothing of it otherwise.
    """
    settings = config.llm_engine
    if settings.on_gpu:
        if (missing := torch_problem(config)) is not None:
            return missing
        from llm_engine.cuda.device import require_device

        try:
            require_device(needs_fp8="fp8" in (settings.dtype, settings.head_dtype))
        except EngineModelError as error:
            key = "device" if settings.device == "cuda" else "dtype"
            return f"llm_engine.{key}", str(error)
    recognizer = config.asr.local_model
    if config.asr.device == "cuda" and recognizer and not is_plugin(recognizer):
        import ctranslate2

        if not ctranslate2.get_cuda_device_count():
            return "asr.device", "CTranslate2 finds no NVIDIA GPU; choose cpu, or see nvidia-smi"
    return None


def missing_exports() -> list[str]:
    """Packages of the extra `otel` that are not installed. Imports none of them."""
    missing = []
    for name in OTEL_PACKAGES:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def otel_is_disabled() -> bool:
    """True if OTEL_SDK_DISABLED is set: nothing is exported, whatever halfsec's settings are."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def fetch_command(found: list[Shortfall]) -> str:
    """Command that downloads all models that can be fetched; empty where there are none."""
    names = " ".join(each.name for each in found if each.can_be_fetched)
    return f"halfsec models fetch {names}" if names else ""


def _model(reference: str, store: ModelStore) -> Shortfall | None:
    model = store.catalogue.get(reference)
    if model is None:
        try:
            store.locate(reference)
        except ModelStoreError as error:
            if HubReference.parse(reference) is None:
                return Shortfall(reference, error.message, False)
            return Shortfall(reference, "", True)
        return None
    presence = store.presence(reference)
    if presence == "present":
        return None
    if model.package:
        problem = f"{reference} needs the package {model.package}: pip install {model.package}."
        return Shortfall(reference, problem, False)
    problem = "" if presence == "missing" else next(store.problems(model), "")
    return Shortfall(reference, problem, True)


def _voice(name: str, store: ModelStore) -> Shortfall | None:
    """Look for a voice as `tts.load_voice` does: a known name, a folder of the model directory, an
    .onnx file."""
    if name in store.catalogue:
        return _model(name, store)
    if name.endswith(".onnx"):
        for path in (Path(name), Path(f"{name}.json")):
            if not path.is_file():
                return Shortfall(name, f"The voice {name} lacks its file {path}.", False)
        return None
    if name and next((store.directory / name).glob("*.onnx"), None) is not None:
        return None
    known = [model.name for model in store.catalogue.values() if model.stage == "tts"]
    problem = (
        f"There is no voice {name!r}: neither a known name ({', '.join(known)}), nor the path of a "
        f"Piper voice's .onnx file.{nearest(name, known)}"
    )
    return Shortfall(name, problem, False)
