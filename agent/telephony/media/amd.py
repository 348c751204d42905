"""Answering machine detection (AMD) on outbound calls, and the end of the machine's greeting.

Carriers with a detector of their own report its result when the call begins (`answered_by`, with
the values of https://www.twilio.com/docs/voice/answering-machine-detection). Without one there are
two signs: a person who answers says a word or two and waits, a machine speaks without a pause; and
a machine's greeting ends with a beep, one tone of a few hundred milliseconds. Neither is certain: a
person whose first utterance lasts six seconds is taken for a machine, and a machine that says
"Hello?" for a person, until its beep. Transcripts are a third sign, and distinguish menus from
machines that take messages (`ivr.py`).

Pure: time is an argument.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from .ivr import answering

LONG_NS: Final = 6_000_000_000
"""First utterance of a machine, at least. People who answer with name and company take 2 to 4 s;
greetings of machines are hardly ever below 7 s."""
MENU_NS: Final = 20_000_000_000
"""The same where menus are distinguished from machines: a menu's first characteristic words follow
a welcome of 5 to 10 s."""
WATCH_NS: Final = 60_000_000_000
"""Time of detection, from the call's beginning: after a longer conversation, a beep near the callee
does not mean a machine."""

BLOCK_S: Final = 0.032
BEEP_HZ: Final = (700.0, 1500.0)
"""Lowest and highest frequency. Most beeps are at 800 to 1200 Hz; ringing and busy tones are at 400
to 480 Hz; fax begins with 1100 Hz too, in tones of half a second."""
BEEP_BLOCKS: Final = 6
"""Blocks of a beep, at least: 192 ms at one frequency. Vowels hold one for 100 ms at most."""
PURE: Final = 0.85
"""Share of the block's energy within one bin of the peak, at least. A vowel has half of its energy
in one harmonic."""
LEAST_LEVEL: Final = 10 ** (-36 / 20)
"""Root mean square of a block, as a fraction of full scale."""

MACHINES: Final = ("machine", "fax")
"""Prefixes of carriers' results for anything but a person."""
MACHINE_END: Final = "machine_end"
"""Prefix of carriers' results for a machine whose greeting is over."""

Int16 = npt.NDArray[np.int16]


class BeepDetector:
    """Detects a beep in audio, in pieces of any length."""

    def __init__(self, rate_hz: int) -> None:
        self._size = round(rate_hz * BLOCK_S)
        self._window = np.hanning(self._size)
        self._bin_hz = rate_hz / self._size
        self._rest: Int16 = np.zeros(0, np.int16)
        self._bin = 0
        """Frequency bin of the current tone; 0 without one."""
        self._in_a_row = 0

    def push(self, pcm: Int16) -> bool:
        """True if a beep has ended in this audio: int16 [n]."""
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
        """Frequency bin of a block that is a single tone; 0 of any other."""
        if np.sqrt(np.mean(block * block)) < LEAST_LEVEL:
            return 0
        power = np.abs(np.fft.rfft(block * self._window)) ** 2
        peak = int(np.argmax(power))
        share = power[max(0, peak - 1) : peak + 2].sum() / power.sum()
        is_beep = BEEP_HZ[0] <= peak * self._bin_hz <= BEEP_HZ[1] and share >= PURE
        return peak if is_beep else 0


class AnsweringMachineDetector:
    """Answering machine detection of one call."""

    def __init__(self, answered_by: str, began_ns: int, *, detects_menus: bool = False) -> None:
        """`answered_by`: the carrier's result; empty: none. `detects_menus`: a menu is no
        machine."""
        self.is_machine = answered_by.startswith(MACHINES)
        self.is_menu = False
        self.is_greeting_over = answered_by.startswith(MACHINE_END)
        """The machine's greeting is over."""
        self._is_person = answered_by == "human"
        self._detects_menus = detects_menus
        self._began_ns = began_ns
        self._speech_began_ns: int | None = None
        self._has_paused = False
        self._beep_detector: BeepDetector | None = None

    def push_audio(self, pcm: Int16, rate_hz: int, now_ns: int) -> None:
        """Add audio of the callee, int16 [n], silence included."""
        if self._is_monologue(MENU_NS if self._detects_menus else LONG_NS, now_ns):
            self.is_machine = True
        if self._expects_beep(now_ns):
            if self._beep_detector is None:
                self._beep_detector = BeepDetector(rate_hz)
            if self._beep_detector.push(pcm):
                self.is_machine = self.is_greeting_over = True

    def speech_began(self, now_ns: int) -> None:
        """An utterance of the callee begins."""
        if self._speech_began_ns is None:
            self._speech_began_ns = now_ns

    def speech_ended(self) -> None:
        """An utterance is over; only the first one matters."""
        self._has_paused = True

    def carrier_reported(self, answered_by: str) -> None:
        """Take a later result of the carrier's detector."""
        self.is_machine = self.is_machine or answered_by.startswith(MACHINES)
        self.is_greeting_over = self.is_greeting_over or answered_by.startswith(MACHINE_END)
        self._is_person = self._is_person or answered_by == "human"

    def push_transcript(self, words: str, now_ns: int) -> None:
        """Take the transcript so far of the callee's current utterance."""
        if self._is_person or now_ns - self._began_ns >= WATCH_NS:
            return
        shown = answering(words, is_monologue=self._is_monologue(LONG_NS, now_ns))
        self.is_menu = self.is_menu or shown == "menu"
        if shown == "mailbox" or (self.is_menu and not self._detects_menus):
            self.is_machine = True

    @property
    def answered_by(self) -> str:
        """Result: "menu", "machine", "human"; empty: unknown."""
        if self.is_menu:
            return "menu"
        if self.is_machine:
            return "machine"
        return "human" if self._is_person else ""

    def _is_monologue(self, least_ns: int, now_ns: int) -> bool:
        """True while the first utterance has lasted at least this long."""
        began_ns = self._speech_began_ns
        if began_ns is None or self._has_paused or self._is_person:
            return False
        return now_ns - began_ns >= least_ns

    def _expects_beep(self, now_ns: int) -> bool:
        if self.is_greeting_over or self._is_person:
            return False
        return self.is_machine or now_ns - self._began_ns < WATCH_NS
