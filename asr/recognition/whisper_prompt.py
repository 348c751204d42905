"""What a Whisper is told before it writes: language, task, and words that came before.

OpenAI trained it with `<|startofprev|>`, up to 223 tokens of earlier text, and then the start of
the transcript. It takes names and a manner of writing from them; they are no instructions.
"""

from dataclasses import dataclass
from typing import Any, Final

MAX_PROMPT_TOKENS: Final = 223
"""The last ones count, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a recording is to be transcribed, where it is not as the model was loaded."""

    language: str | None = None
    """One of `languages_of`; None: that of loading."""
    prompt: str = ""
    """What was said before, or names and a manner of spelling to follow."""


AS_LOADED: Final = Manner()


def languages_of(model: Any, tokenizer: Any) -> tuple[str, ...]:
    """Codes of the languages that this model can be asked for. The first is that of loading."""
    own = str(tokenizer.language_code)
    if not model.is_multilingual:
        return (own,)
    from faster_whisper.tokenizer import _LANGUAGE_CODES

    return (own, *(code for code in _LANGUAGE_CODES if code != own))


def tokenizer_for(tokenizer: Any, manner: Manner) -> Any:
    """faster-whisper's tokenizer for another language; the same one for its own."""
    if manner.language is None or manner.language == tokenizer.language_code:
        return tokenizer
    from faster_whisper.tokenizer import Tokenizer

    return Tokenizer(tokenizer.tokenizer, True, task="transcribe", language=manner.language)


def words_before(tokenizer: Any, manner: Manner) -> list[int]:
    """The tokens of its prompt."""
    text = manner.prompt.strip()
    return tokenizer.encode(" " + text)[-MAX_PROMPT_TOKENS:] if text else []


def prompt_tokens(tokenizer: Any, manner: Manner) -> list[int]:
    """Everything that stands before the transcript."""
    told = tokenizer_for(tokenizer, manner)
    start = [*told.sot_sequence, told.no_timestamps]
    before = words_before(told, manner)
    return [told.sot_prev, *before, *start] if before else start
