"""`python -m benchmarks.overlaps.clips`: a folder of what callers say over the agent.

    OUT/backchannels/VOICE/WORDS.wav
    OUT/interruptions/VOICE/WORDS.wav
    OUT/sources.json

Voices are those of Pico (Apache-2.0, the extra `languages`), those of Piper that are installed,
those of flite (a BSD licence; Debian's package of that name) and, with `--commands`, speakers of
the Speech Commands data (CC BY 4.0): people who said single words. The agent's own voice is none of
them. A voice of another language says English words by English spelling, or by the spelling that
sounds alike in its own (`SPELLED`): which makes an accent that no English voice has.

`sources.json` says of each voice whether it is synthesized or recorded, its licence, and whether it
is held out: no threshold was chosen by what such a voice says.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import soundfile
import soxr

import asr
from agent.client.simulated_caller.microphone import RecordingError, load_recording
from agent.errors import BenchError
from asr.audio.samples import last_voiced_sample
from benchmarks.end_of_turn.simulated_call import Float32
from benchmarks.signals.recordings import SUFFIXES

Kind = Literal["backchannels", "interruptions"]

BACKCHANNELS: Final = (
    "mm-hmm", "uh-huh", "yeah", "right", "okay", "I see", "sure", "wow", "ah", "oh really",
    "got it", "yeah yeah",
)  # fmt: skip

INTERRUPTIONS: Final = (
    "stop", "wait", "no", "hold on a second", "no, I meant Thursday", "hang on", "excuse me",
    "sorry, what was that", "actually, never mind", "that's wrong", "not that one",
    "can you repeat that", "Thursday", "the other one",
)  # fmt: skip

SPELLED: Final = {
    "de-DE": {
        "mm-hmm": "mhm", "uh-huh": "aha", "yeah": "jäh", "right": "reit", "I see": "ei sieh",
        "sure": "schur", "wow": "wau", "oh really": "oh riehli", "got it": "gott itt",
        "yeah yeah": "jäh jäh", "stop": "stopp", "wait": "wäit", "no": "nou",
        "hold on a second": "hold onn ä seckend", "no, I meant Thursday": "nou, ei ment Sörsdäi",
        "hang on": "häng onn", "excuse me": "ekskjus mi",
        "sorry, what was that": "sorri, wott wos sätt",
        "actually, never mind": "äktschuälli, newwer meind", "that's wrong": "sätts rong",
        "not that one": "nott sätt wann", "can you repeat that": "känn ju ripiet sätt",
        "Thursday": "Sörsdäi", "the other one": "sie asser wann",
    },
    "es-ES": {
        "yeah": "yea", "right": "rait", "I see": "ai sí", "sure": "shur", "wow": "uau",
        "wait": "ueit", "hold on a second": "jold on a sékond",
        "no, I meant Thursday": "no, ai ment zérsdei", "hang on": "jang on",
        "excuse me": "exkiús mi", "sorry, what was that": "sori, uot uos dat",
        "actually, never mind": "ákchuali, néver maind", "that's wrong": "dats rong",
        "not that one": "not dat uan", "can you repeat that": "can yu ripít dat",
        "Thursday": "zérsdei", "the other one": "di óder uan",
    },
    "fr-FR": {
        "yeah": "yé", "right": "raïte", "I see": "aille si", "sure": "chour", "wow": "ouaou",
        "wait": "ouète", "hold on a second": "holde onne e sécande",
        "no, I meant Thursday": "nô, aille mennte feurzdé", "hang on": "hangue onne",
        "excuse me": "exquiouze mi", "sorry, what was that": "sori, ouate ouaze zate",
        "actually, never mind": "actchouali, nèveur maïnde", "that's wrong": "zatse rongue",
        "not that one": "note zate ouane", "can you repeat that": "canne you ripite zate",
        "Thursday": "feurzdé", "the other one": "zi ozeur ouane",
    },
    "it-IT": {
        "yeah": "iea", "right": "rait", "I see": "ai si", "sure": "sciur", "wow": "uau",
        "wait": "ueit", "hold on a second": "old on a sècond",
        "no, I meant Thursday": "no, ai ment tersdei", "hang on": "ang on",
        "excuse me": "exchiùs mi", "sorry, what was that": "sori, uot uos dat",
        "actually, never mind": "àcciuali, never maind", "that's wrong": "dats rong",
        "not that one": "not dat uan", "can you repeat that": "chen iu ripìt dat",
        "Thursday": "tersdei", "the other one": "di ader uan",
    },
}  # fmt: skip
"""English words spelled for voices of other languages, which read "wait" as they would at home."""

FLITE_PHONES: Final = {"mm-hmm": "pau m m hh m m pau"}
"""Phones of what flite would spell letter by letter."""

COMMANDS: Final[tuple[tuple[Kind, tuple[str, ...]], ...]] = (
    ("backchannels", ("right", "wow", "yes")),
    ("interruptions", ("no", "stop")),
)
"""Words of the Speech Commands data that are said over an agent."""

PICO: Final = ("en-US", "en-GB", "de-DE", "es-ES", "fr-FR", "it-IT")
FLITE: Final = ("awb", "kal16", "rms", "slt")
PIPER: Final = ("piper-joe",)

HELD_OUT: Final = frozenset({"pico-en-GB", "pico-es-ES", "pico-fr-FR"})
"""Voices that no threshold was chosen by."""

Speak = Callable[[str], Float32]


@dataclass(frozen=True, slots=True)
class Clip:
    """Words said over the agent."""

    kind: Kind
    voice: str
    words: str
    is_recorded: bool
    """False: synthesized."""
    is_held_out: bool
    """No threshold was chosen by this voice."""
    pcm: Float32
    """[n] at 16 kHz, from the first to the last voiced sample."""
    is_accented: bool = False
    """A synthetic voice of another language."""


def trimmed(pcm: Float32) -> Float32:
    """The voiced part."""
    last, first = last_voiced_sample(pcm), last_voiced_sample(pcm[::-1])
    return pcm[:0] if last is None or first is None else pcm[len(pcm) - 1 - first : last + 1]


def read_clips(folder: Path) -> list[Clip]:
    """Clips of a folder, by kind, voice and words. Raises BenchError."""
    try:
        sources = json.loads((folder / "sources.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        sources = {}
    found = []
    kinds: tuple[Kind, ...] = ("backchannels", "interruptions")
    for kind in kinds:
        for path in sorted((folder / kind).rglob("*")):
            if path.suffix.lower() not in SUFFIXES:
                continue
            try:
                pcm, rate_hz = load_recording(path)
            except RecordingError as error:
                raise BenchError(str(error)) from None
            voice = path.parent.name
            sound = trimmed(_at_16_khz(pcm, rate_hz))
            source = sources.get(voice, {})
            is_recorded = source.get("made", "recorded") == "recorded"
            is_held_out = bool(source.get("held_out"))
            is_accented = bool(source.get("accented"))
            found.append(Clip(kind, voice, path.stem, is_recorded, is_held_out, sound, is_accented))
    if not found:
        raise BenchError(
            f"There are no recordings in {folder}/backchannels/VOICE or {folder}/interruptions/"
            "VOICE. Make some with `python -m benchmarks.overlaps.clips`."
        )
    return found


def _at_16_khz(pcm: "np.ndarray", rate_hz: int) -> Float32:
    sound = pcm.astype(np.float32) / np.float32(32768)
    if rate_hz == asr.RATE_HZ:
        return sound
    return np.asarray(soxr.resample(sound, rate_hz, asr.RATE_HZ, quality="HQ"), np.float32)


def pico(voice: str, text: str) -> Float32:
    """Speech of a text by a voice of Pico ("en-US"): [n] at 16 kHz. Raises BenchError."""
    try:
        import py_nanotts
    except ImportError:
        raise BenchError(
            "Pico's voices need py-nanotts: pip install 'halfsec[languages]'."
        ) from None

    spelled = SPELLED.get(voice, {}).get(text, text)
    pcm = py_nanotts.NanoTTS().speak(spelled, voice=voice)
    return _at_16_khz(np.frombuffer(pcm, "<i2"), 16_000)


def _flite(program: str, voice: str, text: str) -> Float32:
    with tempfile.NamedTemporaryFile(suffix=".wav") as made:
        phones = FLITE_PHONES.get(text)
        said = ["-t", text] if phones is None else ["-p", phones]
        command = [program, "-voice", voice, *said, "-o", made.name]
        subprocess.run(command, check=True, capture_output=True)
        pcm, rate_hz = load_recording(Path(made.name))
    return _at_16_khz(pcm, rate_hz)


def _installed(name: str, folder: Path) -> Speak:
    import tts
    from tts.text_chunker import SpeakablePiece

    voice = tts.load_voice(name, folder)

    def speak(words: str) -> Float32:
        text = f"{words[0].upper()}{words[1:]}."
        piece = SpeakablePiece(text, (0, len(text)), 0, is_last=True)
        pcm = np.concatenate([chunk.pcm for chunk in voice.synthesize(piece)])
        return _at_16_khz(pcm, voice.rate_hz)

    return speak


def voices(flite: str | None) -> dict[str, tuple[str, Speak]]:
    """Licence and function from words to sound of each synthetic voice. Raises BenchError."""
    import tts
    from agent.stages.model_store.catalogue import ModelStore
    from tts.load import available_voices

    made: dict[str, tuple[str, Speak]] = {
        f"pico-{name}": ("Apache-2.0", partial(pico, name)) for name in PICO
    }
    if flite is not None:
        for name in FLITE:
            made[f"flite-{name}"] = ("BSD-like (Carnegie Mellon)", partial(_flite, flite, name))
    folder = ModelStore().directory
    try:
        for name in set(PIPER) & set(available_voices(folder)):
            made[name] = ("CC0 (data of the voice)", _installed(name, folder))
    except tts.VoiceError as error:
        raise BenchError(f"No voice can be used: {error}") from None
    return made


def write_clips(out: Path, flite: str | None, commands: Path | None) -> None:
    """Write the folder. Raises BenchError."""
    sources: dict[str, dict[str, str | bool]] = {}
    texts: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("backchannels", BACKCHANNELS),
        ("interruptions", INTERRUPTIONS),
    )
    for voice, (licence, speak) in sorted(voices(flite).items()):
        sources[voice] = {
            "made": "synthesized",
            "licence": licence,
            "held_out": voice in HELD_OUT,
            "accented": voice.removeprefix("pico-") in SPELLED,
        }
        for kind, lines in texts:
            folder = out / kind / voice
            folder.mkdir(parents=True, exist_ok=True)
            for words in lines:
                sound = trimmed(speak(words))
                if len(sound):
                    soundfile.write(folder / f"{words}.wav", sound, asr.RATE_HZ, subtype="PCM_16")
    for kind, words_of_kind in COMMANDS if commands is not None else ():
        assert commands is not None
        for words in words_of_kind:
            for path in sorted((commands / words).glob("*.wav")):
                voice = path.stem.split("_")[0]
                sources[voice] = {"made": "recorded", "licence": "CC BY 4.0 (Speech Commands)"}
                (out / kind / voice).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, out / kind / voice / f"{words}.wav")
    out.joinpath("sources.json").write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlaps.clips",
        description="Make what callers say over the agent: backchannels and interruptions.",
    )
    add = parser.add_argument
    add("out", type=Path)
    add("--flite", metavar="PROGRAM", help="flite, for four more voices")
    add("--commands", type=Path, metavar="DIR", help="folder of the Speech Commands data")
    options = parser.parse_args(argv)
    try:
        write_clips(options.out, options.flite, options.commands)
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        print(f"clips: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
