"""History check: the server's history holds exactly the words that were heard.

Each delta of a reply's transcript comes just before the audio that speaks it, so a client
knows the first sample of every stretch of text. A stretch that was played to its end must be in the
history, a stretch that had not begun must not. Inside the stretch that was being played only the
server knows the words' times: there the history must end at the end of a word, near the place that
the voice's pace predicts. Pure functions.
"""

from dataclasses import dataclass
from typing import Final

from agent.client import events as ev

TOLERANCE_S: Final = 0.6
"""Tolerance in s, about two words: a stretch may begin with long words or with short ones."""

PACE_TOLERANCE: Final = 0.25
"""Tolerance as a share of the time since the stretch began: the pace of clauses varies so much."""

USUAL_PACE: Final = 15.0
"""Assumed pace in characters per second, until a whole stretch of the call gives the real one."""


@dataclass(slots=True)
class _Stretch:
    text: str
    first_sample: int
    end_sample: int
    """End of the audio that has arrived, in samples of the item."""


class HeardWords:
    """Transcripts of one call's replies, aligned with their audio. Takes the call's events."""

    def __init__(self) -> None:
        self.history: dict[str, str] = {}
        """Text of items, as retrieved from the server, by item id."""
        self.items: dict[str, str] = {}
        """Item id of each response that was heard, wholly or in part, by response id."""
        self._incomplete: set[str] = set()
        """Items whose reply was stopped, so that their last stretch may lack audio."""
        self._stretches: dict[str, list[_Stretch]] = {}
        """Stretches of text, by item id."""
        self._arrived: dict[str, int] = {}
        """Samples that have arrived, by item id."""
        self._rate_hz = 1
        self._whole = [0.0, 0.0]
        """Characters and seconds of stretches whose audio is complete."""

    def note(self, event: ev.ClientEvent) -> None:
        """Take in one event, in order."""
        match event:
            case ev.ReplyText(response_id=response_id, item_id=item_id, delta=delta):
                self.items[response_id] = item_id
                known = self._stretches.setdefault(item_id, [])
                if known:
                    self._note_pace(known[-1])
                at_sample = self._arrived.get(item_id, 0)
                known.append(_Stretch(delta, at_sample, at_sample))
            case ev.ReplyAudio(item_id=item_id, pcm=pcm, rate_hz=rate_hz):
                self._rate_hz = rate_hz
                self._arrived[item_id] = self._arrived.get(item_id, 0) + len(pcm)
                if item_id in self._stretches:
                    self._stretches[item_id][-1].end_sample = self._arrived[item_id]
            case ev.ReplyDone(response_id=response_id, status=status):
                # A response that reached its limit of tokens ("incomplete") was sent to its end.
                if status in ("cancelled", "failed") and response_id in self.items:
                    self._incomplete.add(self.items[response_id])
            case ev.ItemRetrieved(item_id=item_id, text=text):
                self.history[item_id] = text

    def complaint(self, item_id: str, played_s: float) -> str | None:
        """Error in the history of an item of which `played_s` was played; None if there is none.

        An item whose text was not retrieved has no error.
        """
        history = self.history.get(item_id)
        if history is None:
            return None
        stretches = self._stretches.get(item_id, [])
        whole = "".join(each.text for each in stretches)
        if not whole.startswith(history):
            return f"history has {history!r}, which is no beginning of {whole!r}"
        if len(history) < len(whole) and history[-1:].isalnum() and whole[len(history)].isalnum():
            return f"history ends inside a word: {history!r} of {whole!r}"
        least, most = self._bounds(stretches, played_s, item_id in self._incomplete)
        if _end_of_words(whole[:least]) <= len(history) <= most:
            return None
        return (
            f"history has {history!r}, but {played_s:.2f} s were played: from {whole[:least]!r} to "
            f"{whole[:most]!r}"
        )

    def _bounds(self, stretches: list[_Stretch], played_s: float, is_cut: bool) -> tuple[int, int]:
        """Least and greatest number of characters that can have been heard."""
        played = round(played_s * self._rate_hz)
        before = 0
        for each in stretches:
            is_last = each is stretches[-1]
            if played >= each.end_sample and not (is_last and is_cut):
                before += len(each.text)
                continue
            inside_s = max(0, played - each.first_sample) / self._rate_hz
            slack_s = TOLERANCE_S + PACE_TOLERANCE * inside_s
            least = round((inside_s - slack_s) * self._pace)
            most = round((inside_s + slack_s) * self._pace) if inside_s else 0
            least = max(0, min(least, len(each.text)))
            # A word that was being spoken is not in the history, and a long number is one word.
            least = each.text.rfind(" ", 0, least) + 1 if least < len(each.text) else least
            return before + least, before + min(most, len(each.text))
        return before, before

    @property
    def _pace(self) -> float:
        characters, seconds = self._whole
        return characters / seconds if seconds else USUAL_PACE

    def _note_pace(self, stretch: _Stretch) -> None:
        self._whole[0] += len(stretch.text)
        self._whole[1] += (stretch.end_sample - stretch.first_sample) / self._rate_hz


def _end_of_words(text: str) -> int:
    """Length of the text without the marks and blanks after its last word.

    They have no sound of their own. A player reports whole milliseconds, so one that stopped a few
    samples before the end of a stretch has heard its words and leaves out its full stop.
    """
    length = len(text)
    while length and not text[length - 1].isalnum():
        length -= 1
    return length
