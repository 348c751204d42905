"""Watches the frames of one connection for everything that the dialect promises of their order.

A client that depends on these promises breaks in silence where one is not kept, so all of them are
checked at once, for whatever has happened. `see` takes each frame as it comes, `finish` the end.
"""

import base64
import json
from typing import Any, Final

from agent.codec.pcm import decode_audio
from agent.realtime.protocol.response_events import MAX_DELTA_MS
from tests.support.wire.wire_frames import check_strictly

Event = dict[str, Any]

MAX_BYTES: Final = 1 << 20
"""Largest frame that stock clients read."""

_SPOKEN: Final = ("output_audio.done", "output_audio_transcript.done")
_WRITTEN: Final = ("output_text.done",)
_CALLED: Final = ("function_call_arguments.delta", "function_call_arguments.done")


class Output:
    """One item of a response: what comes of it, in which order. "item" is the conversation's."""

    def __init__(self, item: Event, *, speaks: bool, out_of_band: bool) -> None:
        self.id: str = item["id"]
        self.is_call = item["type"] == "function_call"
        self.shown = ""
        """All its words that were sent."""
        self.item: Event = {}
        """The item in its final state."""
        if self.is_call:
            opening, closing = ["item", *_CALLED], ["output_item.done", "item"]
            self.deltas: tuple[str, ...] = ()
        else:
            opening = ["item", "content_part.added"]
            ends = _SPOKEN if speaks else _WRITTEN
            closing = [*ends, "content_part.done", "output_item.done", "item"]
            words = "output_audio_transcript.delta" if speaks else "output_text.delta"
            self.deltas = (words, "output_audio.delta") if speaks else (words,)
        self._opening, self._closing = (
            [name for name in names if name != "item" or not out_of_band]
            for names in (opening, closing)
        )

    @property
    def is_done(self) -> bool:
        return not self._opening and not self._closing

    def see(self, name: str, event: Event) -> None:
        if not self._opening and name in self.deltas:
            if name == self.deltas[0]:
                self.shown += event["delta"]
            return
        coming = self._opening or self._closing
        assert coming, f"{name} behind the end of {self.id}"
        assert name == coming.pop(0), (name, self.id)
        if name == "output_item.done":
            self.item = event["item"]


class Response:
    """One response: which events may come next."""

    def __init__(self, created: Event) -> None:
        response = created["response"]
        self.id: str = response["id"]
        self.out_of_band: bool = response["conversation_id"] is None
        (modality,) = response["output_modalities"]
        self.speaks = modality == "audio"
        self.format: str = response["audio"]["output"]["format"]["type"]
        self.outputs: list[Output] = []
        self._is_over = False

    def owns(self, item_id: str) -> bool:
        return any(output.id == item_id for output in self.outputs)

    def see(self, name: str, event: Event) -> None:
        """`name`: of an event of its own without the prefix, or "item"."""
        assert not self._is_over, f"{name} behind the end of {self.id}"
        if name == "done":
            self._is_over = True
            self._see_end(event["response"])
            return
        if name == "output_item.added":
            assert event["output_index"] == len(self.outputs)
            assert not self.owns(event["item"]["id"])
            item, speaks = event["item"], self.speaks
            self.outputs.append(Output(item, speaks=speaks, out_of_band=self.out_of_band))
            return
        item = event.get("item", event)
        item_id = event["item_id"] if "item_id" in event else item["id"]
        (index,) = (n for n, output in enumerate(self.outputs) if output.id == item_id)
        if name != "item":
            assert event["output_index"] == index
        if name == "output_audio.delta":
            self._see_audio(event)
        self.outputs[index].see(name, event)

    def _see_audio(self, event: Event) -> None:
        encoding: Any = {"audio/pcm": "pcm16", "audio/pcmu": "pcmu", "audio/pcma": "pcma"}
        data = base64.b64decode(event["delta"], validate=True)
        samples = len(decode_audio(data, encoding[self.format]))
        rate_hz = 24_000 if self.format == "audio/pcm" else 8_000
        assert 0 < samples <= rate_hz * MAX_DELTA_MS // 1000

    def _see_end(self, response: Event) -> None:
        status = response["status"]
        assert status in ("completed", "cancelled", "incomplete", "failed")
        assert response["output"] == [output.item for output in self.outputs]
        for output in self.outputs:
            assert output.is_done, output.id
            if output.is_call:
                assert output.item["status"] == "completed"
                continue
            assert output.item["status"] == ("completed" if status == "completed" else "incomplete")
            parts = output.item["content"]
            told = "".join(part.get("transcript") or part.get("text") or "" for part in parts)
            if status == "completed":
                assert told == output.shown
            elif status != "failed":  # whose apology is spoken, and no words of the model's
                assert output.shown.startswith(told.rstrip()), (told, output.shown)


class WireOrder:
    """One connection."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.order: list[str] = []
        """Ids of the conversation's items, as a client would put them."""
        self._ids: set[str] = set()
        self._responses: dict[str, Response] = {}
        self._done: set[str] = set()
        self._unfinished: set[str] = set()
        """Items added and not done."""
        self._spoken: dict[str, str] = {}
        """State of the caller's utterances, by item."""
        self._owes_rate_limits = False

    @property
    def running(self) -> list[Response]:
        return [each for each in self._responses.values() if each.id not in self._done]

    def see(self, frame: str) -> None:
        assert len(frame.encode()) < MAX_BYTES
        event: Event = json.loads(frame)
        check_strictly(event)
        self.events.append(event)
        assert event["event_id"] not in self._ids
        self._ids.add(event["event_id"])
        kind: str = event["type"]
        assert (kind == "rate_limits.updated") == self._owes_rate_limits, kind
        self._owes_rate_limits = kind == "response.done"
        if len(self.events) == 1:
            assert kind == "session.created"
        if kind == "response.created":
            self._see_created(event)
        elif kind.startswith("response."):
            self._see_response(kind.removeprefix("response."), event)
        elif kind in ("conversation.item.added", "conversation.item.done"):
            self._see_item(kind.removeprefix("conversation.item."), event)
        elif kind == "conversation.item.deleted":
            self.order.remove(event["item_id"])
        elif kind == "conversation.item.truncated":
            assert event["item_id"] in self.order
        elif kind.startswith(("input_audio_buffer.", "conversation.item.input_audio")):
            self._see_speech(kind.rpartition(".")[2], event)

    def _see_created(self, event: Event) -> None:
        response = Response(event)
        assert response.id not in self._responses
        assert not self.running, "one at a time"
        self._responses[response.id] = response

    def _see_response(self, name: str, event: Event) -> None:
        response_id = event["response"]["id"] if name == "done" else event["response_id"]
        assert response_id not in self._done, f"{name} behind the end"
        response = self._responses[response_id]
        response.see(name, event)
        if name == "done":
            self._done.add(response_id)

    def _see_item(self, name: str, event: Event) -> None:
        item_id = event["item"]["id"]
        for response in self.running:
            if response.owns(item_id):
                response.see("item", event)
        if name == "done":
            self._unfinished.remove(item_id)
            return
        assert item_id not in self.order
        self._unfinished.add(item_id)
        previous = event["previous_item_id"]
        self.order.insert(0 if previous is None else self.order.index(previous) + 1, item_id)
        state = self._spoken.get(item_id)
        if state is not None:
            assert state == "committed"
            self._spoken[item_id] = "added"

    def _see_speech(self, name: str, event: Event) -> None:
        """Started, stopped, committed, added, and then its words."""
        item_id = event.get("item_id")
        if item_id is None:
            assert name == "cleared"
            return
        before = self._spoken.get(item_id)
        if name == "speech_started":
            assert before is None
        elif name == "speech_stopped":
            assert before == "speech_started"
        elif name == "committed":
            assert before in ("speech_started", "speech_stopped", "timeout_triggered", None)
        elif name == "timeout_triggered":
            assert before is None
        elif name in ("completed", "failed"):
            assert before == "added", (name, before)
            self._spoken[item_id] = "transcribed"
            return
        else:
            assert name == "delta"
            assert before == "added", before
            return
        self._spoken[item_id] = name

    def finish(self, order: list[str]) -> None:
        """The call is at rest: nothing may be open. `order`: the items of the conversation."""
        assert self.running == []
        assert not self._owes_rate_limits
        assert self._unfinished == set()
        assert self.order == order
