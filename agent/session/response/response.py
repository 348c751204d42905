"""State of one response."""

from dataclasses import dataclass, field, replace
from typing import Final

from agent.session.api.conversation import ItemId, Modality, ToolRound
from agent.session.api.server_events import Usage
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.playback import HeardWord, Playback
from agent.session.ports.playback_reports import PlaybackReportCheck
from agent.session.ports.stage_ports import Speech, Tools
from latency_budget.account.clock import Deadline
from latency_budget.account.turn import TurnId

_NO_ITEM: Final = ItemId("")

UNHEARD_NS: Final = 2_000_000_000
"""So much later than a spoken reply one is due that nobody waits for by ear. It is a bound too: a
caller who spoke two seconds later comes after it."""


@dataclass(slots=True)
class Reply:
    """State of a response. `ResponseTask` fills it; the controller and the items read it."""

    turn: TurnId
    settings: SessionSettings
    options: ResponseOptions
    playback: Playback
    deadline: Deadline
    """Deadline of the first audio."""
    tools: Tools | None = None
    """Tools that the model may call."""
    response_id: str = ""
    """Empty until it is announced, as is `item_id`."""
    item_id: ItemId = _NO_ITEM
    has_item: bool = False
    """The conversation has its item, and the client knows of it."""
    follows: ItemId | None = None
    """The item that the model's words stand behind in its history; then the reply's newest one."""
    is_displaced: bool = False
    """Another item was added between: the model has it on the other side of the reply than the
    conversation."""
    has_unrun_calls: bool = False
    """The model has called tools that may not run yet."""
    has_called: bool = False
    """The client has to run a tool, and will ask for another response afterwards."""
    joins_message: bool = False
    """It has called without a word, right behind a message of the agent: the conversation has both
    as one message, and the model has two."""
    hands_off: bool = False
    """It has handed the call to another agent, which speaks next."""
    text: str = ""
    """Text generated so far, behind the opener if there is one, with the filler spoken while tools
    ran."""
    rounds: list[ToolRound] = field(default_factory=list)
    """Rounds of server tools so far, the running one included."""
    opener_chars: int = 0
    """Characters of `text` that are the opener and the blank behind it: not the model's."""
    first_char: int = 0
    """Character of `text` where this response begins; above 0 in a resumed one."""
    continues: ItemId | None = None
    """The item with the part that was heard before the resumption."""
    shown_chars: int = 0
    """Characters of `text` sent to the client, in this response or an earlier one."""
    usage: Usage = field(default_factory=Usage)
    usage_before: Usage = field(default_factory=Usage)
    """Tokens that earlier responses of the same reply were charged with."""
    is_complete: bool = False
    """Generation is over: `text` does not grow any more."""
    hit_limit: bool = False
    was_looping: bool = False
    """It repeated itself and was ended; what the model has generated beyond `text` is no part of
    it."""
    failed: str | None = None
    """Why it failed, in words for the client."""
    generated: bool = False
    """The conversation's own model made it: its context holds the reply's tokens."""
    spoken_before_s: float = 0.0
    """Seconds of speech sent by earlier responses of the same reply."""
    first_audible_sample: int | None = None
    """Sample of the playback at which the first audible sound was sent."""
    claims: PlaybackReportCheck = field(default_factory=PlaybackReportCheck)
    """Checks the client's playback reports."""
    has_speech: bool = False
    """Something of it was synthesized."""
    stopped_at: int | None = None
    """Samples after which the client stopped, as it said while the response went on; None: it has
    not."""
    stopped_ns: int | None = None
    """Time at which the client first said that it has stopped, ns; None: it has not."""
    is_given_up: bool = False
    """Held, but the client had stopped it long before the caller spoke: none is said again."""
    is_stopped: bool = False
    """The client plays no more of it, though it was sent."""
    ended: bool = False
    """Its end was sent to the client."""
    is_recorded: bool = False
    """The model's history and the log have its end."""
    held_at: int | None = None
    """Characters heard of a held reply; None: not held."""
    claimed_chars: int | None = None
    """Characters heard, as the client reported; None: no report."""
    goes_on: bool = False
    """It was resumed as another response; this one ends with `text`."""
    taken_back: bool = False
    """The turn was reopened: nothing of it counts as heard, whatever the client played."""
    answer_sample: int | None = None
    """Sample of the playback with which the answer behind an early opener begins, until it is
    audible; None: no early opener is in front of it."""

    def begin_with(self, opener: str, speech: Speech, *, is_early: bool) -> None:
        """Put these words in front of a reply of which nothing was sent. `is_early`: the rest is
        held back until the playback's `release_rest`."""
        self.opener_chars = shift = len(opener) + 1
        self.text = f"{opener} {self.text}"
        self.rounds[:] = [
            # Of calls without a word the opener is none.
            replace(each, at_char=each.at_char and each.at_char + shift)
            for each in (replace(each, resumes_at=each.resumes_at + shift) for each in self.rounds)
        ]
        self.playback.put_in_front(speech.pcm, shift, speech.words, holds_rest=is_early)
        self.answer_sample = len(speech.pcm) if is_early else None

    def queue(self, speech: Speech, base: int) -> None:
        """Queue the next speech of the reply. Its characters count from `base`, behind the
        opener."""
        offset = self.opener_chars + base
        span = (speech.span[0] + offset, speech.span[1] + offset)
        words = tuple(HeardWord(w.char_end + offset, w.end_sample) for w in speech.words)
        self.playback.push(speech.pcm, span, words)
        self.has_speech = True

    def drop_unspoken(self) -> None:
        """Drop the words of which no speech was queued; none will be."""
        end = max(self.first_char, self.playback.queued_chars)
        self.text = self.text[:end]
        self.rounds[:] = [
            replace(each, at_char=min(each.at_char, end), resumes_at=min(each.resumes_at, end))
            for each in self.rounds
        ]

    @property
    def is_opener_all(self) -> bool:
        """True while nothing but an early opener was sent: no answer, so it counts as unheard."""
        return self.answer_sample is not None

    @property
    def due_ns(self) -> int:
        """Time by which the model should have begun, ns. Requests of all calls are served in this
        order: a reply that nobody waits for by ear comes after those of callers who do."""
        is_heard = self.speaks and not self.options.out_of_band
        return self.deadline.at_ns + (0 if is_heard else UNHEARD_NS)

    @property
    def modality(self) -> Modality:
        return self.options.output_modality or self.settings.output_modality

    @property
    def speaks(self) -> bool:
        return self.modality == "audio"

    @property
    def spoken_s(self) -> float:
        """Seconds of speech sent."""
        return self.spoken_before_s + self.playback.sent / self.playback.rate_hz

    @property
    def max_tokens(self) -> int | None:
        return self.settings.max_output_tokens
