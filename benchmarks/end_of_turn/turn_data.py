"""`python -m benchmarks.end_of_turn.turn_data`: turns to fit and evaluate the end of turn on.

Theory of operation
-------------------
Two kinds of recordings become turns.

*Recordings of one voice* (prompts, book sentences) have no hesitations in them. Each is used twice:

* *command*: as it was spoken, pauses between its sentences included;
* *hesitant*: with 200-900 ms of room tone put in at one to three of its word boundaries.

Boundaries come from Whisper's word timestamps, which are good to a tenth of a second; each is moved
to the quietest place around it, and only those are used at which the level really drops. A cut
through a voiced sound would be a click that no caller makes. Punctuation plays no part in the
choice, so some of the pauses come after whole sentences: they can't be told from an end of turn by
ear, and they stay in, because callers make them.

Under every such turn, from before its first word until after its end, lies the same steady noise,
so that a spliced pause sounds like the rest.

*Recordings of many speakers* (`corpora.py`) keep their own pauses:

* *halting*: sentences read in a language that is not the speaker's first, mostly word by word;
* *numbers*: a name that is spelled, a telephone number, an address.

Before the first word and after the last, such a turn has noise with the spectrum of its own quiet
frames: silence of another kind would give the end away. A fifth of them goes through a telephone
line, a fifth has babble of other speakers of the same half under it, at 10 to 25 dB.

Everything is drawn from a seed and the recording's name: the same command writes the same bytes.
Recordings are split in two halves, those of many speakers by speaker and the others by name; fits
use one half, published figures come from the other.

Writes OUT/NAME.KIND.wav (16 kHz, PCM16), OUT/turns.jsonl, one `LabelledTurn` a line, and
OUT/card.json: speakers, turns and licences, and what was left out.

Where the recordings come from: Debian's `asterisk-core-sounds-en-wav`, `asterisk-core-sounds-en`
(texts) and `pocketsphinx-testdata`, unpacked, for `--sounds`;
`git clone --bare https://github.com/jimbozhang/speechocean762` for `--speechocean762`;
`git clone --bare https://github.com/Sakshee5/alphanumeric-audio-dataset` for `--alphanumeric`.
"""

import argparse
import dataclasses
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import soundfile
import soxr

from asr.__main__ import models_dir
from asr.audio.conversion import to_mono
from asr.audio.files import read_file
from asr.audio.samples import (
    RATE_HZ,
    VOICED_RANGE_DB,
    Pcm,
    frame_rms,
    last_voiced_sample,
    samples_from_ms,
    voiced_rms,
)
from asr.errors import AudioError, ModelError
from benchmarks.asr.latency import find_recordings, read_transcripts
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone
from benchmarks.signals.hesitations import FADE, levels_of, quietest_frame, room_tone, spliced

from .corpora import (
    ALPHANUMERIC,
    LICENCES,
    SPEECHOCEAN,
    CorpusFiles,
    CorpusRecording,
    alphanumeric,
    files_of,
    speechocean,
)

SEED: Final = 20261121

PAUSE_MS: Final = (200, 900)
"""Range of a hesitation's length in ms, uniform."""

MIN_WORDS: Final = 4

LEAD_MS: Final = 300
"""Length in ms of the room tone before the first word."""

TAIL_MS: Final = 2500
"""Length in ms of the room tone after the last word: longer than any rule waits."""

DIP_DB: Final = 15.0
"""Least drop in dB of a word boundary below the recording's loud frames."""

MIN_APART_S: Final = 0.5
"""Least time in s between two hesitations, and before the first: less is stammering."""

KEPT_MS: Final = 200
"""Length in ms of a recording's own sound that is kept behind its last voiced frame: a breath, the
echo of a room."""

MAX_CLIPPED: Final = 0.01
"""Greatest share of samples at full scale: beyond it a recording is distorted throughout."""

BABBLE_SNR_DB: Final = (10.0, 25.0)
"""Range in dB, uniform, of the voice above the babble."""

NUM_BABBLERS: Final = 4

CHANNELS: Final = ("plain", "plain", "plain", "telephone", "babble")
"""Channels of recordings of many speakers, with their shares."""

Kind = Literal["command", "hesitant", "halting", "numbers"]


@dataclass(frozen=True, slots=True)
class LabelledTurn:
    """One recording made into a turn, and where it ends. Positions are 16 kHz samples."""

    name: str
    """Name of the recording: the same for both kinds."""
    kind: Kind
    half: str
    """"a": to fit on. "b": held back."""
    file: str
    text: str
    end: int
    """Sample after the last voiced 20 ms, see `audio.last_voiced_sample`."""
    pauses: tuple[tuple[int, int], ...]
    """First sample and sample after the last of each spliced pause."""
    source: str = ""
    """Corpus; empty for recordings of one voice."""
    speaker: str = ""
    """Speaker's id in that corpus."""
    channel: str = "plain"
    """"plain", "telephone" or "babble"."""


@dataclass(frozen=True, slots=True)
class SourceRecording:
    """A recording, trimmed to its speech."""

    name: str
    pcm: Pcm
    text: str
    boundaries: tuple[int, ...]
    """Samples between words at which the sound drops."""


def half_of(name: str) -> str:
    """Half that a recording belongs to, as in `benchmarks/asr/latency.py`."""
    return "ab"[zlib.crc32(name.encode()) % 2]


def trimmed(pcm: Pcm) -> Pcm:
    """Trim to 0.1 s before the first voiced 20 ms and 0.1 s after the last."""
    last = last_voiced_sample(pcm)
    first = last_voiced_sample(pcm[::-1])
    if last is None or first is None:
        return pcm[:0]
    margin = RATE_HZ // 10
    return pcm[max(0, len(pcm) - 1 - first - margin) : last + 1 + margin]


def word_boundaries(pcm: Pcm, ends: list[float], starts: list[float]) -> tuple[int, ...]:
    """Samples between words at which the level drops by `DIP_DB`, ascending.

    `ends[i]` and `starts[i]` are the seconds between which word i ends and word i + 1 begins, as
    estimated by a recognizer.
    """
    levels = levels_of(pcm)
    if not len(levels):
        return ()
    quiet = float(np.quantile(levels, 0.95)) * 10 ** (-DIP_DB / 20)
    found = set()
    for end_s, start_s in zip(ends, starts, strict=True):
        place = quietest_frame(levels, end_s, start_s)
        if place is not None and place[1] <= quiet:
            found.add(place[0])
    return tuple(sorted(found))


def command_turn(source: SourceRecording, seed: int = SEED) -> tuple[LabelledTurn, Pcm]:
    """Command-like turn: the recording as it was spoken, in room tone."""
    return _turn(source, "command", [], np.random.default_rng(_key(seed, source, "command")))


def hesitant_turn(source: SourceRecording, seed: int = SEED) -> tuple[LabelledTurn, Pcm] | None:
    """Hesitant turn: the recording with pauses put in; None without a usable word boundary."""
    rng = np.random.default_rng(_key(seed, source, "hesitant"))
    wanted = int(rng.integers(1, 4))
    places: list[int] = []
    apart = int(MIN_APART_S * RATE_HZ)
    candidates = [at for at in source.boundaries if apart <= at <= len(source.pcm) - apart]
    for at in rng.permutation(np.array(candidates, np.int64)):
        if len(places) < wanted and all(abs(int(at) - other) >= apart for other in places):
            places.append(int(at))
    return _turn(source, "hesitant", sorted(places), rng) if places else None


def _turn(
    source: SourceRecording, kind: Kind, places: list[int], rng: np.random.Generator
) -> tuple[LabelledTurn, Pcm]:
    lead = samples_from_ms(LEAD_MS)
    lengths = [samples_from_ms(float(rng.uniform(*PAUSE_MS))) for _ in places]
    hesitant, pauses = spliced(source.pcm, places, lengths)
    speech = np.concatenate([np.zeros(lead, np.float32), hesitant])
    last_voiced = last_voiced_sample(speech)
    assert last_voiced is not None
    turn = LabelledTurn(
        source.name,
        kind,
        half_of(source.name),
        f"{source.name.replace('/', '_')}.{kind}.wav",
        source.text,
        last_voiced + 1,
        tuple((lead + first, lead + end) for first, end in pauses),
    )
    pcm = np.concatenate([speech, np.zeros(samples_from_ms(TAIL_MS), np.float32)])
    return turn, np.clip(pcm + room_tone(len(pcm), rng), -1, 1)


def _key(seed: int, source: SourceRecording, kind: Kind) -> list[int]:
    return [seed, zlib.crc32(source.name.encode()), len(kind)]


class UnusableRecording(AudioError):
    """A recording that no turn is made of; the message says why."""


def decoded(content: bytes) -> Pcm:
    """Sound of a file as float32 [n] at 16 kHz, channels averaged. Raises UnusableRecording for
    one that is no sound file, silent, clipped, or so noisy that its last word can't be found."""
    try:
        sound, rate_hz = soundfile.read(io.BytesIO(content), dtype="float32")
    except soundfile.LibsndfileError:
        raise UnusableRecording("not a sound file") from None
    pcm = to_mono(sound)
    if len(pcm) and float((np.abs(pcm) >= 0.999).mean()) > MAX_CLIPPED:
        raise UnusableRecording("clipped")
    if rate_hz != RATE_HZ and len(pcm):
        pcm = soxr.resample(pcm, rate_hz, RATE_HZ, quality="HQ")
    rms = frame_rms(pcm)
    if not len(rms) or float(np.quantile(rms, 0.99)) < 1e-3:
        raise UnusableRecording("silent")
    floor, loud = (float(each) for each in np.quantile(rms, (0.05, 0.99)))
    if floor > loud * 10 ** (-(VOICED_RANGE_DB + 3) / 20):
        raise UnusableRecording("noisy")
    return pcm


def recorded_turn(
    recording: CorpusRecording, pcm: Pcm, babble: Pcm, seed: int = SEED
) -> tuple[LabelledTurn, Pcm]:
    """Turn of a recording with its own pauses. `pcm`: float32 [n] at 16 kHz with a voiced frame.
    `babble`: other speakers, float32 [m], laid under a fifth of the turns."""
    kind: Kind = "numbers" if recording.corpus == ALPHANUMERIC else "halting"
    name = f"{recording.corpus}/{recording.name}"
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    channel = CHANNELS[int(rng.integers(len(CHANNELS)))]
    last = last_voiced_sample(pcm)
    first = last_voiced_sample(pcm[::-1])
    assert last is not None
    assert first is not None
    start = max(0, len(pcm) - 1 - first - RATE_HZ // 10)
    speech = pcm[start : last + 1 + samples_from_ms(KEPT_MS)]
    lead, tail = samples_from_ms(LEAD_MS), samples_from_ms(TAIL_MS)
    tone = own_room_tone(pcm, lead + len(speech) + tail, rng)
    sound = tone.copy()
    weight = np.ones(len(speech), np.float32)
    ramp = np.linspace(0, 1, FADE, dtype=np.float32)
    weight[:FADE], weight[-FADE:] = ramp, ramp[::-1]
    sound[lead : lead + len(speech)] *= 1 - weight
    sound[lead : lead + len(speech)] += speech * weight
    if channel == "babble" and len(babble):
        at = int(rng.integers(len(babble)))
        under = np.resize(np.roll(babble, -at), len(sound))
        snr_db = float(rng.uniform(*BABBLE_SNR_DB))
        gain = voiced_rms(pcm) / max(1e-9, float(np.sqrt(np.mean(under**2))))
        sound = sound + under * np.float32(gain * 10 ** (-snr_db / 20))
    elif channel == "telephone":
        line = over_telephone(np.clip(sound * 32767, -32768, 32767).astype(np.int16), RATE_HZ)
        heard = soxr.resample(line.astype(np.float32) / 32768, LINE_RATE_HZ, RATE_HZ, quality="HQ")
        sound = np.resize(heard, len(sound))
    turn = LabelledTurn(
        name,
        kind,
        recording.half,
        f"{name.replace('/', '_')}.{kind}.wav",
        recording.text,
        lead + last + 1 - start,
        (),
        recording.corpus,
        recording.speaker,
        channel,
    )
    return turn, np.clip(sound, -1, 1)


def own_room_tone(pcm: Pcm, length: int, rng: np.random.Generator) -> Pcm:
    """Noise with the spectrum and level of the quietest twentieth of a recording, float32
    [length]."""
    frame = RATE_HZ // 50
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame)
    rms = np.sqrt((frames**2).mean(axis=1))
    quiet = frames[np.argsort(rms, kind="stable")[: max(3, len(frames) // 20)]]
    power = (np.abs(np.fft.rfft(quiet * np.hanning(frame), axis=1)) ** 2).mean(axis=0)
    spectrum = np.fft.rfft(rng.standard_normal(length))
    hz = np.fft.rfftfreq(length, 1 / RATE_HZ)
    shape = np.sqrt(np.interp(hz, np.fft.rfftfreq(frame, 1 / RATE_HZ), power))
    noise = np.fft.irfft(spectrum * shape, length)
    level = float(np.sqrt((quiet**2).mean()))
    return (noise * (level / max(1e-12, float(noise.std())))).astype(np.float32)


def babble_of(voices: Sequence[Pcm]) -> Pcm:
    """Voices over each other, float32 [n], each as loud as the next and without its silence at
    both ends; as long as the longest of them."""
    usable = [trimmed(pcm) / max(1e-6, voiced_rms(pcm)) for pcm in voices[:NUM_BABBLERS]]
    usable = [pcm for pcm in usable if len(pcm)]
    length = max(map(len, usable), default=0)
    mixed = np.zeros(length, np.float32)
    for pcm in usable:
        mixed += np.resize(pcm, length).astype(np.float32)
    return mixed


def recorded_turns(
    files: CorpusFiles, recordings: Sequence[CorpusRecording], left_out: Counter[str], seed: int
) -> Iterator[tuple[LabelledTurn, Pcm]]:
    """Turns of a corpus; counts what is left out by its reason. The babble under a turn is of the
    recordings before it, of its half."""
    heard: dict[str, list[Pcm]] = {"a": [], "b": []}
    contents = files.read_all([one.path for one in recordings])
    for recording, content in zip(recordings, contents, strict=True):
        try:
            if content is None:
                raise UnusableRecording("not in the repository")
            pcm = decoded(content)
        except UnusableRecording as reason:
            left_out[str(reason)] += 1
            continue
        yield recorded_turn(recording, pcm, babble_of(heard[recording.half]), seed)
        heard[recording.half] = [pcm, *heard[recording.half]][:NUM_BABBLERS]


def read_texts(path: Path) -> dict[str, str]:
    """Read texts as `read_transcripts` of `benchmarks/asr/latency.py` does, and Sphinx's format
    `<s> words </s> (name)`."""
    text = path.read_bytes()
    if b"</s>" in text:
        lines = re.findall(r"<s>(.*)</s>\s*\((.*)\)", text.decode("utf-8", "replace"))
        return {name: said.strip() for said, name in lines}
    return read_transcripts(path)


def read_turns(folder: Path) -> list[LabelledTurn]:
    """Read the turns that `main` wrote into `folder`. Raises AudioError if there are none."""
    try:
        lines = (folder / "turns.jsonl").read_text(encoding="utf-8").splitlines()
        turns = [LabelledTurn(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise AudioError(
            f"{folder}: no turns in it ({error}); "
            "make them with `python -m benchmarks.end_of_turn.turn_data`"
        ) from error
    return [
        dataclasses.replace(one, pauses=tuple((first, end) for first, end in one.pauses))
        for one in turns
    ]


def _sources(args: argparse.Namespace) -> list[SourceRecording]:
    if not args.sounds:
        return []
    from faster_whisper import WhisperModel

    aligner = WhisperModel(str(args.model), device="cpu", compute_type="int8", cpu_threads=2)
    found: list[SourceRecording] = []
    for folder, texts in args.sounds:
        for one in find_recordings(Path(folder), read_texts(Path(texts)), MIN_WORDS):
            pcm = trimmed(read_file(one.path))
            words: list[Any] = []
            if len(pcm):
                segments, _ = aligner.transcribe(
                    pcm, language="en", beam_size=1, word_timestamps=True
                )
                words = [word for segment in segments for word in segment.words or ()]
            ends, starts = [w.end for w in words[:-1]], [w.start for w in words[1:]]
            found.append(
                SourceRecording(one.name, pcm, one.text, word_boundaries(pcm, ends, starts))
            )
    return [one for one in found if len(one.pcm)]


def _made(args: argparse.Namespace, card: dict[str, Any]) -> Iterator[tuple[LabelledTurn, Pcm]]:
    """Turns of all sources; what is left out goes into the card."""
    for one in _sources(args):
        yield command_turn(one, args.seed)
        hesitant = hesitant_turn(one, args.seed)
        if hesitant is not None:
            yield hesitant
    if args.speechocean762 is not None:
        files = files_of(args.speechocean762, SPEECHOCEAN)
        recordings = speechocean(files, args.per_speaker)
        yield from recorded_turns(files, recordings, card["left_out"][SPEECHOCEAN], args.seed)
    if args.alphanumeric is not None:
        files = files_of(args.alphanumeric, ALPHANUMERIC)
        left_out = card["left_out"][ALPHANUMERIC]
        yield from recorded_turns(files, alphanumeric(files), left_out, args.seed)


def _run(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    card: dict[str, Any] = {"left_out": {SPEECHOCEAN: Counter(), ALPHANUMERIC: Counter()}}
    made: list[LabelledTurn] = []
    with (args.out / "turns.jsonl").open("w", encoding="utf-8") as lines:
        for turn, pcm in _made(args, card):
            soundfile.write(args.out / turn.file, pcm, RATE_HZ, subtype="PCM_16")
            lines.write(json.dumps(dataclasses.asdict(turn)) + "\n")
            made.append(turn)
    if not made:
        raise AudioError("no usable recording: give --sounds, --speechocean762 or --alphanumeric")
    card["sources"] = card_of(made)
    text = json.dumps(card, indent=1) + "\n"
    (args.out / "card.json").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


def card_of(turns: Sequence[LabelledTurn]) -> list[dict[str, Any]]:
    """Speakers, turns and seconds of speech by source, kind and half, with the licence."""
    rows = []
    for source, kind, half in sorted({(one.source, one.kind, one.half) for one in turns}):
        ours = [one for one in turns if (one.source, one.kind, one.half) == (source, kind, half)]
        rows.append({
            "source": source or "recordings of one voice (--sounds)",
            "licence": LICENCES[source][1] if source else "that of the package or folder",
            "kind": kind,
            "half": half,
            "speakers": len({one.speaker for one in ours}),
            "turns": len(ours),
            "seconds": round(sum(one.end for one in ours) / RATE_HZ),
            "channels": dict(sorted(Counter(one.channel for one in ours).items())),
        })  # fmt: skip
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.turn_data", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument(
        "--sounds",
        nargs=2,
        action="append",
        default=[],
        metavar=("DIR", "TEXTS"),
        help="recordings and their transcripts, as for `halfsec bench asr`; may be repeated",
    )
    parser.add_argument(
        "--speechocean762", type=Path, metavar="DIR", help="the corpus, as files or git repository"
    )
    parser.add_argument(
        "--per-speaker",
        type=int,
        default=2,
        help="recordings of each of its speakers (%(default)s)",
    )
    parser.add_argument(
        "--alphanumeric",
        type=Path,
        metavar="DIR",
        help="alphanumeric-audio-dataset, as files or git repository",
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--model", type=Path, default=models_dir() / "whisper-tiny.en")
    try:
        return _run(parser.parse_args(argv))
    except (AudioError, ModelError, OSError) as error:
        print(f"turn_data: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
