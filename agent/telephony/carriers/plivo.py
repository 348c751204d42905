"""Plivo's Audio Streaming, in both directions; Vobiz speaks it too.

Written from https://www.plivo.com/docs/voice-agents/audio-streaming/concepts/audio-streaming-reference.
Traps: orders have names of their own (`playAudio`, `checkpoint`, `clearAudio`), and so have their
answers; nobody says in which order the bytes of its 16-bit samples stand, so mu-law is asked for,
and nothing else is taken; there is no `stop`, the socket closes.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from .json_media_stream import MAX_TEXT, FieldNames, JsonStream, at, fields_of, texts_of
from .media_stream import MULAW, Frame, PhoneEvent, StreamError, StreamStarted


class Plivo(JsonStream):
    """One stream."""

    name = "Plivo"
    says_stop = False
    names = FieldNames(
        stream_id="start.streamId",
        call_id="start.callId",
        encoding="start.mediaFormat.encoding",
        rate="start.mediaFormat.sampleRate",
        parameters="",
        frame_stream_id="streamId",
        mark="name",
    )

    def __init__(self) -> None:
        super().__init__()
        self._readers["playedStream"] = self._mark

    def _start(self, fields: Mapping[str, Any]) -> list[PhoneEvent]:
        (started,) = super()._start(fields)
        assert isinstance(started, StreamStarted)
        if started.media != MULAW:
            raise StreamError(
                'Plivo was asked for other audio than contentType="audio/x-mulaw;rate=8000"'
            )
        parameters = _pairs(at(fields, "extra_headers"))
        return [StreamStarted(started.stream_id, started.call_id, MULAW, parameters=parameters)]

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        media = {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": payload}
        return [json.dumps({"event": "playAudio", "media": media})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "checkpoint", "streamId": self.stream_id, "name": name})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clearAudio", "streamId": self.stream_id})]

    def keys(self, digits: str) -> list[Frame]:
        return [json.dumps({"event": "sendDTMF", "dtmf": digits})]


def _pairs(text: Any) -> dict[str, str]:
    """Of `a=b;c=d`, as the example has it, with commas, as they are asked for in XML, or of an
    object: nothing says more of how they come."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return {}
    if text.lstrip().startswith('{"'):
        return texts_of(fields_of(text), "extra_headers")
    parts = text.strip().strip("{}").replace(",", ";").split(";")
    pairs = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, found, value in pairs if found and name.strip()}
