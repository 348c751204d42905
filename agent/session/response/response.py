"""What is known of one reply."""

from dataclasses import dataclass, field, replace
from typing import Final

from agent.session.api.conversation import ItemId, Modality, ToolRound
from agent.session.api.server_events import Usage
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.playback import HeardWord, Playback
from agent.session.ports.playback_reports import PlaybackReportCheck
from agent.session.ports.stage_ports import Speech, Tools
from latency_budget.account.deadline import Deadline
from latency_budget.account.turn import TurnId

_NO_ITEM: Final = ItemId("")


@dataclass(slots=True)
class Reply:
    """What is known of a reply. The session reads it, `ResponseTask` fills it."""

    turn: TurnId
    settings: SessionSettings
    options: ResponseOptions
    playback: Playback
    deadline: Deadline
    """When its first sound is due."""
    tools: Tools | None = None
    """What the model may call."""
    response_id: str = ""
    """Empty until it is announced, as is its item's."""
    item_id: ItemId = _NO_ITEM
    has_item: bool = False
    """The conversation has got its item, and the client knows of it."""
    has_called: bool = False
    """The client is to run a tool, and will ask for another reply when it has."""
    text: str = ""
    """As generated, so far, behind the opener if there is one; and what was said while tools ran.
    """
    rounds: list[ToolRound] = field(default_factory=list)
    """Tools of the server that were called on the way, or are being."""
    opener_chars: int = 0
    """Of `text`: those of the opener and the blank behind it, which the model did not write."""
    first_char: int = 0
    """Of `text`: where this response begins, in which the reply was taken up again."""
    continues: ItemId | None = None
    """The item that has what was heard before."""
    shown_chars: int = 0
    """Of `text`, handed to the client, in this response or an earlier one."""
    usage: Usage = field(default_factory=Usage)
    usage_before: Usage = field(default_factory=Usage)
    """What earlier responses of it have been charged with."""
    is_complete: bool = False
    """Nothing will be added to `text`."""
    hit_limit: bool = False
    failed: str | None = None
    """Why it failed, in words for the client."""
    generated: bool = False
    """The conversation's own model made it: its context holds the reply's tokens."""
    spoken_before_s: float = 0.0
    """Sent by earlier responses of it."""
    first_audible_sample: int | None = None
    """Of the playback: where the first sound that a caller can hear was sent."""
    claims: PlaybackReportCheck = field(default_factory=PlaybackReportCheck)
    """What the client says of its playback."""
    has_speech: bool = False
    """Something of it was synthesized."""
    ended: bool = False
    """Its end was announced."""
    is_recorded: bool = False
    """Model and log know how it ended."""
    held_at: int | None = None
    """Characters heard of a reply that is held; None: it is not."""
    claimed_chars: int | None = None
    """Characters heard, by the client's own word; None: it has not said so."""
    goes_on: bool = False
    """It was taken up again, as another response: this one is `text` and no more."""
    taken_back: bool = False
    """It never was: nothing of it counts as heard, whatever the client played."""

    def begin_with(self, opener: str, speech: Speech) -> None:
        """Put these words in front of a reply that has no speech yet."""
        self.opener_chars = shift = len(opener) + 1
        self.text = f"{opener} {self.text}"
        self.rounds[:] = [
            # Of calls without a word the opener is none.
            replace(each, at_char=each.at_char and each.at_char + shift)
            for each in (replace(each, resumes_at=each.resumes_at + shift) for each in self.rounds)
        ]
        self.playback.push(speech.pcm, (0, self.opener_chars), speech.words)

    def queue(self, speech: Speech, base: int) -> None:
        """For playing: the next of the reply. Its characters count from `base`, and from behind the
        opener."""
        offset = self.opener_chars + base
        span = (speech.span[0] + offset, speech.span[1] + offset)
        words = tuple(HeardWord(w.char_end + offset, w.end_sample) for w in speech.words)
        self.playback.push(speech.pcm, span, words)
        self.has_speech = True

    @property
    def modality(self) -> Modality:
        return self.options.output_modality or self.settings.output_modality

    @property
    def speaks(self) -> bool:
        return self.modality == "audio"

    @property
    def spoken_s(self) -> float:
        """Of speech that was sent."""
        return self.spoken_before_s + self.playback.sent / self.playback.rate_hz

    @property
    def max_tokens(self) -> int | None:
        return self.options.max_output_tokens or self.settings.max_output_tokens
