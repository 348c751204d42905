"""A language model for conversations: loads GGUF or Hugging Face files, keeps each call's cache.

    engine = Engine.load("model.gguf")
    async for chunk in engine.generate("Hello"):
        print(chunk.text, end="")

Names are imported when they are first used, so that the pure modules load without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_engine.config import EngineConfig, Precision, SamplingParams
    from llm_engine.conversation import Conversation
    from llm_engine.engine import Engine
    from llm_engine.errors import EngineError, ModelError, RequestError
    from llm_engine.reply import FinishReason, TokenChunk, Usage
    from llm_engine.template import ChatMessage

__all__ = [
    "ChatMessage",
    "Conversation",
    "Engine",
    "EngineConfig",
    "EngineError",
    "FinishReason",
    "ModelError",
    "Precision",
    "RequestError",
    "SamplingParams",
    "TokenChunk",
    "Usage",
]

_HOME = {
    "ChatMessage": "template",
    "Conversation": "conversation",
    "Engine": "engine",
    "EngineConfig": "config",
    "EngineError": "errors",
    "FinishReason": "reply",
    "ModelError": "errors",
    "Precision": "config",
    "RequestError": "errors",
    "SamplingParams": "config",
    "TokenChunk": "reply",
    "Usage": "reply",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"llm_engine.{_HOME[name]}"), name)
