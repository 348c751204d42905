"""Exotel's AgentStream for its Voicebot applet.

Written from https://developer.exotel.com/docs/agentstream/websocket-protocol. Traps: audio is
16-bit samples, little-endian, under the name of `audio/x-raw`; a frame has a multiple of 320 bytes.
"""

import base64
import json

from .json_media_stream import FieldNames, JsonStream
from .media_stream import Frame


class Exotel(JsonStream):
    """One stream."""

    name = "Exotel"
    frame_bytes = 320
    names = FieldNames(
        stream_id="start.stream_sid",
        call_id="start.call_sid",
        encoding="start.media_format.encoding",
        rate="start.media_format.sample_rate",
        parameters="start.custom_parameters",
        caller="start.from",
        called="start.to",
        frame_stream_id="stream_sid",
    )

    def audio(self, data: bytes) -> list[Frame]:
        return [self._frame("media", media={"payload": base64.b64encode(data).decode()})]

    def mark(self, name: str) -> list[Frame]:
        return [self._frame("mark", mark={"name": name})]

    def clear(self) -> list[Frame]:
        return [self._frame("clear")]

    def _frame(self, event: str, **fields: dict[str, str]) -> str:
        return json.dumps({"event": event, "stream_sid": self.stream_id, **fields})
