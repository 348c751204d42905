import contextlib
import json
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import soundfile

from asr.audio.files import FileLimits, read_blocks, read_file
from asr.audio.samples import RATE_HZ
from asr.audio.stated_length import MAX_CHUNKS
from asr.audio.wav_header import audio_begins
from asr.errors import AudioError

RECORDINGS = Path(__file__).parents[1] / "recordings"
TEXTS = json.loads((RECORDINGS / "transcripts.json").read_text())


def tone(rate_hz: int, seconds: float, channels: int) -> np.ndarray:
    one = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(rate_hz * seconds)) / rate_hz)
    return np.stack([one] * channels, axis=1)


@pytest.mark.parametrize(
    ("name", "subtype", "rate_hz", "channels"),
    [
        ("a.wav", "PCM_16", 8000, 1),
        ("a.wav", "FLOAT", 48000, 2),
        ("a.wav", "PCM_24", 44100, 6),
        ("a.wav", "ULAW", 8000, 1),
        ("a.flac", "PCM_16", 22050, 1),
        ("a.ogg", "VORBIS", 48000, 2),
    ],
)
def test_any_format_rate_and_channel_count(
    tmp_path: Path, name: str, subtype: str, rate_hz: int, channels: int
) -> None:
    path = tmp_path / name
    soundfile.write(path, tone(rate_hz, 2.5, channels), rate_hz, subtype)
    blocks = list(read_blocks(path))
    pcm = np.concatenate(blocks)
    assert abs(len(pcm) - 2.5 * RATE_HZ) <= 2
    assert np.sqrt(np.mean(pcm[4000:-4000] ** 2) * 2) == pytest.approx(0.3, rel=0.05)
    assert max(map(len, blocks)) < 1.2 * RATE_HZ


def test_the_recordings_are_what_their_transcripts_say() -> None:
    names = json.loads((RECORDINGS / "transcripts.json").read_text())
    assert sorted(names) == sorted(path.name for path in RECORDINGS.glob("*.wav"))
    assert sum(path.stat().st_size for path in RECORDINGS.iterdir()) < 400_000
    for name in names:
        assert 1 < len(read_file(RECORDINGS / name)) / RATE_HZ < 5


def test_not_audio(tmp_path: Path) -> None:
    path = tmp_path / "letter.wav"
    path.write_text("Dear Sir or Madam, this is not a recording.")
    with pytest.raises(AudioError, match=r"letter\.wav: not readable as audio"):
        read_file(path)


def test_nothing_at_all(tmp_path: Path) -> None:
    path = tmp_path / "nothing.wav"
    path.touch()
    with pytest.raises(AudioError, match=r"nothing\.wav: the file is empty"):
        read_file(path)
    with pytest.raises(AudioError, match="no such file"):
        read_file(tmp_path / "missing.wav")
    with pytest.raises(AudioError, match="no such file"):
        read_file(tmp_path)


def test_a_file_that_the_system_cannot_read() -> None:
    path = Path("/proc/self/mem")  # its first page is never mapped
    if not path.is_file():
        pytest.skip("needs Linux")
    with pytest.raises(AudioError, match=r"^/proc/self/mem: the file cannot be read: Input"):
        read_file(path)


def test_a_header_without_audio(tmp_path: Path) -> None:
    path = tmp_path / "silent.wav"
    soundfile.write(path, np.zeros(0), 16000)
    with pytest.raises(AudioError, match="no audio in it"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_a_file_that_was_cut_short(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    soundfile.write(path, tone(16000, 2, 1), 16000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(AudioError, match=rf"{name}: .*(cut short|not readable)"):
        read_file(path)


def test_a_chunk_of_odd_length_before_the_audio(tmp_path: Path) -> None:
    path = tmp_path / "noted.wav"
    soundfile.write(path, tone(16000, 1, 1), 16000)
    data = path.read_bytes()
    at = data.index(b"data")
    path.write_bytes(data[:at] + b"note\x03\x00\x00\x00abc\x00" + data[at:])
    assert len(read_file(path)) == RATE_HZ
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(AudioError, match="31000 of 32000 bytes"):
        read_file(path)


def test_chunks_are_not_walked_for_ever(tmp_path: Path) -> None:
    """A file of 25 MB has room for three million without contents."""
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(16000, 1, 1), 16000)
    data, empty = path.read_bytes(), b"note\0\0\0\0"
    at = data.index(b"data")

    def begins(rest: bytes) -> int | None:
        path.write_bytes(data[:at] + rest)
        return audio_begins(path, "a")

    assert begins(20 * empty + data[at:]) is None
    with pytest.raises(AudioError, match=f"none of its first {MAX_CHUNKS} chunks is audio"):
        begins(MAX_CHUNKS * empty + data[at:])
    assert begins(b"data\0\0\0\0" + 20 * empty) is None
    assert begins(b"data\0\0\0\0" + MAX_CHUNKS * empty) == at + 8


def test_a_stream_header_may_not_know_its_length(tmp_path: Path) -> None:
    path = tmp_path / "piped.wav"
    soundfile.write(path, tone(16000, 1, 1), 16000)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = data[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(read_file(path)) == RATE_HZ


def test_a_rate_that_no_speech_has(tmp_path: Path) -> None:
    path = tmp_path / "slow.wav"
    soundfile.write(path, np.zeros(1000), 1000)
    with pytest.raises(AudioError, match=r"slow\.wav: .*1000 Hz is not supported"):
        read_file(path)


OnDisk = Callable[[bytes], Path]


@pytest.fixture
def on_disk(tmp_path: Path) -> OnDisk:
    """Makes files as uploads are: without a suffix that tells what they are."""

    def file_of(data: bytes) -> Path:
        path = tmp_path / "upload"
        path.write_bytes(data)
        return path

    return file_of


def test_an_mp3_without_a_suffix(on_disk: OnDisk) -> None:
    """Speech of a constant bit rate, which libsndfile takes for damaged where it has no path."""
    pcm = np.concatenate([read_file(RECORDINGS / name) for name in sorted(TEXTS)])
    file = BytesIO()
    soundfile.write(file, pcm, 24_000, format="MP3", bitrate_mode="CONSTANT", compression_level=0.7)
    blocks = read_blocks(on_disk(file.getvalue()), "a", FileLimits(max_s=60))
    assert sum(map(len, blocks)) == pytest.approx(len(pcm) * 2 / 3, abs=2000)


def without_length(flac: bytes) -> bytes:
    """The same file, its header (RFC 9639, section 8.2) not knowing how many samples follow."""
    return flac[:21] + bytes([flac[21] & 0xF0]) + b"\0\0\0\0" + flac[26:]


def small_file_of_much_silence(seconds: float) -> bytes:
    file = BytesIO()
    soundfile.write(file, np.zeros(round(8000 * seconds)), 8000, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def test_a_small_file_that_decodes_to_hours_is_refused_unread(on_disk: OnDisk) -> None:
    data = small_file_of_much_silence(3600)
    assert len(data) < 100_000
    blocks = read_blocks(on_disk(data), "a", FileLimits(max_s=3599))
    with pytest.raises(AudioError, match="a: the recording is longer than 3599 s"):
        next(blocks)
    assert sum(map(len, read_blocks(on_disk(data), "a", FileLimits(max_s=3600)))) == 3600 * RATE_HZ


def test_one_that_hides_its_length_is_read_to_the_limit(on_disk: OnDisk) -> None:
    data = without_length(small_file_of_much_silence(3600))
    blocks = read_blocks(on_disk(data), "a", FileLimits(max_s=10))
    assert sum(len(next(blocks)) for _ in range(10)) <= 10 * RATE_HZ
    with pytest.raises(AudioError, match="longer than 10 s"):
        next(blocks)


def test_channels_are_counted_before_there_is_anything_to_hold(on_disk: OnDisk) -> None:
    file = BytesIO()
    soundfile.write(file, np.zeros((1, 1000)), 192_000, format="WAV", subtype="PCM_16")
    with pytest.raises(AudioError, match="has 1000 channels, more than 8"):
        next(read_blocks(on_disk(file.getvalue()), "a", FileLimits(max_s=10)))


@pytest.mark.parametrize("kind", ["MAT5", "VOC", "PVF"])
def test_a_stranger_may_not_try_every_parser(on_disk: OnDisk, kind: str) -> None:
    file = BytesIO()
    with contextlib.suppress(soundfile.LibsndfileError):  # some are not written to memory
        soundfile.write(file, np.zeros(1000), 8000, format=kind, subtype="PCM_16")
    file.write(kind.encode())
    with pytest.raises(AudioError, match="no sound file of a kind known here; give WAV"):
        next(read_blocks(on_disk(file.getvalue()), "a", FileLimits(max_s=10)))


JUNK_MP3 = {
    "frames of junk": b"\xff\xfb\x10\xc4" * 50_000,
    "frames of zeros": (b"\xff\xf3\x18\xc4" + b"\0" * 68) * 1000,
    "a tag and no frame": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + b"\0" * 1000,
    "a tag that counts what is not there": (
        b"\xff\xfb\x90\xc4" + b"\0" * 32 + b"Xing\0\0\0\x0f" + b"\xff" * 8 + b"\0" * 2000
    ),
}


@pytest.mark.parametrize("kind", JUNK_MP3)
def test_no_mp3_speaks_past_the_log(
    on_disk: OnDisk, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    with pytest.raises(AudioError, match="a: not readable as audio: there are no MP3 frames"):
        next(read_blocks(on_disk(JUNK_MP3[kind]), "a", FileLimits(max_s=60)))
    assert capfd.readouterr() == ("", "")


def test_nor_does_one_inside_a_wav(on_disk: OnDisk, capfd: pytest.CaptureFixture[str]) -> None:
    frames = JUNK_MP3["frames of junk"]
    form = struct.pack("<HHIIHHHHIHHH", 0x55, 1, 44_100, 4000, 1, 0, 12, 1, 2, 104, 1, 1393)
    wave = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    wave += b"data" + struct.pack("<I", len(frames)) + frames
    with pytest.raises(AudioError, match="a: MP3 inside WAV is not read here; give WAV"):
        next(read_blocks(on_disk(b"RIFF" + struct.pack("<I", len(wave)) + wave), "a"))
    assert len(capfd.readouterr().err.splitlines()) < 10


def test_a_damaged_mp3_says_what_is_missing(
    on_disk: OnDisk, capfd: pytest.CaptureFixture[str]
) -> None:
    file = BytesIO()
    soundfile.write(file, tone(24_000, 4, 1), 24_000, format="MP3")
    data = bytearray(file.getvalue())
    data[3000:3600] = b"junk" * 150
    with pytest.raises(
        AudioError, match=r"a: the file is damaged or cut short: .* of 96000 frames"
    ):
        list(read_blocks(on_disk(bytes(data)), "a", FileLimits(max_s=60)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("channels", [1, 2])
def test_an_mp3_is_what_was_written(on_disk: OnDisk, channels: int) -> None:
    pcm = tone(44_100, 2.5, channels)
    file = BytesIO()
    soundfile.write(file, pcm, 44_100, format="MP3")
    tag = b"ID3\x04\0\0\0\0\x01\x00" + b"\0" * 128
    for data in (file.getvalue(), tag + file.getvalue()):
        read = np.concatenate(list(read_blocks(on_disk(data), "a", FileLimits(max_s=3))))
        assert len(read) == pytest.approx(2.5 * RATE_HZ, abs=2)
        assert np.sqrt(np.mean(read[4000:-4000] ** 2) * 2) == pytest.approx(0.3, rel=0.05)
        with pytest.raises(AudioError, match="cut short"):
            list(read_blocks(on_disk(data[:-4000]), "a", FileLimits(max_s=3)))
        with pytest.raises(AudioError, match="longer than 2 s"):
            next(read_blocks(on_disk(data), "a", FileLimits(max_s=2)))


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_wav_without_a_length(on_disk: OnDisk, subtype: str) -> None:
    file = BytesIO()
    soundfile.write(file, tone(16_000, 2.5, 1), 16_000, format="WAV", subtype=subtype)
    data = bytearray(file.getvalue())
    at = data.index(b"data") + 4
    whole = np.concatenate(list(read_blocks(on_disk(bytes(data)))))
    data[at : at + 4] = bytes(4)
    for size in (
        0,
        36,
        len(data) - 8,
        0xFFFFFFFF,
    ):  # of which the file's other length knows as much
        data[4:8] = size.to_bytes(4, "little")
        read = np.concatenate(list(read_blocks(on_disk(bytes(data)))))
        assert np.array_equal(read, whole)


def test_chunks_behind_no_audio_are_no_audio(on_disk: OnDisk) -> None:
    file = BytesIO()
    soundfile.write(file, np.zeros(0), 16_000, format="WAV")
    data = file.getvalue() + b"LIST\x04\0\0\0INFO" + b"note\x03\0\0\0abc\0"
    with pytest.raises(AudioError, match="no audio in it"):
        next(read_blocks(on_disk(data)))


CUTTABLE: Final = [
    *(("AIFF", "PCM_16"), ("AIFF", "FLOAT"), ("AU", "PCM_16"), ("CAF", "PCM_16")),
    *(("RF64", "PCM_16"), ("W64", "PCM_16"), ("WAV", "PCM_16"), ("FLAC", "PCM_16")),
    *(("OGG", "OPUS"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")),
]


@pytest.mark.parametrize(("kind", "subtype"), CUTTABLE)
def test_a_file_that_was_cut_anywhere_is_refused(
    on_disk: OnDisk, kind: str, subtype: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No part of a recording is taken for the whole; damage prints no traceback."""
    file = BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000)
    soundfile.write(file, noise, 24_000, format=kind, subtype=subtype)
    data = file.getvalue()
    whole = np.concatenate(list(read_blocks(on_disk(data), "a", FileLimits(max_s=60))))
    assert len(whole) == pytest.approx(RATE_HZ, abs=400)
    cuts = {
        *range(0, 60, 5),
        *range(60, len(data), len(data) // 20),
        *range(len(data) - 9, len(data)),
    }
    for cut in sorted(cuts):
        with pytest.raises(AudioError):
            list(read_blocks(on_disk(data[:cut]), "a", FileLimits(max_s=60)))
    assert capfd.readouterr() == ("", "")


def test_an_aiff_whose_length_was_never_filled_in_is_read_to_the_end(on_disk: OnDisk) -> None:
    file = BytesIO()
    soundfile.write(file, tone(16_000, 1, 1), 16_000, format="AIFF", subtype="PCM_16")
    data = bytearray(file.getvalue())
    at = data.index(b"SSND") + 4
    data[at : at + 4] = b"\xff" * 4
    read = np.concatenate(list(read_blocks(on_disk(bytes(data)), "a", FileLimits(max_s=60))))
    assert len(read) == RATE_HZ


@pytest.mark.parametrize("level", [1e38, -1e38, 32_768, float("inf"), 101])
def test_samples_that_are_no_sound_are_refused(on_disk: OnDisk, level: float) -> None:
    pcm = tone(16_000, 3, 1).astype(np.float32)
    pcm[40_000] = level
    file = BytesIO()
    soundfile.write(file, pcm, 16_000, format="WAV", subtype="FLOAT")
    with pytest.raises(AudioError, match=r"times full scale: it is damaged, or not scaled"):
        list(read_blocks(on_disk(file.getvalue()), "a", FileLimits(max_s=60)))


@pytest.mark.parametrize("level", [float("nan"), 99.0])
def test_odd_samples_within_reason_are_read(on_disk: OnDisk, level: float) -> None:
    pcm = tone(16_000, 3, 1).astype(np.float32)
    pcm[40_000] = level
    file = BytesIO()
    soundfile.write(file, pcm, 16_000, format="WAV", subtype="FLOAT")
    read = np.concatenate(list(read_blocks(on_disk(file.getvalue()), "a", FileLimits(max_s=60))))
    assert len(read) == 3 * RATE_HZ
    assert np.isfinite(read).all()
