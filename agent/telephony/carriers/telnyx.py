"""Telnyx's Media Streaming, in both directions (`stream_bidirectional_mode` = `rtp`).

Written from https://developers.telnyx.com/api-reference/websockets/stream-call-media-over-websocket.
Traps: frames may come out of order, and `media.chunk` says in which they belong; what is sent names
no stream; parameters may come as a list of names and values, which is how its API takes them;
between 20 ms and 30 s of audio go into a frame.
"""

import base64
import json
from typing import Any

from .json_media_stream import FieldNames, JsonStream, at
from .media_stream import Frame


class Telnyx(JsonStream):
    """One stream."""

    name = "Telnyx"
    names = FieldNames(
        stream_id="stream_id",
        call_id="start.call_control_id",
        encoding="start.media_format.encoding",
        rate="start.media_format.sample_rate",
        parameters="start.custom_parameters",
        caller="start.from",
        called="start.to",
        frame_stream_id="stream_id",
        place="media.chunk",
    )

    def _parameters(self, found: Any) -> Any:
        if not isinstance(found, list):
            return found
        named = [(at(each, "name"), at(each, "value")) for each in found]
        return {name: value for name, value in named if isinstance(name, str)}

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        return [json.dumps({"event": "media", "media": {"payload": payload}})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "mark", "mark": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clear"})]
