"""What clients may change about the items of a conversation."""

from collections.abc import Callable

from . import notices as say
from . import requests as ask
from .chat_context import ChatContext
from .conversation import Conversation
from .errors import ClientError
from .notices import Notice
from .reply_desk import ReplyDesk


def change_items(
    request: ask.Request,
    conversation: Conversation,
    context: ChatContext,
    desk: ReplyDesk,
    notify: Callable[[Notice], None],
) -> None:
    """Create, retrieve, delete or truncate. Raises ClientError, having changed nothing."""
    match request:
        case ask.CreateItem(item, after):
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
            clamped_ms = desk.heard_until(item_id, audio_end_ms)
            notify(say.ItemTruncated(item_id, audio_end_ms if clamped_ms is None else clamped_ms))
        case _:
            raise ClientError(f"{type(request).__name__} is not supported.", code="invalid_event")
