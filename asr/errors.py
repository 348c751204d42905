"""Errors of audio and model files, worded for the person who supplied them."""


class AudioError(ValueError):
    """The audio cannot be used: not audio, damaged, or of an impossible rate or shape."""


class BufferFullError(AudioError):
    """More audio was appended without a commit than the listener keeps."""


class ModelError(RuntimeError):
    """A model is missing, damaged, or cannot be run. Says which file and what to do."""


def first_line(error: object) -> str:
    """First line of a runtime's message, at most 200 characters; its class where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
