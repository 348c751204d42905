"""Recordings to play as turns, with the labelled end of each turn where one exists.

A label is a JSON object: `{"end": N}`, the 16 kHz sample after the last voiced 20 ms, with optional
`kind` ("command", "hesitant", ...) and `half` ("a": to fit on, "b": held back). It stands in
NAME.json beside NAME.wav, or on a line of `turns.jsonl` in the same folder, which names its
recording by `file`. Other fields are ignored. A recording without a label ends at its last
voiced 20 ms as `asr.audio.last_voiced_sample` finds it.

A recording of a whole call, with the caller on one of its two channels, is not played: its turns
are, each a recording of its own with its end as label (`stereo_calls.py`). Where such a file has a
label, or no second voice, its channels are averaged, as in other places.
"""

import contextlib
import io
import json
import random
import wave
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.client.simulated_caller.microphone import RecordingError, load_recording
from agent.client.simulated_caller.spoken_turn import Int16
from agent.errors import BenchError
from asr.audio.samples import RATE_HZ, Pcm
from asr.errors import AudioError
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone

from .stereo_calls import Channel, call_turns, read_call

SUFFIXES: Final = (".wav", ".flac", ".ogg")
LABELS: Final = "turns.jsonl"

CALL: Final = "call"
"""Kind of the turns of a call's recording."""

MIN_S: Final = 1.0
MAX_S: Final = 12.0
"""Limits in s of a turn's length, up to its end; shorter files are single words, longer ones
announcements."""


@dataclass(frozen=True, slots=True)
class Label:
    """Label of a recording."""

    end: int
    """16 kHz sample after the last voiced 20 ms."""
    kind: str = ""
    half: str = ""


@dataclass(frozen=True, slots=True)
class TurnRecording:
    """A recording to play as a turn, with its label."""

    path: Path
    pcm: Int16
    """[n], mono."""
    rate_hz: int
    label: Label | None

    @property
    def kind(self) -> str:
        """Kind of the turn; empty without a label."""
        return "" if self.label is None else self.label.kind

    @property
    def voiced_s(self) -> float | None:
        """Time in s up to the end of the turn; None without a label."""
        return None if self.label is None else self.label.end / RATE_HZ

    @property
    def duration_s(self) -> float:
        """Length in s up to the end of the turn, or of the file."""
        voiced_s = self.voiced_s
        return len(self.pcm) / self.rate_hz if voiced_s is None else voiced_s

    def by_telephone(self) -> "TurnRecording":
        """Recording as the far end of a telephone line receives it."""
        line = over_telephone(self.pcm, self.rate_hz)
        return TurnRecording(self.path, line, LINE_RATE_HZ, self.label)


def find_recordings(
    paths: Sequence[Path],
    turns: int,
    seed: int,
    *,
    half: str = "",
    kind: str = "",
    caller: Channel = "found",
) -> list[TurnRecording]:
    """Choose `turns` recordings of a turn's length from files and folders, shuffled by the seed.

    `half` and `kind` leave out recordings labelled otherwise, or not labelled. `caller`: the
    caller's channel in recordings of calls. Raises BenchError.
    """
    files = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        files += sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    labels = _labels(files)
    wanted = [path for path in files if _fits(labels.get(path), half, kind)]
    random.Random(seed).shuffle(wanted)
    chosen: list[TurnRecording] = []
    for path in wanted:
        if len(chosen) >= turns:
            break
        with contextlib.suppress(RecordingError):
            found = _turns_in(path, labels.get(path), caller)
            chosen += [
                one for one in found if MIN_S <= one.duration_s <= MAX_S and kind in ("", one.kind)
            ]
    chosen = chosen[:turns]
    if not chosen:
        asked = " labelled so" if half or kind else ""
        raise BenchError(
            f"There is no recording of {MIN_S:g} to {MAX_S:g} s{asked} in "
            f"{', '.join(map(str, paths))}."
        )
    return chosen


def _turns_in(path: Path, label: Label | None, caller: Channel) -> list[TurnRecording]:
    """The turn of a file, or those of a call's recording. Raises RecordingError."""
    with contextlib.suppress(AudioError, OSError):  # another reader may know the file
        call = read_call(path) if label is None else None
        if call is not None:
            return [
                TurnRecording(
                    path.with_name(f"{path.stem}-turn-{number:03}{path.suffix}"),
                    _int16(one.pcm),
                    RATE_HZ,
                    Label(one.end, CALL),
                )
                for number, one in enumerate(call_turns(*call, caller).turns, start=1)
            ]
    return [TurnRecording(path, *load_recording(path), label)]


def _int16(pcm: Pcm) -> Int16:
    return np.clip(np.rint(pcm * 32768), -32768, 32767).astype(np.int16)


def _fits(label: Label | None, half: str, kind: str) -> bool:
    """True for a file whose turns may be wanted: reading it tells whether it is a call."""
    known = label or Label(0, CALL)
    return half in ("", known.half) and kind in ("", known.kind)


def _labels(files: Iterable[Path]) -> dict[Path, Label]:
    """Labels of the files that have one."""
    found: dict[Path, Label] = {}
    listed: dict[Path, dict[str, Label]] = {}
    for path in files:
        beside = path.with_suffix(".json")
        if beside.is_file():
            fields = _parsed(beside.read_text("utf-8"), str(beside))
            if "end" in fields:  # else the file is not a label
                found[path] = _label(fields, str(beside))
                continue
        if path.parent not in listed:
            listed[path.parent] = _listed(path.parent / LABELS)
        if path.name in listed[path.parent]:
            found[path] = listed[path.parent][path.name]
    return found


def _listed(path: Path) -> dict[str, Label]:
    if not path.is_file():
        return {}
    labels: dict[str, Label] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        where = f"{path}, line {number}"
        fields = _parsed(line, where)
        file = fields.get("file")
        if not isinstance(file, str):
            raise BenchError(f"{where}: `file` has to name a recording.")
        labels[file] = _label(fields, where)
    return labels


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise BenchError(f"{where}: not JSON ({error}).") from None
    if not isinstance(fields, dict):
        raise BenchError(f"{where}: a label is a JSON object.")
    return fields


def _label(fields: dict[str, Any], where: str) -> Label:
    end, kind, half = fields.get("end"), fields.get("kind", ""), fields.get("half", "")
    if type(end) is not int or end <= 0:
        raise BenchError(f"{where}: `end` has to be a number of 16 kHz samples, not {end!r}.")
    if not isinstance(kind, str) or not isinstance(half, str):
        raise BenchError(f"{where}: `kind` and `half` have to be texts.")
    return Label(end, kind, half)


def wav_bytes(pcm: Int16, rate_hz: int) -> bytes:
    """A mono WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()
