"""Conversation items of the protocol: parsed from requests and written into events.

A message has one text here, whichever number of parts the client cut it into: parts are joined
with a newline. Raw audio never goes back out: a second of it is 64 kB of base64 and stock clients
read at most 1 MiB a frame. Clients match items by id and transcript.
"""

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

from agent.errors import ClientError
from agent.session.api.conversation import (
    ROOT,
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
    Modality,
)

from .field_support import IMAGE, MCP
from .fields import MAX_ID_CHARS, MAX_TEXT_CHARS, Fields, invalid

MAX_PARTS: Final = 100

_STATUSES: Final = ("completed", "incomplete", "in_progress")
_PARTS_OF_ROLE: Final = {
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
    "system": ("input_text",),
}
_BETA_PARTS: Final = ("text", "audio")

NewId = Callable[[str], str]
"""From a prefix ("event", "item", ...) to an id that this session has not used yet."""


def read_item(item: Fields, new_id: NewId) -> Item:
    """The item a client made, under its own id where it gave one. Raises ClientError."""
    if str(item.raw("type")).startswith("mcp_"):
        raise ClientError(
            f"{item.at('type')!r} is {item.raw('type')[:60]!r}. {MCP}",
            code="invalid_value",
            param=item.at("type"),
        )
    kind = item.choice("type", ("message", "function_call", "function_call_output"))
    item_id = item.optional_text("id", max_chars=MAX_ID_CHARS)
    if item_id in ("", ROOT):
        raise invalid(item.at("id"), f"can't be {item_id!r}")
    known_id = ItemId(item_id or new_id("item"))
    if item.raw("object") is not None:
        item.choice("object", ("realtime.item",))
    if item.raw("status") is not None:
        item.choice("status", _STATUSES)
    read = {
        "message": _read_message,
        "function_call": _read_function_call,
        "function_call_output": _read_function_output,
    }[kind]
    made = read(item, known_id, new_id)
    item.finish()
    return made


def _read_message(item: Fields, item_id: ItemId, _new_id: NewId) -> Item:
    role = item.choice("role", tuple(_PARTS_OF_ROLE))
    texts: list[str] = []
    modality: Modality = "text"
    for path, value in item.array("content", max_items=MAX_PARTS):
        part = Fields(value, path)
        kind = part.text("type")
        if kind in _BETA_PARTS:
            raise ClientError(
                f"{part.at('type')!r} is {kind!r}, a name of the beta: parts are now "
                f"{', '.join(_PARTS_OF_ROLE[role])}.",
                code="beta_api_shape_disabled",
                param=part.at("type"),
            )
        part.choice("type", _PARTS_OF_ROLE[role])
        texts.append(_read_part(part, kind))
        if kind.endswith("_audio"):
            modality = "audio"
    if not texts:
        raise invalid(item.at("content"), "is empty")
    text = "\n".join(texts)
    if len(text) > MAX_TEXT_CHARS:
        raise invalid(
            item.at("content"),
            f"has {len(text)} characters in all its parts; at most {MAX_TEXT_CHARS} are taken",
        )
    if role == "user":
        return Message(item_id, "user", modality, text)
    return Message(item_id, "assistant" if role == "assistant" else "system", modality, text)


def _read_part(part: Fields, kind: str) -> str:
    if kind == "input_image":
        raise ClientError(
            f"{part.at('type')!r} is an image. {IMAGE}",
            code="invalid_value",
            param=part.at("type"),
        )
    if kind.endswith("_text"):
        text = part.text("text")
    else:
        transcript = part.optional_text("transcript")
        part.raw("audio")
        if transcript is None:
            raise invalid(
                part.at("transcript"),
                "is missing: an audio part is taken by its transcript; speech to be heard goes "
                "through input_audio_buffer.append",
            )
        text = transcript
    part.finish()
    return text


def audio_of_parts(item: Fields) -> list[str]:
    """Paths of audio in the parts of a message that was read: its transcript was taken."""
    return [
        f"{item.at('content')}[{index}].audio"
        for index, part in enumerate(item.raw("content") or ())
        if isinstance(part, dict) and part.get("audio") is not None
    ]


def _read_function_call(item: Fields, item_id: ItemId, new_id: NewId) -> Item:
    arguments = item.text("arguments")
    try:
        json.loads(arguments or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise invalid(item.at("arguments"), "is not JSON") from None
    call_id = item.optional_text("call_id", max_chars=MAX_ID_CHARS) or new_id("call")
    return FunctionCall(item_id, call_id, item.text("name", max_chars=MAX_ID_CHARS), arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _read_function_output(item: Fields, item_id: ItemId, _new_id: NewId) -> Item:
    call_id = item.text("call_id", max_chars=MAX_ID_CHARS)
    return FunctionOutput(item_id, call_id, item.text("output"))


def item_json(item: Item) -> dict[str, Any]:
    """JSON of an item in `conversation.item.*` and in a response's `output`."""
    head = {"id": item.id, "object": "realtime.item", "status": item.status}
    match item:
        case Message():
            return head | {"type": "message", "role": item.role, "content": _content_json(item)}
        case FunctionCall():
            return head | {
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
            }
        case FunctionOutput():
            return head | {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": item.output,
            }


def _content_json(message: Message) -> list[dict[str, Any]]:
    side = "output" if message.role == "assistant" else "input"
    if message.modality == "audio" and message.role != "system":
        return [{"type": f"{side}_audio", "transcript": message.text}]
    return [{"type": f"{side}_text", "text": message.text or ""}]
