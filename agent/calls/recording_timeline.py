"""Timeline of a call's audio on one axis of samples: caller left, agent right.

Theory of operation
-------------------
The axis begins with the call's first sound. The caller's samples follow one another as they were
received; only where nothing came for a while, and what came then was no burst that made up for it,
a silence lies between them. A sample that was received at a time stands for sound of that time, and
the least delayed one says which: whatever comes sooner than that moves the axis ahead. So a file
that is sent faster than real time is recorded as it is, and what the agent says to it lies behind.

The agent's samples lie where they were played: when playback is taken to send them, or, once the
client has reported when it heard the reply, then. Reports and the caller's sound are both placed by
their arrival here, so that their way through the network cancels: the distance of two sounds is the
one that the caller heard. Of a reply that was cut, the part that was not played is left out.

Reports, cuts and late frames come after the sound that they concern. So the last `HOLD_NS` of the
axis are still open; what is older is given out and stays.

Tried, and left: a silence as soon as a frame is late. A network that stalls in the middle of a word
then tears it, though all of it arrives a moment later.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from latency_budget.account.clock import NS_PER_S
from tts.resample import StreamResampler

HOLD_NS: Final = 3_000_000_000
"""Shorter: a word is torn where the network stalls for longer. Longer: so much more is lost where
the process is killed."""

LOOK_AHEAD_NS: Final = 1_000_000_000
"""Longest wait for a burst that makes up for a pause of the stream."""

GAP_NS: Final = 300_000_000
"""Shorter pauses of the stream are jitter, or a microphone that runs a little slow."""

Int16 = npt.NDArray[np.int16]


@dataclass(slots=True)
class Axis:
    """Samples and times."""

    rate_hz: int
    begin_ns: int | None = None
    """Time of sample 0 in ns; None: not known yet."""

    def place(self, at_ns: int) -> int:
        """Sample at a time. `begin_ns` has to be known."""
        assert self.begin_ns is not None
        return self.samples(at_ns - self.begin_ns)

    def samples(self, ns: int) -> int:
        """Nearest number of samples in a duration."""
        return (ns * self.rate_hz + NS_PER_S // 2) // NS_PER_S

    def ns(self, num_samples: int) -> int:
        return num_samples * NS_PER_S // self.rate_hz


class _Caller:
    """The left channel."""

    def __init__(self, axis: Axis) -> None:
        self.end = 0
        """First sample of the axis after what is placed."""
        self._axis = axis
        self._received: deque[tuple[int, Int16]] = deque()
        """Received and not placed yet: (at_ns, samples)."""
        self._laid: deque[tuple[int, Int16]] = deque()
        """Placed: (first sample on the axis, samples)."""
        self._resampler: StreamResampler | None = None
        self._has_spoken = False
        self._num_made_up = 0
        """Pieces that come next and are late, but for which a burst makes up: known, so that a
        burst is looked through once and not for each of its pieces."""

    def add(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        if self._resampler is None or self._resampler.from_hz != rate_hz:
            self.flush(at_ns)
            self._resampler = StreamResampler(rate_hz, self._axis.rate_hz)
        self._received.append((at_ns, self._resampler.push(pcm)))

    def flush(self, at_ns: int) -> None:
        """Add the samples that the resampler holds back."""
        if self._resampler is not None and len(rest := self._resampler.flush()):
            self._received.append((at_ns, rest))

    @property
    def is_laid(self) -> bool:
        """True if all received audio is placed."""
        return not self._received

    def begin_ns(self) -> int | None:
        """Time of sample 0 of the axis in ns, by the least delayed piece of its first second. Asked
        once, before anything is placed."""
        end, begins_ns = 0, []
        for at_ns, pcm in self._soon():
            end += len(pcm)
            begins_ns.append(at_ns - self._axis.ns(end))
        return min(begins_ns, default=None)

    def lay(self, until_ns: int | None, given: int) -> None:
        """Give its place to what was received by then (None: to all), behind what was given."""
        axis = self._axis
        assert axis.begin_ns is not None
        while self._received and (until_ns is None or self._received[0][0] <= until_ns):
            self.end = max(self.end, given) + self._missing()
            self._has_spoken = True
            at_ns, pcm = self._received.popleft()
            self._laid.append((self.end, pcm))
            self.end += len(pcm)
            axis.begin_ns = min(axis.begin_ns, at_ns - axis.ns(self.end))

    def _soon(self) -> Iterator[tuple[int, Int16]]:
        """Received audio, as far as it came soon enough to make up for a pause before it."""
        for at_ns, pcm in self._received:
            if at_ns > self._received[0][0] + LOOK_AHEAD_NS:
                return
            yield at_ns, pcm

    def _missing(self) -> int:
        """Samples of silence in front of what was received next."""
        if self._num_made_up:
            self._num_made_up -= 1
            return 0
        axis, end, least = self._axis, self.end, 0
        allowed = axis.samples(GAP_NS) if self._has_spoken else 0
        for number, (at_ns, pcm) in enumerate(self._soon()):
            end += len(pcm)
            late = axis.place(at_ns) - end
            if late <= allowed:
                self._num_made_up = number
                return 0
            least = min(least, late) if number else late
        return least

    def give(self, channel: Int16, given: int) -> None:
        """Its samples from this one of the axis on; they are forgotten."""
        for at, pcm in self._laid:
            _put(channel, at - given, pcm)
        limit = given + len(channel)
        while self._laid and self._laid[0][0] + len(self._laid[0][1]) <= limit:
            self._laid.popleft()


@dataclass(slots=True)
class _Reply:
    """Audio of one reply. Samples count from its first, at the axis' rate."""

    paced_ns: int
    """Time in ns at which the first sample is played, by the server's pacing."""
    begin_ns: int
    """Time in ns at which the first sample is played, by the client's report if there is one."""
    resampler: StreamResampler
    begin: int | None = None
    """On the axis; fixed once something of it was given out."""
    pieces: list[tuple[int, int, Int16]] = field(default_factory=list)
    """Sound: its first sample, the silence in front of it (where the client ran dry), samples."""
    num_samples: int = 0
    silence: int = 0
    """So far."""
    end: int | None = None
    """First sample that was not heard; None: all were."""

    def add(self, first: int, pcm: Int16) -> None:
        if self.resampler.from_hz != self.resampler.to_hz:
            first = self.num_samples  # it holds some back
        self.pieces.append((first, self.silence, pcm))
        self.num_samples = first + len(pcm)

    def flush(self) -> None:
        """Add the samples that the resampler holds back."""
        if len(rest := self.resampler.flush()):
            self.add(self.num_samples, rest)

    def sound(self, begin: int, last: int | None) -> Iterator[tuple[int, Int16]]:
        """Played samples of the reply up to a sample of the axis, each with its position on the
        axis."""
        end = self.num_samples if self.end is None else self.end
        for first, gap, pcm in self.pieces:
            at = begin + first + gap
            room = end - first if last is None else min(end - first, last - at)
            yield at, pcm[: max(0, room)]

    def forget(self, begin: int, limit: int) -> None:
        """Pieces that end before this sample of the axis."""
        self.pieces = [
            (first, gap, pcm)
            for first, gap, pcm in self.pieces
            if begin + first + gap + len(pcm) > limit
        ]


class _Agent:
    """The right channel."""

    def __init__(self, axis: Axis) -> None:
        self.last: int | None = None
        """No sample of the axis from this one on was heard; None: the call goes on."""
        self._axis = axis
        self._replies: dict[int, _Reply] = {}

    def add(self, reply: int, first_sample: int, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        axis = self._axis
        first = first_sample * axis.rate_hz // rate_hz
        found = self._replies.get(reply)
        if found is None:
            self.flush()
            begin_ns = at_ns - axis.ns(first)
            resampler = StreamResampler(rate_hz, axis.rate_hz)
            found = self._replies[reply] = _Reply(begin_ns, begin_ns, resampler)
        ran_dry = axis.samples(at_ns - found.paced_ns) - first - found.silence
        if ran_dry > 2:  # else the same, rounded
            found.silence += ran_dry
        found.add(first, found.resampler.push(pcm))

    def flush(self) -> None:
        """No reply so far goes on."""
        for found in self._replies.values():
            found.flush()

    def of(self, reply: int) -> _Reply | None:
        return self._replies.get(reply)

    def begins_ns(self) -> list[int]:
        return [found.begin_ns for found in self._replies.values()]

    def end(self) -> int:
        """End of the played audio, on the axis."""
        return max(
            (
                at + len(pcm)
                for found in self._replies.values()
                for at, pcm in found.sound(self._begin_of(found), self.last)
                if len(pcm)
            ),
            default=0,
        )

    def give(self, channel: Int16, given: int) -> None:
        """Its samples from this one of the axis on; they are forgotten."""
        limit = given + len(channel)
        for found in self._replies.values():
            begin = self._begin_of(found)
            for at, pcm in found.sound(begin, self.last):
                _put(channel, at - given, pcm)
                if at < limit:
                    found.begin = begin
            found.forget(begin, limit)
        for number in [n for n, found in self._replies.items() if not found.pieces][:-2]:
            del self._replies[number]

    def _begin_of(self, found: _Reply) -> int:
        return self._axis.place(found.begin_ns) if found.begin is None else found.begin


class CallTimeline:
    """Timeline of one call. Reads no clock. `rate_hz`: rate of what `take` and `finish` return."""

    def __init__(self, rate_hz: int, first_ns: int) -> None:
        """`first_ns`: time of the first audio."""
        self.axis: Final = Axis(rate_hz)
        self._first_ns = first_ns
        self._given = 0
        """Samples of the axis that were given out."""
        self._caller = _Caller(self.axis)
        self._agent = _Agent(self.axis)

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int, num_lost: int = 0) -> None:
        """Add the caller's audio, received at this time; `num_lost` samples are missing before
        it."""
        if num_lost:
            pcm = np.concatenate([np.zeros(num_lost, np.int16), pcm])
        self._caller.add(pcm, rate_hz, at_ns)

    def agent(self, reply: int, first_sample: int, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        """The agent's sound: this sample of the reply, and what follows, is played at this time."""
        self._agent.add(reply, first_sample, pcm, rate_hz, at_ns)

    def heard(self, reply: int, sample: int, at_ns: int) -> None:
        """The client reports that this sample of the reply, at the reply's rate, was played
        then."""
        found = self._agent.of(reply)
        if found is not None and found.begin is None:
            found.begin_ns = at_ns - sample * NS_PER_S // found.resampler.from_hz

    def cut(self, reply: int, num_samples: int) -> None:
        """No more than so many samples of the reply, at its rate, were played."""
        found = self._agent.of(reply)
        if found is not None:
            found.end = num_samples * self.axis.rate_hz // found.resampler.from_hz

    def take(self, now_ns: int) -> Int16:
        """The next samples that will not change any more: [n, 2]."""
        if now_ns < self._first_ns + LOOK_AHEAD_NS:
            return self._give(0)
        self._lay(now_ns - LOOK_AHEAD_NS)
        # What was received and is not laid yet may have its place right behind what is.
        known_end = self._caller.end
        if self._caller.is_laid:
            known_end = max(known_end, self._agent.end())
        return self._give(min(self.axis.place(now_ns - HOLD_NS), known_end))

    def finish(self, at_ns: int) -> Int16:
        """The rest of a call that ended at this time: [n, 2]."""
        self._caller.flush(at_ns)
        self._agent.flush()
        self._lay(None)
        self._agent.last = self.axis.place(at_ns)
        return self._give(max(self._caller.end, self._agent.end()))

    def _lay(self, until_ns: int | None) -> None:
        if self.axis.begin_ns is None:
            begins_ns = [self._caller.begin_ns(), *self._agent.begins_ns()]
            known_ns = [each for each in begins_ns if each is not None]
            self.axis.begin_ns = min(known_ns, default=self._first_ns)
        self._caller.lay(until_ns, self._given)

    def _give(self, limit: int) -> Int16:
        given = np.zeros((max(0, limit - self._given), 2), np.int16)
        if len(given):
            self._caller.give(given[:, 0], self._given)
            self._agent.give(given[:, 1], self._given)
            self._given = limit
        return given


def _put(channel: Int16, at: int, pcm: Int16) -> None:
    """Lay samples into a channel, which may begin after them or end before."""
    pcm = pcm[max(0, -at) :]
    at = max(0, at)
    room = max(0, len(channel) - at)
    channel[at : at + room][: len(pcm)] = pcm[:room]
