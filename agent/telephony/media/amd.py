"""Answering machine detection (AMD) on outbound calls, and the end of the machine's greeting.

Carriers that listen for it tell with the call's beginning (`answered_by`, in the words of
https://www.twilio.com/docs/voice/answering-machine-detection). Where none does, two things tell:
people who answer say a word or two and wait, machines speak on without a pause; and machines end
with a beep, one tone of a few hundred milliseconds. Neither is sure. A person who talks for six
seconds on end at the first is taken for a machine, and a machine that says "Hello?" for a person,
until its beep. Their words tell too, where they are understood, and menus from machines that take
messages (`ivr.py`).

Pure: whoever uses it says what time it is.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from .ivr import answering

LONG_NS: Final = 6_000_000_000
"""Of the first utterance. People who answer with name and firm take 2 to 4 s; greetings of machines
are hardly ever below 7."""
MENU_NS: Final = 20_000_000_000
"""The same where menus are to be told from machines: the first words of theirs that tell come after
a welcome of 5 to 10 s."""
WATCH_NS: Final = 60_000_000_000
"""From the beginning: who has talked with us for longer is no machine, whatever beeps near him."""

BLOCK_S: Final = 0.032
BEEP_HZ: Final = (700.0, 1500.0)
"""Most are at 800 to 1200; ringing and busy tones lie at 400 to 480, and fax begins with 1100 too,
in tones of half a second."""
BEEP_BLOCKS: Final = 6
"""192 ms, all at the same frequency. Vowels hold theirs for 100 ms at most."""
PURE: Final = 0.85
"""Of the block's energy within one bin to either side. A vowel has half of it in one harmonic."""
LEAST_LEVEL: Final = 10 ** (-36 / 20)
"""Root mean square, of full scale."""

MACHINES: Final = ("machine", "fax")
"""How the words of carriers begin for what is no person."""
AT_ITS_END: Final = "machine_end"
"""The same, where its greeting is over."""

Int16 = npt.NDArray[np.int16]


class BeepDetector:
    """Hears a beep, however the audio is cut into pieces."""

    def __init__(self, rate_hz: int) -> None:
        self._size = round(rate_hz * BLOCK_S)
        self._window = np.hanning(self._size)
        self._bin_hz = rate_hz / self._size
        self._rest: Int16 = np.zeros(0, np.int16)
        self._bin = 0
        """Of the tone; 0 without one."""
        self._in_a_row = 0

    def push(self, pcm: Int16) -> bool:
        """Whether a beep has ended in it."""
        sound = np.concatenate([self._rest, pcm])
        count = len(sound) // self._size
        self._rest = sound[count * self._size :]
        blocks = sound[: count * self._size].reshape(count, self._size) / 32768
        heard = False
        for block in blocks:
            heard = self._next(self._tone(block)) or heard
        return heard

    def _next(self, tone: int) -> bool:
        was_beep = self._in_a_row >= BEEP_BLOCKS
        if tone and abs(tone - self._bin) <= 1:
            self._in_a_row += 1
        else:
            self._in_a_row = 1 if tone else 0
        self._bin = tone
        return was_beep and not tone

    def _tone(self, block: npt.NDArray[np.float64]) -> int:
        """The bin of the one tone that it is; 0 where it is something else."""
        if np.sqrt(np.mean(block * block)) < LEAST_LEVEL:
            return 0
        power = np.abs(np.fft.rfft(block * self._window)) ** 2
        peak = int(np.argmax(power))
        share = power[max(0, peak - 1) : peak + 2].sum() / power.sum()
        is_beep = BEEP_HZ[0] <= peak * self._bin_hz <= BEEP_HZ[1] and share >= PURE
        return peak if is_beep else 0


class AnsweringMachineDetector:
    """Of one call."""

    def __init__(self, answered_by: str, began_ns: int, *, heeds_menus: bool = False) -> None:
        """`answered_by`: what the carrier says; empty: nothing. `heeds_menus`: a menu is no
        machine."""
        self.is_machine = answered_by.startswith(MACHINES)
        self.is_menu = False
        self.takes_message = answered_by.startswith(AT_ITS_END)
        """Its greeting is over."""
        self._is_person = answered_by == "human"
        self._heeds_menus = heeds_menus
        self._began_ns = began_ns
        self._speaks_since_ns: int | None = None
        self._has_paused = False
        self._ear: BeepDetector | None = None

    def heard(self, pcm: Int16, rate_hz: int, now_ns: int) -> None:
        """What comes from the other end, silence included."""
        if self._goes_on_for(MENU_NS if self._heeds_menus else LONG_NS, now_ns):
            self.is_machine = True
        if self._listens(now_ns):
            if self._ear is None:
                self._ear = BeepDetector(rate_hz)
            if self._ear.push(pcm):
                self.is_machine = self.takes_message = True

    def speech_began(self, now_ns: int) -> None:
        """At the other end."""
        if self._speaks_since_ns is None:
            self._speaks_since_ns = now_ns

    def speech_ended(self) -> None:
        """An utterance is over; only the first tells anything."""
        self._has_paused = True

    def told(self, answered_by: str) -> None:
        """The carrier, which went on listening, says what it is."""
        self.is_machine = self.is_machine or answered_by.startswith(MACHINES)
        self.takes_message = self.takes_message or answered_by.startswith(AT_ITS_END)
        self._is_person = self._is_person or answered_by == "human"

    def understood(self, words: str, now_ns: int) -> None:
        """Of an utterance at the other end: all of it so far."""
        if self._is_person or now_ns - self._began_ns >= WATCH_NS:
            return
        shown = answering(words, is_monologue=self._goes_on_for(LONG_NS, now_ns))
        self.is_menu = self.is_menu or shown == "menu"
        if shown == "mailbox" or (self.is_menu and not self._heeds_menus):
            self.is_machine = True

    @property
    def answered_by(self) -> str:
        """As far as it is known: "menu", "machine", "human"; empty: not."""
        if self.is_menu:
            return "menu"
        if self.is_machine:
            return "machine"
        return "human" if self._is_person else ""

    def _goes_on_for(self, least_ns: int, now_ns: int) -> bool:
        """The first utterance does, at the least."""
        since_ns = self._speaks_since_ns
        if since_ns is None or self._has_paused or self._is_person:
            return False
        return now_ns - since_ns >= least_ns

    def _listens(self, now_ns: int) -> bool:
        if self.takes_message or self._is_person:
            return False
        return self.is_machine or now_ns - self._began_ns < WATCH_NS
