"""Check of a session that has not begun: can the models take its settings?

A client secret binds sessions that begin later, elsewhere. What the model can't take is reported to
the client that makes the secret: its holder could not change it.
"""

import asyncio
from dataclasses import replace

from agent.errors import ClientError, StageError
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.item_operations import CHECK_TIMEOUT_S
from agent.session.spoken_voice import with_spoken_voice
from agent.session.transcription_options import transcription_options
from agent.stages.registry import Stages
from agent.stages.tool_call_adapter import tool_use
from agent.tools.offered import tools_of
from llm_engine.errors import RequestError


async def check_session(stages: Stages, settings: SessionSettings) -> None:
    """Raises ClientError naming the field at fault. What the language needs is loaded, if it was
    not: whether it is there is not known otherwise. Other models that can't say,
    because they are being loaded or are slow, are no reason to refuse."""
    stages.voice_stage(settings.voice)
    stages.check_language(transcription_options(settings))
    if stages.status != "ready":
        return
    await with_spoken_voice(stages.prepare_language, settings)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await _check_with_model(stages, settings)
    except (TimeoutError, StageError):
        return


async def _check_with_model(stages: Stages, settings: SessionSettings) -> None:
    engine = None
    if stages.remote_llm is None:
        engine = await stages.llm.call(lambda engine: engine, timeout_s=CHECK_TIMEOUT_S)
        try:
            await engine.check_setting(settings.instructions, None)
        except RequestError as error:
            raise _refused("session.instructions", error.problem) from None
    # One that a reply must call may be the server's own, and of those nothing is known here.
    tools = tools_of(replace(settings, tool_choice="auto"), ResponseOptions())
    if tools is None:
        return
    try:
        # On a thread: large schemas take a while to be looked through.
        use = await asyncio.to_thread(tool_use, tools)
        if engine is not None:
            await engine.check_setting(settings.instructions, use)
    except RequestError as error:
        field = error.field.replace(".function", "")  # as this client has it
        raise _refused("session.tools", f"{field}: {error.problem}") from None


def _refused(param: str, problem: str) -> ClientError:
    message = f"{param!r} can't be taken. The language model can't take this: {problem}."
    return ClientError(message, code="invalid_value", param=param)
