"""What clients may change about the items of a conversation, and what is too long to be one."""

import asyncio
from collections.abc import Callable
from typing import Final

from . import notices as say
from . import requests as ask
from .chat_context import ChatContext
from .conversation import Conversation
from .errors import ClientError, StageError
from .identifiers import Identifiers
from .model_messages import messages_of
from .notices import Notice
from .ports import ChatMessage, ChatPort
from .reply_items import ReplyItems

CHECK_TIMEOUT_S: Final = 5.0
"""For the model to say whether a text fits. It must not hold up the client's audio for longer; what
was not checked is refused when the model is told of it."""

SURE_CHARS: Final = 2_000
"""Shorter items fit into any context of use, and need not wait for the model."""


async def check_text(chat: ChatPort, message: ChatMessage, param: str) -> None:
    """Raises ClientError where the model could never take this message (with the role "system":
    these instructions). A model that can't say is no reason to refuse."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await chat.check(message)
    except TimeoutError:
        return
    except StageError as error:
        if error.refused:
            text = f"{param!r} can't be taken. {error.message}"
            raise ClientError(text, code="invalid_value", param=param) from error


async def check_request(request: ask.Request, chat: ChatPort) -> None:
    """Raises ClientError where a text in it is too long for the model."""
    match request:
        case ask.CreateResponse(options) if options.instructions is not None:
            instructions = ChatMessage("system", options.instructions)
            await check_text(chat, instructions, "response.instructions")
        case ask.CreateItem(item):
            for message in messages_of((item,)):
                if len(message.text) > SURE_CHARS:
                    await check_text(chat, message, "item")


def change_items(
    request: ask.Request,
    conversation: Conversation,
    context: ChatContext,
    replies: ReplyItems,
    ids: Identifiers,
    notify: Callable[[Notice], None],
) -> None:
    """Create, retrieve, delete or truncate. Raises ClientError, having changed nothing."""
    match request:
        case ask.CreateItem(item, after):
            if ids.reserves(item.id):
                raise ClientError(
                    f"The id {item.id!r} is the server's own; choose another one, or none.",
                    code="invalid_value",
                    param="item.id",
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
            conversation.get(item_id)
            clamped_ms = replies.heard_until(item_id, audio_end_ms)
            notify(say.ItemTruncated(item_id, audio_end_ms if clamped_ms is None else clamped_ms))
        case _:
            raise ClientError(f"{type(request).__name__} is not supported.", code="invalid_event")
