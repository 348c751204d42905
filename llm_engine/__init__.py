"""Inference engine for conversations: loads GGUF or Hugging Face models, keeps each call's KV
cache.

    engine = Engine.load("model.gguf")
    async for chunk in engine.generate("Hello"):
        print(chunk.text, end="")

Names are imported when they are first used, so that the pure modules load without torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_engine.chat.chat_model import ChatModel, ChatModelOptions, ReplyRequest
    from llm_engine.chat.contract import check_chat
    from llm_engine.chat.conversation import Conversation
    from llm_engine.chat.load import load_chat
    from llm_engine.chat.template import ChatMessage
    from llm_engine.chat.tool_calls import ToolCall
    from llm_engine.core.metrics import EngineStats
    from llm_engine.core.output import FinishReason, TokenChunk, Usage
    from llm_engine.structured_output.grammar import Grammar

    from .config import BackendName, EngineConfig, Precision, SamplingParams
    from .engine import Engine
    from .errors import (
        DeviceLostError,
        EngineError,
        MemoryShortageError,
        ModelError,
        RequestError,
    )

__all__ = [
    "BackendName",
    "ChatMessage",
    "ChatModel",
    "ChatModelOptions",
    "Conversation",
    "DeviceLostError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "Grammar",
    "MemoryShortageError",
    "ModelError",
    "Precision",
    "ReplyRequest",
    "RequestError",
    "SamplingParams",
    "TokenChunk",
    "ToolCall",
    "Usage",
    "check_chat",
    "load_chat",
]

# Read once, when torch is first loaded: threads of a matrix product that wait for each other give
# the core away instead of spinning on it. On two cores that are also busy with speech, spinning
# turned a token's 20 ms into up to 1,700; waiting costs an idle machine 1 to 3 ms.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_MODULES = {
    "BackendName": "config",
    "ChatMessage": "chat.template",
    "ChatModel": "chat.chat_model",
    "ChatModelOptions": "chat.chat_model",
    "Conversation": "chat.conversation",
    "DeviceLostError": "errors",
    "Engine": "engine",
    "EngineConfig": "config",
    "EngineError": "errors",
    "EngineStats": "core.metrics",
    "FinishReason": "core.output",
    "Grammar": "structured_output.grammar",
    "MemoryShortageError": "errors",
    "ModelError": "errors",
    "Precision": "config",
    "ReplyRequest": "chat.chat_model",
    "RequestError": "errors",
    "SamplingParams": "config",
    "TokenChunk": "core.output",
    "ToolCall": "chat.tool_calls",
    "Usage": "core.output",
    "check_chat": "chat.contract",
    "load_chat": "chat.load",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"llm_engine.{_MODULES[name]}"), name)
