"""Transcription responses in each `response_format`. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from asr.audio.samples import RATE_HZ
from asr.recognition.repetition import compression_ratio

from .segments import Passage, segments_of
from .transcription_request import TranscriptionRequest

TOKENS_PER_S: Final = 50
"""Tokens of audio a second in the usage: positions of Whisper's encoder, to which it attends."""

_SAMPLES_PER_SEEK: Final = RATE_HZ // 100


def joined(passages: Sequence[Passage]) -> str:
    """All that was said."""
    return " ".join(passage.text for passage in passages)


def delta(passage: Passage, *, is_first: bool) -> dict[str, Any]:
    """An event: some more words. The deltas add up to the whole text."""
    text = passage.text if is_first else f" {passage.text}"
    return {"type": "transcript.text.delta", "delta": text}


def done(passages: Sequence[Passage], num_samples: int, num_prompt_tokens: int) -> dict[str, Any]:
    """The last event."""
    usage = _tokens(passages, num_samples, num_prompt_tokens)
    return {"type": "transcript.text.done", "text": joined(passages), "usage": usage}


def plain_json(
    passages: Sequence[Passage], num_samples: int, num_prompt_tokens: int
) -> dict[str, Any]:
    """`json`."""
    usage = _tokens(passages, num_samples, num_prompt_tokens)
    return {"text": joined(passages), "usage": usage}


def verbose_json(
    passages: Sequence[Passage], num_samples: int, language: str, asked: TranscriptionRequest
) -> dict[str, Any]:
    """`verbose_json`: with times."""
    seconds = _seconds(num_samples)
    body: dict[str, Any] = {
        "task": "transcribe",
        "language": language,
        "duration": seconds,
        "text": joined(passages),
        "usage": {"type": "duration", "seconds": seconds},
    }
    if asked.segments:
        found = [segment for passage in passages for segment in segments_of(passage)]
        body["segments"] = [_segment(index, segment) for index, segment in enumerate(found)]
    if asked.words:
        body["words"] = [
            {
                "word": word.text.strip(),
                "start": _seconds(word.first_sample),
                "end": _seconds(word.end_sample),
            }
            for passage in passages
            for word in passage.words
        ]
    return body


def subtitles(passages: Sequence[Passage], *, as_vtt: bool) -> str:
    """`srt` or `vtt`: a cue for each sentence."""
    cues = [segment for passage in passages for segment in segments_of(passage)]
    mark = "." if as_vtt else ","
    blocks = ["WEBVTT\n"] if as_vtt else []
    for number, cue in enumerate(cues, start=1):
        times = f"{_clock(cue.first_sample, mark)} --> {_clock(cue.end_sample, mark)}"
        # An arrow in the text would be read as times, an empty line as the end of the cue.
        text = " ".join(cue.text.replace("-->", "->").split())
        blocks.append(f"{times}\n{text}\n" if as_vtt else f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def _segment(index: int, segment: Passage) -> dict[str, Any]:
    return {
        "id": index,
        "seek": segment.first_sample // _SAMPLES_PER_SEEK,
        "start": _seconds(segment.first_sample),
        "end": _seconds(segment.end_sample),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": 0.0,
        "avg_logprob": round(segment.avg_logprob, 4),
        "compression_ratio": round(compression_ratio(segment.text), 4),
        "no_speech_prob": round(segment.no_speech_prob, 4),
    }


def _tokens(
    passages: Sequence[Passage], num_samples: int, num_prompt_tokens: int
) -> dict[str, Any]:
    audio = -(-num_samples * TOKENS_PER_S // RATE_HZ)
    output = sum(len(passage.tokens) for passage in passages)
    return {
        "type": "tokens",
        "input_tokens": audio + num_prompt_tokens,
        "input_token_details": {"audio_tokens": audio, "text_tokens": num_prompt_tokens},
        "output_tokens": output,
        "total_tokens": audio + num_prompt_tokens + output,
    }


def _seconds(samples: int) -> float:
    return round(samples / RATE_HZ, 2)


def _clock(samples: int, mark: str) -> str:
    """Hours, minutes, seconds, and behind the mark milliseconds."""
    ms = round(samples * 1000 / RATE_HZ)
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{mark}{ms:03d}"
