"""Outcome of each reply, decided after the fact: cut in, interrupted, re-opened, or none.

Theory of operation
-------------------
The machine acts before it can know: it stops a reply when the caller's voice is heard, and joins
two halves of a message where the voice came early. Why the caller spoke shows only when the words
are there. So this automaton follows the machine's events and commands, decides nothing that anybody
hears, and says of each reply how the caller took it:

* *Re-opened*: the caller went on before anything of the answer was audible. A pause was taken for
  the end of the turn, and nobody noticed; or the agent had said no more than an early opener, which
  is not an answer and is there to be spoken over (`preemptive.py`).
* *Cut in*: the reply was audible, and the caller had not finished: speech of the same turn went on
  within `WINDOW_NS` of the reply's first audible sample (behind an early opener: the answer's), and
  neither a backchannel (the machine drops it, like noise and echo) nor an intended interruption
  explains it.
* *Interrupted*: the caller stopped the reply on purpose, or the client did.

Speech that began before the caller can have reacted to the agent's voice (`REACTION_MS`) continues
the turn, whatever its words are; before a word of the reply can have been understood
(`UNDERSTOOD_MS`), unless it says stop. Later speech is judged by `continuation_log_odds`: when it
began, how its words begin, and whether the words before them were complete. Speech after the end of
a short reply may be the caller's next turn, and so may the answer to a question of the agent's:
those weigh against a continuation.

The words are English ones. In calls of other languages the delay alone decides (`BY_DELAY_MS`),
behind the backchannels of the language, where its profile has some.

What was tried: the time alone. At 700 ms it finds 85 % of the cut-ins, 92 % of what it counts being
one, at 900 ms 95 and 85 %. And the words with little regard of the time: half of the cut-ins were
found, because half of what callers go on with begins like a sentence of its own ("my vacuum cleaner
won't charge. | Can you open a ticket?"), and recognizers write a full stop behind any half. Weights
are fitted and judged by `halfsec bench cutins`, on different speakers.

Pure: times are arguments. An utterance whose words never come is settled as nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import languages
from latency_budget.account.turn import TurnId
from latency_budget.account.turn_record import Outcome

from . import commands as cmd
from . import events as ev
from .backchannel import INTERRUPTIONS, meaning, words_of
from .commands import Command
from .end_of_turn_model import word_class
from .events import Event

WINDOW_NS: Final = 2_000_000_000
"""Time from the first audible sample in which speech may continue the turn. A caller who has heard
two seconds of the answer has let the agent speak."""

NOTICE_NS: Final = 500_000_000
"""Time in which an onset at the end of the window is known: 160 ms of voice over the agent's, and
the detector's queue. A turn whose window is open is not reported before."""

REACTION_MS: Final = 200
"""Shortest time in which people react to a voice with one of their own: a prepared syllable takes
200 ms after a tone (Fry, 1975), words more. Speech that began before continues the turn."""

DELAY_SCALE_MS: Final = 330.0
"""Time in which the log-odds of a continuation fall by one. Pauses inside a turn die out: those of
500 ms and more exceed that by 330 ms on average (130 pauses of 140 halting readers of
speechocean762, by their energy), so each further 330 ms leaves a third. Interruptions do not."""

UNDERSTOOD_MS: Final = 500
"""Shortest time in which a word of the reply is heard and answered: 300 ms, and the reaction.
Speech that began before continues the turn, unless it is a word that stops (a voice where none is
wanted is stopped for being there)."""

BY_DELAY_MS: Final = 700
"""Delay below which speech continues the turn in languages other than English. Measured on English
calls: at 700 ms 85 % of the cut-ins are found and 92 % of those counted are right, at 900 ms 95 and
85 %."""

Opening = Literal["stops", "joins", "begins", "other"]

WEIGHTS: Final[dict[str, float]] = {
    "one": 3.0,
    "stops": -2.0,
    "joins": 1.0,
    "begins": -0.5,
    "other": 0.75,
    "open": 1.0,
    "expected": -1.5,
}
"""Weights of `continuation_log_odds`: a constant, the opening of the words, `open` where the words
before were not complete, `expected` where it was the caller's turn. Fitted on half b of `halfsec
bench cutins` and rounded; "stops" and "joins" are stronger than fitted (-0.5, 0.4), because read
sentences that happen to begin so count among them, and so is the constant (2.4), because
interruptions were twice as dense in that run. On half a, a constant of 2 finds 88 % of the cut-ins,
and all that it counts are such; 3 finds 95 % (97 % are), 4 finds 98 % (86 % are)."""

MAX_SAID_CHARS: Final = 4000
"""Newest words of the caller that are kept while no reply begins: the last ones decide."""

MAX_OPEN: Final = 4
"""Utterances whose words are outstanding. More is a recognizer that hangs; the oldest goes."""

_JOINS: Final = frozenset({
    "and", "or", "because", "cause", "if", "which", "who", "whose", "that", "than", "so", "with",
    "without", "for", "in", "on", "at", "to", "of", "from", "by", "into", "about", "after",
    "before", "until", "till", "between", "under", "over", "through", "per", "as", "like", "then",
    "too", "also", "plus", "when", "while", "where", "am", "pm", "o'clock", "um", "uh",
})  # fmt: skip
"""First words of what hangs on the words before."""

_BEGINS: Final = frozenset({
    "i", "i'm", "i'd", "i'll", "i've", "you", "you're", "we", "we're", "we'll", "he", "he's",
    "she", "she's", "they", "it's", "it", "that's", "there", "there's", "here", "this", "these",
    "what's", "how", "how's", "why", "can", "could", "would", "will", "do", "does", "did", "don't",
    "is", "are", "was", "were", "have", "has", "may", "should", "let", "let's", "tell", "give",
    "show", "make", "cancel", "repeat", "never", "please", "thanks", "hello", "hi", "okay", "oh",
    "my", "what", "where's", "who's",
})  # fmt: skip
"""First words of a sentence of its own."""

_STOPS: Final = frozenset(INTERRUPTIONS) - {"but", "what"}
"""First words that ask the agent to stop, or correct it. "But" goes on as often as it objects."""

_FILLED: Final = frozenset({"uh", "um", "er", "erm", "hm", "hmm", "mm", "mmm", "ah", "oh"})
"""Sounds that say nothing: alone they are a listener's."""


def opening(text: str) -> Opening:
    """Class of the first word."""
    first = next(iter(words_of(text)), "")
    for name, words in _OPENINGS:
        if first in words:
            return name
    return "other"


_OPENINGS: Final[tuple[tuple[Opening, frozenset[str]], ...]] = (
    ("stops", _STOPS),
    ("joins", _JOINS),
    ("begins", _BEGINS),
)


@dataclass(frozen=True, slots=True)
class LateSpeech:
    """Speech of the caller that began when a reply was audible, or had been."""

    before: str
    """The caller's words that the reply answers."""
    words: str
    delay_ms: float
    """Time from the reply's first audible sample to the first voiced sample, ms; negative where the
    caller was first."""
    is_expected: bool = False
    """The caller's turn it was: the reply was over, or a question of it had been heard."""
    language: str = languages.ENGLISH.code
    """Language of the words."""


def features(speech: LateSpeech) -> dict[str, float]:
    """Names and values that `WEIGHTS` are for; what is not named is 0."""
    is_open = word_class(speech.before) not in ("closed", "question")
    found = {"one": 1.0, opening(speech.words): 1.0}
    return {**found, "open": float(is_open), "expected": float(speech.is_expected)}


def continuation_log_odds(speech: LateSpeech, weights: Mapping[str, float] = WEIGHTS) -> float:
    """Log-odds that late speech continues the turn; 0 is even."""
    found = sum(weights[name] * value for name, value in features(speech).items())
    return found - speech.delay_ms / DELAY_SCALE_MS


def continues(speech: LateSpeech) -> bool:
    """True if late speech with words continues the turn, so that the reply cut in on it."""
    is_english = speech.language == languages.ENGLISH.code
    filled = _FILLED if is_english else frozenset()
    words = [word for word in words_of(speech.words) if word not in filled]
    known = languages.turn_words(speech.language)
    if not words or meaning(speech.words, "", "", known) != "words":
        return False  # a listener's sounds, though the reply may have been stopped for them
    if speech.delay_ms < REACTION_MS:
        return True
    if not is_english:
        return speech.delay_ms < BY_DELAY_MS and not speech.is_expected
    if speech.delay_ms < UNDERSTOOD_MS and not speech.is_expected:
        return opening(speech.words) != "stops"
    return continuation_log_odds(speech) > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reply's outcome. Given once, when the words of the speech over it are known."""

    turn: TurnId
    outcome: Outcome | None
    """CUT_IN or REOPENED. None: neither; whether the reply was stopped is in the ledger."""
    onset_ns: int
    """First voiced sample of the caller's speech."""
    speech: LateSpeech | None = None
    """What was judged; None where there was nothing to judge."""


@dataclass(slots=True)
class _Reply:
    """What is known of the newest reply."""

    turn: TurnId
    before: str
    has_early_opener: bool = False
    audible_ns: int | None = None
    """Behind an early opener: that of the answer."""
    played_ns: int | None = None
    heard: str = ""
    """Words of it that were heard by the caller's onset."""
    is_cut: bool = False
    is_withdrawn: bool = False
    """It was cut because the caller went on: the turn is re-opened."""


@dataclass(slots=True)
class _Open:
    """An utterance that began over a reply, and whose words are outstanding."""

    reply: _Reply
    onset_ns: int


class ReplyOutcomes:
    """Automaton of one session. Not thread-safe; no method blocks or reads a clock."""

    def __init__(self) -> None:
        self._reply: _Reply | None = None
        self._said = ""
        """The caller's words since the last reply began."""
        self._open: dict[int, _Open] = {}
        self._language = languages.ENGLISH.code

    def audible(self, turn: TurnId, at_ns: int) -> None:
        """The first audible sample was released, or as is known later, heard, at this time. Of an
        early opener it is no answer's."""
        reply = self._reply
        if reply is not None and reply.turn == turn and not reply.has_early_opener:
            reply.audible_ns = at_ns

    def answer_audible(self, turn: TurnId, at_ns: int) -> None:
        """The first audible sample behind an early opener is played at this time."""
        if self._reply is not None and self._reply.turn == turn:
            self._reply.audible_ns = at_ns

    def reply_ended(self, turn: TurnId, text: str) -> None:
        """The whole reply was sent, or what of it was heard is known."""
        if self._reply is not None and self._reply.turn == turn:
            self._reply.heard = text

    def event(self, event: Event, now_ns: int, onset_ns: int | None = None) -> None:
        """Follow an event, before the machine's commands for it. `onset_ns`: time of the first
        voiced sample, with SpeechStarted; None: not known, so `now_ns` counts."""
        reply = self._reply
        match event:
            case ev.SpeechStarted(utterance) if reply is not None and reply.before:
                onset_ns = now_ns if onset_ns is None else onset_ns
                if reply.audible_ns is None or onset_ns - reply.audible_ns <= WINDOW_NS:
                    self._open[utterance] = _Open(reply, onset_ns)
                    for old in sorted(self._open)[:-MAX_OPEN]:
                        del self._open[old]
            case ev.OpenerAudible(turn) if reply is not None and reply.turn == turn:
                reply.has_early_opener = True
            case ev.ReplyPlayed(turn) if reply is not None and reply.turn == turn:
                reply.played_ns = now_ns
            case ev.ReplyStands(turn, heard) if reply is not None and reply.turn == turn:
                reply.heard = heard
            case ev.RulesChanged(rules):
                self._language = rules.language

    def command(self, command: Command) -> Verdict | None:
        """Follow a command; the verdict about a reply, if this settles one."""
        match command:
            case cmd.StartReply(turn):
                self._reply = _Reply(turn, self._said)
                self._said = ""
            case cmd.ReopenTurn(turn) if self._reply is not None and self._reply.turn == turn:
                self._reply.is_withdrawn = self._reply.is_cut = True
                self._said = self._reply.before
            case cmd.CutReply(turn) | cmd.AbandonReply(turn) if (
                self._reply is not None and self._reply.turn == turn
            ):
                self._reply.is_cut = True
            case cmd.CommitUtterance(utterance, text) if text is not None:
                return self._settle(utterance, text)
            case cmd.CompleteTranscript(utterance, text):
                return self._settle(utterance, text)
            case cmd.DropUtterance(utterance) | cmd.FailTranscript(utterance):
                return self._settle(utterance, "")
        return None

    def is_open(self, turn: TurnId) -> bool:
        """True while the words of speech over this reply are outstanding."""
        return any(each.reply.turn == turn for each in self._open.values())

    def window_ends_ns(self, turn: TurnId) -> int | None:
        """Time at which speech can no longer begin in time to change the outcome. None: the reply
        was never audible, answers no words of the caller, is not the newest, or was cut: then
        speech over it is open."""
        reply = self._reply
        if reply is None or reply.turn != turn or not reply.before:
            return None
        if reply.audible_ns is None or reply.is_cut:
            return None
        return reply.audible_ns + WINDOW_NS + NOTICE_NS

    def _settle(self, utterance: int, text: str) -> Verdict | None:
        speech = self._open.pop(utterance, None)
        verdict = None if speech is None else _verdict(speech, text, self._language)
        self._said = f"{self._said} {text}".strip()[-MAX_SAID_CHARS:]
        return verdict


def _verdict(speech: _Open, text: str, language: str) -> Verdict:
    reply = speech.reply
    outcome: Outcome | None = None
    found: LateSpeech | None = None
    if text.strip():
        if reply.audible_ns is None:
            outcome = Outcome.REOPENED if reply.is_withdrawn else None
        elif speech.onset_ns - reply.audible_ns <= WINDOW_NS:
            delay_ms = (speech.onset_ns - reply.audible_ns) / 1e6
            is_over = reply.played_ns is not None and reply.played_ns <= speech.onset_ns
            is_expected = is_over or reply.heard.rstrip().endswith("?")
            found = LateSpeech(reply.before, text, delay_ms, is_expected, language)
            outcome = Outcome.CUT_IN if continues(found) else None
    return Verdict(reply.turn, outcome, speech.onset_ns, found)
