"""The `response` object of `response.create`: in what one response differs from its session."""

from typing import Final, cast

from agent.conversation import Modality
from agent.errors import ClientError
from agent.settings import ResponseOptions, SessionSettings

from .audio_update import read_format, read_voice
from .fields import Fields, invalid, wrong_type
from .items import NewId, read_item
from .session_update import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_OUTPUT_TOKENS,
    read_max_tokens,
    read_modality,
    read_tool_choice,
    read_tools,
    refuse_beta_fields,
)

MAX_INPUT_ITEMS: Final = 200
MAX_METADATA_KEYS: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
"""The dialect's own limits."""

_WITHOUT_EFFECT: Final = ("prompt", "reasoning", "parallel_tool_calls")


def read_options(response: Fields, settings: SessionSettings, new_id: NewId) -> ResponseOptions:
    """Raises ClientError, also for what would need another voice or format than the session's (they
    are set with `session.update`)."""
    refuse_beta_fields(response)
    for name in _WITHOUT_EFFECT:
        response.raw(name)
    _check_as_in_session(response, settings)
    options = ResponseOptions(
        instructions=response.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS),
        output_modality=cast(Modality, read_modality(response))
        if "output_modalities" in response
        else None,
        max_output_tokens=_read_max_tokens(response),
        tools=None if response.raw("tools") is None else read_tools(response),
        tool_choice=None if response.raw("tool_choice") is None else read_tool_choice(response),
        metadata=_read_metadata(response),
        out_of_band=response.raw("conversation") is not None
        and response.choice("conversation", ("auto", "none")) == "none",
        input=tuple(
            read_item(_whole_item(path, value), new_id)
            for path, value in response.array("input", max_items=MAX_INPUT_ITEMS)
        )
        if response.raw("input") is not None
        else None,
    )
    response.finish()
    return options


def _read_max_tokens(response: Fields) -> int | None:
    """An explicit "inf" must beat a limit of the session, so it is the largest number."""
    if response.raw("max_output_tokens") == "inf":
        return MAX_OUTPUT_TOKENS
    return read_max_tokens(response)


def _check_as_in_session(response: Fields, settings: SessionSettings) -> None:
    audio = response.inside("audio")
    if audio is None:
        return
    if (output := audio.inside("output")) is not None:
        if "format" in output and read_format(output) != settings.output_encoding:
            raise invalid(output.at("format"), "differs from the session's; use session.update")
        if "voice" in output and read_voice(output) != settings.voice:
            raise invalid(output.at("voice"), "differs from the session's; use session.update")
        output.finish()
    audio.finish()


def _whole_item(path: str, value: object) -> Fields:
    item = Fields(value, path)
    if item.raw("type") == "item_reference":
        raise invalid(item.at("type"), "is a reference; send the item itself")
    return item


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
