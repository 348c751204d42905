"""Events of one response, from `response.created` to `response.done`.

The dialect wraps a reply in four brackets: response, output item, conversation item, content part.
`begin` opens them all, so that clients which wait for an item or a part before the first delta get
it; `end` closes them all in reverse, whatever the reason for the end was. Where tools may be called
there may be no message, so all but the response are opened when its first word is there. A response
out of band belongs to no conversation and has no conversation items.
"""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from agent.codec.pcm import encode_audio
from agent.errors import InternalError
from agent.session.api.conversation import Item, ItemId, ItemStatus, Message
from agent.session.api.server_events import (
    MessageBegun,
    ReplyAudio,
    ReplyCalled,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    Usage,
)
from agent.session.api.settings import WIRE_RATE_HZ

from .items import item_json
from .session_json import format_json, max_tokens_json

MAX_DELTA_MS: Final = 200
"""Stock clients read frames of at most 1 MiB, and a barge-in can't recall half a delta."""

Event = dict[str, Any]
"""A server event without its `event_id`."""


class ResponseEvents:
    """Order of calls: `begin`, then the others as they come, then `end`, once."""

    def __init__(self, started: ReplyStarted, conversation_id: str) -> None:
        self._started = started
        self._conversation_id = None if started.out_of_band else conversation_id
        self._outputs: list[Item] = []
        """In the order in which they were added; the message, if there is one, among them."""
        self._index: int | None = None
        """Index of the message in the response's output."""
        self._previous: ItemId | None = None
        """The item before the message."""
        self._speaks = started.modality == "audio"

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.created", "response": self._response("in_progress")}
        if not self._started.may_call:
            yield from self._open(self._started.previous_item_id)

    def message(self, notice: MessageBegun) -> Iterator[Event]:
        """Raises InternalError where it has begun already."""
        if self._index is not None:
            raise InternalError(f"Response {notice.response_id!r} has a message already.")
        return self._open(notice.previous_item_id)

    def _open(self, previous: ItemId | None) -> Iterator[Event]:
        started = self._started
        self._index = len(self._outputs)
        self._previous = previous
        message = Message(started.item_id, "assistant", started.modality, "", "in_progress")
        self._outputs.append(message)
        item = item_json(message) | {"content": []}
        yield self._output_item("response.output_item.added", self._index, item)
        yield from self._conversation_item("conversation.item.added", previous, item)
        yield self._content_part("response.content_part.added", "")

    def call(self, notice: ReplyCalled) -> Iterator[Event]:
        """A whole call: it is known only when it is complete, and then at once."""
        call, index = notice.call, len(self._outputs)
        self._outputs.append(call)
        begun = item_json(replace(call, arguments="", status="in_progress"))
        yield self._output_item("response.output_item.added", index, begun)
        yield from self._conversation_item(
            "conversation.item.added", notice.previous_item_id, begun
        )
        place = {
            "response_id": self._started.response_id,
            "item_id": call.id,
            "output_index": index,
            "call_id": call.call_id,
        }
        kind = "response.function_call_arguments"
        yield {"type": f"{kind}.delta", **place, "delta": call.arguments}
        done = {"name": call.name, "arguments": call.arguments}
        yield {"type": f"{kind}.done", **place, **done}
        item = item_json(call)
        yield self._output_item("response.output_item.done", index, item)
        yield from self._conversation_item("conversation.item.done", notice.previous_item_id, item)

    def text(self, notice: ReplyText) -> Iterator[Event]:
        kind = "audio_transcript" if self._speaks else "text"
        yield {"type": f"response.output_{kind}.delta", **self._place(), "delta": notice.delta}

    def audio(self, notice: ReplyAudio) -> Iterator[Event]:
        """Raises InternalError where the samples do not fit the session's output."""
        encoding = self._started.settings.output_encoding
        rate_hz = WIRE_RATE_HZ[encoding]
        if notice.rate_hz != rate_hz or not self._speaks:
            raise InternalError(
                f"A reply in {encoding} takes audio at {rate_hz} Hz if it is spoken at all, "
                f"not at {notice.rate_hz} Hz."
            )
        samples, place = rate_hz * MAX_DELTA_MS // 1000, self._place()
        for first in range(0, len(notice.pcm), samples):
            data = encode_audio(notice.pcm[first : first + samples], encoding)
            yield {
                "type": "response.output_audio.delta",
                **place,
                "delta": base64.b64encode(data).decode("ascii"),
            }

    def end(self, notice: ReplyEnded) -> Iterator[Event]:
        if self._index is not None:
            yield from self._close(self._index, notice)
        done = self._response(notice.status) | {
            "status_details": _status_details(notice),
            "output": [item_json(item) for item in self._outputs],
            "usage": _usage(notice.usage),
        }
        yield {"type": "response.done", "response": done}
        yield {"type": "rate_limits.updated", "rate_limits": []}

    def _close(self, index: int, notice: ReplyEnded) -> Iterator[Event]:
        status: ItemStatus = "completed" if notice.status == "completed" else "incomplete"
        begun = self._outputs[index]
        assert isinstance(begun, Message)
        message = self._outputs[index] = replace(begun, text=notice.text, status=status)
        place = self._place()
        if self._speaks:
            yield {"type": "response.output_audio.done", **place}
            yield {
                "type": "response.output_audio_transcript.done",
                **place,
                "transcript": notice.text,
            }
        else:
            yield {"type": "response.output_text.done", **place, "text": notice.text}
        item = item_json(message)
        yield self._content_part("response.content_part.done", notice.text)
        yield self._output_item("response.output_item.done", index, item)
        yield from self._conversation_item("conversation.item.done", self._previous, item)

    def _place(self) -> Event:
        """Raises InternalError where the message has not begun."""
        if self._index is None:
            raise InternalError(f"Response {self._started.response_id!r} has no message yet.")
        return {
            "response_id": self._started.response_id,
            "item_id": self._started.item_id,
            "output_index": self._index,
            "content_index": 0,
        }

    def _output_item(self, kind: str, index: int, item: Event) -> Event:
        return {
            "type": kind,
            "response_id": self._started.response_id,
            "output_index": index,
            "item": item,
        }

    def _conversation_item(
        self, kind: str, previous: ItemId | None, item: Event
    ) -> Iterator[Event]:
        if not self._started.out_of_band:
            yield {"type": kind, "previous_item_id": previous, "item": item}

    def _content_part(self, kind: str, text: str) -> Event:
        # Parts are "audio" or "text" here, though items say "output_audio" and "output_text".
        part = (
            {"type": "audio", "transcript": text}
            if self._speaks
            else {"type": "text", "text": text}
        )
        return {"type": kind, **self._place(), "part": part}

    def _response(self, status: str) -> Event:
        settings = self._started.settings
        return {
            "id": self._started.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": None,
            "output": [],
            "conversation_id": self._conversation_id,
            "output_modalities": [self._started.modality],
            "max_output_tokens": max_tokens_json(settings.max_output_tokens),
            "audio": {
                "output": {
                    "format": format_json(settings.output_encoding),
                    "voice": settings.voice,
                }
            },
            "usage": None,
            "metadata": self._started.metadata,
        }


def _status_details(notice: ReplyEnded) -> Event | None:
    if notice.status == "completed":
        return None
    details: Event = {"type": notice.status}
    if notice.status == "failed":
        message = notice.error_message or "The reply could not be finished."
        details["error"] = {"type": "server_error", "code": "reply_failed", "message": message}
    elif notice.reason not in (None, "error"):
        details["reason"] = notice.reason
    return details


def _usage(usage: Usage) -> Event:
    """All tokens are text here: speech is transcribed before the language model sees it."""
    return {
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {
            "text_tokens": usage.input_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_details": {
                "text_tokens": usage.cached_tokens,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": usage.output_tokens, "audio_tokens": 0},
    }
