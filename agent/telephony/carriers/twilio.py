"""Twilio's Media Streams, in both directions; SignalWire and Fonoster speak it too.

Written from https://www.twilio.com/docs/voice/media-streams/websocket-messages. Traps: numbers are
texts; payloads have no headers; a mark that `clear` has overtaken comes back at once, as if it had
been played; whoever closes the socket ends the verb, and with it, if nothing follows, the call.
"""

import base64
import json

from .json_media_stream import FieldNames, JsonStream
from .media_stream import Frame


class Twilio(JsonStream):
    """One stream."""

    name = "Twilio"
    names = FieldNames(
        stream_id="start.streamSid",
        call_id="start.callSid",
        encoding="start.mediaFormat.encoding",
        rate="start.mediaFormat.sampleRate",
        parameters="start.customParameters",
        frame_stream_id="streamSid",
    )

    def audio(self, data: bytes) -> list[Frame]:
        return [self._frame("media", media={"payload": base64.b64encode(data).decode()})]

    def mark(self, name: str) -> list[Frame]:
        return [self._frame("mark", mark={"name": name})]

    def clear(self) -> list[Frame]:
        return [self._frame("clear")]

    def _frame(self, event: str, **fields: dict[str, str]) -> str:
        return json.dumps({"event": event, "streamSid": self.stream_id, **fields})
