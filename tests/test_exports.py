"""Public names are importable, and importing them costs no more than it must."""

import importlib
import json
import subprocess
import sys

import pytest

PUBLIC = {
    "agent.client": ["connect"],
    "agent.tools": ["ToolError", "tool"],
    "asr": ["RecognitionEngine", "StreamingTranscriber", "check_recognizer"],
    "llm_engine": ["ChatModel", "Engine", "check_chat", "load_chat"],
    "tts": ["SynthesisEngine", "Voice", "check_voice"],
}
HEAVY = {"torch", "ctranslate2", "onnxruntime", "transformers", "faster_whisper", "piper", "hibari"}

NOT_WITH = {
    "latency_budget": HEAVY | {"numpy", "asyncio"},
    "agent.turn_taking.machine": HEAVY,
    "engine_plugins.discovery": HEAVY | {"numpy", "asyncio"},
    "llm_engine.chat.chat_model": HEAVY | {"numpy"},
    "agent.config.layers": HEAVY | {"numpy", "asyncio"},
    "agent.__main__": HEAVY | {"numpy", "asyncio", "huggingface_hub"},
    "asr": {"torch", "transformers", "piper"},
    "tts": {"torch", "transformers", "piper"},  # piper-tts is GPL: only where it is asked for
    "llm_engine": {"transformers", "ctranslate2", "piper"},
}


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in PUBLIC.items() for name in names]
)
def test_public_names(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert getattr(module, name).__module__.split(".")[0] == package.split(".")[0]
    assert name in module.__all__


@pytest.mark.parametrize("package", [*PUBLIC, "engine_plugins", "languages", "latency_budget"])
def test_every_name_that_a_package_lists_is_there(package: str) -> None:
    """Most are imported on first use, so that a wrong module shows no sooner."""
    module = importlib.import_module(package)
    assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == []


def test_an_earlier_name_still_works() -> None:
    from agent import client_events

    assert client_events.Transcript.__module__ == "agent.client.events"


@pytest.mark.parametrize("module", NOT_WITH)
def test_importing_is_light(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & NOT_WITH[module]
