"""Whisper on CTranslate2, called below `transcribe` so that the encoder's window follows the audio.

Theory of operation
-------------------
Whisper was trained on windows of 30 s, and the usual pipelines pad every utterance to that: on two
cores the encoder then takes longer than the whole budget of a turn. CTranslate2 accepts shorter
windows, but Whisper does not take kindly to audio that ends where the window ends: it loops or
invents. What makes short windows safe is a floor, silence before the first word and behind the last
one, and a check of the result:

    window = min(30 s, max(WINDOW_FLOOR_S, WINDOW_LEAD_S + audio + WINDOW_MARGIN_S))

in whole seconds. CTranslate2 keeps memory for each length that it has seen: ten minutes of growing
partials took 530 MB with windows of any length, 150 MB with these. It is oneDNN's cache of
primitives, 1.1 to 2 MB a length with tiny.en (23 MB in use after all 21 lengths, and no more in a
second and third round), and its scratch memory as of the longest.

The silence is digital and belongs to the *audio*. Zeros appended to the log-mel features, as
faster-whisper does, are not silence to the network: 0 is the level of a soft sound.

Decoding is greedy, without timestamps, and may not take more tokens than the audio has time for. A
text that repeats itself, hits that cap, or is improbable is decoded again with a wider window, of a
file with up to two; of bad texts the least bad is kept, and what then still looks like an answer to
noise is dropped.

Measured on 230 telephone prompts of up to 14 s, tiny.en (`benchmarks/asr/latency.py` measures it
again): word error rate with the 30 s window 2.8 %; with 10 s and no lead 5.6 %, a third of it
sentences repeated into the silence; with those decoded again 3.8 %; with a lead of 0.2 s as well
3.6 %, and then one prompt in 230 needs it. Floors of 8 and 12 s: 3.5 %, but five and one decoded
again.

Audio longer than a window is cut at its quietest places and decoded piece by piece, one window in
memory at a time.

A prompt is `<|startofprev|>` and up to 223 tokens of earlier text before the start of the
transcript, as OpenAI trained it. Whisper takes names and spelling from it; it follows no
instructions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asr.audio.conversion import finite
from asr.audio.one_blas_thread import use_one_blas_thread
from asr.audio.samples import RATE_HZ, Pcm, quietest_sample
from asr.audio.without_pyav import without_pyav
from asr.errors import ModelError
from latency_budget.account.clock import Clock, SystemClock

from .log_mel import HOP, LogMel
from .log_mel import WINDOW as FEATURE_WINDOW
from .recognizer import AS_LOADED, TranscriptionOptions
from .repetition import is_degenerate, unlooped
from .transcripts import Hypothesis, joined
from .whisper_files import check_files, check_vocabulary, damaged
from .word_times import TimedWord, timed_words, token_starts

FULL_WINDOW_S: Final = 30.0

WINDOW_FLOOR_S: Final = 10.0
"""Lower calls for wider windows more often (5 times as often at 8 s), higher costs a third more
encoder time at 12 s and wins nothing."""

WINDOW_LEAD_S: Final = 0.2
"""Audio that starts with a word loses it or says it twice. 0.1 and 0.4 are no better."""

WINDOW_MARGIN_S: Final = 2.0
"""Silence behind the audio. With 1 s the last words of utterances near the floor suffer; 3 s gives
the same texts."""

MAX_PIECE_S: Final = 28.0
"""Longer audio is cut: what is left of the window is the margin."""

MIN_PIECE_S: Final = 18.0
"""Pieces are not cut shorter than this, so that the words keep their context."""

MIN_AUDIO_S: Final = 0.05
"""Less is not a word, and not a frame of features either."""

TOKENS_PER_S: Final = 6.0
TOKENS_AT_LEAST: Final = 10
"""Fast speech has 5 tokens a second; a loop stops here instead of at 448."""

FOREIGN_BEAM: Final = 3
"""Texts that are followed at once, in other languages than English. French is misheard in 9.7 % of
the words, greedily in 12.2 (51 sentences; 2 and 5: 10.4 and 9.7), for a seventh more time of a
pass, which the longer waits of those languages hide. In early passes too: four finals in five are
their text (`final_reuse.py`), which would be the greedy one."""

MAX_LENGTH: Final = 448
"""Tokens of prompt and text together. CTranslate2 gives half of them to the text, whatever the
prompt's length."""

RETRY_WINDOWS_S: Final = (15.0, FULL_WINDOW_S)
"""Tried in turn for a suspect text. 15 s settle 17 of 20 in half the full window's time."""

RETRIES_WHILE_A_CALLER_WAITS: Final = 1
"""Wider windows that `transcribe` tries; `steps`, for files, tries all. Of 1800 sentences read by
learners of English, some over a telephone or among other voices, 125 were suspect: of their words
98.5 % were wrong after the first window, 90.2 % after one more, 91.3 % after all. A pass took 144,
358 and 860 ms (medians)."""

SUSPECT_LOGPROB: Final = -1.2
"""Average log probability below which a text is decoded again. At OpenAI's -1.0 single words are
decoded again half as often again and come out no better (282 prompts of one or two words)."""

MAX_PROMPT_TOKENS: Final = 223
"""Most tokens of a prompt; the last ones of a longer prompt count, as with OpenAI."""

DROP_LOGPROB: Final = -1.0
DROP_NO_SPEECH: Final = 0.6
"""A text both less likely and less speech-like than this is an answer to noise; OpenAI's values."""


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """Length of the encoder's window. The defaults are used in production, others for measuring."""

    floor_s: float = WINDOW_FLOOR_S
    lead_s: float = WINDOW_LEAD_S
    margin_s: float = WINDOW_MARGIN_S
    silence: bool = True
    """False: pad the features with zeros instead of the audio with silence."""

    def window_s(self, audio_s: float) -> float:
        """Whole seconds that the encoder sees of this much audio: the runtime keeps memory for each
        length it has seen."""
        needed_s = math.ceil(self.lead_s + audio_s + self.margin_s)
        return min(FULL_WINDOW_S, max(self.floor_s, float(needed_s)))


FULL_WINDOW: Final = WindowPolicy(floor_s=FULL_WINDOW_S, lead_s=0.0)
"""The window of Whisper's training."""


@dataclass(frozen=True, slots=True)
class _FoundLanguage:
    """Language of a piece of audio."""

    code: str = ""
    """Empty: it was not asked for."""
    probability: float = 0.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _Decoded:
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    hit_cap: bool
    encode_ms: float
    decode_ms: float
    found: "_FoundLanguage"

    @property
    def is_endless(self) -> bool:
        return self.hit_cap or is_degenerate(self.text, self.tokens)

    @property
    def is_suspect(self) -> bool:
        return self.is_endless or self.avg_logprob < SUSPECT_LOGPROB


class WhisperTranscriber:
    """A `Recognizer`: one loaded Whisper. Calls block for the time of a decode; one thread at a
    time makes them."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        log_mel: Callable[[Pcm], npt.NDArray[np.float32]],
        *,
        window: WindowPolicy | None = None,
        clock: Clock | None = None,
        foreign_beam: int = FOREIGN_BEAM,
    ) -> None:
        """Use `load`. Takes a ctranslate2 Whisper, faster-whisper's tokenizer, and a LogMel."""
        self._model = model
        self._tokenizer = tokenizer
        self._log_mel = log_mel
        self._window = window or WindowPolicy()
        self._clock = clock or SystemClock()
        self._foreign_beam = foreign_beam

    @classmethod
    def load(
        cls,
        model_dir: Path | str,
        *,
        threads: int = 2,
        compute_type: str = "int8",
        language: str = "en",
        device: str = "cpu",
        window: WindowPolicy | None = None,
        foreign_beam: int = FOREIGN_BEAM,
    ) -> "WhisperTranscriber":
        """Load a CTranslate2 Whisper directory.

        `language` (a code like "de") is for multilingual models; the others know only English.
        Another `window` or `foreign_beam` than the defaults is for measuring.
        Raises ModelError when a file is missing or damaged, naming it.
        """
        model_dir = Path(model_dir)
        check_files(model_dir)
        import ctranslate2
        import tokenizers

        with without_pyav():
            from faster_whisper.feature_extractor import FeatureExtractor
            from faster_whisper.tokenizer import Tokenizer

        try:
            raw_tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(damaged(model_dir / "tokenizer.json", error)) from error
        check_vocabulary(model_dir, raw_tokenizer)
        try:
            model = ctranslate2.models.Whisper(
                str(model_dir),
                device=device,
                compute_type=compute_type,
                intra_threads=threads,
                inter_threads=1,
            )
        except ValueError as error:
            raise ModelError(f"{model_dir} cannot be run as asked: {error}") from error
        except RuntimeError as error:
            raise ModelError(damaged(model_dir / "model.bin", error)) from error
        try:
            tokenizer = Tokenizer(
                raw_tokenizer, model.is_multilingual, task="transcribe", language=language
            )
        except ValueError as error:
            raise ModelError(f"{model_dir}: Whisper does not know language {language!r}") from error
        filters = FeatureExtractor.get_mel_filters(RATE_HZ, FEATURE_WINDOW, model.n_mels)
        use_one_blas_thread()
        return cls(model, tokenizer, LogMel(filters), window=window, foreign_beam=foreign_beam)

    def transcribe(
        self, pcm: Pcm, *, fallback: bool = True, options: TranscriptionOptions = AS_LOADED
    ) -> Hypothesis:
        """Recognize float32 [n] at 16 kHz, of any length.

        `fallback=False` never tries a wider window, and gives no text where one would be called
        for: for partials, which are not worth the time.
        """
        pcm = finite(pcm)
        retries = RETRIES_WHILE_A_CALLER_WAITS if fallback else 0
        parts = [_last(self._steps(piece, retries, options)) for piece in pieces(pcm)]
        return joined(parts, len(pcm) / RATE_HZ)

    def steps(self, pcm: Pcm, options: TranscriptionOptions = AS_LOADED) -> Iterator[Hypothesis]:
        """`transcribe` with one decode a step, so that other jobs run in between, and with all
        wider windows: yields the best text so far, and the last one counts. float32 [n], not longer
        than `MAX_PIECE_S`."""
        if len(pcm) < MIN_AUDIO_S * RATE_HZ:
            yield Hypothesis("", audio_s=len(pcm) / RATE_HZ)
        else:
            yield from self._steps(finite(pcm), len(RETRY_WINDOWS_S), options)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the model's languages. The first is that of loading."""
        own = str(self._tokenizer.language_code)
        if not self._model.is_multilingual:
            return (own,)
        from faster_whisper.tokenizer import _LANGUAGE_CODES

        return (own, *(code for code in _LANGUAGE_CODES if code != own))

    @property
    def finds_language(self) -> bool:
        """See `FindsLanguage`."""
        return bool(self._model.is_multilingual)

    def num_prompt_tokens(self, options: TranscriptionOptions) -> int:
        """Tokens of the prompt that the model sees beside each piece of audio."""
        return len(_words_before(self._tokenizer, options))

    def word_times(
        self, pcm: Pcm, tokens: tuple[int, ...], options: TranscriptionOptions = AS_LOADED
    ) -> list[TimedWord]:
        """Word times of a hypothesis, in the audio that was given to `steps` with these options. As
        much work as a decode."""
        if not tokens:
            return []
        tokenizer = _tokenizer_for(self._tokenizer, options)
        window_s = self._window.window_s(len(pcm) / RATE_HZ)
        encoded = self._model.encode(self._features(finite(pcm), window_s), to_cpu=False)
        aligned = self._model.align(
            encoded, list(tokenizer.sot_sequence), [list(tokens)], round(window_s * 100)
        )[0]
        lead = round(self._window.lead_s * RATE_HZ) if self._window.silence else 0
        starts = token_starts(aligned.alignments, len(tokens), lead)
        texts, their_tokens = tokenizer.split_to_word_tokens(list(tokens))
        return timed_words(texts, their_tokens, starts, len(pcm))

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        self.transcribe(np.zeros(RATE_HZ, np.float32), fallback=False)

    def _steps(
        self, pcm: Pcm, num_retries: int, options: TranscriptionOptions
    ) -> Iterator[Hypothesis]:
        window_s = self._window.window_s(len(pcm) / RATE_HZ)
        attempts = [self._decode(pcm, window_s, options)]
        yield self._hypothesis(attempts, pcm, window_s, num_retries > 0)
        wider = [each for each in RETRY_WINDOWS_S if each > window_s][:num_retries]
        for window_s in wider:
            if not _best(attempts).is_suspect:
                break
            if options.prompt and window_s == wider[-1] and attempts[-1].is_endless:
                # It loops on the prompt, or would have ended in a wider window.
                options = replace(options, prompt="")
            attempts.append(self._decode(pcm, window_s, options))
            yield self._hypothesis(attempts, pcm, window_s, True)

    def _hypothesis(
        self, attempts: list[_Decoded], pcm: Pcm, window_s: float, fallback: bool
    ) -> Hypothesis:
        best = _best(attempts)
        tokens = unlooped(best.tokens)
        is_guess = best.no_speech_prob > DROP_NO_SPEECH and best.avg_logprob < DROP_LOGPROB
        if is_guess or (best.is_suspect and not fallback):
            tokens = ()
        return Hypothesis(
            text=self._text(tokens),
            tokens=tokens,
            avg_logprob=best.avg_logprob,
            no_speech_prob=best.no_speech_prob,
            audio_s=len(pcm) / RATE_HZ,
            window_s=window_s,
            encode_ms=sum(one.encode_ms for one in attempts),
            decode_ms=sum(one.decode_ms for one in attempts),
            fell_back=len(attempts) > 1,
            language=best.found.code,
            language_prob=best.found.probability,
            language_ms=sum(one.found.ms for one in attempts),
        )

    def _decode(self, pcm: Pcm, window_s: float, options: TranscriptionOptions) -> _Decoded:
        started_ns = self._clock.now_ns()
        encoded = self._model.encode(self._features(pcm, window_s), to_cpu=False)
        encoded_ns = self._clock.now_ns()
        found = _FoundLanguage()
        if options.candidates and self.finds_language:
            found = self._found(encoded, options.candidates)
            if found.code:
                options = replace(options, language=found.code)
        is_english = (options.language or self._tokenizer.language_code) == "en"
        prompt = _prompt_tokens(self._tokenizer, options)
        max_tokens = int(TOKENS_PER_S * len(pcm) / RATE_HZ) + TOKENS_AT_LEAST
        result = self._model.generate(
            encoded,
            [prompt],
            beam_size=1 if is_english else self._foreign_beam,
            max_length=min(MAX_LENGTH, max(2 * max_tokens, len(prompt) + max_tokens)),
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = tuple(result.sequences_ids[0])
        decoded_ns = self._clock.now_ns()
        return _Decoded(
            tokens=tokens,
            text=self._text(tokens),
            # The runtime's score is the mean without the end token; that counts, too.
            avg_logprob=result.scores[0] * len(tokens) / (len(tokens) + 1),
            no_speech_prob=result.no_speech_prob,
            hit_cap=len(tokens) >= max_tokens,
            encode_ms=(encoded_ns - started_ns) / 1e6,
            decode_ms=(decoded_ns - encoded_ns) / 1e6,
            found=found,
        )

    def _found(self, encoded: Any, candidates: tuple[str, ...]) -> _FoundLanguage:
        """The likeliest of these languages, if it is likelier than all other languages together:
        one step of the decoder on what the encoder has seen."""
        started_ns = self._clock.now_ns()
        likelihoods = {
            token.strip("<|>"): probability
            for token, probability in self._model.detect_language(encoded)[0]
        }
        best = max(candidates, key=lambda code: likelihoods.get(code, 0.0))
        probability = likelihoods.get(best, 0.0)
        ms = (self._clock.now_ns() - started_ns) / 1e6
        return _FoundLanguage(best if probability > 0.5 else "", probability, ms)

    def _features(self, pcm: Pcm, window_s: float) -> Any:
        """Log-mel features of the padded audio: float32 [1, mels, 100 * window_s]."""
        import ctranslate2

        samples = math.ceil(window_s * 100) * (RATE_HZ // 100)
        if self._window.silence:
            lead = round(self._window.lead_s * RATE_HZ)
            padded = np.zeros(samples, np.float32)
            padded[lead : lead + len(pcm)] = pcm
            mel = self._log_mel(padded)
        else:
            mel = self._log_mel(np.pad(pcm, (0, HOP)))
            mel = np.pad(mel, ((0, 0), (0, max(0, samples // 160 - mel.shape[1]))))
        frames = np.ascontiguousarray(mel[None, :, : samples // 160], dtype=np.float32)
        return ctranslate2.StorageView.from_array(frames)

    def _text(self, tokens: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(tokens))).strip()


def _best(attempts: list[_Decoded]) -> _Decoded:
    return max(attempts, key=lambda one: (not one.is_suspect, not one.is_endless, one.avg_logprob))


def _last(steps: Iterator[Hypothesis]) -> Hypothesis:
    *_, last = steps
    return last


def pieces(pcm: Pcm) -> Iterator[Pcm]:
    """Cut audio at its quietest places so that each piece fits a window."""
    start = 0
    while len(pcm) - start > MAX_PIECE_S * RATE_HZ:
        first = start + int(MIN_PIECE_S * RATE_HZ)
        cut = quietest_sample(pcm, first, start + int(MAX_PIECE_S * RATE_HZ))
        yield pcm[start:cut]
        start = cut
    if len(pcm) - start >= MIN_AUDIO_S * RATE_HZ:
        yield pcm[start:]


def _tokenizer_for(tokenizer: Any, options: TranscriptionOptions) -> Any:
    """faster-whisper's tokenizer for another language; the same one for its own."""
    if options.language is None or options.language == tokenizer.language_code:
        return tokenizer
    from faster_whisper.tokenizer import Tokenizer

    return Tokenizer(tokenizer.tokenizer, True, task="transcribe", language=options.language)


def _words_before(tokenizer: Any, options: TranscriptionOptions) -> list[int]:
    """Tokens of the prompt."""
    text = options.prompt.strip()
    return tokenizer.encode(" " + text)[-MAX_PROMPT_TOKENS:] if text else []


def _prompt_tokens(tokenizer: Any, options: TranscriptionOptions) -> list[int]:
    """All tokens before the transcript: prompt, language and task."""
    asked = _tokenizer_for(tokenizer, options)
    start = [*asked.sot_sequence, asked.no_timestamps]
    before = _words_before(asked, options)
    return [asked.sot_prev, *before, *start] if before else start
