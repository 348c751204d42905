"""jambonz' `listen` verb with `bidirectionalAudio.streaming`.

Written from https://docs.jambonz.org/verbs/verbs/listen. Traps: the subprotocol
`audio.jambonz.org` has to be accepted; audio is binary, 16-bit samples, little-endian, one channel
(`mixType: mono`) and goes back at the rate that the verb names for it, which has to be the same; a
mark says whether it was played or cleared.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from .json_media_stream import fields_of, number_at, pressed, text_at, texts_of
from .media_stream import (
    CallerAudio,
    Frame,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
)

SUBPROTOCOL: Final = "audio.jambonz.org"
RATES: Final = (8_000, 16_000, 24_000)
OWN_FIELDS: Final = frozenset({"callSid", "from", "to", "mixType", "sampleRate"})


class Jambonz:
    """One stream."""

    name = "jambonz"
    says_stop = False
    sends_silence = True
    frame_bytes = 2

    def __init__(self) -> None:
        self._media: MediaFormat | None = None

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            if self._media is None:
                raise StreamError("audio came before the first message, which describes the call")
            return [CallerAudio(frame)]
        fields = fields_of(frame)
        if self._media is None:
            return [self._start(fields)]
        if fields.get("event") == "dtmf":
            return pressed(text_at(fields, "dtmf"))
        if fields.get("type") == "mark" and text_at(fields, "data.event") == "playout":
            return [MarkReached(text_at(fields, "data.name"))]
        return []

    def _start(self, fields: Mapping[str, Any]) -> StreamStarted:
        rate_hz = number_at(fields, "sampleRate")
        mixed = text_at(fields, "mixType", optional=True) or "mono"
        if rate_hz not in RATES or mixed != "mono":
            raise StreamError(
                f"{mixed} audio at {rate_hz} Hz; what is taken is mono at 8000, 16000 or 24000 Hz"
            )
        self._media = MediaFormat("pcm16", rate_hz)
        call_id = text_at(fields, "callSid")
        # What a verb has as `metadata` is laid over the call's own fields.
        given = {**texts_of(fields, ""), **texts_of(fields.get("metadata"), "metadata")}
        return StreamStarted(
            call_id,
            call_id,
            self._media,
            text_at(fields, "from", optional=True),
            text_at(fields, "to", optional=True),
            {name: given[name] for name in given if name not in OWN_FIELDS},
        )

    def audio(self, data: bytes) -> list[Frame]:
        return [data]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"type": "mark", "data": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"type": "killAudio"}), json.dumps({"type": "clearMarks"})]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return [json.dumps({"type": "disconnect"})]
