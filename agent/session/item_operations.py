"""Client requests about conversation items: checks before, and the change itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from agent.errors import ClientError, StageError
from agent.session.api.conversation import (
    NO_SUCH_ITEM,
    FunctionCall,
    FunctionOutput,
    ItemReference,
    Message,
)
from agent.session.api.ids import Identifiers
from agent.session.api.server_events import Notice
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.context.chat_context import ChatContext
from agent.session.context.chat_messages import messages_of, response_input
from agent.session.ports.stage_ports import ChatMessage, ChatPort, Tools, ToolsPort
from agent.session.response.dependencies import OpenVoice
from agent.session.response.items import ReplyItems
from agent.tools.offered import check_choice, check_names, tools_of

from .api import client_events as ask
from .api import server_events as say

CHECK_TIMEOUT_S: Final = 5.0
"""Limit for the model's check of a text's length or of tool schemas. A longer check would hold up
the client's audio. A text that was not checked is refused when the model gets it; tools are refused
at once, because schemas that take longer make every response as slow."""

SURE_CHARS: Final = 2_000
"""Shorter items fit into any context of use, and need no check by the model."""

_NO_SUCH_ITEM: Final[dict[type, str]] = {
    ask.CreateItem: "item_create_invalid_previous_item_id",
    ask.RetrieveItem: "item_retrieve_invalid_item_id",
    ask.DeleteItem: "item_delete_invalid_item_id",
    ask.TruncateItem: "item_truncate_invalid_item_id",
}
"""OpenAI's error codes. By them clients tell an item that has just gone from a
real mistake: on any other code Pipecat ends its call."""


async def check_text(chat: ChatPort, message: ChatMessage, param: str) -> None:
    """Raise ClientError where the model could never take this message (with the role "system":
    these instructions). A check that times out is no reason to refuse."""
    await _ask(chat.check(message), param)


async def check_tools(chat: ChatPort, tools: Tools | None, param: str) -> None:
    """Raise ClientError where the model can't take these tools, no call of one of them could fit
    its schema, or the check takes longer than `CHECK_TIMEOUT_S`."""
    if tools is not None and not await _ask(chat.check_tools(tools), param):
        raise ClientError(
            f"{param!r} can't be taken: after {CHECK_TIMEOUT_S:g} s it is not clear whether a call "
            "could fit these schemas. Make them simpler, with fewer alternatives and patterns.",
            code="invalid_value",
            param=param,
        )


async def _ask(question: Awaitable[None], param: str) -> bool:
    """Return whether the check ended in time. Raise ClientError where it refuses."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await question
    except TimeoutError:
        return False
    except StageError as error:
        if error.refused:
            text = f"{param!r} can't be taken. {error.message}"
            raise ClientError(text, code="invalid_value", param=param) from error
    return True


async def check_request(
    request: ask.CreateResponse | ask.CreateItem,
    context: ChatContext,
    settings: SessionSettings,
    tools: ToolsPort,
    open_voice: OpenVoice,
) -> None:
    """Raise ClientError where the model could never take a text in the request, or an item or voice
    that it names does not exist."""
    match request:
        case ask.CreateResponse(options):
            await _check_options(options, context, settings, tools, open_voice)
        case ask.CreateItem(item):
            for message in messages_of((item,)):
                if len(message.text) > SURE_CHARS:
                    await check_text(context.chat, message, "item")


async def _check_options(
    options: ResponseOptions,
    context: ChatContext,
    settings: SessionSettings,
    own_tools: ToolsPort,
    open_voice: OpenVoice,
) -> None:
    if settings.transcribes_only:
        raise ClientError(
            "This is a transcription session, in which nobody answers; "
            'session.update with the type "realtime" makes it another one.',
            code="invalid_event",
            param="type",
        )
    if options.voice is not None:
        try:
            open_voice(options.voice, settings.output_rate_hz, settings.speed)
        except ClientError as error:
            param = "response.audio.output.voice"
            raise ClientError(error.message, code=error.code, param=param) from None
    named = [
        context.conversation.get(item.id)
        for item in options.input or ()
        if isinstance(item, ItemReference)
    ]
    answered = response_input(options, context.conversation) if named else ()
    called = {item.call_id for item in answered if isinstance(item, FunctionCall)}
    for item in named:
        if isinstance(item, FunctionOutput) and item.call_id not in called:
            raise ClientError(
                f"The function call {item.call_id!r}, of which the item {item.id!r} is the output, "
                "is neither in the input nor in this conversation.",
                code="invalid_tool_call_id",
                param="response.input",
            )
    if options.instructions is not None:
        instructions = ChatMessage("system", options.instructions)
        await check_text(context.chat, instructions, "response.instructions")
    if options.tools is not None or options.tool_choice is not None:
        check_names(options.tools or (), own_tools, "response.tools")
        if options.tool_choice is not None:
            check_choice(settings, options, own_tools, "response.tool_choice")
        tools = tools_of(settings, options, own_tools)
        await check_tools(context.chat, tools, "response.tools")


def change_items(
    request: ask.Request,
    context: ChatContext,
    replies: ReplyItems,
    ids: Identifiers,
    notify: Callable[[Notice], None],
) -> None:
    """Create, retrieve, delete or truncate an item. Raise ClientError, having changed nothing."""
    try:
        _change_items(request, context, replies, ids, notify)
    except ClientError as error:
        if error.code != NO_SUCH_ITEM:
            raise
        code = _NO_SUCH_ITEM[type(request)]
        raise ClientError(error.message, code=code, param=error.param) from None


def _change_items(
    request: ask.Request,
    context: ChatContext,
    replies: ReplyItems,
    ids: Identifiers,
    notify: Callable[[Notice], None],
) -> None:
    conversation = context.conversation
    match request:
        case ask.CreateItem(item, after):
            if ids.is_reserved(item.id):
                raise ClientError(
                    f"The id {item.id!r} is the server's own; choose another one, or none.",
                    code="invalid_value",
                    param="item.id",
                )
            if isinstance(item, FunctionOutput) and not conversation.has_call(item.call_id):
                raise ClientError(
                    f"There is no function call {item.call_id!r} in this conversation.",
                    code="invalid_tool_call_id",
                    param="item.call_id",
                )
            at_end = after is None or after == conversation.last_id()
            previous = conversation.add(item, after)
            notify(say.ItemAdded(item, previous))
            if at_end:
                context.added(item)
            else:
                context.edited()
        case ask.RetrieveItem(item_id):
            notify(say.ItemRetrieved(conversation.get(item_id)))
        case ask.DeleteItem(item_id):
            conversation.delete(item_id)
            context.edited()
            notify(say.ItemDeleted(item_id))
        case ask.TruncateItem(item_id, audio_end_ms):
            item = conversation.get(item_id)
            if not (isinstance(item, Message) and item.role == "assistant"):
                raise ClientError(
                    f"Item {item_id!r} is no message of the agent; only those have audio that can "
                    "be truncated.",
                    code="item_truncate_invalid_item_id",
                    param="item_id",
                )
            if item.modality != "audio":
                raise ClientError(
                    f"Item {item_id!r} is written: it has no audio that can be truncated.",
                    code="item_truncate_invalid_item_id",
                    param="item_id",
                )
            clamped_ms = replies.heard_until(item_id, audio_end_ms)
            if clamped_ms is None:
                raise ClientError(
                    f"Item {item_id!r} is unchanged: it is no response of this session, or too old "
                    "for its audio to be known.",
                    code="item_truncate_invalid_item_id",
                    param="item_id",
                )
            notify(say.ItemTruncated(item_id, clamped_ms))
        case _:
            raise ClientError(f"{type(request).__name__} is not supported.", code="invalid_event")
