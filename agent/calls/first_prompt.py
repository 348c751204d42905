"""The default agent's prompt, computed before anybody calls.

The model reads an agent's instructions, examples and tools once, and keeps them for all calls. That
takes two seconds for the half-billion model on two slow cores, which the first caller would wait
for. So it is done when the models are loaded. A call that begins meanwhile takes over what was read
(`llm_engine.core`), and reads on from there together with this.

Calls by telephone with tools of the line, and those of an agent whose MCP servers connect later,
have another prompt from the tools on. With a language model on another server, what a smaller model
reads in front of the caller's words is computed instead.
"""

import logging
from functools import partial

from agent.errors import StageError
from agent.http.auth.principal import ANYONE
from agent.session.api.settings import ResponseOptions
from agent.session.response.opening_clause import example_messages
from agent.stages.registry import Stages, check_tools
from agent.tools.offered import tools_of
from agent.tools.server_tools import ServerTools

from .registry import CallRegistry
from .session_start import SessionStart, session_start

_log = logging.getLogger(__name__)


async def prefill_first_prompt(stages: Stages, tools: ServerTools, calls: CallRegistry) -> None:
    """Wait for the models, and have the own language model read what each call of the default agent
    begins with. An optimization: where it fails, that is logged, and the first call finds out."""
    await stages.wait_started()
    if stages.status != "ready" or calls.admitted:
        return
    start = session_start(tools.loaded.config, ANYONE, None)
    assert isinstance(start, SessionStart)  # there always is a default agent
    try:
        if stages.remote_llm is not None:
            await stages.prefill_scoring_prompt()
        else:
            await _prefill(start, stages, tools)
    except StageError as error:
        _log.warning("the first prompt was not read ahead: %s", error.message)
    except Exception:
        _log.exception("the first prompt was not read ahead")


async def _prefill(start: SessionStart, stages: Stages, tools: ServerTools) -> None:
    """Raises StageError, or whatever a model does."""
    settings = start.settings
    taken = {str(each.get("name")) for each in settings.tools}
    check = partial(check_tools, stages, settings.instructions)
    own = await tools.for_call(start.agent, "", taken, check, lambda _: None)
    offered = tools_of(settings, ResponseOptions(), own)
    chat = stages.open_chat(settings.instructions, example_messages(start.profile))
    try:
        if offered is not None:
            await chat.set_tools(offered.definitions)
        await chat.preview("")
    finally:
        await chat.close()
