"""State of the caller's present pause, as an independent observer keeps it."""

from agent.turn_taking import events as ev
from agent.turn_taking.dialogue.agent_question import NO_QUESTION, after_a_part, question_of
from agent.turn_taking.end_of_turn import TurnRules, opener_silence_ms, required_silence_ms
from agent.turn_taking.end_of_turn_model import Evidence, PauseHistory
from agent.turn_taking.thresholds import OPENER_LEAD_MS

FOREVER_MS = 10**9


class HeardPause:
    """Of one caller; a pause begins anew with each."""

    def __init__(self) -> None:
        self.silence_ms = 0
        self._timed_out = False
        """A timer fired after the newest silence: perhaps the one that stands for more of it."""
        self._sound: float | None = None
        self._own_pauses = PauseHistory()
        self._scored: tuple[str, float] | None = None
        """Newest words with the language model's score."""
        self._utterance = 0
        self.caller_has_spoken = False
        self._question = self._question_before = NO_QUESTION
        """What the agent asked last, and before the present reply."""

    def agent_prepares(self) -> None:
        """A reply is begun."""
        self._question_before = self._question

    def agent_begins(self) -> None:
        """A reply can be heard."""
        self._question = NO_QUESTION

    def agent_is_denied(self) -> None:
        """The reply never was, or failed."""
        self._question = self._question_before

    def caller_goes_on(self) -> None:
        """The reply never was: a part of the answer has been said before."""
        self._question = after_a_part(self._question_before)

    def agent_said(self, rules: TurnRules, text: str) -> None:
        if not text.strip():
            self.agent_is_denied()
        elif rules.uses_questions:
            is_greeting = not self.caller_has_spoken
            self._question = question_of(text, is_greeting=is_greeting, language=rules.language)

    def begin(self) -> None:
        self.silence_ms, self._timed_out, self._sound = 0, False, None

    def event(self, event: ev.Event | None, revision: int) -> None:
        """One that concerns the open utterance, whose newest pass this is, or the timer."""
        utterance = getattr(event, "utterance", self._utterance)
        if utterance != self._utterance:
            self._utterance, self._scored = utterance, None
        match event:
            case None:
                self._timed_out = True
            case ev.PauseJudged(_, judged, log_odds) if judged == revision:
                self._sound = log_odds
            case ev.MessageEndScored(_, text, log_prob):
                self._scored = text, log_prob
            case ev.SilenceGrew(_, silence_ms):
                self.silence_ms, self._timed_out = silence_ms, False
            case ev.SpeechResumed():
                self._own_pauses.add(self.silence_ms)
                self._sound = None
            case ev.AudioStalled() | ev.ClientLost():
                self.silence_ms = FOREVER_MS
            case ev.SpeechPaused():
                self.begin()

    def is_over(self, rules: TurnRules, text: str) -> bool:
        """By the newest silence that was told of."""
        return self.silence_ms >= required_silence_ms(rules, self._evidence(text))

    def may_open(self, rules: TurnRules, text: str) -> bool:
        """True if that silence is long enough for an opener, and long before the answer's."""
        evidence = self._evidence(text)
        wait_ms = opener_silence_ms(rules, evidence)
        left_ms = required_silence_ms(rules, evidence) - self.silence_ms
        return wait_ms is not None and self.silence_ms >= wait_ms and left_ms >= OPENER_LEAD_MS

    def _evidence(self, text: str) -> Evidence:
        return Evidence(
            text,
            self._sound,
            self._own_pauses.quantile_ms,
            self._message_end(text),
            self._question,
        )

    def _message_end(self, text: str) -> float | None:
        if self._scored is None:
            return None
        scored, words = (each.rstrip(" .?!").casefold() for each in (self._scored[0], text))
        return self._scored[1] if words and scored.endswith(words) else None

    def may_be_over(self, rules: TurnRules, text: str) -> bool:
        """By that, or because no more is told of."""
        return self._timed_out or self.is_over(rules, text)
