"""Engines of other packages: loaded by their entry points, and checked at each sentence.

A wrong number format or a wrong rate is no error of numpy's: it is noise, or a voice that speaks
too fast. So it is named here, before anybody hears it.
"""

import logging
from typing import Any, Final

import numpy as np

from engine_plugins.discovery import Member, PluginError, PluginKind, load_plugin, said
from engine_plugins.reference import PluginReference

from .engine import RawSpeech, SynthesisEngine, VoiceError, VoiceOptions

MEMBERS: Final[dict[str, Member]] = {"rate_hz": "attribute", "speak": "method"}
"""Members of a `SynthesisEngine`."""

MIN_RATE_HZ: Final = 8_000
MAX_RATE_HZ: Final = 48_000
"""Rates of speech. A telephone line hears 8 kHz, a browser at most 48."""

_log = logging.getLogger(__name__)


class CheckedEngine:
    """A `SynthesisEngine` of another package, whose results are checked."""

    def __init__(self, engine: SynthesisEngine, owner: str) -> None:
        """`owner`: whose engine it is, in a sentence. Raises VoiceError for an impossible rate."""
        rate_hz: Any = engine.rate_hz
        is_number = isinstance(rate_hz, int | np.integer) and not isinstance(rate_hz, bool)
        if not is_number or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            raise VoiceError(
                f"{owner} has rate_hz = {rate_hz!r}: it must be a whole number from {MIN_RATE_HZ} "
                f"to {MAX_RATE_HZ}, the samples per second that speak() returns. An engine with "
                "another rate resamples its output first"
            )
        self.rate_hz = int(rate_hz)
        self._engine = engine
        self._owner = owner

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        """See `SynthesisEngine.speak`. Raises TypeError and ValueError for what is no speech, and
        VoiceError with the class of what the engine raises: its text may hold an address or a key,
        and goes to the log."""
        try:
            raw: Any = self._engine.speak(line, speed)
        except Exception as error:
            _log.warning("%s failed: %s", self._owner, said(error))
            raise VoiceError(type(error).__name__) from error
        if not isinstance(raw, RawSpeech):
            raise TypeError(
                f"speak() returned {type(raw).__name__}, and must return tts.RawSpeech(samples)"
            )
        samples: Any = raw.samples
        if not isinstance(samples, np.ndarray) or samples.dtype != np.float32 or samples.ndim != 1:
            shape = getattr(samples, "shape", ())
            kind = f"{getattr(samples, 'dtype', type(samples).__name__)} {list(shape)}"
            raise TypeError(
                f"speak() returned samples that are {kind}, and must return a float32 array [n], "
                "mono, within -1..1"
            )
        if not np.isfinite(samples).all():
            raise ValueError("speak() returned samples that are not finite (NaN or infinite)")
        return raw


def load_plugin_engine(reference: PluginReference, options: VoiceOptions) -> CheckedEngine:
    """The engine that a plug-in makes. Raises VoiceError, which says which package is at fault."""
    try:
        engine = load_plugin(PluginKind.VOICE, reference, options, MEMBERS)
    except PluginError as error:
        raise VoiceError(str(error)) from error
    return CheckedEngine(engine, f"the voice {reference}")
