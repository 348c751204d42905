"""Output audio buffer: frames in order, events of each response, and what was sent of it."""

import numpy as np

from agent.session.api.client_events import PlaybackReport
from agent.session.api.conversation import ItemId
from agent.session.api.server_events import (
    OutputAudioCleared,
    OutputAudioStarted,
    OutputAudioStopped,
)
from agent.webrtc.output_audio import OutputAudioBuffer, OutputReports, SentAudio

ONE, TWO = ItemId("item_1"), ItemId("item_2")


def samples(num: int, value: int = 7) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.full(num, value, np.int16)


def frames(buffer: OutputAudioBuffer) -> list[list[int]]:
    """Values of all frames that are there."""
    taken = []
    while (frame := buffer.next_frame()) is not None:
        assert len(frame.pcm) == frame.rate_hz // 50
        taken.append(sorted(set(frame.pcm.tolist())))
    return taken


def test_two_replies_leave_in_order() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.begin("resp_2", TWO)
    buffer.append("resp_1", samples(700, 1), 24_000)
    buffer.append("resp_2", samples(480, 2), 24_000)
    buffer.append("resp_1", samples(300, 3), 24_000)
    buffer.end("resp_1")
    assert frames(buffer) == [[1], [1, 3], [0, 3], [2]]
    assert buffer.take_notices() == [
        OutputAudioStarted("resp_1"),
        OutputAudioStopped("resp_1"),
        OutputAudioStarted("resp_2"),
    ]
    buffer.end("resp_2")
    assert buffer.take_notices() == [OutputAudioStopped("resp_2")]
    assert buffer.num_replies == 0


def test_an_interruption_says_what_was_sent() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.append("resp_1", samples(24_000), 24_000)
    for _ in range(3):
        buffer.next_frame()
    assert buffer.clear() == [SentAudio("resp_1", ONE, 60, was_cut=True, is_active=True)]
    assert buffer.queued_s == 0
    buffer.end("resp_1")
    assert buffer.take_notices() == [OutputAudioStarted("resp_1"), OutputAudioCleared("resp_1")]
    assert buffer.clear() == []


def test_a_reply_that_was_sent_whole_is_not_cut() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.append("resp_1", samples(490), 24_000)
    assert len(frames(buffer)) == 2
    (sent,) = buffer.clear()
    assert sent == SentAudio("resp_1", ONE, 21, was_cut=False, is_active=True), (
        "20.4 ms: a word may end there"
    )


def test_a_response_that_goes_on_after_a_clear_is_sent() -> None:
    """Speech began, but the response was not interrupted."""
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    assert buffer.clear() == []
    buffer.append("resp_1", samples(160), 8_000)
    buffer.end("resp_1")
    assert frames(buffer) == [[7]]
    assert buffer.take_notices() == [OutputAudioStarted("resp_1"), OutputAudioStopped("resp_1")]


def test_a_response_without_audio_has_no_events() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.end("resp_1")
    buffer.append("resp_1", samples(480), 24_000)
    assert frames(buffer) == []
    assert buffer.take_notices() == []
    assert buffer.num_replies == 0


def reports(buffer: OutputAudioBuffer, tick_ms: int = 20) -> list[tuple[ItemId, int]]:
    """Reports of all frames that are there, one sent each `tick_ms`."""
    made, progress, now_ns = [], OutputReports(), 0
    while (frame := buffer.next_frame()) is not None:
        report = progress.sent(frame, now_ns)
        if report is not None:
            assert isinstance(report, PlaybackReport)
            made.append((report.item_id, report.played_ms))
        now_ns += tick_ms * 1_000_000
    return made


def test_playback_is_reported_from_the_first_sound_on() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.append("resp_1", samples(24 * 60, 0), 24_000)
    buffer.append("resp_1", samples(24 * 540, 2000), 24_000)
    buffer.end("resp_1")
    buffer.begin("resp_2", TWO)
    buffer.append("resp_2", samples(8 * 100, -32_768), 8_000)
    assert reports(buffer) == [(ONE, 80), (ONE, 280), (ONE, 480), (TWO, 20)]


def test_frames_that_leave_in_a_burst_have_not_been_played() -> None:
    buffer = OutputAudioBuffer()
    buffer.begin("resp_1", ONE)
    buffer.append("resp_1", samples(24_000, 2000), 24_000)
    assert reports(buffer, tick_ms=0) == []
    buffer.append("resp_1", samples(24_000, 2000), 24_000)
    assert reports(buffer, tick_ms=5)[-1][1] < 300
