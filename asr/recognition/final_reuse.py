"""Early passes, and finals that reuse their words: final words before the pause is known.

Theory of operation
-------------------
A pause counts as one after 80 to 112 ms of silence, because shorter ones are stops inside words.
Only then is the final pass asked for, and the caller waits for all of it. But the audio that it is
given holds nothing that the first 32 ms of that silence do not: so the stream asks for a pass as
soon as the voice has dropped for `ListenerConfig.early_ms`, as a partial among others, and a
final over the same words reuses its text.

*The same words*: the same beginning, and the same last voiced sample, by the rule by which
latencies are measured (`samples.last_voiced_sample`). So the audio of the two differs in silence
alone. Texts that were not believed (an early pass is not worth a wider window) and empty ones are
not reused: there the final is decoded afresh, with all that is done for finals.

A recognizer does one job at a time, on one thread. A final that is due while the early pass is
still running is behind it in the queue, and finds its words when it begins: nothing waits, and
there is nothing to lock.

Measured on 125 recorded turns in virtual time (`benchmarks/asr/finals.py`; a pass takes 4.4 ms for
a second of window and 4 ms a token), median ms from the last voiced sample to the last words:

    early_ms    command-like  hesitant  recognizer busy, ms a turn
    0                    170       185  1395
    48                   147       156  1355
    32                   130       139  1452
    16                   125       131  1541

At 0 one final in six is still taken over, because the detector goes on hearing the voice for a
tenth of a second and a timed partial is due just then. At 32 it is four in five.

What was tried and left out:

* A forced prefix, the words on which partials agree put after the prompt: CTranslate2 (4.8) feeds a
  Whisper prompt's text to the decoder one token a step, each with the whole output layer, so that a
  pass with all but three of its ten tokens given took 1.03 times as long as one with none (60
  turns, the same text in all). Its `align` scores ten given tokens in the time of one step, but not
  the end of the text, and leaves no state from which to go on. A decoder of our own could do it.
* Leaving out scores or the probability of no speech: nothing (0.99).
* Less or more audio behind the last voiced sample (493 turns): word error rate 5.4 % with 0 ms, 6.0
  with 32, 6.1 with 64, 6.0 with 96, 5.7 with 128, 5.8 with 192; the last word was wrong in 48 to 52
  turns, whatever it was. So an early pass loses nothing by its 32 ms.
"""

from dataclasses import dataclass, replace

from .recognizer import Transcriber
from .transcripts import DecodeJob, Hypothesis


@dataclass(frozen=True, slots=True)
class _Words:
    """Identity of the words that a pass covers."""

    utterance: int
    first_sample: int
    last_voiced_sample: int | None


class FinalReuse:
    """Result of the newest pass of one call that ended in silence. Used on one thread, the
    recognizer's; with a recognizer elsewhere, the event loop's."""

    def __init__(self) -> None:
        self._known: tuple[_Words, Hypothesis] | None = None

    def recognize(self, recognizer: Transcriber, job: DecodeJob) -> Hypothesis:
        """Decode a job, or return the result of the pass before over the same words at once."""
        if (known := self.known(job)) is not None:
            return known
        is_partial = job.kind in ("partial", "early")
        hypothesis = recognizer.transcribe(job.pcm, fallback=not is_partial)
        self.note(job, hypothesis)
        return hypothesis

    def known(self, job: DecodeJob) -> Hypothesis | None:
        """Result of the newest pass, where the job is a final over the same words."""
        if job.kind != "final" or self._known is None or self._known[0] != _words_of(job):
            return None
        return replace(
            self._known[1], encode_ms=0.0, decode_ms=0.0, language_ms=0.0, taken_over=True
        )

    def note(self, job: DecodeJob, hypothesis: Hypothesis) -> None:
        """Keep the result of a pass, if it ended in silence."""
        if job.kind in ("early", "final") and job.last_voiced_sample is not None:
            self._known = (_words_of(job), hypothesis) if hypothesis.text else None


def covers_same_words(some: DecodeJob, other: DecodeJob) -> bool:
    """True if two passes that ended in silence cover the same words."""
    return some.last_voiced_sample is not None and _words_of(some) == _words_of(other)


def _words_of(job: DecodeJob) -> _Words:
    return _Words(job.utterance, job.first_sample, job.last_voiced_sample)
