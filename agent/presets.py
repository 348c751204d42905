"""Named sets of settings: models, prompt and budget that belong together.

A preset is what stands below the settings file. It has the file's own shape, so that one can be
copied into `halfsec.toml` and changed. `embedded` needs no account and no hub: its models come
with packages. The others name models on the Hugging Face hub.
"""

from typing import Any, Final

DEFAULT_PRESET: Final = "embedded"

_SMALL_MODEL_INSTRUCTIONS: Final = (
    "You are a friendly voice assistant on a phone call. Answer in one short spoken sentence. "
    "No lists, no markdown."
)

_EXAMPLES: Final = [
    {
        "user": "Hi, who is this?",
        "assistant": "Hi, I'm your voice assistant. What can I do for you?",
    },
    {
        "user": "What is the capital of France?",
        "assistant": "It's Paris.",
    },
    {
        "user": "Please enter your account number.",
        "assistant": "I don't have an account number, sorry.",
    },
    {
        "user": "Can you tell me something about the ocean?",
        "assistant": "Sure, it covers about seventy percent of the Earth.",
    },
]
"""A model of 135 million parameters copies the manner of what it sees more than it obeys orders:
short spoken turns beget short spoken turns. They are pinned before the conversation."""

_LARGE_MODEL_INSTRUCTIONS: Final = (
    "You are a voice assistant on a live call. Your words are spoken aloud as you write them, so "
    "answer the way people talk: one or two short sentences, plain words, no lists, no markdown, "
    "no emoji. Begin with the answer. Ask when you did not understand."
)

PRESETS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "embedded": {
        "asr": {"model": "whisper-tiny.en", "language": "en"},
        "llm_engine": {"model": "smollm2-135m-instruct", "max_tokens": 96},
        "agents": {
            "default": {"instructions": _SMALL_MODEL_INSTRUCTIONS, "examples": _EXAMPLES},
        },
    },
    "cpu": {
        "asr": {"model": "Systran/faster-whisper-base.en", "language": "en"},
        "llm_engine": {"model": "Qwen/Qwen2.5-0.5B-Instruct", "temperature": 0.7},
        "agents": {"default": {"instructions": _LARGE_MODEL_INSTRUCTIONS}},
    },
    "gpu-8b": {
        "asr": {"model": "deepdml/faster-whisper-large-v3-turbo-ct2"},
        "llm_engine": {"model": "Qwen/Qwen3-8B", "temperature": 0.7},
        "agents": {"default": {"instructions": _LARGE_MODEL_INSTRUCTIONS}},
    },
    "gpu-70b": {
        "asr": {"model": "deepdml/faster-whisper-large-v3-turbo-ct2"},
        "llm_engine": {"model": "meta-llama/Llama-3.3-70B-Instruct", "temperature": 0.6},
        "agents": {"default": {"instructions": _LARGE_MODEL_INSTRUCTIONS}},
    },
}
