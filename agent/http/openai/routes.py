"""Routes of OpenAI's HTTP API that need the models but no call."""

from starlette.routing import Route

from agent.config.schema import Config
from agent.http.json_body import JsonBodies
from agent.stages.registry import Stages

from .chat import ChatCompletions
from .models import ModelList
from .speech import SpeechEndpoint
from .transcriptions import Transcriptions


def openai_routes(
    config: Config, stages: Stages, models: ModelList, bodies: JsonBodies
) -> list[Route]:
    """One endpoint for all requests of a kind."""
    chats = ChatCompletions(config, stages, bodies)
    transcriptions = Transcriptions(config, stages)
    speech = SpeechEndpoint(config, stages, bodies)
    return [
        Route("/v1/models", models.all),
        Route("/v1/models/{model:any}", models.one),
        Route("/v1/chat/completions", chats.serve, methods=["POST"]),
        Route("/v1/audio/speech", speech.serve, methods=["POST"]),
        Route("/v1/audio/transcriptions", transcriptions.serve, methods=["POST"]),
    ]
