"""`GET /v1/models`: the names that a client may send as `model`.

Agents are for calls; the names of recognizer, voices and language model show which models answer.
Every other name is served by the default, because stock clients ask for OpenAI's models of their
own accord.
"""

from pathlib import PurePath
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent.config.remote_models import is_remote, shown_model
from agent.config.schema import Config
from engine_plugins.reference import parse_plugin

from .chat_request import MAX_MODEL_CHARS


class ModelList:
    """One instance for all requests."""

    def __init__(self, config: Config) -> None:
        self._models: dict[str, dict[str, Any]] = {}
        self.use(config)

    def use(self, config: Config) -> None:
        """List the names of these settings."""
        voices = (agent.voice for agent in config.agents.values() if agent.voice)
        kinds = [
            *((name, "agent") for name in config.agents),
            (_shown(config.llm_engine.model), "language_model"),
            (_shown(config.asr.model), "recognizer"),
            *((_shown(voice), "voice") for voice in (config.tts.voice, *voices)),
        ]
        self._models = {}
        for name, kind in kinds:
            # Where two are called the same, the agent is meant: that is what a call can choose.
            self._models.setdefault(name, _model(name, kind))

    async def all(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(self._models.values())})

    async def one(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name in self._models:
            return JSONResponse(self._models[name])
        error = {
            "message": f"There is no model {name[:MAX_MODEL_CHARS]!r} here; GET /v1/models lists "
            "what there is. Requests that name another one are served by the default.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return JSONResponse({"error": error}, 404)


def _shown(model: str) -> str:
    """Public name of a model: a name as it stands, a path without its directories, which are
    private; of one on another server its name there."""
    if is_remote(model):
        return shown_model(model)
    if (plugin := parse_plugin(model)) is not None:
        return f"{plugin.name}:{PurePath(plugin.argument).name}"
    path = PurePath(model)
    return path.name if path.is_absolute() or model.startswith(("~", ".")) else model


def _model(name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "halfsec", "kind": kind}
