"""Recordings as a microphone gives them out."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from agent.client.simulated_caller.microphone import Microphone, RecordingError, load_recording

MS = 1_000_000


def speech(ms: int, rate_hz: int) -> npt.NDArray[np.int16]:
    count = rate_hz * ms // 1000
    return (np.sin(np.arange(count) * 2 * np.pi * 300 / rate_hz) * 8000).astype(np.int16)


def test_recordings_follow_each_other_and_silence_follows_them() -> None:
    microphone = Microphone(8_000)
    assert not microphone.busy
    first, second = (
        microphone.add(speech(30, 8_000), 8_000),
        microphone.add(speech(20, 8_000), 8_000),
    )
    frames = [microphone.frame(n * 20 * MS) for n in range(4)]
    assert [begun for _, begun in frames] == [first, None, second, None]
    assert [len(frame) for frame, _ in frames] == [160] * 4
    assert frames[0][0].tolist() == first.pcm[:160].tolist()
    assert frames[1][0].tolist() == first.pcm[160:].tolist() + [0] * 80
    assert not frames[3][0].any()
    assert (first.started_ns, second.started_ns) == (0, 40 * MS)
    assert second.last_voiced_ns == 60 * MS
    assert not microphone.busy


def test_nothing_is_said_in_no_frame() -> None:
    microphone = Microphone(8_000)
    exchange = microphone.add(np.zeros(0, np.int16), 8_000)
    frame, begun = microphone.frame(0)
    assert begun is exchange
    assert not frame.any()
    assert not microphone.busy


@pytest.mark.parametrize(("channels", "subtype"), [(1, "PCM_16"), (2, "FLOAT"), (2, "PCM_24")])
def test_recordings_of_any_kind_are_read(tmp_path: Path, channels: int, subtype: str) -> None:
    path = tmp_path / "a.wav"
    sound = np.stack([speech(100, 48_000) / 32768] * channels, axis=1)
    soundfile.write(path, sound, 48_000, subtype=subtype)
    read, rate_hz = load_recording(path)
    assert rate_hz == 16_000
    assert abs(len(read) - 1600) <= 1
    spectrum = np.abs(np.fft.rfft(read[:1600]))
    assert spectrum.argmax() == 30
    assert 7_500 < np.abs(read).max() < 8_500


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"not a wav")
    with pytest.raises(RecordingError, match="not readable"):
        load_recording(path)
