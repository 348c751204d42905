"""Parser of the transcription form's fields. Pure; see `transcriptions.py`.

What would change the answer and is not supported is refused by name; unknown fields are ignored, as
clients send many.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from llm_engine.errors import RequestError

from .chat_request import MAX_MODEL_CHARS

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]

FORMATS: Final = get_args(TranscriptFormat)
"""The first is the default."""

STREAMED: Final = ("json", "text")
"""Formats that may be asked for together with a stream, whose events have no other form."""

_NOT_HERE: Final = {
    "include": "is not supported: log probabilities are not told",
    "known_speaker_names": "is not supported: speakers are not told apart",
    "known_speaker_references": "is not supported: speakers are not told apart",
}
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """Parsed request for a transcription."""

    language: str | None
    """A code in lower case; None: the recognizer's own."""
    prompt: str
    answer: TranscriptFormat
    words: bool
    """`verbose_json` includes words with their times."""
    segments: bool
    stream: bool

    @property
    def timed(self) -> bool:
        """True if the answer contains times."""
        return self.answer in ("srt", "vtt", "verbose_json")


def parse_transcription(fields: Iterable[tuple[str, str]]) -> TranscriptionRequest:
    """Read the fields that are no files. Raises RequestError naming the field."""
    single: dict[str, str] = {}
    granularities: list[str] = []
    for name, value in fields:
        name = name.removesuffix("[]")
        if name in _NOT_HERE:
            raise RequestError(name, _NOT_HERE[name])
        if name == "timestamp_granularities":
            granularities.append(value)
        else:
            single[name] = value
    if len(single.get("model", "")) > MAX_MODEL_CHARS:
        raise RequestError("model", f"must have at most {MAX_MODEL_CHARS} characters")
    _check_temperature(single.get("temperature", "0"))
    answer = _format(single.get("response_format"))
    stream = _flag(single, "stream")
    if stream and answer not in STREAMED:
        raise RequestError(
            "response_format", f"must be {' or '.join(STREAMED)} where stream is true"
        )
    for kind in granularities:
        if kind not in ("word", "segment"):
            raise RequestError("timestamp_granularities[]", "must be word or segment")
    if granularities and answer != "verbose_json":
        raise RequestError(
            "timestamp_granularities[]", "needs response_format verbose_json; other forms have none"
        )
    language = single.get("language", "").strip().lower()
    return TranscriptionRequest(
        language=language or None,
        prompt=single.get("prompt", ""),
        answer=answer,
        words="word" in granularities,
        segments="segment" in granularities or not granularities,
        stream=stream,
    )


def _format(given: str | None) -> TranscriptFormat:
    for known in FORMATS:
        if given in (None, known):
            answer: TranscriptFormat = known
            return answer
    raise RequestError("response_format", f"must be one of {', '.join(FORMATS)}")


def _check_temperature(given: str) -> None:
    """It has no effect: the likeliest words are taken."""
    try:
        if 0 <= float(given) <= 1:
            return
    except ValueError:
        pass
    raise RequestError("temperature", "must be a number from 0 to 1")


def _flag(fields: dict[str, str], name: str) -> bool:
    given = fields.get(name, "false").lower()
    if given in _TRUE:
        return True
    if given in _FALSE:
        return False
    raise RequestError(name, "must be true or false")
