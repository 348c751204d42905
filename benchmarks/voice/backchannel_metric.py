"""Backchannel metric: share of responses that continue after the caller says "mm-hmm".

A listener's "yeah" is no interruption (`agent/turn_taking/backchannel.py`). The metric uses only
the events that a client receives and the audio that it plays:

*A stock client* stops playing at `speech_started`. The reply continued if another response
speaks the rest of it up to its end, and the words did not become a message of the caller. The gap
lasts from the stop to the first audible sample of that response.

*A client that ducks* plays on. The reply continued if it was played to its end. It was turned down
from `halfsec.duck` to `halfsec.unduck`, or to its end.

Over a question the same words are an answer: such replies are rightly stopped, and identified by
the server's own rule for questions. Pure.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from agent.client import events as ev
from agent.client.simulated_caller.playback import NS_PER_S, SimulatedPlayback
from agent.client.simulated_caller.spoken_turn import NS_PER_MS
from agent.client.simulated_caller.summary import percentiles_ms
from agent.turn_taking.backchannel import asks
from benchmarks.statistics import wilson_interval

Client = Literal["stock", "ducks"]


class Aside:
    """Words said over one reply. Takes the call's events from that moment on, in order."""

    def __init__(
        self,
        words: str,
        client: Client,
        response_id: str,
        said: str = "",
        *,
        is_complete: bool = False,
    ) -> None:
        """`response_id`: the reply being played; `said`: its text so far; `is_complete`: the server
        has sent all of it."""
        self.words: Final = words
        self.client: Final = client
        self.understood = ""
        """Text of the caller's message made of the words; empty if there was none."""
        self.asked = False
        """True if the agent was asking a question when it noticed the words: they may be an
        answer."""
        self.was_kept = False
        """True if the rest of the reply was heard."""
        self.gone_ms: float | None = None
        """Time in ms for which the reply was silent or turned down; None if it stopped for good."""
        self._replies = [response_id]
        """Ids of the reply spoken over and of those after it."""
        self._texts = {response_id: said}
        self._completed = {response_id} if is_complete else set()
        self._stops: list[tuple[int, int]] = []
        """Times in ns at which the reply fell silent, each with the replies begun by then."""
        self._ducked_ns: int | None = None
        self._turned_down_ns = 0

    def note(self, event: ev.ClientEvent, speaker: SimulatedPlayback) -> None:
        """Take in one event, before the loudspeaker does."""
        match event:
            case ev.ReplyText(response_id=response_id, delta=delta):
                self._texts[response_id] = self._texts.get(response_id, "") + delta
            case ev.Duck(at_ns=at_ns) if self._ducked_ns is None and speaker.playing(at_ns):
                self._ducked_ns = at_ns
                self.asked |= asks(self._texts[self._replies[0]], "")
            case ev.Unduck(at_ns=at_ns) if self._ducked_ns is not None:
                self._turned_down_ns += at_ns - self._ducked_ns
                self._ducked_ns = None
            case ev.SpeechStarted(at_ns=at_ns) if self._is_stopped(speaker, at_ns):
                self._stops.append((at_ns, len(self._replies)))
                self.asked |= asks(self._texts[self._replies[0]], "")
            case ev.Transcript(text=text):
                self.understood = f"{self.understood} {text}".strip()
            case ev.ReplyStarted(response_id=response_id):
                self._replies.append(response_id)
            case ev.ReplyDone(response_id=response_id, status="completed" | "incomplete"):
                self._completed.add(response_id)  # "incomplete": ended at its limit of tokens

    def settle(self, speaker: SimulatedPlayback) -> None:
        """Compute the outcome, once all is quiet."""
        if self._stops:
            gone_ns = [self._silence_ns(speaker, *stop) for stop in self._stops]
            if self.understood or None in gone_ns or self._replies[-1] not in self._completed:
                return
            total_ns = sum(each for each in gone_ns if each is not None)
        elif self._replies[0] in self._completed:
            total_ns = self._turned_down_ns + self._until_its_end_ns(speaker)
        else:
            return
        self.was_kept = True
        self.gone_ms = total_ns / NS_PER_MS

    def json(self) -> dict[str, Any]:
        return {
            "words": self.words,
            "understood": self.understood,
            "asked": self.asked,
            "kept": self.was_kept,
            "gone_ms": self.gone_ms,
        }

    def _is_stopped(self, speaker: SimulatedPlayback, at_ns: int) -> bool:
        """True if the stop cuts audio off: a reply played to its end has none left."""
        is_complete = self._replies[-1] in self._completed
        return speaker.playing(at_ns) and (not is_complete or speaker.has_sound_left(at_ns))

    def _silence_ns(self, speaker: SimulatedPlayback, at_ns: int, num_begun: int) -> int | None:
        """Time from a stop to the next sound; 0 if the rest had no words; None without sound."""
        rest = self._replies[num_begun:]
        known = [onset for reply in rest if (onset := speaker.onset_ns(reply)) is not None]
        if known:
            return known[0] - at_ns
        left = "".join(self._texts.get(reply, "") for reply in rest)
        return 0 if rest and left and not any(map(str.isalnum, left)) else None

    def _until_its_end_ns(self, speaker: SimulatedPlayback) -> int:
        """Time turned down of a reply that was never turned up again."""
        onset_ns = speaker.onset_ns(self._replies[0])
        if self._ducked_ns is None or onset_ns is None:
            return 0
        end_ns = onset_ns + round(speaker.played_s(self._replies[0]) * NS_PER_S)
        return max(0, end_ns - self._ducked_ns)


class Asides:
    """Words said over the replies of one call. Takes all events, before the loudspeaker does."""

    def __init__(self, client: Client) -> None:
        self.all: list[Aside] = []
        self._client: Final[Client] = client
        self._texts: dict[str, str] = {}
        self._completed: set[str] = set()
        self._open: tuple[Aside, SimulatedPlayback] | None = None

    def note(self, event: ev.ClientEvent) -> None:
        """Take in one event."""
        if isinstance(event, ev.ReplyText):
            known = self._texts.get(event.response_id, "")
            self._texts[event.response_id] = known + event.delta
        elif isinstance(event, ev.ReplyDone) and event.status == "completed":
            self._completed.add(event.response_id)
        if self._open is not None:
            self._open[0].note(event, self._open[1])

    def begin(self, words: str, response_id: str, speaker: SimulatedPlayback) -> None:
        """Begin an aside: `words` are about to be said over the reply that `speaker` plays."""
        said = self._texts.get(response_id, "")
        is_complete = response_id in self._completed
        aside = Aside(words, self._client, response_id, said, is_complete=is_complete)
        self._open = aside, speaker

    def settle(self) -> None:
        """Compute all outcomes, once all is quiet."""
        if self._open is not None:
            aside, speaker = self._open
            aside.settle(speaker)
            self.all.append(aside)
            self._open = None


def aside_figures(asides: Sequence[Aside]) -> dict[str, Any]:
    """`{client: {said, kept, stopped, answers, kept_rate, kept_interval, gone_ms, each}}`.

    `stopped` excludes answers to a question; `kept_rate` is kept / (kept + stopped). `gone_ms`
    holds percentiles over the kept.
    """
    found: dict[str, Any] = {}
    for client in sorted({each.client for each in asides}):
        its = [each for each in asides if each.client == client]
        kept = [each for each in its if each.was_kept]
        num_answers = sum(each.asked and not each.was_kept for each in its)
        num_judged = len(its) - num_answers
        found[client] = {
            "said": len(its),
            "kept": len(kept),
            "stopped": num_judged - len(kept),
            "answers": num_answers,
            "kept_rate": len(kept) / num_judged if num_judged else None,
            "kept_interval": wilson_interval(len(kept), num_judged),
            "gone_ms": percentiles_ms(each.gone_ms for each in kept),
            "each": [each.json() for each in its],
        }
    return found
