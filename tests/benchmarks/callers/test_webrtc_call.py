"""Simulated caller by WebRTC: whose audio is heard, when a reply is over, RTP over a bad line."""

import asyncio
import json
from typing import Any

import numpy as np

from agent.client import events as ev
from agent.config.webrtc import WebRtcSettings
from agent.webrtc.jitter_buffer import FRAME
from agent.webrtc.offer import read_offer
from agent.webrtc.peer import Peer
from benchmarks.callers.lossy_line import DatagramPath, LineQuality
from benchmarks.callers.webrtc_call import EARLY_MS, RATE_HZ, CallerTrack, RemoteReplies
from benchmarks.callers.webrtc_client import WebRtcClient, is_media

PATIENCE_S = 60.0
VOICE = np.full(480, 8000, np.int16)
SILENCE = np.zeros(480, np.int16)


class Heard:
    """What a caller is told of a call by WebRTC."""

    def __init__(self) -> None:
        self.events: list[ev.ClientEvent] = []
        self._replies = RemoteReplies(self.events.append)
        self._now_ns = 0

    def message(self, kind: str, **fields: Any) -> None:
        self._now_ns += 1
        self._replies.message(json.dumps({"type": kind, **fields}), self._now_ns)

    def created(self, response_id: str) -> None:
        self.message("response.created", response={"id": response_id})

    def done(self, response_id: str, status: str = "completed", text: str = "Hello.") -> None:
        output = [{"content": [{"transcript": text}]}] if text else []
        self.message(
            "response.done", response={"id": response_id, "status": status, "output": output}
        )

    def buffer(self, what: str, response_id: str) -> None:
        self.message(f"output_audio_buffer.{what}", response_id=response_id)

    def audio(self, *frames: Any) -> None:
        for frame in frames:
            self._now_ns += 1
            self._replies.audio(frame, self._now_ns)

    def wait_ms(self, ms: int) -> None:
        self._now_ns += ms * 1_000_000

    def take(self) -> list[tuple[str, str]]:
        """What was told since, with the response that it is of."""
        told = [(type(each).__name__, getattr(each, "response_id", "")) for each in self.events]
        self.events.clear()
        return told


def test_audio_is_the_newest_replys_from_its_first_sound_to_its_end() -> None:
    heard = Heard()
    heard.created("a")
    heard.audio(SILENCE, VOICE, SILENCE)
    heard.buffer("started", "a")
    heard.audio(VOICE)
    assert heard.take() == [("ReplyStarted", "a"), *3 * [("ReplyAudio", "a")]]
    heard.done("a")
    heard.audio(SILENCE)
    assert heard.take() == [("ReplyAudio", "a")], "the server's buffer is not empty"
    heard.buffer("stopped", "a")
    heard.audio(SILENCE, VOICE, SILENCE)
    assert heard.take() == [("ReplyDone", "a"), ("ReplyAudio", "a")], "it was still on its way"
    heard.created("b")
    heard.audio(SILENCE, VOICE)
    assert heard.take() == [("ReplyStarted", "b"), ("ReplyAudio", "b")]


def test_a_reply_is_done_when_its_audio_is_stopped_cleared_or_was_never_sent() -> None:
    heard = Heard()
    heard.created("before the audio")
    heard.done("before the audio")
    assert heard.take() == [("ReplyStarted", "before the audio")]
    heard.buffer("started", "before the audio")
    heard.buffer("stopped", "before the audio")
    assert heard.take() == [("ReplyDone", "before the audio")]
    heard.created("cancelled")
    heard.buffer("started", "cancelled")
    heard.done("cancelled", "cancelled")
    heard.buffer("cleared", "cancelled")
    assert heard.take() == [("ReplyStarted", "cancelled"), ("ReplyDone", "cancelled")]
    heard.created("cleared first")
    heard.buffer("started", "cleared first")
    heard.buffer("cleared", "cleared first")
    heard.done("cleared first")
    assert heard.take() == [("ReplyStarted", "cleared first"), ("ReplyDone", "cleared first")]
    heard.created("unheard")
    heard.done("unheard", "cancelled")
    heard.created("silent")
    heard.done("silent", text="")
    assert [name for name, _ in heard.take()] == 2 * ["ReplyStarted", "ReplyDone"]


def test_audio_that_overtakes_the_event_is_heard_when_it_came() -> None:
    heard = Heard()
    heard.audio(VOICE)
    heard.wait_ms(EARLY_MS + 1)
    heard.audio(SILENCE, VOICE)
    assert heard.take() == []
    heard.created("a")
    started, early = heard.events
    assert isinstance(started, ev.ReplyStarted)
    assert isinstance(early, ev.ReplyAudio)
    assert early.response_id == "a"
    assert early.at_ns == started.at_ns - 1
    heard.done("a", "cancelled")
    heard.take()
    heard.wait_ms(EARLY_MS + 1)
    heard.audio(VOICE)
    assert heard.take() == [], "what comes so long after the end is the next one's"
    heard.created("b")
    assert heard.take() == [("ReplyStarted", "b"), ("ReplyAudio", "b")]


def test_an_end_that_waited_is_told_with_the_time_of_the_audios_end() -> None:
    heard = Heard()
    heard.created("a")
    heard.buffer("started", "a")
    heard.done("a")
    heard.audio(VOICE, VOICE)
    heard.buffer("stopped", "a")
    audio, done = heard.events[-2:]
    assert isinstance(audio, ev.ReplyAudio)
    assert isinstance(done, ev.ReplyDone)
    assert (done.text, done.at_ns) == ("Hello.", audio.at_ns + 1)


def test_media_is_told_from_stun_and_dtls() -> None:
    assert [is_media(bytes([first, 0])) for first in (0, 3, 20, 22, 63, 127, 128, 191, 192)] == [
        *(6 * [False]),
        *(2 * [True]),
        False,
    ]
    assert not is_media(b"")


async def test_a_bad_line_loses_what_its_paths_say_and_no_event() -> None:
    """Both directions of a real connection, to the service's own peer."""
    line = LineQuality("bad", loss=0.3, jitter_ms=60.0)
    up, down = DatagramPath(line, "1 up"), DatagramPath(line, "1 down")
    num_frames, messages = 100, 20
    at_server: list[int] = []
    at_client: list[int] = []
    events: asyncio.Queue[str | bytes] = asyncio.Queue()
    echoes: asyncio.Queue[str | bytes] = asyncio.Queue()
    track = CallerTrack()
    client = WebRtcClient(track, echoes.put_nowait)
    client.take_packets(lambda seq, timestamp, payload: at_client.append(timestamp))
    client.spoil(up, down)
    server = Peer(
        WebRtcSettings(connect_s=60),
        lambda seq, timestamp, payload: at_server.append(timestamp),
        events.put_nowait,
        on_loopback=True,
    )
    tone = (8000 * np.sin(np.arange(480) * 0.3)).astype(np.int16)
    try:
        await client.connect(await server.answer(read_offer(await client.offer())))
        assert await server.wait_connected()
        async with asyncio.timeout(PATIENCE_S):
            for number in range(num_frames):
                track.put(tone)
                server.send_audio(b"\xf8\xff\xfe", number * FRAME)
                await asyncio.sleep(0.005)
            while min(up.num_packets, down.num_packets) < num_frames:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            arrivals = ((up, at_server), (down, at_client))
            while any(len(each) < num_frames - path.num_lost for path, each in arrivals):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for number in range(messages):
                client.send("ping", number=number)
                server.send(f"pong {number}")
            sent = [json.loads(await events.get())["number"] for _ in range(messages)]
            received = [await echoes.get() for _ in range(messages)]
    finally:
        await client.close()
        await server.close()
    assert sent == list(range(messages))
    assert received == [f"pong {number}" for number in range(messages)]
    for path, arrived in arrivals:
        assert 0 < path.num_lost < path.num_packets
        num_rtcp = path.num_packets - num_frames
        assert num_frames - path.num_lost <= len(arrived) <= num_frames - path.num_lost + num_rtcp
        assert len(set(arrived)) == len(arrived)
        assert arrived != sorted(arrived), "packets overtake each other"
        assert path.num_overtaken > 0
    assert 50 * len(tone) == RATE_HZ
