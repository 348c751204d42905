"""One recording spoken to the agent, and what came back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .ducking import FALL_NS
from .playback import NS_PER_S, SimulatedPlayback

NS_PER_MS = 1_000_000

Int16 = npt.NDArray[np.int16]


@dataclass(slots=True)
class SpokenTurn:
    """One recording spoken, and what came back. Filled while it happens."""

    number: int
    """From 1."""
    pcm: Int16
    """In the call's rate."""
    voiced_samples: int | None
    """Of `pcm`, up to and with the last voiced one; None for a recording without speech."""
    onset_samples: int = 0
    """Of `pcm`, before the first voiced one."""
    started_ns: int | None = None
    """When its first sample was spoken; None while it waits for its turn."""
    last_voiced_ns: int | None = None
    caller_text: str = ""
    """As the server understood it."""
    agent_text: str = ""
    replies: list[str] = field(default_factory=list)
    """Response ids, in order."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """The server's accounts of its turns: more than one where it took a pause for the end."""
    errors: list[str] = field(default_factory=list)
    e2e_ear_ms: float | None = None
    """None where nothing was heard after the last voiced sample."""
    cut_in: bool = False
    interrupted: bool = False
    reopened: bool = False
    """A reply was begun before the last voiced sample: a pause was taken for the end."""
    silenced_ms: float | None = None
    """From its first voiced sample to the silence of the reply that it interrupted."""
    ducked_ms: float | None = None
    """The same until that reply had been turned down, to stay so until it fell silent or ended.
    None: it was not, as for clients that don't duck."""
    is_aside: bool = False
    """Said while the agent speaks, and wants no answer."""
    has_aside: bool = False
    """Something was said aside while it was being answered: what is understood from there on is
    not part of it."""
    reply_s: float = 0.0
    """Of speech that came out of the loudspeaker."""

    @property
    def answered(self) -> bool:
        return self.e2e_ear_ms is not None

    @property
    def e2e_raw_ms(self) -> float | None:
        """At the ear, had the server held nothing back on purpose."""
        if self.e2e_ear_ms is None:
            return None
        return self.e2e_ear_ms - (self.reports[-1].get("paced_ms", 0.0) if self.reports else 0.0)

    @property
    def opener(self) -> bool:
        """The server put words in front of an answer that was late."""
        return any(report.get("opener", False) for report in self.reports)

    @property
    def stopped_ms(self) -> float | None:
        """From its first voiced sample until the caller heard the other one stop: it was turned
        down, or fell silent. None where it interrupted nothing."""
        return self.silenced_ms if self.ducked_ms is None else self.ducked_ms

    def turn_json(self) -> dict[str, Any]:
        """The server's last account, with what only the ear knows put in."""
        report = self.reports[-1] if self.reports else {}
        return {
            "turn": report.get("turn", self.number),
            "caller_text": self.caller_text,
            "agent_text": self.agent_text,
            "e2e_ear_ms": self.e2e_ear_ms,
            "e2e_server_ms": report.get("e2e_server_ms"),
            "e2e_raw_ms": self.e2e_raw_ms,
            "paced_ms": report.get("paced_ms", 0.0),
            "opener": self.opener,
            "cut_in": self.cut_in,
            "interrupted": self.interrupted,
            "stages": report.get("stages", {}),
            "reply_s": self.reply_s,
        }

    def begin(self, at_ns: int, rate_hz: int) -> None:
        """Its first sample is spoken at `at_ns`."""
        self.started_ns = at_ns
        if self.voiced_samples is not None:
            self.last_voiced_ns = at_ns + self.voiced_samples * NS_PER_S // rate_hz

    def reply_began(self, response_id: str, at_ns: int) -> None:
        """A reply to it has been announced."""
        self.replies.append(response_id)
        self.reopened |= self.last_voiced_ns is not None and at_ns < self.last_voiced_ns

    def silenced(self, at_ns: int, rate_hz: int) -> None:
        """What was playing is silent. An answer to its own beginning was a cut-in, no barge-in."""
        onset_ns = self.onset_ns(rate_hz)
        if onset_ns is not None and self.silenced_ms is None and not self.replies:
            self.silenced_ms = (at_ns - onset_ns) / NS_PER_MS

    def ducked(self, at_ns: int, rate_hz: int) -> None:
        """What was playing is being turned down from now on."""
        onset_ns = self.onset_ns(rate_hz)
        is_first = self.ducked_ms is None and self.silenced_ms is None
        if onset_ns is not None and is_first and not self.replies:
            self.ducked_ms = (at_ns + FALL_NS - onset_ns) / NS_PER_MS

    def unducked(self) -> None:
        """It is as loud as before: that was not where it stopped."""
        if self.silenced_ms is None and not self.replies:
            self.ducked_ms = None

    def onset_ns(self, rate_hz: int) -> int | None:
        """When its first voiced sample was spoken."""
        if self.started_ns is None:
            return None
        return self.started_ns + self.onset_samples * NS_PER_S // rate_hz

    def understood(self, text: str) -> None:
        """The server has made these words of it, behind others."""
        if not self.has_aside:
            self.caller_text = f"{self.caller_text} {text}".strip()

    def reported(self, turn: dict[str, Any]) -> None:
        """The server's account of a turn. That of an answer to something said aside is not its."""
        known = [report.get("turn") for report in self.reports]
        if not (self.has_aside and known) or turn.get("turn") in known:
            self.reports.append(turn)

    def account(self, speaker: SimulatedPlayback) -> None:
        """Take the times at the ear from what has been or will be played."""
        if self.last_voiced_ns is None:
            return
        spoken_ns = self.last_voiced_ns
        onsets = [speaker.onset_ns(reply) for reply in self.replies]
        known = [onset for onset in onsets if onset is not None]
        self.cut_in = any(onset < spoken_ns for onset in known)
        after = [onset - spoken_ns for onset in known if onset >= spoken_ns]
        self.e2e_ear_ms = min(after) / NS_PER_MS if after else None
        self.reply_s = sum(speaker.played_s(reply) for reply in self.replies)
