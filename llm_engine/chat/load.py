"""Loader of chat models: the engine of this package, or a plug-in of another one."""

from pathlib import Path
from typing import Final

from engine_plugins.discovery import Member, PluginError, PluginKind, load_plugin
from engine_plugins.reference import parse_plugin
from llm_engine.config import EngineConfig
from llm_engine.errors import ModelError

from .chat_model import ChatModel, ChatModelOptions

MEMBERS: Final[dict[str, Member]] = {"reply": "method", "close": "method"}
"""Members of a `ChatModel`."""

_DEFAULT: Final = ChatModelOptions()


def load_chat(name: str | Path, options: ChatModelOptions = _DEFAULT) -> ChatModel:
    """Load a chat model; blocks for seconds.

    A string like "NAME:ARGUMENT" means a plug-in; anything else is a GGUF file or a Hugging Face
    directory for the engine of this package. Raises ModelError naming the file or the package, and
    what to do.
    """
    plugin = parse_plugin(name) if isinstance(name, str) else None
    if plugin is None:
        from llm_engine.engine import Engine

        from .engine_chat_model import EngineChatModel

        config = EngineConfig(num_threads=options.threads, context_length=options.context)
        return EngineChatModel(Engine.load(name, config))
    try:
        model: ChatModel = load_plugin(PluginKind.CHAT, plugin, options, MEMBERS)
    except PluginError as error:
        raise ModelError(str(error)) from error
    return model
