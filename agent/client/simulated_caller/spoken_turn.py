"""One recording spoken to the agent, with its replies and latencies."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from latency_budget.account.turn_record import Outcome

from .ducking import FALL_NS
from .playback import NS_PER_S, SimulatedPlayback

NS_PER_MS = 1_000_000

Int16 = npt.NDArray[np.int16]


@dataclass(slots=True)
class SpokenTurn:
    """One spoken recording and its answer; filled in while the call goes on."""

    number: int
    """Number of the recording, from 1."""
    pcm: Int16
    """int16 [n] at the call's rate."""
    voiced_samples: int | None
    """Samples up to the end of the last voiced one; None for a recording without speech."""
    onset_samples: int = 0
    """Samples before the first voiced one."""
    started_ns: int | None = None
    """Time of the first sample; None while it waits."""
    last_voiced_ns: int | None = None
    caller_text: str = ""
    """The server's transcript."""
    agent_text: str = ""
    replies: list[str] = field(default_factory=list)
    """Response ids, in order."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """The server's reports of its turns: several where it took a pause for the end."""
    errors: list[str] = field(default_factory=list)
    e2e_ear_ms: float | None = None
    """From the last voiced sample to the first audible sample; None without an answer."""
    cut_in: bool = False
    """A reply was audible before the last voiced sample."""
    interrupted: bool = False
    """A reply was stopped by speech after this recording."""
    reopened: bool = False
    """A reply began before the last voiced sample: the server took a pause for the end."""
    silenced_ms: float | None = None
    """From the first voiced sample until the interrupted reply was silent, in ms."""
    ducked_ms: float | None = None
    """From the first voiced sample until the interrupted reply was ducked, to stay so until it was
    silent or ended. None: it was not ducked."""
    is_aside: bool = False
    """Spoken while the agent speaks; no answer is wanted."""
    has_aside: bool = False
    """An aside was spoken while it was being answered: later transcripts are not part of it."""
    _early: set[str] = field(default_factory=set)
    reply_s: float = 0.0
    """Seconds of the answer that were played."""

    @property
    def answered(self) -> bool:
        return self.e2e_ear_ms is not None

    @property
    def outcome(self) -> Outcome | None:
        """How the caller took the replies, by the recording: cut in, else re-opened before anything
        was audible, else interrupted."""
        if self.cut_in:
            return Outcome.CUT_IN
        if self.reopened:
            return Outcome.REOPENED
        return Outcome.INTERRUPTED if self.interrupted else None

    @property
    def e2e_raw_ms(self) -> float | None:
        """`e2e_ear_ms` less the time in which the server held the reply back on purpose."""
        if self.e2e_ear_ms is None:
            return None
        return self.e2e_ear_ms - (self.reports[-1].get("paced_ms", 0.0) if self.reports else 0.0)

    @property
    def opener(self) -> bool:
        """The server played a prepared phrase in front of a late answer."""
        return any(report.get("opener", False) for report in self.reports)

    @property
    def stopped_ms(self) -> float | None:
        """From the first voiced sample until the interrupted reply was ducked or silent, in ms.
        None where it interrupted none."""
        return self.silenced_ms if self.ducked_ms is None else self.ducked_ms

    def turn_json(self) -> dict[str, Any]:
        """JSON of the turn: the server's last report, with the times at the ear."""
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
            "reopened": self.reopened,
            "outcome": None if self.outcome is None else self.outcome.value,
            "stages": report.get("stages", {}),
            "reply_s": self.reply_s,
        }

    def begin(self, at_ns: int, rate_hz: int) -> None:
        """Set the time of the first sample."""
        self.started_ns = at_ns
        if self.voiced_samples is not None:
            self.last_voiced_ns = at_ns + self.voiced_samples * NS_PER_S // rate_hz

    def reply_began(self, response_id: str, at_ns: int) -> None:
        """Add a reply that the server announced."""
        self.replies.append(response_id)
        if self.last_voiced_ns is not None and at_ns < self.last_voiced_ns:
            self.reopened = True
            self._early.add(response_id)

    def is_early(self, response_id: str) -> bool:
        """True for a reply that began before the last voiced sample: the caller who stopped it was
        going on."""
        return response_id in self._early

    def silenced(self, at_ns: int, rate_hz: int) -> None:
        """Record that the interrupted reply is silent. Where the reply answers the beginning of
        this recording, it is a cut-in and not a barge-in."""
        onset_ns = self.onset_ns(rate_hz)
        if onset_ns is not None and self.silenced_ms is None and not self.replies:
            self.silenced_ms = (at_ns - onset_ns) / NS_PER_MS

    def ducked(self, at_ns: int, rate_hz: int) -> None:
        """Record that the interrupted reply is being ducked from now on."""
        onset_ns = self.onset_ns(rate_hz)
        is_first = self.ducked_ms is None and self.silenced_ms is None
        if onset_ns is not None and is_first and not self.replies:
            self.ducked_ms = (at_ns + FALL_NS - onset_ns) / NS_PER_MS

    def unducked(self) -> None:
        """Record that the ducking ended: the reply was not stopped there."""
        if self.silenced_ms is None and not self.replies:
            self.ducked_ms = None

    def onset_ns(self, rate_hz: int) -> int | None:
        """Time of the first voiced sample; None before it is spoken."""
        if self.started_ns is None:
            return None
        return self.started_ns + self.onset_samples * NS_PER_S // rate_hz

    def understood(self, text: str) -> None:
        """Append a transcript."""
        if not self.has_aside:
            self.caller_text = f"{self.caller_text} {text}".strip()

    def reported(self, turn: dict[str, Any]) -> None:
        """Add the server's report of a turn, unless it is of an aside."""
        known = [report.get("turn") for report in self.reports]
        if not (self.has_aside and known) or turn.get("turn") in known:
            self.reports.append(turn)

    def account(self, speaker: SimulatedPlayback) -> None:
        """Compute the times at the ear from the onsets of the replies."""
        if self.last_voiced_ns is None:
            return
        spoken_ns = self.last_voiced_ns
        onsets = [speaker.onset_ns(reply) for reply in self.replies]
        known = [onset for onset in onsets if onset is not None]
        self.cut_in = any(onset < spoken_ns for onset in known)
        after = [onset - spoken_ns for onset in known if onset >= spoken_ns]
        self.e2e_ear_ms = min(after) / NS_PER_MS if after else None
        self.reply_s = sum(speaker.played_s(reply) for reply in self.replies)
