"""Jitter buffer of the caller's audio: RTP packets in any order to one stream without gaps.

Theory of operation. Nothing is played here, so packets in order are passed on at once: the buffer
adds no delay to a network that works. A packet that is missing is waited for until `WAIT_MS` have
passed or `MAX_AHEAD` packets behind it are there; then it counts as lost, and is recovered from the
redundant copy in the packet behind it, or concealed.

With DTX a client sends nothing while its caller is silent, yet detectors and timers need the
silence. So `advance`, called at `next_ns`, fills what is overdue by `OVERDUE_MS` with what the
decoder makes of nothing; by `DTX_OVERDUE_MS`, where the last packet was that of a silence, of one
or two bytes, which browsers send once. What then comes for a time that was filled already was
late: it follows all the same, and the stream is ahead of real time by as much. The next gap, or
silence, is filled with as much less, so that the session is never further ahead than the longest
silence of the network; otherwise each would add to it, until audio is dropped (`AHEAD_S` in
`transport.py`). A silence that DTX announces is filled with less only once it has lasted for
`SAVING_AFTER_MS`: the end of a turn is counted in its samples, and one whose first word came late
would end later by as much. Beyond `MAX_OWED_MS` it is saved at once all the same.

All packets have one SSRC: `peer.py` drops others, and calls `restart` where another one takes over.
After a jump of the time by more than `MAX_GAP_S`, forward or back, nothing is filled, and nothing
counts as filled too far.

Pure: no I/O and no clock. Times are arguments.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from .opus import DTX_BYTES

RTP_HZ: Final = 48_000
"""Clock of Opus in RTP, whatever the rate of the audio (RFC 7587, section 4.1)."""

FRAME: Final = RTP_HZ // 50
"""A frame of 20 ms, in units of that clock."""

WAIT_MS: Final = 60
"""Wait for a missing packet. Less: packets that a radio network delivers out of order are lost.
More is added to the end of the caller's turn where one is lost in it."""

MAX_AHEAD: Final = 5
"""Packets behind a missing one after which it is not waited for: 100 ms came in its stead."""

OVERDUE_MS: Final = 80
"""Silence of the network until the gap is filled. Less: jitter of a working network is filled and
delays what follows. More delays the end of a turn by as much, where it ends in DTX and the packet
that says so is lost."""

DTX_OVERDUE_MS: Final = 25
"""The same after a packet that says that none will follow for a while: no time to wait for one. A
frame, and the jitter of a good network: less, and the packet that ends the silence, or the one in
each 400 ms that describes its noise, comes behind its own filling. More delays the end of a turn by
as much."""

SAVING_AFTER_MS: Final = 1000
"""Silence of the caller, from the packet of DTX that begins it, from which on it is filled with
less. That packet comes 320 to 720 ms after the last voiced frame (eight recordings of
`tests/recordings`): by then a turn is over, however long its end is waited for."""

MAX_OWED_MS: Final = 200
"""Most audio ahead of the caller that waits for that. Longer: so much sooner than it is heard the
caller's turn would seem to be over to one who listens to the call."""

RESUMED_PACKETS: Final = 3
"""Packets in a row that are no silence, after which the caller speaks again. One that describes the
noise of a silence comes alone."""

MAX_GAP_S: Final = 5
"""Longest gap that is filled at once."""

MAX_FILL_MS: Final = 200
"""Longest gap that is concealed; what is longer is silence behind that."""

Int16 = npt.NDArray[np.int16]


class PacketDecoder(Protocol):
    """What the buffer needs of `OpusDecoder`."""

    @property
    def rate_hz(self) -> int: ...

    def num_samples(self, packet: bytes) -> int: ...

    def decode(self, packet: bytes) -> Int16: ...

    def recover(self, behind: bytes, num_samples: int) -> Int16: ...

    def conceal(self, num_samples: int) -> Int16: ...


@dataclass(slots=True)
class JitterCounts:
    """Counts of packets, by what became of them."""

    received: int = 0
    late: int = 0
    """Dropped: they came after they had been given up, or twice."""
    filled: int = 0
    """Frames made up for what was lost, or not sent (DTX)."""


class JitterBuffer:
    """Buffer of one call. `push` packets as they come, `advance` at `next_ns`, or more often; both
    return audio."""

    def __init__(self, decoder: PacketDecoder) -> None:
        self._decoder = decoder
        self.counts: Final = JitterCounts()
        self._waiting: dict[int, tuple[int, bytes]] = {}
        """Packets behind a missing one: time stamp and payload by extended sequence number."""
        self._next_seq: int | None = None
        """Extended sequence number of the next packet; None before the first."""
        self._is_restarted = False
        """The next packet begins another stream."""
        self._next_time = 0
        """Time stamp, extended, up to which audio was passed on."""
        self._owed = 0
        """Filled too far, and not saved at a gap since, in units of the RTP clock."""
        self._last_ns = 0
        """Arrival up to which audio is accounted for."""
        self._is_silent = False
        """The last packet was one of DTX."""
        self._silent_from_ns: int | None = None
        """Since when the caller is silent, as packets of DTX say."""
        self._num_voiced = 0
        """Packets in a row that were none of DTX."""
        self._gap_ns: int | None = None
        """Since when a packet is missing."""

    @property
    def num_waiting(self) -> int:
        """Packets that wait for one before them."""
        return len(self._waiting)

    def restart(self) -> None:
        """Take the next packet as the first of another stream; what waits is dropped. Until it
        comes, silence is filled as before."""
        self._waiting.clear()
        self._is_restarted, self._gap_ns, self._owed = True, None, 0
        self._is_silent, self._silent_from_ns, self._num_voiced = False, None, 0

    @property
    def next_ns(self) -> int | None:
        """Time at which `advance` has audio, unless a packet comes before; None before the first
        packet, and where no time will bring any."""
        if self._next_seq is None:
            return None
        if self._waiting:
            return None if self._gap_ns is None else self._gap_ns + WAIT_MS * 1_000_000
        return self._last_ns + self._overdue_ns + 1

    @property
    def _overdue_ns(self) -> int:
        return (DTX_OVERDUE_MS if self._is_silent else OVERDUE_MS) * 1_000_000

    def push(self, seq: int, timestamp: int, payload: bytes, now_ns: int) -> list[Int16]:
        """Take a packet: 16 bits of sequence number, 32 of time stamp. Returns audio, in order.
        Payloads that are no Opus count as lost."""
        self.counts.received += 1
        if self._next_seq is None or self._is_restarted:
            self._next_seq, self._next_time = seq, timestamp
            self._last_ns, self._is_restarted = now_ns, False
        near = self._next_seq
        seq = near + signed(seq - near, 16)
        timestamp = self._next_time + signed(timestamp - self._next_time, 32)
        if seq - near > 1000 or near - seq > 1000:  # another beginning
            self._waiting.clear()
            self._next_seq, self._next_time, self._owed = seq, timestamp, 0
        elif seq < near or seq in self._waiting:
            self.counts.late += 1
            return []
        self._waiting[seq] = timestamp, payload
        return self._passed(now_ns)

    def advance(self, now_ns: int) -> list[Int16]:
        """Give up what was waited for too long, and fill what is overdue."""
        if self._next_seq is None:
            return []
        audio = self._passed(now_ns)
        while now_ns - self._last_ns > self._overdue_ns and not self._waiting:
            if self._owed >= FRAME and self._is_saving(now_ns):
                self._owed -= FRAME
            else:
                audio.append(self._decoder.conceal(self._decoder.rate_hz // 50))
                self.counts.filled += 1
            self._next_time += FRAME
            self._last_ns += 20_000_000
        return audio

    def _is_saving(self, now_ns: int) -> bool:
        """True where silence is filled with less than there is."""
        if not self._is_silent or self._owed > MAX_OWED_MS * RTP_HZ // 1000:
            return True
        since_ns = self._silent_from_ns
        return since_ns is not None and now_ns - since_ns >= SAVING_AFTER_MS * 1_000_000

    def _passed(self, now_ns: int) -> list[Int16]:
        audio: list[Int16] = []
        while self._waiting:
            assert self._next_seq is not None
            packet = self._waiting.pop(self._next_seq, None)
            if packet is None:
                self._gap_ns = now_ns if self._gap_ns is None else self._gap_ns
                is_late = now_ns - self._gap_ns >= WAIT_MS * 1_000_000
                if not is_late and len(self._waiting) < MAX_AHEAD:
                    break
                self._next_seq = min(self._waiting)
                continue
            self._gap_ns = None
            self._next_seq += 1
            self._last_ns = now_ns
            audio += self._decoded(*packet, now_ns)
        return audio

    def _decoded(self, timestamp: int, payload: bytes, now_ns: int) -> list[Int16]:
        """Audio of a packet, and of the gap before it."""
        audio: list[Int16] = []
        rate_hz = self._decoder.rate_hz
        try:
            num = self._decoder.num_samples(payload)
            gap = timestamp - self._next_time
            if gap < -MAX_GAP_S * RTP_HZ:  # another beginning
                self._owed = 0
            elif gap < 0:
                self._owed = min(self._owed - gap, MAX_GAP_S * RTP_HZ)
            elif 0 < gap <= MAX_GAP_S * RTP_HZ:
                saved = min(self._owed, gap)
                self._owed -= saved
                audio += self._filled((gap - saved) // FRAME, payload)
            audio.append(self._decoder.decode(payload))
        except ValueError:
            return audio  # no Opus: as if it had been lost
        self._is_silent = len(payload) <= DTX_BYTES
        self._num_voiced = 0 if self._is_silent else self._num_voiced + 1
        if self._num_voiced >= RESUMED_PACKETS:
            self._silent_from_ns = None
        elif self._is_silent and self._silent_from_ns is None:
            self._silent_from_ns = now_ns
        self._next_time = timestamp + num * RTP_HZ // rate_hz
        return audio

    def _filled(self, num_frames: int, behind: bytes) -> list[Int16]:
        """Audio of frames that did not come, before the packet that did."""
        audio: list[Int16] = []
        num = self._decoder.rate_hz // 50
        for left in range(num_frames, 0, -1):
            if left == 1:
                audio.append(self._decoder.recover(behind, num))
            elif num_frames - left < MAX_FILL_MS // 20:
                audio.append(self._decoder.conceal(num))
            else:
                audio.append(np.zeros(num, np.int16))
        self.counts.filled += num_frames
        return audio


def signed(difference: int, bits: int) -> int:
    """The difference modulo 2**bits that is nearest to zero."""
    half = 1 << (bits - 1)
    return ((difference + half) & ((1 << bits) - 1)) - half
