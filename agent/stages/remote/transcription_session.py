"""State of one Realtime transcription session, without a socket: events out, events in. Pure.

Theory of operation. The server takes audio into one buffer, and a commit makes an item of it, whose
words come later. The client's jobs all begin where the undecided part of an utterance begins, and
each reaches further than the one before (`asr/stream/`). So `hear` brings the buffer to hold the
job's audio by sending what is new; and where it holds something else, because a commit took it, or
the caller said something new, it is cleared and the job's audio is sent from its beginning. A pause
that was none therefore costs the audio a second time, while the caller speaks on; in return every
pass hears all words together, as with a recognizer of this process.

Words of the open buffer come as `...transcription.delta` from servers that recognize while they
hear, and as `halfsec.partial` from another instance of this service. They count for the buffer once
the server has acknowledged every clear and commit before it. Items are matched with commits by
their order, which is the server's own.
"""

import base64
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import asr
from agent.codec.json_frame import read_frame
from agent.errors import ClientError
from tts.resample import StreamResampler

from .completion_chunks import error_text
from .event_stream import MalformedStreamError

WIRE_HZ: Final = 24_000
"""Rate of PCM in the Realtime protocol."""

APPEND_S: Final = 1.0
"""Longest audio of one event. Servers limit events at 200 kB and more."""

EXTRA_SAMPLES: Final = asr.RATE_HZ // 10
"""16 kHz samples that the buffer may hold behind a job's end: the silence in which a pause is found
has been sent before its pass is asked for."""

MAX_TEXT_CHARS: Final = 4000
"""Longest text of one pass, which has 28 s of audio at most: who speaks fast says 30 characters a
second. More is a loop of the model, and to look for an echo of the agent in it takes longer."""

MAX_ITEMS: Final = 64
"""Items whose words are on their way. A server with more answers none."""

_PREFIX: Final = "conversation.item.input_audio_transcription."


class FailedSessionError(Exception):
    """The server reports that the session itself can't go on. The message is the server's."""


@dataclass(eq=False, slots=True)
class Pass:
    """One commit, and the words that came for it."""

    utterance: int
    item_id: str | None = None
    """The server's name for it, once that has come."""
    text: str | None = None
    """All its words; None: they have not come."""
    failure: str | None = None
    """The server's reason why there are none."""

    @property
    def is_over(self) -> bool:
        return self.text is not None or self.failure is not None


@dataclass(slots=True)
class _Buffer:
    """Audio that the server holds and no commit has taken."""

    utterance: int
    first_sample: int
    end_sample: int
    resampler: StreamResampler = field(
        default_factory=lambda: StreamResampler(asr.RATE_HZ, WIRE_HZ)
    )
    words: str = ""


class TranscriptionSession:
    """One session of one call. Events are JSON texts."""

    def __init__(self, model: str, language: str) -> None:
        self._model = model
        self._language = language
        self._buffer: _Buffer | None = None
        self._unnamed: deque[Pass] = deque()
        """Commits whose items are not known yet."""
        self._by_item: dict[str, Pass] = {}
        self._num_commits = 0
        self._num_unanswered = 0
        """Clears and commits that the server has not acknowledged."""
        self.is_ready = False
        """The server has taken the configuration."""

    def configuration(self) -> str:
        """The first event."""
        heard = {
            "format": {"type": "audio/pcm", "rate": WIRE_HZ},
            "transcription": {"model": self._model, "language": self._language},
            "turn_detection": None,
        }
        session = {"type": "transcription", "audio": {"input": heard}}
        return json.dumps({"type": "session.update", "session": session})

    @property
    def num_pending(self) -> int:
        """Passes whose words have not come."""
        return len(self._unnamed) + len(self._by_item)

    @property
    def words(self) -> str:
        """Words of the open buffer that have come so far."""
        return "" if self._buffer is None else self._buffer.words.strip()

    def hear(self, job: asr.DecodeJob) -> Iterator[str]:
        """Events after which the buffer holds the job's audio."""
        buffer = self._buffer
        if buffer is None or not _continues(buffer, job):
            if buffer is not None:
                self._buffer = None
                self._num_unanswered += 1
                yield json.dumps({"type": "input_audio_buffer.clear"})
            buffer = _Buffer(job.utterance, job.first_sample, job.first_sample)
            self._buffer = buffer
        new = job.pcm[max(0, buffer.end_sample - job.first_sample) :]
        size = int(APPEND_S * asr.RATE_HZ)
        for start in range(0, len(new), size):
            piece = np.frombuffer(asr.float32_to_pcm16(new[start : start + size]), "<i2")
            buffer.end_sample += len(piece)
            yield from _appended(buffer.resampler.push(piece))

    def commit(self, job: asr.DecodeJob) -> tuple[Pass, list[str]]:
        """The pass over a job's audio, and the events that ask for it."""
        events = list(self.hear(job))
        assert self._buffer is not None
        events += _appended(self._buffer.resampler.flush())
        self._buffer = None
        self._num_commits += 1
        self._num_unanswered += 1
        made = Pass(job.utterance)
        self._unnamed.append(made)
        event = {"type": "input_audio_buffer.commit", "event_id": f"commit_{self._num_commits}"}
        return made, [*events, json.dumps(event)]

    def receive(self, frame: str | bytes) -> Pass | None:
        """Take in an event; returns the pass that is over with it.

        Raises MalformedStreamError for what is no event, FailedSessionError where the server
        reports an error that is none of a pass.
        """
        try:
            event = read_frame(frame)
        except ClientError:
            raise MalformedStreamError("sent what is not a JSON object") from None
        kind = event.get("type")
        if kind in ("session.updated", "transcription_session.updated"):
            self.is_ready = True
        elif kind == "error":
            raise FailedSessionError(error_text(event))
        elif kind == "input_audio_buffer.cleared":
            self._num_unanswered = max(0, self._num_unanswered - 1)
        elif kind == "input_audio_buffer.committed":
            self._named(_text(event, "item_id"))
        elif kind == "halfsec.partial":
            if (buffer := self._buffer_of(_text(event, "item_id"))) is not None:
                buffer.words = _bounded(_text(event, "text"))
        elif isinstance(kind, str) and kind.startswith(_PREFIX):
            return self._transcribed(kind.removeprefix(_PREFIX), event)
        return None

    def _named(self, item_id: str) -> None:
        if not self._unnamed:
            return  # the server committed by itself
        self._num_unanswered = max(0, self._num_unanswered - 1)
        if len(self._by_item) >= MAX_ITEMS:
            raise MalformedStreamError(f"has not transcribed {MAX_ITEMS} recordings")
        made = self._unnamed.popleft()
        made.item_id = item_id
        self._by_item[item_id] = made

    def _buffer_of(self, item_id: str) -> _Buffer | None:
        """The open buffer, if words under this item can be its own."""
        is_old = item_id in self._by_item or self._num_unanswered > 0
        return None if is_old else self._buffer

    def _transcribed(self, step: str, event: dict[str, Any]) -> Pass | None:
        item_id = _text(event, "item_id")
        made = self._by_item.get(item_id)
        if step == "delta":
            if (buffer := self._buffer_of(item_id)) is not None:
                buffer.words = _bounded(buffer.words + _text(event, "delta"))
            return None
        if made is None or step not in ("completed", "failed"):
            return None
        del self._by_item[item_id]
        if step == "failed":
            made.failure = error_text(event)
        else:
            made.text = _bounded(_text(event, "transcript")).strip()
        return made


def _continues(buffer: _Buffer, job: asr.DecodeJob) -> bool:
    """The job's audio is the buffer's, and what comes behind it."""
    is_same = (buffer.utterance, buffer.first_sample) == (job.utterance, job.first_sample)
    return is_same and buffer.end_sample <= job.end_sample + EXTRA_SAMPLES


def _appended(pcm: npt.NDArray[np.int16]) -> list[str]:
    if not len(pcm):
        return []
    audio = base64.b64encode(pcm.astype("<i2").tobytes()).decode()
    return [json.dumps({"type": "input_audio_buffer.append", "audio": audio})]


def _text(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        raise MalformedStreamError(f"sent an event whose {name} is no text")
    return value


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise MalformedStreamError(f"sent more than {MAX_TEXT_CHARS} characters for one recording")
    return text
