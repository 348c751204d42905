"""Preflight: finds missing or unusable files before the server listens.

A model that is whole and yet can't be loaded only its stage can report, while the server warms up.
"""

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.config.schema import GPU_DTYPES, Config
from agent.config.suggestions import nearest
from agent.errors import ConfigError
from agent.stages.model_store.catalogue import (
    HubReference,
    ModelError,
    ModelStore,
    needed_models,
    needed_voices,
)

OTEL_PACKAGES: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
"""What the extra `otel` brings."""

INSTALL_OTEL: Final = "pip install -e '.[otel]'"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A model that is not as the settings need it."""

    name: str
    problem: str
    """A sentence; of a model that was never fetched, empty."""
    can_be_fetched: bool
    """By `halfsec models fetch NAME`."""


def shortfalls(config: Config, store: ModelStore) -> Iterator[Shortfall]:
    """What is missing, damaged or unknown, in the order of a turn. Loads nothing."""
    voices = needed_voices(config)
    for reference in needed_models(config):
        short = _voice if reference in voices else _model
        if (found := short(reference, store)) is not None:
            yield found


def check_models(config: Config, store: ModelStore) -> None:
    """Raises ModelError with all that is amiss, and the one command that fetches what can be."""
    found = list(shortfalls(config, store))
    missing = [each.name for each in found if not each.problem]
    sentences = [f"Not on this machine: {', '.join(missing)}."] if missing else []
    sentences += [each.problem for each in found if each.problem]
    fetch = fetch_command(found)
    if fetch:
        sentences.append(f"To download what is needed: {fetch}")
    if sentences:
        raise ModelError(" ".join(sentences))


def check_exports(config: Config) -> None:
    """Raises ConfigError where traces are to be exported and the packages for it are missing."""
    if config.latency_budget.otlp_endpoint and (missing := missing_exports()):
        raise ConfigError(
            f"latency_budget.otlp_endpoint needs {' and '.join(missing)}: {INSTALL_OTEL}",
            key="latency_budget.otlp_endpoint",
        )


def check_gpu(config: Config) -> None:
    """Raises ConfigError where the settings name a GPU and there is none that will do."""
    if (found := gpu_problem(config)) is not None:
        key, problem = found
        raise ConfigError(f"{key}: {problem}", key=key)


def gpu_problem(config: Config) -> tuple[str, str] | None:
    """The setting that asks for a GPU, and why it can't have one. Starts CUDA where one is asked
    for; imports nothing of it elsewhere."""
    if config.llm_engine.dtype in GPU_DTYPES:
        from llm_engine import ModelError as EngineModelError
        from llm_engine.cuda.device import require_device

        try:
            require_device(needs_fp8=config.llm_engine.dtype == "fp8")
        except EngineModelError as error:
            return "llm_engine.dtype", str(error)
    if config.asr.device == "cuda":
        import ctranslate2

        if not ctranslate2.get_cuda_device_count():
            return "asr.device", "CTranslate2 finds no NVIDIA GPU; choose cpu, or see nvidia-smi"
    return None


def missing_exports() -> list[str]:
    """The packages of the extra `otel` that are not here. Imports none of them."""
    missing = []
    for name in OTEL_PACKAGES:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def otel_is_disabled() -> bool:
    """OpenTelemetry's own switch is off: nothing is exported, whatever our settings say."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def fetch_command(found: list[Shortfall]) -> str:
    """One command for all that can be fetched; empty where nothing can."""
    names = " ".join(each.name for each in found if each.can_be_fetched)
    return f"halfsec models fetch {names}" if names else ""


def _model(reference: str, store: ModelStore) -> Shortfall | None:
    model = store.catalogue.get(reference)
    if model is None:
        try:
            store.locate(reference)
        except ModelError as error:
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
    """As `tts.load_voice` looks for it: a known name, a folder of the models, an .onnx file."""
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
