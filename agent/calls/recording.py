"""Call recordings: one stereo WAV each, caller left, agent right, written during the call.

A session hands over what it hears and sends, and what is known of it later (heard since when, cut
where); that costs it an entry in a queue. A thread lays it on one axis (`recording_timeline.py`)
every
`WRITE_EVERY_S` and appends to the files what will not change any more. The header of a WAV is put
right with every write, so that a file is whole at any moment: what a killed process loses are the
last seconds.

Nothing that is wrong with a disk harms a call. One that is too slow leaves holes (`MAX_WAITING_S`
of sound wait for it, what comes then is dropped); a file that can't be written ends there, and the
next call tries again. `problem` has the reason, for the health report.

WAV, though FLAC takes a third: nothing says how long a FLAC is whose writer was killed, and `read`
of soundfile fails on it.
"""

import contextlib
import logging
import os
import re
import stat
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.ports.playback import Outgoing, Playback
from agent.session.ports.stage_ports import RecordingPort
from latency_budget.account.clock import NS_PER_S, Clock, unix_ns
from latency_budget.storage.background_writer import BackgroundWriter, BoundedQueue
from latency_budget.storage.private_files import make_private_folder, open_private
from latency_budget.storage.retention import NS_PER_DAY, oldest_kept_ns

from .recording_timeline import CallTimeline

WRITE_EVERY_S: Final = 0.5

MAX_WAITING_S: Final = 30.0
"""Audio of one call that waits for the disk, in s, both sides together: 1.4 MB."""

SOON_S: Final = 5.0
"""Waiting audio, in s, that is written at once: a client may send faster than real time."""

MIN_COST_S: Final = 0.01
"""Least cost of an entry, in s: an empty one takes memory as well."""

FORGET_EVERY: Final = 7200
"""Passes between two searches for expired files: an hour."""

PROBE_EVERY: Final = 20
"""Passes between two write attempts after a failure."""

PROBE_BYTES: Final = 1 << 16
"""Size of a write attempt: more than a full disk has left."""

HEADER_BYTES: Final = 44

MAX_REPLIES: Final = 16
"""Limit of replies that may still be reported on or truncated by the client."""

_SUFFIX: Final = ".wav"
_SESSION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""No dot and no slash, so that a requested name stays in the directory."""
_STEM: Final = re.compile(rf"({_SESSION.pattern})(?:\.\d{{8}}T\d{{6}}Z)?")
"""Name of a file without its suffix: a session, and the time at which the call was taken over."""

_log = logging.getLogger(__name__)

Int16 = npt.NDArray[np.int16]


def file_stem_of(session: str, taken_over_unix_ns: int | None) -> str:
    """Name of a call's files, without suffix: the session, and the time at which the call was taken
    over from another server. That server may share the disk, or be an earlier life of this one.
    None: the call begins here."""
    if taken_over_unix_ns is None:
        return session
    taken_over = datetime.fromtimestamp(taken_over_unix_ns // 10**9, UTC)
    return f"{session}.{taken_over:%Y%m%dT%H%M%SZ}"


class CallRecording:
    """Recording of one call: a `RecordingPort` for its session; `write` and `close` belong to the
    recorder's thread."""

    def __init__(self, path: Path, max_bytes: int, wake: Callable[[], None]) -> None:
        """`wake` wakes the recorder's thread."""
        self.path: Final = path
        self._wake = wake
        self.is_over = False
        """Nothing more is written."""
        self._max_bytes = max_bytes
        self._timeline: CallTimeline | None = None
        """Set with the first audio. Its contents belong to the thread."""
        self._steps = BoundedQueue[Callable[[], None]](MAX_WAITING_S)
        """Steps for the timeline, each with the seconds of its audio as its cost."""
        self._num_lost = 0
        """Dropped samples of the caller in front of the next ones."""
        self._replies: dict[Playback, int] = {}
        self._num_replies = 0
        self._ended_ns: int | None = None
        self._file: _WaveFile | None = None

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        """Add the caller's audio as received: int16 mono."""
        timeline = self._begun(rate_hz, at_ns)
        step = partial(timeline.caller, pcm, rate_hz, at_ns, self._num_lost)
        is_kept = self._put(len(pcm) / rate_hz, step)
        self._num_lost = 0 if is_kept else self._num_lost + len(pcm)

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        """Add a frame that is sent of a reply."""
        rate_hz = playback.rate_hz
        timeline = self._begun(rate_hz, frame.at_ns)
        number = self._replies.get(playback)
        if number is None:
            number = self._replies[playback] = self._num_replies = self._num_replies + 1
            if len(self._replies) > MAX_REPLIES:
                del self._replies[next(iter(self._replies))]
        sound = frame.first_sample, frame.pcm, rate_hz, frame.at_ns
        self._put(len(frame.pcm) / rate_hz, partial(timeline.agent, number, *sound))

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        """The client reports that this sample of the reply was played at `at_ns`."""
        number = self._replies.get(playback)
        if number is not None and self._timeline is not None:
            self._put(0, partial(self._timeline.heard, number, sample, at_ns))

    def cut(self, playback: Playback, num_samples: int) -> None:
        """No more than `num_samples` of the reply were heard."""
        number = self._replies.get(playback)
        if number is not None and self._timeline is not None:
            self._put(0, partial(self._timeline.cut, number, num_samples))

    def end(self, at_ns: int) -> None:
        """The call is over."""
        if self._ended_ns is None:
            self._ended_ns = at_ns

    @property
    def lost_s(self) -> float:
        """Sound that found the queue full, in s."""
        return self._steps.dropped_cost

    @property
    def waiting_s(self) -> float:
        """Sound that is not written yet, in s."""
        return self._steps.depth

    @property
    def peak_waiting_s(self) -> float:
        """The most sound that ever waited at a time, in s."""
        return self._steps.peak

    @property
    def has_begun(self) -> bool:
        """True once any audio was recorded."""
        return self._timeline is not None

    def stretch(self, from_ns: int, to_ns: int) -> tuple[float, float] | None:
        """Position of these two times in the file, in s; None where they are not in it."""
        timeline = self._timeline
        if self.is_over or timeline is None or timeline.axis.begin_ns is None:
            return None
        begin_ns = timeline.axis.begin_ns
        from_s, to_s = (round(max(0, each - begin_ns) / NS_PER_S, 3) for each in (from_ns, to_ns))
        return from_s, to_s

    def write(self, now_ns: int) -> bool:
        """Write what is due. Returns whether there was anything. Raises OSError."""
        ended_ns, timeline = self._ended_ns, self._timeline  # steps that come now can wait
        steps = self._steps.oldest(len(self._steps))
        for step in steps:
            step()
        self._steps.drop_oldest(len(steps))
        num_written = 0
        if timeline is not None:
            sound = timeline.take(now_ns) if ended_ns is None else timeline.finish(ended_ns)
            if num_written := len(sound):
                self._append(sound, timeline.axis.rate_hz)
        if ended_ns is not None:
            self.close()
        return num_written > 0

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self.is_over = True
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begun(self, rate_hz: int, at_ns: int) -> CallTimeline:
        if self._timeline is None:
            self._timeline = CallTimeline(rate_hz, at_ns)
        return self._timeline

    def _put(self, cost_s: float, step: Callable[[], None]) -> bool:
        """Queue a step. Returns False where too much is waiting."""
        cost_s = max(cost_s, MIN_COST_S)
        if self.is_over or self._ended_ns is not None:
            return False
        if not self._steps.put(step, cost_s):
            return False
        if self._steps.depth > SOON_S:
            self._wake()
        return True

    def _append(self, sound: Int16, rate_hz: int) -> None:
        if self._file is None:
            self._file = _WaveFile(self.path, rate_hz)
        room = self._max_bytes - self._file.num_bytes
        self._file.append(sound[: max(0, room // sound.itemsize // 2)])
        if sound.nbytes > room:
            _log.warning("%s has as much as agent.record_mb allows, and ends here", self.path.name)
            self.close()


class ConsentedRecording:
    """A `RecordingPort` that records nothing before consent."""

    def __init__(self, recording: RecordingPort) -> None:
        self._recording = recording
        self._is_allowed = False

    def allow(self) -> None:
        """From here on."""
        self._is_allowed = True

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        if self._is_allowed:
            self._recording.caller(pcm, rate_hz, at_ns)

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        if self._is_allowed:
            self._recording.agent(playback, frame)

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        if self._is_allowed:
            self._recording.heard(playback, sample, at_ns)

    def cut(self, playback: Playback, num_samples: int) -> None:
        if self._is_allowed:
            self._recording.cut(playback, num_samples)


class _WaveFile:
    """A stereo WAV of 16 bits that is whole after each `append`, also after one that failed, and
    is removed if it has no sound by its end. Methods raise OSError.

    `wave` of the standard library writes through a buffer: where the disk is full it leaves a file
    without a header, or writes what was left as soon as the file is cut.
    """

    def __init__(self, path: Path, rate_hz: int) -> None:
        """Create the file, readable by its owner only."""
        make_private_folder(path.parent)
        self._path = path
        self._rate_hz = rate_hz
        self._handle = open_private(path, os.O_EXCL)
        self.num_bytes = 0

    def append(self, sound: Int16) -> None:
        data = sound.astype("<i2", copy=False).tobytes()
        try:
            self._write(data, HEADER_BYTES + self.num_bytes)
            self._write(_wave_header(self._rate_hz, self.num_bytes + len(data)), 0)
        except OSError:
            os.ftruncate(self._handle, HEADER_BYTES + self.num_bytes)
            raise
        self.num_bytes += len(data)

    def close(self) -> None:
        os.close(self._handle)
        if not self.num_bytes:
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            num_bytes = os.pwrite(self._handle, rest, offset)
            rest, offset = rest[num_bytes:], offset + num_bytes


def _wave_header(rate_hz: int, num_bytes: int) -> bytes:
    """Header of a stereo WAV of 16 bits with so many bytes of sound."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", HEADER_BYTES - 8 + num_bytes, b"WAVE"),
        *(b"fmt ", 16, 1, 2, rate_hz, 4 * rate_hz, 4, 16),
        *(b"data", num_bytes),
    )


class Recorder:
    """The recordings of all calls. `begin`, `problem` and `find` belong to the event loop, the rest
    to a thread of its own."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        max_days: int = 30,
        max_mb: int = 500,
        wall_ns: Callable[[], int] = unix_ns,
    ) -> None:
        """Nothing is touched before `start`. `max_mb`: of one call."""
        self.directory: Final = directory
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._max_age_ns = max_days * NS_PER_DAY
        self._max_bytes = max_mb * 1_000_000
        self._wall_ns = wall_ns
        self._open: dict[Path, CallRecording] = {}
        self._num_passes = 0
        self._peak_waiting_s = 0.0
        self._writer = BackgroundWriter(
            "call-recorder", self._pass, recovered=f"{directory} can be written again"
        )

    @property
    def problem(self) -> str | None:
        """Reason why calls are not recorded as they should be, in words; None: no problem."""
        lost_s = sum(recording.lost_s for recording in list(self._open.values()))
        if self._writer.problem is None and lost_s:
            return (
                f"{self.directory} is written too slowly: {lost_s:.0f} s of sound are missing in "
                "the recordings of calls in progress"
            )
        return self._writer.problem

    @property
    def waiting_s(self) -> float:
        """The most sound that one call has waiting for the disk, in s."""
        return max((each.waiting_s for each in list(self._open.values())), default=0.0)

    @property
    def peak_waiting_s(self) -> float:
        """The most sound that one call ever had waiting, in s."""
        peaks_s = [each.peak_waiting_s for each in list(self._open.values())]
        return max(self._peak_waiting_s, *peaks_s, 0.0)

    def begin(self, stem: str) -> CallRecording:
        """Begin the recording of a call. `stem`: name of its file without suffix, as
        `file_stem_of` has it."""
        path = self.directory / f"{stem}{_SUFFIX}"
        recording = CallRecording(path, self._max_bytes, self._writer.wake)
        self._open[path] = recording
        return recording

    def find(
        self, session: str, at_unix_ns: int | None = None
    ) -> tuple[Path, os.stat_result] | None:
        """The file of a call, in progress or over. Of one that servers took over from each other
        the part of `at_unix_ns`, or the newest. None where there is none. Blocks."""
        if _SESSION.fullmatch(session) is None:
            return None
        last = None if at_unix_ns is None else file_stem_of(session, at_unix_ns)
        parts = [
            path
            for path in self.directory.glob(f"{session}*{_SUFFIX}")
            if (found := _STEM.fullmatch(path.stem)) is not None and found[1] == session
            if last is None or path.stem <= last
        ]
        for path in sorted(parts, key=lambda each: each.stem, reverse=True):
            with contextlib.suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    return path, status
        return None

    def is_open(self, path: Path) -> bool:
        """True while the recording's file can grow."""
        return path in self._open

    def start(self) -> None:
        """Begin to write. Once."""
        self._writer.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left. Blocks."""
        self._writer.close(timeout_s)

    def step(self) -> None:
        """Write what there is to write by now, and forget what is too old."""
        now_ns = self._clock.now_ns()
        for path, recording in list(self._open.items()):
            try:
                if recording.write(now_ns):
                    self._writer.report(None)
            except Exception as error:  # whatever it is, the others go on
                with contextlib.suppress(OSError):
                    recording.close()
                why = getattr(error, "strerror", None) or repr(error)
                self._writer.report(f"{path} can't be written: {why}; it ends there")
            if recording.is_over:
                self._peak_waiting_s = max(self._peak_waiting_s, recording.peak_waiting_s)
                del self._open[path]
        if self._writer.problem is not None and self._num_passes % PROBE_EVERY == 0:
            self._probe()
        if self._num_passes % FORGET_EVERY == 0:
            self._probe()
            self._forget()
        self._num_passes += 1

    def _pass(self, is_closing: bool) -> float | None:
        if is_closing:
            for recording in list(self._open.values()):
                recording.end(self._clock.now_ns())
        self.step()
        return None if is_closing else WRITE_EVERY_S

    def _probe(self) -> None:
        """Check that a file can be written to the directory."""
        path = self.directory / f".probe-{os.getpid()}"
        try:
            make_private_folder(self.directory)
            try:
                path.touch(mode=0o600)
                path.write_bytes(bytes(PROBE_BYTES))
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._writer.report(
                f"{self.directory} can't be written: {error.strerror}; calls are not recorded"
            )
        else:
            self._writer.report(None)

    def _forget(self) -> None:
        """Recordings that are too old. Other files of the directory are not ours."""
        written_ns: dict[Path, int] = {}
        for path in self.directory.glob(f"sess_*{_SUFFIX}"):
            if path not in self._open and _STEM.fullmatch(path.stem) is not None:
                with contextlib.suppress(FileNotFoundError):
                    written_ns[path] = path.stat().st_mtime_ns
        oldest_ns = oldest_kept_ns(
            written_ns.values(),
            self._wall_ns(),
            self._max_age_ns,
            running_ns=self._clock.now_ns() - self._began_ns,
        )
        for path in (each for each, at_ns in written_ns.items() if at_ns < oldest_ns):
            try:
                path.unlink()
            except OSError as error:
                _log.error("%s can't be deleted: %s", path, error.strerror)
