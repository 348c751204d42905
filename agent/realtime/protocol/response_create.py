"""Parser of `response.create`: settings of one response that differ from the session's."""

from dataclasses import replace
from typing import Final, Literal, cast

from agent.errors import ClientError
from agent.session.api.conversation import Item, ItemId, ItemReference, Modality
from agent.session.api.settings import AudioEncoding, ResponseOptions

from .audio_update import read_format, read_voice
from .field_support import PART_AUDIO, with_ignored
from .fields import MAX_ID_CHARS, Fields, invalid, wrong_type
from .items import NewId, audio_of_parts, read_item
from .session_update import (
    MAX_INSTRUCTIONS_CHARS,
    read_max_tokens,
    read_modality,
    read_parallel_tool_calls,
    read_reasoning,
    read_tool_choice,
    read_tools,
    refuse_beta_fields,
    refuse_prompt,
)

MAX_INPUT_ITEMS: Final = 200
MAX_METADATA_KEYS: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
"""The dialect's own limits."""


def read_options(response: Fields, new_id: NewId) -> ResponseOptions:
    """Raises ClientError."""
    refuse_beta_fields(response)
    refuse_prompt(response)
    ignored: dict[str, str] = {}
    read_reasoning(response, ignored)
    voice, encoding = _read_output(response)
    options = ResponseOptions(
        instructions=response.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS),
        output_modality=cast(Modality, read_modality(response))
        if "output_modalities" in response
        else None,
        max_output_tokens=_read_max_tokens(response),
        tools=None if response.raw("tools") is None else read_tools(response),
        tool_choice=None if response.raw("tool_choice") is None else read_tool_choice(response),
        parallel_tool_calls=read_parallel_tool_calls(response),
        voice=voice,
        output_encoding=encoding,
        metadata=_read_metadata(response),
        out_of_band=response.raw("conversation") is not None
        and response.choice("conversation", ("auto", "none")) == "none",
        input=tuple(
            _read_input(Fields(value, path), new_id, ignored)
            for path, value in response.array("input", max_items=MAX_INPUT_ITEMS)
        )
        if response.raw("input") is not None
        else None,
    )
    response.finish()
    return replace(options, ignored=with_ignored((), ignored)) if ignored else options


def _read_max_tokens(response: Fields) -> int | Literal["inf"] | None:
    """An explicit "inf" must beat a limit of the session; None is that limit."""
    return "inf" if response.raw("max_output_tokens") == "inf" else read_max_tokens(response)


def _read_output(response: Fields) -> tuple[str | None, AudioEncoding | None]:
    """Voice and format. Raises ClientError."""
    audio = response.inside("audio")
    output = None if audio is None else audio.inside("output")
    if audio is not None:
        audio.finish()
    if output is None:
        return None, None
    encoding = read_format(output) if "format" in output else None
    voice = read_voice(output) if "voice" in output else None
    output.finish()
    return voice, encoding


def _read_input(item: Fields, new_id: NewId, ignored: dict[str, str]) -> Item | ItemReference:
    if item.raw("type") != "item_reference":
        read = read_item(item, new_id)
        ignored |= dict.fromkeys(audio_of_parts(item), PART_AUDIO)
        return read
    item_id = item.text("id", max_chars=MAX_ID_CHARS)
    item.finish()
    return ItemReference(ItemId(item_id))


def _read_metadata(response: Fields) -> dict[str, str] | None:
    value = response.raw("metadata")
    if value is None:
        return None
    path = response.at("metadata")
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    if len(value) > MAX_METADATA_KEYS:
        raise invalid(path, f"has {len(value)} keys; at most {MAX_METADATA_KEYS} fit")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise invalid(path, f"has a key of more than {MAX_METADATA_KEY_CHARS} characters")
        if not isinstance(text, str):
            raise wrong_type(f"{path}.{key}", "a string", text)
        if len(text) > MAX_METADATA_VALUE_CHARS:
            raise ClientError(
                f"{path}.{key} has more than {MAX_METADATA_VALUE_CHARS} characters.",
                code="invalid_value",
                param=f"{path}.{key}",
            )
    return dict(value)
